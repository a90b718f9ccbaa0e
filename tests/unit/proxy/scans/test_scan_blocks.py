"""Loads and lag take in published blocks as those that are read."""

from __future__ import annotations

import uuid

import numpy as np

from keylane.keyrange.key_split import PartitionSplit
from keylane.keyrange.lane import LaneLayout
from keylane.proxy.scans.lag import LaneTallies, Remaining
from keylane.proxy.scans.loads import START_S, LaneLoads
from keylane.proxy.scans.records import NO_RECORD, Scan
from keylane.proxy.scans.runs import published_block
from keylane.proxy.topics.view import View

TOPIC_ID = uuid.UUID(int=7)
VIEW = View(
    name="orders",
    topic="orders",
    view_id=TOPIC_ID,
    topic_id=TOPIC_ID,
    lanes=LaneLayout(partition_count=1, lane_count=3),
    reserve=True,
)


def test_bytes_and_records_of_each_lane_are_counted() -> None:
    """Lane 1 has a control batch only, lane 2 nothing at all."""
    columns = np.array([[109, NO_RECORD, NO_RECORD], [10, 0, 0], [5000, 70, 0]], np.int64)
    block = published_block(
        Scan(
            topic="orders",
            at=PartitionSplit(TOPIC_ID, 0, VIEW.key_split(0)),
            start=100,
            end=120,
            columns=columns,
            holes=((119, 119),),
            log_start_offset=40,
            leader_epoch=3,
        )
    )
    loads, tallies = LaneLoads(lambda: 0.0), LaneTallies()

    loads.on_scanned(block)
    tallies.on_scanned(block)

    assert block.outputs[2] is None and block.holes == ((119, 119),)
    assert (block.start, block.end, block.log_start_offset, block.leader_epoch) == (
        100, 120, 40, 3,
    )  # fmt: skip
    rates = loads.bytes_per_s(VIEW)
    assert [round(rates[lane] * START_S) for lane in range(3)] == [5008, 70, 0]
    assert tallies.remaining(VIEW, 0, 100, 120) == Remaining(10, is_exact=True)
    assert tallies.remaining(VIEW, 1, 100, 120) == Remaining(0, is_exact=True)
