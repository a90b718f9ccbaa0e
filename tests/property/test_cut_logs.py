"""Logs that are cut at any moment and grow again, read by lanes of both isolation levels."""

from __future__ import annotations

import asyncio
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from keylane.offsets.lineage import FRESH_S
from keylane.offsets.scan import ScanIndex
from keylane.tasks import spawn
from tests.reference.broker_log import BrokerLog, Seen, keys_of_lane, read_batches, records_of
from tests.reference.kernel import lane_of
from tests.reference.lane_bench import FOUR, TOPIC_ID, Bench
from tests.virtual_time import run_virtual

LANES = 4
KEYS = [key for lane in range(LANES) for key in keys_of_lane(lane, FOUR, 3)]


class World:
    """A log that changes hands, its readers, and the scan that they leave."""

    def __init__(self, random: Random) -> None:
        self.random, self.serial = random, 0
        self.log = BrokerLog(log_start=0)
        self.log.lead(1)
        self.scan = ScanIndex(FOUR.key_split(0))
        self.bench = Bench(
            self.log,
            FOUR,
            {
                "on_scanned": self._on_scanned,
                "on_truncated": lambda *reported: self.scan.truncate(reported[2]),
                "cache_bytes_max": random.choice([0, 2000, 10**6]),
                "read_bytes_max": random.choice([1, 400, 10**5]),
            },
        )

    def _on_scanned(self, block) -> None:
        self.scan.add(block.start, block.end, block.last_record_offsets, holes=block.holes)

    def append(self) -> None:
        self.serial += 1
        keys = self.random.choices(KEYS, k=self.random.randint(1, 4))
        self.log.append(*((key, b"v%d" % self.serial) for key in keys))

    def replace(self) -> None:
        """Another leader, whose log has less or more of it; clean now and then."""
        log, random = self.log, self.random
        if random.random() < 0.2:
            log.lost_count = 1
        if random.random() < 0.8:
            log.truncate(random.randint(0, log.end))
            log.end = log.batches[-1].next_offset if log.batches else 0
        log.lead(log.leader_epoch + random.randint(1, 2))
        for _ in range(random.randint(0, 6)):
            self.append()

    async def read_all(self, lane: int, isolation: int) -> list[Seen]:
        """A member that starts at the log start, and has no more than a bound of tries."""
        position = 0
        seen: list[Seen] = []
        for _ in range(200):
            if position >= self.log.end:
                return seen
            answer = await self.bench.fetch_one(
                lane, position, isolation=isolation, max_wait_ms=50, cursor="all"
            )
            if answer.error_code or not answer.records:
                continue
            found = records_of(answer.records)
            seen += [record for record in found if record[0] >= position]
            position = max(position, self._next(answer.records))
        raise AssertionError("a lane does not move on")

    @staticmethod
    def _next(pieces) -> int:
        return int(read_batches(b"".join(map(bytes, pieces)))[-1].last) + 1

    def check_scan(self) -> None:
        """No position may pass a record of its lane that is in the log of now."""
        self.scan.check()
        limits = FOUR.key_split(0).limits.tolist()
        for lane in range(LANES):
            key_range = FOUR.key_split(0).key_range(lane)
            for offset in range(self.log.end):
                passed = self.scan.effective(key_range, offset)
                assert passed <= self.log.end
                for batch in self.log.batches:
                    for record in batch.records:
                        at = batch.base_offset + record.offset_delta
                        if offset <= at < passed:
                            assert lane_of(record.key, at, limits) != lane


async def live_on(random: Random) -> World:
    """A world after a while of appends, cuts, lost connections and reads of which some are open."""
    world = World(random)
    for _ in range(random.randint(1, 12)):
        under_way = [
            spawn(
                world.bench.fetch_one(
                    random.randrange(LANES),
                    random.randint(0, world.log.end),
                    isolation=random.randint(0, 1),
                    cursor=f"m{number}",
                    max_wait_ms=50,
                ),
                "poll",
            )
            for number in range(random.randint(0, 3))
        ]
        await asyncio.sleep(random.choice([0, 0.0005, 0.0015]))
        world.append() if random.random() < 0.5 else world.replace()
        world.log.wake()
        await asyncio.gather(*under_way)
    world.log.lost_count = 0
    return world


async def check_reads(world: World) -> None:
    """Members that begin now read the log of now."""
    for isolation in (0, 1):
        for lane in range(LANES):
            expected = world.log.lane_records(lane, FOUR)
            assert await world.read_all(lane, isolation) == expected


@given(seed=st.integers(0, 2**32))
def test_what_is_read_after_a_new_leader_was_met_is_its_log(seed) -> None:
    """Any cuts, clean leaders, lost connections and reads: no record or scan of an old log."""

    async def main() -> None:
        world = await live_on(Random(seed))
        end = world.bench.fetcher._kit.scans.lineages.of((TOPIC_ID, 0)).end
        for isolation in (0, 1):  # a reader at the head meets the leader of now
            await world.bench.fetch_one(
                0, max(end, world.log.end), isolation=isolation, max_wait_ms=50
            )

        await check_reads(world)
        await asyncio.sleep(0.01)
        world.check_scan()
        await world.bench.fetcher.stop()

    run_virtual(main)


@given(seed=st.integers(0, 2**32))
def test_what_is_read_after_a_while_without_a_word_of_the_leader_is_its_log(seed) -> None:
    """A client that goes on asks for no metadata; what is in memory may be of another log."""

    async def main() -> None:
        world = await live_on(Random(seed))
        await asyncio.sleep(FRESH_S + 1)

        await check_reads(world)
        await world.bench.fetcher.stop()

    run_virtual(main)


@given(seed=st.integers(0, 2**32))
def test_what_is_read_after_metadata_has_named_a_leader_is_its_log(seed) -> None:
    """A client that begins asks for metadata first: what is in memory is of an earlier leader."""

    async def main() -> None:
        world = await live_on(Random(seed))
        world.bench.fetcher.note_leader((TOPIC_ID, 0), world.log.leader_epoch)

        await check_reads(world)
        await world.bench.fetcher.stop()

    run_virtual(main)
