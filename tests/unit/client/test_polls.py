"""Polls of a consumer on a fake node: bounds, and the order of answers."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from keylane.client import fetcher
from keylane.client.fetches import FetchOutcome, ReadBatches, read_batches
from keylane.client.values import TopicPartition
from tests.reference.client_node import FakeCluster
from tests.unit.client.conftest import StageFactory
from tests.unit.client.test_consumer_reads import batch, read

PART, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
WAIT_S = 60.0
"""A test that waits longer hangs."""
WAIT_MS = 1000 * WAIT_S


async def asked(cluster: FakeCluster, fetch_count: int) -> None:
    """Wait until so many fetches came: the answers of all but the last are taken."""
    async with asyncio.timeout(WAIT_S):
        while len(cluster.fetches) < fetch_count:  # noqa: ASYNC110 - a list has no event
            await asyncio.sleep(0)


async def test_a_poll_has_a_bound_for_each_partition(stage: StageFactory) -> None:
    """So that one with many records leaves room for the others."""
    cluster = FakeCluster()
    for part in (PART, OTHER):
        cluster.append(part, batch(0, 10))
    here = await stage(cluster, assign=[PART, OTHER])

    first = await here.consumer.getmany(timeout_ms=WAIT_MS, max_partition_records=3)
    second = await here.consumer.getmany(max_records=5, max_partition_records=3)

    assert {part: list(found.offsets) for part, found in first.items()} == {
        PART: [0, 1, 2],
        OTHER: [0, 1, 2],
    }
    assert sorted(len(found) for found in second.values()) == [2, 3]


async def test_no_answer_overtakes_one_that_the_thread_reads(
    stage: StageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small answer would be read on the loop, and waits behind a large compressed one."""
    may_read = threading.Event()

    def read_late(outcome: FetchOutcome) -> ReadBatches:
        if outcome.whole is not None and outcome.whole.compressed_bytes:
            assert may_read.wait(WAIT_S)
        return read_batches(outcome)

    monkeypatch.setattr(fetcher, "read_batches", read_late)
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 50_000, form="lz4"))
    here = await stage(cluster, assign=[PART])
    await asked(cluster, 2)
    cluster.append(PART, batch(50_000, 1))
    await asked(cluster, 3)

    assert not (await here.consumer.getmany(timeout_ms=20)).count
    may_read.set()

    assert await read(here, 50_001) == list(range(50_001))


@pytest.mark.parametrize(("isolation", "lag"), [("read_uncommitted", 10), ("read_committed", 4)])
async def test_the_lag_is_up_to_what_may_be_read(
    stage: StageFactory, isolation: str, lag: int
) -> None:
    """An open transaction ends it for read_committed; another assignment forgets it."""
    cluster = FakeCluster(stable_ends={PART: 4})
    cluster.append(PART, batch(0, 10))
    here = await stage(cluster, assign=[PART], isolation_level=isolation)
    await asked(cluster, 2)
    assert here.consumer.current_lag(PART) == lag

    here.consumer.assign([OTHER])
    here.consumer.assign([PART])

    assert here.consumer.current_lag(PART) is None


async def test_a_stop_drops_what_the_thread_has_not_read(
    stage: StageFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Answers that wait for the thread are cancelled without an error in the log."""
    may_read = threading.Event()

    def read_late(outcome: FetchOutcome) -> ReadBatches:
        assert may_read.wait(WAIT_S)
        return read_batches(outcome)

    monkeypatch.setattr(fetcher, "read_batches", read_late)
    gc.collect()  # asyncio logs what the garbage of other tests was about: here, not below
    caplog.clear()
    cluster = FakeCluster()
    for part in (PART, OTHER):
        cluster.append(part, batch(0, 50_000, form="lz4"))
    here = await stage(cluster, assign=[PART, OTHER])
    await asked(cluster, 2)
    threads = here.session.fetcher._threads

    await here.consumer.stop()
    may_read.set()
    # The thread hands over what it has read, on a loop that must not be closed by then.
    await asyncio.to_thread(threads.shutdown)
    await asyncio.sleep(0)

    assert not caplog.records


async def test_records_that_wait_are_given_before_a_position_is_found_anew(
    stage: StageFactory,
) -> None:
    """The log was cut up to 20 meanwhile: with "latest", 4 to 9 would be skipped."""
    cluster = FakeCluster()
    cluster.append(PART, batch(0, 10))
    here = await stage(cluster, assign=[PART], auto_offset_reset="latest", retry_backoff_ms=1)
    here.consumer.seek(PART, 0)
    first = await here.consumer.getmany(timeout_ms=WAIT_MS, max_records=4)
    cluster.starts[PART] = 20
    cluster.logs[PART].clear()
    cluster.append(PART, batch(20, 5))
    await asked(cluster, len(cluster.fetches) + 2)

    rest = await here.consumer.getmany(timeout_ms=WAIT_MS)

    assert [list(found.offsets) for found in (first[PART], rest[PART])] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7, 8, 9],
    ]
    # The next answer ends the old position. Until then it is behind what was given.
    async with asyncio.timeout(WAIT_S):
        while (position := await here.consumer.position(PART)) == 10:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
    assert position == 25
    assert (await here.consumer.getmany(timeout_ms=20)).count == 0
