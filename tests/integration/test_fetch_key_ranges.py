"""Fetches that name key ranges, with a real broker: each record once, and no tag behind keylane."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pytest
from confluent_kafka.admin import AdminClient

from keylane.keyrange.hash import key_hash
from keylane.keyrange.space import HASH_MAX, KeyRange, split_even
from keylane.wire.extensions import DRAFT_ERROR, KEY_RANGES, read_int16, write_key_ranges
from keylane.wire.fetch import (
    FetchAnswer,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from keylane.wire.primitives import NO_TAGS, read_tags, write_tags, write_uvarint
from tests.integration.byte_tap import ByteTap, tapped_broker
from tests.integration.conftest import make_topic_factory
from tests.integration.harness import produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.strangers import PlainClient
from tests.integration.test_key_range_assignor import metric
from tests.reference.broker_log import read_batches

FETCH: Final = 1
KEYS: Final = [f"key-{number}" for number in range(100)]
ROUNDS: Final = 12
LOWER, UPPER = split_even(2)
REFUSED, UNKNOWN = 29, 3
Seen = list[tuple[int, bytes | None]]
"""Offset and key of each record."""


@dataclass
class Stage:
    """A broker behind a tap, and keylane in front: `lanes-*` have four lanes, `open-*` none."""

    tap: ByteTap
    proxy: KeylaneProcess

    def topic(self, label: str, partitions: int = 1) -> str:
        """A new topic, with some thousand records."""
        name = make_topic_factory(AdminClient({"bootstrap.servers": self.tap.behind}), "ranges")(
            label, partitions=partitions
        )
        for partition in range(partitions):
            produce(self.tap.behind, name, KEYS, ROUNDS, partition=partition)
        return name


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The broker has never met keylane's tag, after all tests of this module."""
    folder = tmp_path_factory.mktemp("ranges")
    with tapped_broker(folder / "kafka") as tap:
        args = ("--set", "accept_range_fetch=[open-*]")
        proxy = KeylaneProcess(
            tap.bootstrap, ("lanes-*=4",), log_path=folder / "keylane.log", args=args
        )
        try:
            yield Stage(tap, proxy.start())
        finally:
            proxy.stop()
    for part in (LOWER, UPPER):
        assert not tap.has_sent(write_key_ranges([part]))
    assert not tap.has_sent(write_uvarint(KEY_RANGES) + b"\x01\x01"), "an empty list of ranges"


def entry(
    partition: int, offset: int, ranges: Sequence[KeyRange] | None, max_bytes: int = 1 << 14
) -> FetchPartition:
    """A partition of a request; small answers, so that many are needed."""
    tags = NO_TAGS if ranges is None else write_tags({KEY_RANGES: write_key_ranges(ranges)})
    return FetchPartition(partition, -1, offset, -1, -1, max_bytes, tags)


def ask(
    client: PlainClient, version: int, topic: str, *asked: FetchPartition, tags: bytes = NO_TAGS
) -> list[FetchAnswer]:
    """One fetch of a topic; the answer's partitions."""
    topic_id = client.topic_id(topic) if version >= 13 else None
    request = FetchRequest(
        version=version,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        topics=(FetchTopic(None if topic_id else topic, topic_id, asked),),
        tags=tags,
    )
    body = client.call(FETCH, version, write_fetch_request(request))
    answer = read_fetch_response(body, 0, version)
    assert (answer.error_code, answer.session_id) == (0, 0)
    return [part for one in answer.topics for part in one.partitions]


def take(answer: FetchAnswer, position: int, seen: Seen, *, may_be_cut: bool = False) -> int:
    """Note the records from a position on; return the next one."""
    assert answer.error_code == 0
    data = b"".join(map(bytes, answer.records or ()))
    for batch in read_batches(data, may_be_cut=may_be_cut):
        if not batch.is_control:
            seen += [(each.offset, each.key) for each in batch.records if each.offset >= position]
        position = max(position, batch.last + 1)
    return position


def read_all(
    stage: Stage, version: int, topic: str, partition: int, ranges: Sequence[KeyRange]
) -> Seen:
    """Every record of some ranges, as one client gets them.

    The answer for a whole partition is Kafka's, which ends within a batch where the size does.
    """
    seen: Seen = []
    is_relayed = list(ranges) in ([], [KeyRange(0, HASH_MAX)])
    position, end = 0, len(KEYS) * ROUNDS
    with PlainClient(stage.proxy.bootstrap) as client:
        while position < end:
            (answer,) = ask(client, version, topic, entry(partition, position, ranges))
            position = take(answer, position, seen, may_be_cut=is_relayed)
    return seen


def in_threads(*calls: Callable[[], Seen]) -> list[Seen]:
    """Do all at the same time."""
    found: list[Seen | BaseException] = [[] for _ in calls]

    def run(number: int) -> None:
        try:
            found[number] = calls[number]()
        except BaseException as error:  # noqa: BLE001 - raised in the test's own thread
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done: list[Seen] = []
    for one in found:
        if isinstance(one, BaseException):
            raise one
        done.append(one)
    return done


def check_halves(low: Seen, high: Seen) -> None:
    """Each record at one of the two, by its key, and in the order of offsets."""
    assert sorted(offset for offset, _ in low + high) == list(range(len(KEYS) * ROUNDS))
    for seen, part in ((low, LOWER), (high, UPPER)):
        assert all(part.contains(key_hash(key or b"")) for _, key in seen)
        assert [offset for offset, _ in seen] == sorted(offset for offset, _ in seen)


@pytest.mark.parametrize("version", [12, 17])
@pytest.mark.parametrize("label", ["open", "lanes"])
def test_two_halves_of_a_partition_are_all_records_once(label, version, stage) -> None:
    """Two clients at the same time, each from the start; the topic with lanes by its partition."""
    topic = stage.topic(label, partitions=2)

    low, high = in_threads(
        *(lambda part=part: read_all(stage, version, topic, 1, [part]) for part in (LOWER, UPPER))
    )

    check_halves(low, high)


def test_two_ranges_in_one_fetch(stage) -> None:
    """Of one entry: a client with the first and the last third gets the keys of both."""
    topic = stage.topic("open")
    first, middle, last = split_even(3)

    outer, inner = in_threads(
        lambda: read_all(stage, 12, topic, 0, [last, first]),
        lambda: read_all(stage, 12, topic, 0, [middle]),
    )

    assert sorted(outer + inner) == sorted(read_all(stage, 12, topic, 0, []))
    assert all(middle.contains(key_hash(key or b"")) for _, key in inner)
    assert {key for _, key in outer} | {key for _, key in inner} == {k.encode() for k in KEYS}


def test_a_partition_twice_in_one_fetch(stage) -> None:
    """Each entry has its own ranges and position."""
    topic = stage.topic("open")
    seen: list[Seen] = [[], []]
    positions, end = [0, 0], len(KEYS) * ROUNDS

    with PlainClient(stage.proxy.bootstrap) as client:
        while min(positions) < end:
            asked = [
                entry(0, at, [part]) for at, part in zip(positions, (LOWER, UPPER), strict=True)
            ]
            for number, answer in enumerate(ask(client, 17, topic, *asked)):
                positions[number] = take(answer, positions[number], seen[number])

    check_halves(*seen)


def test_whole_partitions_of_a_topic_with_lanes(stage) -> None:
    """The broker's partitions, though lane indexes of the same name are there: 2, and 8."""
    topic = stage.topic("lanes", partitions=2)

    for version in (12, 17):
        for ranges in ([], [KeyRange(0, HASH_MAX)]):
            seen = read_all(stage, version, topic, 1, ranges)
            assert [offset for offset, _ in seen] == list(range(len(KEYS) * ROUNDS))
    with PlainClient(stage.proxy.bootstrap) as client:
        whole, missing = ask(client, 17, topic, entry(1, 0, []), entry(2, 0, []))
        (lane,) = ask(client, 17, topic, entry(2, 0, None))

    assert (whole.error_code, missing.error_code, lane.error_code) == (0, UNKNOWN, 0)
    lower: Seen = []
    take(lane, 0, lower)
    assert all(split_even(4)[1].contains(key_hash(key or b"")) for _, key in lower)


def test_ranges_of_the_whole_request(stage) -> None:
    """At the top, for all partitions that have none of their own."""
    topic = stage.topic("open", partitions=2)
    tags = write_tags({KEY_RANGES: write_key_ranges([LOWER])})

    seen: list[Seen] = [[], []]
    positions, end = [0, 0], len(KEYS) * ROUNDS

    with PlainClient(stage.proxy.bootstrap) as client:
        while min(positions) < end:
            asked = entry(0, positions[0], None), entry(1, positions[1], [UPPER])
            for number, answer in enumerate(ask(client, 12, topic, *asked, tags=tags)):
                positions[number] = take(answer, positions[number], seen[number])

    for one, part in zip(seen, (LOWER, UPPER), strict=True):
        keys = {key for _, key in one}
        assert keys == {k.encode() for k in KEYS if part.contains(key_hash(k.encode()))}
        assert len(one) == len(keys) * ROUNDS


def test_a_topic_that_refuses_ranges(stage) -> None:
    """29 with the draft's 89, for ranges alone: whole partitions and plain fetches are served."""
    topic = stage.topic("closed")

    for version in (12, 17):
        with PlainClient(stage.proxy.bootstrap) as client:
            (refused,) = ask(client, version, topic, entry(0, 0, [LOWER]))
            (whole,) = ask(client, version, topic, entry(0, 0, []))
            (plain,) = ask(client, version, topic, entry(0, 0, None))

        assert refused.error_code == REFUSED and not b"".join(map(bytes, refused.records or ()))
        assert read_int16(read_tags(refused.tags)[DRAFT_ERROR]) == 89
        for answer in (whole, plain):
            assert answer.error_code == 0 and answer.tags == NO_TAGS
            assert b"".join(map(bytes, answer.records or ()))


def test_halves_are_read_from_the_broker_once(stage) -> None:
    """Two clients that keep up share the reader: its records are counted about once."""
    topic = stage.topic("open")
    stages: list[Any] = []

    with PlainClient(stage.proxy.bootstrap) as one, PlainClient(stage.proxy.bootstrap) as other:
        end = len(KEYS) * ROUNDS
        for client, part in ((one, LOWER), (other, UPPER), (one, LOWER), (other, UPPER)):
            (answer,) = ask(client, 17, topic, entry(0, end, [part]))
            stages.append(answer.error_code)
        before = records_split(stage)
        produce(stage.tap.behind, topic, KEYS, ROUNDS, partition=0)
        seen: list[Seen] = [[], []]
        positions = [end, end]
        while min(positions) < 2 * end:
            for number, (client, part) in enumerate(((one, LOWER), (other, UPPER))):
                (answer,) = ask(client, 17, topic, entry(0, positions[number], [part]))
                positions[number] = take(answer, positions[number], seen[number])

    assert stages == [0] * 4
    assert len(seen[0]) + len(seen[1]) == end
    assert end <= records_split(stage) - before < 1.5 * end


def records_split(stage: Stage) -> int:
    """Records that keylane has looked at."""
    return int(metric(stage.proxy.control, "keylane_records_total"))
