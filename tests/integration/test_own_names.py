"""keylane's own topics in strangers' hands: bad records are set aside, changes are refused."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewPartitions

from keylane.config.own_names import JOURNAL_TOPIC, OWN_TOPICS, SCANS_TOPIC, SETTINGS_TOPIC
from keylane.embedded import EmbeddedKafka
from keylane.keyrange.space import HASH_MAX
from keylane.offsets.records.journal import (
    PositionsValue,
    RangeKey,
    RangeValue,
    StateKey,
    ic_partition,
    write_key,
    write_value,
)
from keylane.offsets.values import Position
from keylane.proxy.topics.settings_records import VERSION_ROOM
from tests.integration.conftest import make_topic_factory
from tests.integration.harness import produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.secured import Login, allow, revoke, rule
from tests.integration.secured_stage import Stage

WAIT_S = 60.0
REFUSED = KafkaError.TOPIC_AUTHORIZATION_FAILED
GROUP = "poisoned"
A = b'["assignment","c"]'
SETTINGS: list[tuple[bytes | None, bytes | None]] = [
    (b"[" * 100_000, b"{}"),
    (A, b"[" * 100_000),
    (A, b'{"format":1,"topics":{"orders":{"0":[[Infinity,1]]}}}'),
    (A, b'{"format":1,"topics":{"orders":{"0":[["' + b"9" * 5000 + b'","1"]]}}}'),
    (b'["assignments"]', b'{"format":1,"version":' + b"9" * 3999 + b"}"),
    (b'["assignments"]', b'{"format":1,"version":%d}' % (2 * VERSION_ROOM)),
    (b"\xff\xfe", b"\xff"),
    (b"nonsense", None),
]
HEAD = struct.pack(">hi16s", 0, 9, bytes(16))
SCANS = [b"", b"\0", HEAD + b"\x7f\xff\xff\xff", HEAD + b"x" * 500_000]


def write(bootstrap: str, topic: str, records: list[tuple[Any, Any, int]]) -> None:
    """Write (key, value, partition) with a stock producer. Raises: KafkaException."""
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, value, partition in records:
        producer.produce(
            topic,
            key=key,
            value=value,
            partition=partition,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
    assert producer.flush(WAIT_S) == 0
    if errors:
        raise KafkaException(errors[0])


def journal_records(topic_id: uuid.UUID, count: int) -> list[tuple[Any, Any, int]]:
    """A sound state whose range ends where no position can follow, garbage, and a wrong place."""
    state = StateKey(GROUP, topic_id, 0)
    position = Position(offset=1, counted=1, committed=True)
    value = PositionsValue(
        timestamp_ms=1, pushed=None, topic_name="t", positions=((HASH_MAX, position),)
    )
    place = ic_partition(GROUP, count)
    return [
        (write_key(RangeKey(state, 0, 2**63 - 1)), write_value(RangeValue(timestamp_ms=1)), place),
        (write_key(StateKey(GROUP, topic_id, 99)), write_value(value)[:-3], place),
        (write_key(state), write_value(value), (place + 1) % count),
        (b"\0", b"", place),
    ]


def get(proxy: KeylaneProcess, path: str) -> tuple[int, str]:
    """Status and body of the control port."""
    try:
        with urllib.request.urlopen(f"http://{proxy.control}{path}", timeout=WAIT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def assign(proxy: KeylaneProcess, client_id: str, topic: str) -> int:
    """PATCH an assignment of all of partition 0; the new version."""
    body = {"assignments": {client_id: [{"topic": topic, "partition": 0, "ranges": []}]}}
    request = urllib.request.Request(
        f"http://{proxy.control}/assignments",
        data=json.dumps(body).encode(),
        method="PUT",
        headers={"Content-Type": "application/json", "If-Match": "*"},
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310
        return int(json.load(answer)["version"])


def consume(bootstrap: str, topic: str, count: int) -> None:
    """Read so many records as the poisoned group, and commit them."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        for _ in range(count):
            message = consumer.poll(WAIT_S)
            assert message is not None and message.error() is None, message
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


@pytest.mark.timeout(400)
def test_poisoned_records_are_set_aside(own_broker: EmbeddedKafka, keylane: Any) -> None:
    """Written while keylane runs, one of them through it; it goes on, starts again, and says so.

    Without an authorizer every client may alter the cluster, so the one through it is taken.
    """
    bootstrap = own_broker.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topic = make_topic_factory(admin, "poison")("t", partitions=1)
    produce(bootstrap, topic, ["a", "b", "c", "d"], rounds=2)
    proxy = keylane(f"{topic}=4", bootstrap=bootstrap, args=["--node", "0"])
    assert get(proxy, "/readyz") == (200, "ok\n")
    consume(proxy.bootstrap, topic, 8)
    assert assign(proxy, "before", topic) == 1

    count = len(admin.list_topics(JOURNAL_TOPIC, timeout=WAIT_S).topics[JOURNAL_TOPIC].partitions)
    write(bootstrap, SCANS_TOPIC, [(None, value, 0) for value in SCANS])
    write(bootstrap, JOURNAL_TOPIC, journal_records(uuid.uuid4(), count))
    write(bootstrap, SETTINGS_TOPIC, [(key, value, 0) for key, value in SETTINGS[1:]])
    write(proxy.bootstrap, SETTINGS_TOPIC, [(*SETTINGS[0], 0)])

    proxy.wait_for_log(f"record set aside topic={SETTINGS_TOPIC}", count=len(SETTINGS))
    proxy.wait_for_log(f"record set aside topic={SCANS_TOPIC}", count=len(SCANS))
    assert assign(proxy, "after", topic) == 2, "later records count"
    known = {SETTINGS_TOPIC: len(SETTINGS), SCANS_TOPIC: len(SCANS)}
    assert said(proxy).items() >= known.items()  # a partition of the journal may be read meanwhile

    proxy.restart()

    found = said(proxy)
    assert found[SETTINGS_TOPIC] == len(SETTINGS) and found[JOURNAL_TOPIC] == 4
    _, metrics = get(proxy, "/metrics")
    assert f'keylane_records_set_aside{{topic="{JOURNAL_TOPIC}"}} 4.0' in metrics
    status, body = get(proxy, "/assignments")
    assert status == 200 and sorted(json.loads(body)["assignments"]) == ["after"]
    assert assign(proxy, "again", topic) == 3
    produce(bootstrap, topic, ["e", "f"], rounds=1)
    consume(proxy.bootstrap, topic, 2)
    assert "Traceback" not in proxy.log
    assert "[[[[" not in proxy.log and "9" * 20 not in proxy.log, "no record is in the log"


def said(proxy: KeylaneProcess) -> dict[str, int]:
    """Return the lines of /readyz on records that were set aside, by topic; its status is 200."""
    status, body = get(proxy, "/readyz")
    assert status == 200 and body.startswith("ok\n")
    lines = [line.split() for line in body.splitlines()[1:]]
    assert all(line[:2] == ["set", "aside:"] and "offset" in line for line in lines)
    return {line[5].rstrip(","): int(line[2]) for line in lines}


# -- refusals ----------------------------------------------------------------------------


def config_of(bootstrap: str, login: Login, **more: Any) -> dict[str, Any]:
    """Return the configuration of a librdkafka client that logs in."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(login.ca),
        "sasl.mechanisms": login.mechanism,
        "sasl.username": login.user,
        "sasl.password": login.password,
        "log_level": 0,
        **more,
    }


def outcome(doing: Callable[[], Any]) -> int:
    """Kafka's code of what came of it; 0: done."""
    try:
        doing()
    except KafkaException as error:
        code: int = error.args[0].code()
        return code
    return 0


def deliver(bootstrap: str, login: Login, topics: list[str]) -> dict[str, int]:
    """Kafka's code by topic, for a record for each."""
    codes: dict[str, int] = {}
    producer = Producer(config_of(bootstrap, login, **{"message.timeout.ms": 30_000}))
    for topic in topics:

        def done(error: KafkaError | None, _message: Any, topic: str = topic) -> None:
            codes[topic] = 0 if error is None else error.code()

        producer.produce(topic, key=b"nonsense", value=b"x", partition=0, on_delivery=done)
    assert producer.flush(WAIT_S) == 0
    return codes


def changes_of(admin: AdminClient, topic: str) -> dict[str, int]:
    """Kafka's code of each change of a topic that an admin client can ask for."""
    entry = ConfigEntry("retention.ms", "604800000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    asked = {
        "configs": lambda: admin.incremental_alter_configs([resource]),
        "partitions": lambda: admin.create_partitions([NewPartitions(topic, 90)]),
        "delete": lambda: admin.delete_topics([topic]),
    }

    def code_of(make: Callable[[], Any]) -> int:
        return outcome(lambda: next(iter(make().values())).result(WAIT_S))

    return {name: code_of(make) for name, make in asked.items()}


@pytest.mark.parametrize("name", sorted(OWN_TOPICS - {SCANS_TOPIC}))
def test_changes_of_own_topics_need_alter_on_the_cluster(stage: Stage, name: str) -> None:
    """A user with every right to every topic is refused through keylane; an operator is not.

    Direct the same user is let through, as its ACLs say.
    """
    wide = [rule("dave", each) for each in ("DELETE", "ALTER", "ALTER_CONFIGS")]
    power = rule("dave", "ALTER", "BROKER")
    allow(stage.admin, *wide)
    login = stage.login("PLAIN", "dave")
    other, _ = stage.topic("beside")
    admin = AdminClient(config_of(stage.proxy.bootstrap, login))
    try:
        assert changes_of(admin, name) == dict.fromkeys(
            ("configs", "partitions", "delete"), REFUSED
        )
        assert deliver(stage.proxy.bootstrap, login, [other, name]) == {other: 0, name: REFUSED}
        assert deliver(stage.direct, login, [name]) == {name: 0}

        allow(stage.admin, power)
        try:
            while (taken := deliver(stage.proxy.bootstrap, login, [name])) == {name: REFUSED}:
                pass  # until the broker has applied the new right
            assert taken == {name: 0}
        finally:
            revoke(stage.admin, power)
    finally:
        revoke(stage.admin, *wide)


@pytest.mark.parametrize("transactional_id", ["keylane-settings", "keylane-ic-all"])
def test_an_own_transactional_id_is_refused(stage: Stage, transactional_id: str) -> None:
    """A user with all rights is refused: it could lock keylane out of these topics."""
    every = rule("dave", "WRITE", "TRANSACTIONAL_ID")
    allow(stage.admin, every)
    login = stage.login("PLAIN", "dave")
    try:
        own = Producer(
            config_of(stage.proxy.bootstrap, login, **{"transactional.id": transactional_id})
        )
        refused = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        assert outcome(lambda: own.init_transactions(WAIT_S)) == refused
        config = config_of(stage.proxy.bootstrap, login, **{"transactional.id": "dave-1"})
        while (code := outcome(lambda: Producer(config).init_transactions(WAIT_S))) == refused:
            pass  # until the broker has applied the new right
        assert code == 0
    finally:
        revoke(stage.admin, every)
