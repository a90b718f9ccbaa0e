"""A lane fetcher on one broker log, on virtual time, with its reports."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass, field, fields
from typing import Any

from keylane.keyrange.key_split import KeySplit
from keylane.keyrange.lane import LaneLayout
from keylane.proxy.lanes.fetch_request import LaneAnswer, LaneFetch, LaneFetchRequest
from keylane.proxy.lanes.fetcher import FetchLimits, LaneFetcher
from keylane.proxy.lanes.split_io import ScannedBlock, ScanSeams
from keylane.proxy.runtime.stats import ProxyStats
from tests.reference.broker_log import BrokerLog, keys_of_lane, read_batches, records_of
from tests.virtual_time import InlineExecutor

TOPIC_ID = uuid.UUID(int=7)
TWO = LaneLayout(1, 2)
FOUR = LaneLayout(1, 4)
MIB = 2**20
A, B = keys_of_lane(0, TWO)[0], keys_of_lane(1, TWO)[0]
WAIT_S = 0.5


@dataclass
class Bench:
    """A fetcher on a broker's log, on virtual time."""

    log: BrokerLog
    layout: LaneLayout = TWO
    options: dict[str, Any] = field(default_factory=dict)
    key_split: KeySplit | None = None
    """In place of the layout's."""

    def __post_init__(self) -> None:
        self.stats = ProxyStats()
        self.scanned: list[ScannedBlock] = []
        self.truncated: list[int] = []
        limits: dict[str, Any] = {
            "cache_bytes_max": MIB,
            "filtering_bytes_max": MIB,
            "batch_bytes_max": MIB,
            "read_bytes_max": 64 * 1024,
            "threads": 1,
        } | self.options
        seams: dict[str, Any] = {
            "on_scanned": self.scanned.append,
            "on_truncated": lambda topic_id, partition, end: self.truncated.append(end),
        }
        for name in limits.keys() & {each.name for each in fields(ScanSeams)}:
            seams[name] = limits.pop(name)
        self.fetcher = LaneFetcher(
            self.log.open,
            FetchLimits(**limits),
            ScanSeams(**seams),
            clock=self.now_s,
            stats=self.stats,
            pool=InlineExecutor(),
        )

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def fetch(
        self,
        offsets: dict[int, int],
        *,
        cursor: str = "m1",
        isolation: int = 0,
        max_wait_ms: int = 500,
        min_bytes: int = 1,
        max_bytes: int = MIB,
        partition_max_bytes: int = MIB,
        reserve: bool = True,
        codec: int = 0,
        chosen_name: str = "",
        leader_epoch: int = -1,
    ) -> list[LaneAnswer]:
        """Fetch lanes at offsets."""
        lanes = tuple(
            LaneFetch(
                topic="orders",
                topic_id=TOPIC_ID,
                partition=0,
                output=lane,
                key_split=self.key_split or self.layout.key_split(0),
                fetch_offset=offset,
                partition_max_bytes=partition_max_bytes,
                reserve=reserve,
                codec=codec,
                chosen_name=chosen_name,
                leader_epoch=leader_epoch,
            )
            for lane, offset in offsets.items()
        )
        request = LaneFetchRequest(
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation,
            lanes=lanes,
            cursor_id=cursor,
            user="User:alice",
        )
        return await self.fetcher.fetch(request)

    async def fetch_one(self, lane: int, offset: int, **how: Any) -> LaneAnswer:
        """Fetch one lane."""
        (answer,) = await self.fetch({lane: offset}, **how)
        return answer


def offsets_of(answer: LaneAnswer) -> list[int]:
    return [offset for offset, _, _ in records_of(answer.records)]


def next_offset_of(answer: LaneAnswer) -> int:
    return int(read_batches(b"".join(map(bytes, answer.records)))[-1].last) + 1


def interleaved_log(count: int = 11, base: int = 40, *, per_batch: int = 1) -> BrokerLog:
    """A log with interleaved keys: even offsets are of lane 0, odd ones of lane 1."""
    log = BrokerLog(end=base, log_start=base)
    pairs = [(A if (base + i) % 2 == 0 else B, b"v") for i in range(count)]
    for start in range(0, count, per_batch):
        log.append(*pairs[start : start + per_batch])
    return log
