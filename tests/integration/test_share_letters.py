"""Rules of share groups in key order: several records per key, pauses, dead letters; odd logs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.cimpl import NewTopic

from tests.integration.made_topics import make_topic
from tests.integration.share_sides import append
from tests.integration.share_stage import LATE_LETTERS, LETTERS, PAUSE_MS, Scene, ShareStage
from tests.integration.share_wire import ACCEPT, REJECT, RELEASE, wait_until
from tests.reference.batches import Batch, Record

pytestmark = pytest.mark.timeout(400)  # kernels may have to be compiled first
TIMESTAMP_MS = 1_700_000_123_456


def test_several_records_of_a_key_come_in_order_to_one_member(scene) -> None:
    """With 3 per key a member gets the first three of five, another none until all are finished."""
    shown = scene("several")
    shown.write("a", "a", "a", "a", "a")
    first, second = shown.join_many(2)

    found = first.take(3)

    assert found == {0: 1, 1: 1, 2: 1}
    assert second.gets_nothing()
    assert first.ack(0, 1, 2) == 0
    assert second.take(2) == {3: 1, 4: 1}


def test_a_released_record_waits_for_its_pause_and_other_keys_do_not(scene) -> None:
    """With a pause, the released record comes last, not before the pause is over."""
    shown = scene("pause")
    shown.write("a", "b", "a")
    member = shown.join()
    member.take(1, max_records=1)
    released_s = time.monotonic()

    assert member.ack(0, kind=RELEASE) == 0
    others = member.take(1)
    again = member.take(1, max_wait_ms=5000)

    assert (others, again) == ({1: 1}, {0: 2})
    assert time.monotonic() - released_s >= PAUSE_MS / 1000


@contextmanager
def reader(stage: ShareStage, topic: str) -> Iterator[Consumer]:
    """A consumer at the beginning of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": stage.broker.bootstrap,
            "group.id": f"reader-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    try:
        yield consumer
    finally:
        consumer.close()


Headers = dict[str, bytes | None]


def letters_of(
    stage: ShareStage, shown: Scene, count: int, *, topic: str = LETTERS
) -> list[tuple[bytes | None, bytes | None, int, Headers]]:
    """Return key, value, timestamp and headers of so many dead letters of a scene's group."""
    found: list[tuple[bytes | None, bytes | None, int, Headers]] = []
    with reader(stage, topic) as consumer:

        def poll() -> bool:
            message: Any = consumer.poll(0.2)
            if message is not None and not message.error():
                headers = {
                    name.removeprefix("__dlq.errors."): value for name, value in message.headers()
                }
                if headers["group"] == shown.group.encode():
                    (_, timestamp_ms) = message.timestamp()
                    found.append((message.key(), message.value(), timestamp_ms, headers))
            return len(found) >= count

        wait_until(poll, f"{count} dead letters")
    return found


def make_letters_topic(stage: ShareStage, topic: str) -> None:
    if topic not in stage.admin.list_topics(timeout=30).topics:
        make_topic(stage.admin, NewTopic(topic, 1, 1))


def test_what_is_rejected_and_what_is_released_at_last_arrives_as_dead_letters(
    scene, share_stage
) -> None:
    """Key, value, headers and timestamp are the record's own; further headers name the reason."""
    make_letters_topic(share_stage, LETTERS)
    shown = scene("letters", share_delivery_count_limit=3)
    records = (
        Record(0, b"a", b"rejected", ((b"own", b"1"), (b"nothing", None))),
        Record(1, b"b", None, (), 7),
        Record(2, None, b"accepted"),
        Record(3, b"a", b"next"),
    )
    batch = Batch(
        0, records, form="lz4", base_timestamp=TIMESTAMP_MS, max_timestamp=TIMESTAMP_MS + 7
    )
    append(share_stage.broker.bootstrap, shown.topic, batch)
    member = shown.join()
    assert member.take(3) == {0: 1, 1: 1, 2: 1}

    assert member.ack_ranges((0, 2, [REJECT, RELEASE, ACCEPT])) == 0
    assert member.take(2) == {3: 1, 1: 2}
    assert member.ack(1, kind=RELEASE) == 0
    assert member.ack(3) == 0

    letters = letters_of(share_stage, shown, 2)
    assert member.gets_nothing()
    shown.wait_for_lag(0)
    place = {"topic": shown.topic.encode(), "partition": b"0", "group": shown.group.encode()}
    rejected = {"offset": b"0", "delivery.count": b"1", "message": b"rejected by a member"}
    released = {"offset": b"1", "delivery.count": b"2", "message": b"deliveries are used up"}
    own = {"own": b"1", "nothing": None}
    assert letters == [
        (b"a", b"rejected", TIMESTAMP_MS, {**own, **place, **rejected}),
        (b"b", None, TIMESTAMP_MS + 7, {**place, **released}),
    ]


def test_a_key_waits_until_its_dead_letter_can_be_written(scene, share_stage) -> None:
    """Without the topic nothing is acknowledged and other keys go on; with it, all goes on."""
    shown = scene("late")
    shown.write("a", "a", "b")
    member, other = shown.join_many(2)
    assert member.take(1) == {0: 1}
    assert other.take(1) == {2: 1}
    assert other.ack(2) == 0

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(member.ack, 0, kind=REJECT)
        share_stage.proxy.wait_for_log(f"dead letters are not written topic={LATE_LETTERS}")
        assert other.gets_nothing()
        shown.wait_for_lag(2)
        make_letters_topic(share_stage, LATE_LETTERS)
        code = answer.result(60)

    assert code == 0
    assert other.take(1) == {1: 1}
    assert len(letters_of(share_stage, shown, 1, topic=LATE_LETTERS)) == 1


def test_a_compacted_topic_with_gaps_is_read_to_its_end(scene, share_stage) -> None:
    """Offsets that compaction has removed are acknowledged as gaps: the lag is 0 at the end."""
    config = {
        "cleanup.policy": "compact",
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.001",
        "max.compaction.lag.ms": "100",
    }
    shown = scene(config=config)
    for number in range(4):
        shown.write(*(f"k{each}" for each in range(20)), f"last-{number}")
    left = wait_until(lambda: left_by_compaction(share_stage, shown), "compaction")
    member = shown.join()

    newest = {*range(63, 84), max(left)}
    done: set[int] = set()
    while not newest <= done:
        found = member.take(1, max_records=500)
        assert member.ack(*found) == 0
        done |= found.keys()

    assert done <= set(left)
    shown.wait_for_lag(0)


def left_by_compaction(stage: ShareStage, shown: Scene) -> list[int]:
    """Write a record, which rolls a segment; return the offsets that are left, if any is not."""
    last = shown.write("roll")
    found: list[int] = []
    with reader(stage, shown.topic) as consumer:
        while not found or found[-1] < last:
            message: Any = consumer.poll(1.0)
            if message is not None and not message.error():
                found.append(message.offset())
    return found if found[0] > 0 else []


def test_a_group_that_reads_committed_gets_each_committed_record_once(scene, share_stage) -> None:
    """Aborted records and markers are passed over, an open transaction is waited for."""
    shown = scene(share_isolation_level="read_committed")
    producer = Producer(
        {"bootstrap.servers": share_stage.broker.bootstrap, "transactional.id": shown.group}
    )
    producer.init_transactions(30)
    committed = []
    for number in range(6):
        producer.begin_transaction()
        for key in ("a", "b", "c"):
            producer.produce(shown.topic, f"{key}:{number}", key, partition=0)
        producer.flush(30)
        if number % 2:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)
            committed += [4 * number, 4 * number + 1, 4 * number + 2]
    producer.begin_transaction()
    producer.produce(shown.topic, "open", "a", partition=0)
    producer.flush(30)
    member = shown.join()

    done: list[int] = []
    while len(done) < len(committed):
        found = member.take(1, max_records=500)
        assert member.ack(*found) == 0
        done += found
    before = member.gets_nothing()
    producer.commit_transaction(30)
    last = member.take(1)

    assert sorted(done) == committed
    assert [offset for offset in done if offset % 4 == 0] == committed[::3]
    assert before
    assert last == {24: 1}
    assert member.ack(24) == 0
    shown.wait_for_lag(0)
