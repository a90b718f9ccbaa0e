"""Two sides in the same state: topics, records and a group for each, on one broker."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from keylane.proxy.apis import ROUTES
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_response
from tests.integration.differential import Side
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.questions import GROUP, SIDES, TOPICS, Question, make_question

SETTINGS: Final = {"auto.create.topics.enable": "false", "log.retention.ms": "-1"}
WARM_UP_QUESTIONS: Final = 60
NOT_YET: Final = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)


@contextmanager
def both_sides(folder: Path) -> Iterator[tuple[Side, Side]]:
    """A broker that nothing else uses, and keylane in front of it."""
    with (
        EmbeddedKafka(folder / "kafka", properties=SETTINGS) as broker,
        sides_of(broker.bootstrap, folder / "keylane.log") as pair,
    ):
        yield pair


@contextmanager
def sides_of(bootstrap: str, log_path: Path) -> Iterator[tuple[Side, Side]]:
    """A broker, with its twins made, and keylane in front of it."""
    ids = make_twins(bootstrap)
    proxy = KeylaneProcess(bootstrap, ("lanes-*=4",), log_path=log_path)
    proxy.start()
    pair = Side(bootstrap, 0, ids[0]), Side(proxy.bootstrap, 1, ids[1])
    try:
        warm_up(pair[0])
        yield pair
    finally:
        for side in pair:
            side.close()
        proxy.stop()


def ask_all(through: Side, count: int, seed: int) -> list[Question]:
    """Return `count` questions of every API and version of keylane, without ApiVersions."""
    return [
        make_question(key, version, number, seed)
        for key, (low, high) in offered(through).items()
        for version in range(max(low, ROUTES[key].version_min), high + 1)
        for number in range(count)
        if key != ApiKey.API_VERSIONS
    ]


def offered(side: Side) -> dict[int, tuple[int, int]]:
    """API keys with their versions, by ApiVersions."""
    body = side.ask(18, 3, make_question(18, 3, 0, 0).body)
    assert isinstance(body, bytes), f"{side.address}: {body}"
    answer = read_response(18, 3, memoryview(body))
    return {int(one.api_key): (one.min_version, one.max_version) for one in answer.api_keys}


def name_on(side: int, name: str) -> str:
    """A marked name as it is on one side."""
    return name.replace("-@@-", SIDES[side].decode())


def make_twins(bootstrap: str) -> list[dict[str, uuid.UUID]]:
    """Topics, records and a group with offsets for each side; the ids by marked name."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [(name_on(side, name), count) for side in (0, 1) for name, count in TOPICS.items()]
    for made in admin.create_topics([NewTopic(*one, 1) for one in names]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": bootstrap})
    for name, count in names:
        if "empty" not in name:
            for number in range(5 * count):
                at = 1_700_000_000_000 + number
                producer.produce(name, b"v", b"k", number % count, timestamp=at)
    assert producer.flush(30) == 0
    for side in (0, 1):
        group = {"bootstrap.servers": bootstrap, "group.id": name_on(side, GROUP)}
        member = Consumer(group)
        place = TopicPartition(name_on(side, "diff-@@-three"), 1, 3, metadata="note")
        commit(member, place)
        member.close()
    asked = admin.describe_topics(TopicCollection([name for name, _ in names]))
    found = {name: uuid.UUID(str(_uuid(one.result(30).topic_id))) for name, one in asked.items()}
    return [{name: found[name_on(side, name)] for name in TOPICS} for side in (0, 1)]


def commit(member: Consumer, place: TopicPartition) -> None:
    """Commit, as soon as the new broker has loaded the offsets of groups."""
    while True:
        try:
            member.commit(offsets=[place], asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in NOT_YET:
                raise
        else:
            return


def _uuid(kafka_id: Any) -> uuid.UUID:
    high, low = kafka_id.get_most_significant_bits(), kafka_id.get_least_significant_bits()
    return uuid.UUID(int=(high % 2**64) << 64 | low % 2**64)


def warm_up(side: Side) -> None:
    """Have the broker make its internal topics, which it does when they are first asked for."""
    for number in range(WARM_UP_QUESTIONS):
        side.ask(10, 6, make_question(10, 6, number, 0).on(0, side.ids))
