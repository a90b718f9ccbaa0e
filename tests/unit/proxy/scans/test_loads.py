"""proxy/scans/loads.py: rates per lane, each offset once, proportions that outlive silence."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keylane.keyrange.key_split import PartitionSplit
from keylane.keyrange.lane import LaneLayout
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans import loads as loads_module
from keylane.proxy.scans.loads import AGE_S_MAX, MEMORY_S, LaneLoads
from keylane.proxy.topics.view import View

TOPIC_ID = uuid.UUID(int=7)
LAYOUT = LaneLayout(partition_count=2, lane_count=3)
VIEW = View(
    name="orders",
    topic="orders",
    view_id=TOPIC_ID,
    topic_id=TOPIC_ID,
    lanes=LAYOUT,
    reserve=True,
)


class Measured:
    """Loads with a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.loads = LaneLoads(lambda: self.now_s)

    def scan(
        self, start: int, *sizes: int, partition: int = 1, layout: LaneLayout = LAYOUT
    ) -> None:
        """Ten offsets were split; `sizes` are bytes of each lane, 0 for no slice."""
        lanes: tuple[Any, ...] = tuple(
            SimpleNamespace(record_bytes=size, record_count=size // 100) if size else None
            for size in sizes
        )
        block = ScannedBlock(
            topic="orders",
            at=PartitionSplit(TOPIC_ID, partition, layout.key_split(partition)),
            start=start,
            end=start + 10,
            last_record_offsets=np.full(len(sizes), -1, np.int64),
            outputs=lanes,
            holes=(),
            log_start_offset=0,
        )
        self.loads.on_scanned(block)


def test_a_steady_flow_is_reported_as_it_is() -> None:
    """1,000 bytes and 10 records each second, from the first minute on, by lane index."""
    measured = Measured()

    for second in range(60):
        measured.now_s = float(second)
        measured.scan(second * 10, 0, 1000, 500)

    rates = measured.loads.bytes_per_s(VIEW)
    assert rates == {1: 0, 3: pytest.approx(1000, rel=0.1), 5: pytest.approx(500, rel=0.1)}
    assert measured.loads.records_per_s(VIEW)[3] == pytest.approx(10, rel=0.1)


def test_an_offset_counts_once() -> None:
    """Blocks that are read again, by a late lane or another group, add nothing."""
    measured = Measured()
    measured.scan(100, 300, 300, 300)
    before = measured.loads.bytes_per_s(VIEW)

    measured.scan(100, 300, 300, 300)
    measured.scan(0, 900, 0, 0)

    assert measured.loads.bytes_per_s(VIEW) == before


def test_what_follows_a_cut_counts_again() -> None:
    """Offsets behind a new leader's log end are other records."""
    measured = Measured()
    measured.scan(100, 300, 300, 300)

    measured.loads.on_truncated(TOPIC_ID, 1, 100)
    measured.scan(100, 0, 600, 0)

    assert measured.loads.bytes_per_s(VIEW)[3] == pytest.approx(900, rel=0.01)


def test_a_rate_fades_with_time() -> None:
    """After one time constant of silence a flow has sunk to about a third."""
    measured = Measured()
    for second in range(1000):
        measured.now_s = float(second)
        measured.scan(second * 10, 100, 0, 0)

    measured.now_s += MEMORY_S

    assert measured.loads.bytes_per_s(VIEW)[1] == pytest.approx(36.8, rel=0.1)


def test_an_idle_topic_keeps_its_proportions() -> None:
    """Months later one lane is still three times as heavy as another, and nothing is zero."""
    measured = Measured()
    measured.scan(0, 300, 100, 0)
    measured.now_s = AGE_S_MAX

    faded = measured.loads.bytes_per_s(VIEW)
    measured.now_s = 1e9

    rates = measured.loads.bytes_per_s(VIEW)
    assert rates[1] == pytest.approx(faded[1])
    assert rates[1] / rates[3] == pytest.approx(3)


def test_layouts_are_counted_apart() -> None:
    """Lanes of another count are other lanes; unread partitions are missing."""
    measured = Measured()

    measured.scan(0, 100, 200, layout=LaneLayout(partition_count=2, lane_count=2))

    assert measured.loads.bytes_per_s(VIEW) == {}


def test_memory_is_bounded(monkeypatch) -> None:
    """Beyond the bound the partition that was not read for longest is forgotten."""
    monkeypatch.setattr(loads_module, "LANES_MAX", 6)
    layout = LaneLayout(partition_count=9, lane_count=3)
    measured = Measured()

    for partition in (0, 1, 0, 2):
        measured.scan(measured.loads.output_count * 10, 1, 1, 1, partition=partition, layout=layout)

    assert measured.loads.output_count == 6
    assert {key[1] for key in measured.loads._by_split} == {0, 2}


def test_a_split_that_is_forgotten_gives_its_room_back() -> None:
    """Twice is as once."""
    measured = Measured()
    measured.scan(0, 100, 200, 300)
    key = PartitionSplit(TOPIC_ID, 1, LAYOUT.key_split(1))

    measured.loads.forget(key)
    measured.loads.forget(key)

    assert measured.loads.output_count == 0 and measured.loads.bytes_per_s(VIEW) == {}


def test_records_fade_with_the_rates() -> None:
    """The count behind a rate: 15 records now, and few after five minutes of silence."""
    measured = Measured()
    measured.scan(0, 0, 1000, 500)

    counts = [measured.loads.record_count(VIEW)]
    measured.now_s = MEMORY_S
    counts.append(measured.loads.record_count(VIEW))

    assert counts == [15, pytest.approx(15 / np.e)]
