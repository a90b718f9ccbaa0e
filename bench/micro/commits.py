"""Cost of a commit of one lane, by the lane count of its partition: time, and journal bytes.

    python -m bench.micro.commits

The broker and the journal are objects of this process; what they cost is taken off. What stays out:
sockets, and the Kafka client that writes the journal.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from keylane.keyrange.key_split import PartitionSplit, even_split
from keylane.offsets.records.journal import JournalRecord, StateKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.proxy.lanes.split_io import ScannedBlock
from tests.reference.crash_world import COMMIT, Kafka, Node
from tests.transcript.fake import ORDERS, make_request, serve

LANE_COUNTS: Final = (16, 64, 256, 1024)
ROUNDS: Final = 3
COMMITS: Final = 150
BLOCK: Final = 4_096
"""Offsets of a block, so many between two commits."""
LOG: Final = 1_000_000
"""Offsets of a log that was read to its end."""
STILL, BUSY, QUIET = "no new blocks", "records for all lanes", "records for the committed lane"


class Bench(Node):
    """Takes the time of what is not keylane's."""

    def __init__(self, lane_count: int) -> None:
        self.others_s = 0.0
        super().__init__(Kafka(), lanes=lane_count)
        self.lane_count, self.end = lane_count, BLOCK
        self.journal_bytes = 0
        append = self.store.append

        async def measured(records: Sequence[JournalRecord]) -> None:
            self.journal_bytes += sum(len(r.key) + len(r.value or b"") for r in records)
            with self._taken_off():
                await append(records)

        self.store.append = measured  # type: ignore[method-assign]

    @contextmanager
    def _taken_off(self) -> Iterator[None]:
        started_s = time.process_time()
        yield
        self.others_s += time.process_time() - started_s

    def answer_frame(self, frame: bytes) -> bytes:
        """Return what the broker says."""
        with self._taken_off():
            return super().answer_frame(frame)

    def look(self, lane: int, traffic: str) -> None:
        """The reader has looked at another block."""
        with self._taken_off():
            start, self.end = self.end, self.end + BLOCK
            lasts = np.full(self.lane_count, -1, np.int64)
            if traffic == BUSY:
                lasts[:] = self.end - 1 - np.arange(self.lane_count) % BLOCK
            lasts[lane] = self.end - 1
            block = ScannedBlock(
                topic="orders", start=start, end=self.end,
                at=PartitionSplit(ORDERS, 0, self.lanes("orders").key_split(0)),
                last_record_offsets=lasts, outputs=(None,) * self.lane_count, holes=(),
                log_start_offset=0, leader_epoch=0, epochs=((0, start),),
            )  # fmt: skip
            self.offsets.on_scanned(block)


def request_of(lanes: Sequence[int], offset: int) -> Any:
    """A member's OffsetCommit of lanes of partition 0."""
    entries = [
        {
            "partition_index": 2 * lane,
            "committed_offset": offset + lane % 7,
            "committed_metadata": "",
        }
        for lane in lanes
    ]
    values = {
        "group_id": "group",
        "generation_id_or_member_epoch": 1,
        "member_id": "member",
        "topics": [{"name": "orders", "partitions": entries}],
    }
    return make_request(COMMIT, 8, values)


async def measure(lane_count: int, traffic: str) -> None:
    """Commits of one lane each, all lanes in turns, round by round."""
    node = Bench(lane_count)
    await node.start()
    node.look(0, BUSY)
    for lane in range(lane_count):
        await serve(node, request_of([lane], 1_000))
    times_us, number = [], 0
    node.journal_bytes = 0
    for _ in range(ROUNDS):
        spent_s = 0.0
        for _ in range(COMMITS):
            lane = number * 7 % lane_count
            if traffic != STILL:
                node.look(lane, traffic)
            request = request_of([lane], node.end - 8 if traffic != STILL else 1_001 + number)
            number, node.others_s = number + 1, 0.0
            started_s = time.process_time()
            await serve(node, request)
            spent_s += time.process_time() - started_s - node.others_s
        times_us.append(spent_s / COMMITS * 1e6)
    size = node.journal_bytes / (ROUNDS * COMMITS)
    print(
        f"{lane_count:5} lanes, {traffic + ':':32} {min(times_us):6.0f} us, "
        f"{size:7.0f} bytes of journal",
        flush=True,
    )


def measure_state(lane_count: int) -> None:
    """Measure lanes: a state is copied, takes a commit, and gives the journal its records.

    Each lane has had a commit, and has records behind it.
    """
    split, state = even_split(lane_count), OffsetState(committed=0)
    scan = ScanIndex(split)
    scan.add(0, LOG, LOG - 1 - np.arange(lane_count))
    for lane in range(lane_count):
        state.commit_keys((split.key_range(lane),), LOG // 2 + lane * 7 % 1_009)
    table, key = OffsetTable(partition_count=50), StateKey("group", ORDERS, 0)
    table.put(key, state)
    times_us, number = [], 0
    for _ in range(ROUNDS):
        started_s = time.process_time()
        for _ in range(COMMITS):
            number += 1
            draft = state.copy()
            key_range = split.key_range(number * 7 % lane_count)
            draft.commit_keys((key_range,), LOG // 2 + 1_009 + number)
            draft.settle(scan)
            draft.mark_pushed(draft.stable_position)
            table.put(key, draft)
            table.records(key, now_ms=1)
            table.mark_saved(key)
            state = draft
        times_us.append((time.process_time() - started_s) / COMMITS * 1e6)
    print(f"{lane_count:5} lanes, state and records alone: {min(times_us):6.0f} us", flush=True)


async def measure_all(lane_count: int) -> None:
    """Requests that commit all lanes of a partition."""
    node = Bench(lane_count)
    await node.start()
    node.look(0, BUSY)
    times_us = []
    for number in range(ROUNDS + 1):
        node.look(0, BUSY)
        request = request_of(range(lane_count), 1_000 + 10 * number)
        node.others_s, started_s = 0.0, time.process_time()
        await serve(node, request)
        times_us.append((time.process_time() - started_s - node.others_s) * 1e6)
    each_us = min(times_us[1:]) / lane_count
    print(f"{lane_count:5} lanes, all in one request: {each_us:6.1f} us per lane", flush=True)


if __name__ == "__main__":
    for kind in (STILL, BUSY, QUIET):
        for count in LANE_COUNTS:
            asyncio.run(measure(count, kind))
    for count in LANE_COUNTS:
        measure_state(count)
    for count in LANE_COUNTS:
        asyncio.run(measure_all(count))
