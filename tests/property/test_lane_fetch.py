"""Whole fetches of lanes under any limits and cache sizes: each lane gets its records, in order."""

from __future__ import annotations

import asyncio
import uuid
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from keylane.cache.lane_values import GapForm
from keylane.keyrange.lane import LaneLayout
from keylane.proxy.lanes.fetch_request import LaneFetch, LaneFetchRequest
from keylane.proxy.lanes.fetcher import FetchLimits, LaneFetcher
from keylane.proxy.lanes.split_io import ScanSeams
from keylane.proxy.runtime.stats import ProxyStats
from tests.reference.broker_log import BrokerLog, LaneClient
from tests.virtual_time import InlineExecutor, run_virtual

LANES = 4
LAYOUT = LaneLayout(1, LANES)
TOPIC_ID = uuid.UUID(int=7)
ROUNDS_MAX = 2_000
READS_S = 0.5
"""On virtual time a read takes 1 ms; no fetch should have to wait for so many in a row."""


def fill(log: BrokerLog, random: Random, batch_count: int) -> None:
    """Append batches of several producers, with transactions, aborted or not, and holes."""
    open_since: dict[int, int] = {}
    for _ in range(batch_count):
        if random.random() < 0.2:
            log.end += random.randint(1, 5)  # compacted away
        kind = random.random()
        pid = random.randint(1, 3)
        if kind < 0.3 and pid in open_since:
            first = open_since.pop(pid)
            commit = random.random() < 0.5
            marker = log.append_marker(pid, commit=commit)
            if not commit:
                log.aborted.append((pid, first, marker.base_offset))
            continue
        pairs = [
            (
                random.choice([None, b"", b"k%d" % random.randint(0, 12)]),
                b"v" * random.randint(0, 90),
            )
            for _ in range(random.randint(1, 6))
        ]
        if kind < 0.7:
            open_since.setdefault(pid, log.end)
            log.append(*pairs, flags=0x10, producer_id=pid)
        else:
            log.append(*pairs)
    for pid in open_since:
        log.append_marker(pid, commit=True)


class Member:
    """A client connection that reads some lanes, round by round."""

    def __init__(self, name: str, lanes: list[int], random: Random, *, committed: bool) -> None:
        self.name, self.random, self.committed = name, random, committed
        self.lanes = {lane: LaneClient(is_committed=committed) for lane in lanes}

    async def poll(self, fetcher: LaneFetcher) -> None:
        wanted = [lane for lane in self.lanes if self.random.random() < 0.9] or list(self.lanes)
        self.random.shuffle(wanted)
        request = LaneFetchRequest(
            max_wait_ms=self.random.choice([0, 1, 50]),
            min_bytes=self.random.choice([0, 1, 1, 500]),
            max_bytes=self.random.choice([1, 300, 10**6]),
            isolation_level=int(self.committed),
            lanes=tuple(self._lane(lane) for lane in wanted),
            cursor_id=self.name,
            gap_form=self.random.choice(list(GapForm)),
        )
        loop = asyncio.get_running_loop()
        until_s = loop.time() + request.max_wait_ms / 1000 + READS_S
        answers = await fetcher.fetch(request)
        assert loop.time() <= until_s, "waits in vain"
        for lane, answer in zip(wanted, answers, strict=True):
            assert answer.error_code == 0
            assert (answer.aborted is not None) == self.committed
            self.lanes[lane].apply(answer.records, answer.aborted)

    def _lane(self, lane: int) -> LaneFetch:
        return LaneFetch(
            topic="orders",
            topic_id=TOPIC_ID,
            partition=0,
            output=lane,
            key_split=LAYOUT.key_split(0),
            fetch_offset=self.lanes[lane].position,
            partition_max_bytes=self.random.choice([1, 200, 10**6]),
            reserve=True,
        )

    def is_done(self, end: int) -> bool:
        return all(client.position >= end for client in self.lanes.values())


def check_memory(fetcher: LaneFetcher) -> None:
    fetcher.cache.check()
    for reader in fetcher._readers.values():
        reader.log.check()


@given(
    seed=st.integers(0, 2**32),
    batch_count=st.integers(0, 30),
    cache_bytes=st.sampled_from([0, 2000, 5000, 10**6]),
    read_bytes=st.sampled_from([1, 400, 3000]),
    filtering_bytes=st.sampled_from([1200, 20_000]),
    committed=st.booleans(),
    joins=st.booleans(),
)
def test_every_lane_gets_exactly_its_records(
    seed, batch_count, cache_bytes, read_bytes, filtering_bytes, committed, joins
) -> None:
    """Whatever the limits, evictions and order of fetches: the union is the lane, in order."""
    random = Random(seed)
    log = BrokerLog(joins=joins)
    fill(log, random, batch_count)
    lanes = list(range(LANES))
    random.shuffle(lanes)
    members = [Member("m0", lanes[:2], random, committed=committed),
               Member("m1", lanes[2:], random, committed=committed),
               Member("other-group", lanes, random, committed=committed)]  # fmt: skip

    async def main() -> None:
        fetcher = LaneFetcher(
            log.open,
            FetchLimits(
                cache_bytes_max=cache_bytes,
                filtering_bytes_max=filtering_bytes,
                batch_bytes_max=2**20,
                read_bytes_max=read_bytes,
                threads=1,
            ),
            ScanSeams(on_scanned=lambda block: None),
            clock=asyncio.get_running_loop().time,
            stats=ProxyStats(),
            pool=InlineExecutor(),
        )
        for _ in range(ROUNDS_MAX):
            left = [member for member in members if not member.is_done(log.end)]
            if not left:
                break
            polled = random.sample(left, random.randint(1, len(left)))
            await asyncio.gather(*(member.poll(fetcher) for member in polled))
            check_memory(fetcher)
            if random.random() < 0.1:
                fetcher.release(random.choice(members).name)
        assert all(member.is_done(log.end) for member in members), "a lane does not move on"
        await fetcher.stop()
        assert fetcher.cache.bytes_used == 0

    run_virtual(main)

    for member in members:
        for lane, client in member.lanes.items():
            assert client.seen == log.lane_records(lane, LAYOUT, committed=committed)
