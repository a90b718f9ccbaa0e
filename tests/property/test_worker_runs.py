"""Whole runs of the workers on virtual time: any work, any failures, any rebalances."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.client.workers import Retry, Workers
from keylane.tasks import spawn
from tests.reference.worker_run import Journal
from tests.reference.worker_source import P0, P1, FakeSource, make_records
from tests.virtual_time import run_virtual

LIMIT_S = 2_000
MOVES = st.sampled_from(["ask back", "lose", "pause"])
WORK = st.sampled_from([0.0, 0.01, 0.3, 2.0])


class WatchedSource(FakeSource):
    """A source that sees whether a partition is given up while it is worked."""

    journal: Journal
    was_lost: frozenset[TopicPartition] = frozenset()
    """Work of a lost partition is cancelled, and may end after the partition is asked back."""

    def lose(self, *places: TopicPartition) -> None:
        self.was_lost |= set(places)
        super().lose(*places)

    async def getmany(
        self,
        *partitions: TopicPartition,
        timeout_ms: int = 0,
        max_records: int | None = None,
        max_partition_records: int | None = None,
    ) -> list[ConsumerRecord]:
        for (place, _), count in self.journal.at_work.items():
            is_given_up = place in self.to_be_revoked() - self.was_lost
            assert not (count and is_given_up), "given up at work"
        return await super().getmany(
            *partitions,
            timeout_ms=timeout_ms,
            max_records=max_records,
            max_partition_records=max_partition_records,
        )

    def next_offset(self, place: TopicPartition) -> int:
        """Return the lowest offset that is not committed."""
        committed = {offset for at, offset in (self.commits or [frozenset()])[-1] if at == place}
        return next(
            offset for offset in range(len(self.logs[place]) + 1) if offset not in committed
        )


async def move_about(source: WatchedSource, moves: list[tuple[float, str, TopicPartition]]) -> None:
    """Take partitions away, in the ways that there are, and give them back where they stand."""
    for pause_s, move, place in moves:
        await asyncio.sleep(pause_s)
        match move:
            case "pause":
                continue
            case "lose":
                source.lose(place)
            case _:
                source.ask_back(place)
                async with asyncio.timeout(LIMIT_S):
                    while place in source.positions:  # noqa: ASYNC110 - virtual
                        await asyncio.sleep(0.01)
        await asyncio.sleep(pause_s)
        source.assign(place, source.next_offset(place))


@settings(max_examples=60, deadline=None)
@given(
    keys=st.lists(st.sampled_from([b"ada", b"ben", b"cleo", None]), min_size=1, max_size=30),
    work_s=st.lists(WORK, min_size=1, max_size=7),
    failing=st.sets(st.tuples(st.integers(0, 1), st.integers(0, 29)), max_size=6),
    moves=st.lists(st.tuples(st.floats(0, 3), MOVES, st.sampled_from([P0, P1])), max_size=6),
    concurrency=st.integers(1, 5),
    max_queued=st.integers(1, 40),
)
def test_everything_is_done_in_order(keys, work_s, failing, moves, concurrency, max_queued):
    """All records are done, each key in order, one at a time, and nothing is given up at work."""
    failed: set[tuple[int, int]] = set()
    journal = Journal(lambda record: work_s[record.offset % len(work_s)])

    async def handle(record: ConsumerRecord) -> None:
        place = (record.partition, record.offset)
        await journal(record)
        if place in failing and place not in failed:
            failed.add(place)
            journal.ended.pop()
            raise ConnectionError("away")

    async def main() -> WatchedSource:
        source = WatchedSource(*make_records(P0, keys), *make_records(P1, keys))
        source.journal = journal
        async with Workers(
            source,
            handle,
            concurrency=concurrency,
            max_queued=max_queued,
            retry=Retry(attempts=2, backoff_s=1),
            signals=False,
            progress=False,
        ) as workers:
            running = spawn(workers.run(), "run")
            moving = spawn(move_about(source, moves), "moves")
            await asyncio.wait([running, moving], return_when=asyncio.FIRST_COMPLETED)
            await (running if running.done() else moving)
            async with asyncio.timeout(LIMIT_S):
                while len(set(source.done)) < 2 * len(keys):
                    assert not running.done(), running.exception()
                    await asyncio.sleep(0.1)
            workers.stop()
            await running
        return source

    source = run_virtual(main)

    assert source.commits[-1] == {(each.topic_partition, each.offset) for each in source.done}
    firsts: dict[tuple[int, bytes | None], list[int]] = defaultdict(list)
    for record in journal.ended:
        found = firsts[record.partition, record.key]
        if record.offset not in found:
            found.append(record.offset)
    for (_, key), found in firsts.items():
        assert key is None or found == sorted(found)
