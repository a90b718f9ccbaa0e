"""kill -9 of a process of workers: what is repeated, and what is not."""

from __future__ import annotations

import uuid
from collections import Counter

import pytest
from confluent_kafka import Producer

from tests.integration.range_wire import RangeWire
from tests.integration.share_wire import wait_until
from tests.integration.worker_crew import WorkerCrew

COUNT = 10_000
KEYS = 100
CONCURRENCY = 16
HELD = COUNT // 2
"""A record that takes long: the kill comes while it holds up the offset, with ranges behind it."""
HELD_MS = 6_000


def fill(bootstrap: str, topic: str) -> None:
    """Records of 1 ms of work, each hundredth of 100 ms, and one of `HELD_MS`, on keys in turn."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(COUNT):
        work_ms = 100 if (number + number // KEYS) % 100 == 0 else 1
        work_ms = HELD_MS if number == HELD else work_ms
        producer.produce(topic, f"{work_ms} {number // KEYS}", f"key-{number % KEYS}", partition=0)
    assert producer.flush(30) == 0


@pytest.mark.parametrize("commit_s", [0.0, 0.2])
def test_a_crash_repeats_only_what_was_not_committed(kafka, keylane, topic, commit_s) -> None:
    """In the middle of 10,000 records: no committed one comes again, and none is left out."""
    name: str = topic("plain", partitions=1)
    fill(kafka, name)
    proxy = keylane()
    group = f"crash-{uuid.uuid4()}"
    with WorkerCrew(
        proxy.bootstrap, name, group, protocol="classic", concurrency=CONCURRENCY, commit_s=commit_s
    ) as crew:
        first = crew.start()
        crew.until_done(HELD)
        with RangeWire(proxy.bootstrap) as wire:

            def is_held() -> bool:
                found = wire.standing(group, name, 0)
                return found.offset <= HELD and any(low > HELD for low, _ in found.ranges)

            wait_until(is_held, "ranges behind the record that takes long")
            crew.kill(first)
            standing = wire.standing(group, name, 0)
        committed = set(range(standing.offset)).union(
            *(range(low, high + 1) for low, high in standing.ranges)
        )
        ended = {done.offset for done in crew.done}
        begun = {offset for _, offset in crew.began}
        crew.start()
        crew.until(lambda: len({done.offset for done in crew.done}) == COUNT)
        crew.assert_keys_in_order()

    repeated = {offset for offset, count in Counter(o for _, o in crew.began).items() if count > 1}
    print(
        f"killed with {len(ended)} done, {len(begun - ended)} at work, {len(committed)} committed "
        f"({len(standing.ranges)} ranges above {standing.offset}); {len(repeated)} begun again"
    )
    assert committed <= begun and standing.ranges, "some is done behind a slow record"
    assert not repeated & committed
    assert repeated <= begun - committed
    assert len(begun - ended) <= CONCURRENCY
