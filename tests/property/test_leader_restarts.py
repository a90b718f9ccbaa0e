"""Lanes over restarts of a partition's leader in which its log keeps all it had."""

from __future__ import annotations

import asyncio
import uuid
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from keylane.cache.lane_values import GapForm
from keylane.proxy.lanes.fetch_request import LaneFetchRequest
from keylane.proxy.lanes.fetcher import FetchLimits, LaneFetcher
from keylane.proxy.lanes.split_io import ScanSeams
from keylane.proxy.runtime.stats import ProxyStats
from keylane.tasks import spawn
from tests.property.test_lane_fetch import LANES, LAYOUT, Member, check_memory, fill
from tests.reference.broker_log import BrokerLog, read_batches
from tests.virtual_time import InlineExecutor, run_virtual

ASK_AGAIN = {6, 74, 75}
"""NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH."""
ROUNDS_MAX = 2_000


class ComparingMember(Member):
    """A client that goes by leader epochs (KIP-320), or is too old for it (-1)."""

    def __init__(self, name: str, lanes: list[int], random: Random, log: BrokerLog) -> None:
        super().__init__(name, lanes, random, committed=False)
        self.log = log
        self.known_epoch = log.leader_epoch if random.random() < 0.7 else -1

    async def poll(self, fetcher: LaneFetcher) -> None:
        wanted = [lane for lane in self.lanes if self.random.random() < 0.9] or list(self.lanes)
        known = self.known_epoch
        request = LaneFetchRequest(
            max_wait_ms=self.random.choice([0, 1, 50]),
            min_bytes=self.random.choice([0, 1, 1, 500]),
            max_bytes=self.random.choice([1, 300, 10**6]),
            isolation_level=0,
            lanes=tuple(self._lane(lane)._replace(leader_epoch=known) for lane in wanted),
            cursor_id=self.name,
            gap_form=self.random.choice(list(GapForm)),
        )
        answers = await fetcher.fetch(request)
        codes = {answer.error_code for answer in answers} - {0}
        assert codes <= ASK_AGAIN
        if known >= 0 and (codes or self.random.random() < 0.2):
            self.known_epoch = self.log.leader_epoch  # metadata
        for lane, answer in zip(wanted, answers, strict=True):
            batches = read_batches(b"".join(map(bytes, answer.records)))
            if not batches or self.random.random() < 0.1:
                continue  # the connection was lost on the way
            self.lanes[lane].apply(answer.records, answer.aborted)
            self._compare(lane, known, [int(batch.fields[2]) for batch in batches])

    def _compare(self, lane: int, known: int, epochs: list[int]) -> None:
        """Look at what the leader says of the position; for less, clients take the log for cut."""
        assert self.log.end_of_epoch(epochs[-1]).end >= self.lanes[lane].position
        assert known < 0 or max(epochs) <= known, "of a leader that the client has not compared"


async def play(log: BrokerLog, random: Random) -> None:
    """The log grows; its leader's connections break, and it begins anew.

    Sleeps are of `run_virtual`'s clock, here and in members: they choose the order of things.
    """
    for _ in range(random.randint(1, 8)):
        fill(log, random, random.randint(0, 8))
        log.wake()
        await asyncio.sleep(random.choice([0.001, 0.004, 0.02]))
        if random.random() < 0.7:
            log.lost_count += random.randint(0, 6)
            log.lead(log.leader_epoch + random.randint(1, 2))
            await asyncio.sleep(random.choice([0.0, 0.001, 0.004]))


@given(
    seed=st.integers(0, 2**32),
    cache_bytes=st.sampled_from([0, 2000, 10**6]),
    read_bytes=st.sampled_from([1, 400, 3000]),
    joins=st.booleans(),
)
def test_a_leader_restarts(seed, cache_bytes, read_bytes, joins) -> None:
    """Each lane gets its records once and in order, and nothing passes for a cut of the log.

    No batch is of a later leader than the client knows, and positions are under the epoch of what
    they stand behind.
    """
    random = Random(seed)
    log = BrokerLog(joins=joins)
    log.lead(0)
    lanes = list(range(LANES))
    random.shuffle(lanes)
    members = [
        ComparingMember(name, part, random, log)
        for name, part in (("m0", lanes[:2]), ("m1", lanes[2:]), ("other-group", lanes))
    ]
    cuts: list[int] = []

    def note_cut(_topic_id: uuid.UUID, _partition: int, end: int) -> None:
        cuts.append(end)

    async def main() -> None:
        fetcher = LaneFetcher(
            log.open,
            FetchLimits(
                cache_bytes_max=cache_bytes,
                filtering_bytes_max=20_000,
                batch_bytes_max=2**20,
                read_bytes_max=read_bytes,
                threads=1,
            ),
            ScanSeams(on_scanned=lambda block: None, on_truncated=note_cut),
            clock=asyncio.get_running_loop().time,
            stats=ProxyStats(),
            pool=InlineExecutor(),
        )
        playing = spawn(play(log, random), "log")

        async def read(member: ComparingMember) -> None:
            for _ in range(ROUNDS_MAX):
                await member.poll(fetcher)
                if playing.done() and member.is_done(log.end):
                    return
                await asyncio.sleep(random.choice([0.0005, 0.001, 0.005]))
                if random.random() < 0.05:
                    fetcher.release(member.name)
            raise AssertionError("a lane does not move on")

        await asyncio.gather(playing, *map(read, members))
        check_memory(fetcher)
        await fetcher.stop()

    run_virtual(main)

    assert not cuts
    for member in members:
        for lane, client in member.lanes.items():
            assert client.seen == log.lane_records(lane, LAYOUT)
