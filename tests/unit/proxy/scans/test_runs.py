"""proxy/scans/runs.py: blocks become runs, a cut forgets what is behind it, bounds hold."""

from __future__ import annotations

import uuid
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.keyrange.key_split import KeySplit, PartitionSplit, even_split
from keylane.offsets.scan import ScanIndex
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans import runs as module
from keylane.proxy.scans.records import (
    OUTPUTS_PUBLISHED_MAX,
    Cut,
    Scan,
    Sender,
    SplitBook,
    read_packet,
    write_packets,
)
from keylane.proxy.scans.runs import AGE_S_MAX, ScanRuns

TOPIC_ID = uuid.UUID(int=4)
TWO = even_split(2)


def block(
    start: int,
    end: int,
    lasts: tuple[int, ...] = (-1, -1),
    *,
    holes: tuple[tuple[int, int], ...] = (),
    split: KeySplit = TWO,
    partition: int = 0,
    log_start: int = 0,
    epoch: int = 20,
) -> ScannedBlock:
    """Each lane has one record, or none and a control batch of 7 bytes."""
    lanes: tuple[Any, ...] = tuple(
        SimpleNamespace(record_bytes=100, record_count=1)
        if at >= 0
        else SimpleNamespace(record_bytes=7, record_count=0)
        for at in lasts
    )
    return ScannedBlock(
        topic="orders",
        at=PartitionSplit(TOPIC_ID, partition, split),
        start=start,
        end=end,
        last_record_offsets=np.array(lasts, np.int64),
        outputs=lanes,
        holes=holes,
        log_start_offset=log_start,
        leader_epoch=epoch,
    )


def bounds(runs: ScanRuns, now_s: float = 0.0) -> list[tuple[int, int]]:
    """Start and end of the scans that wait; they wait no more."""
    runs.check()
    return [(item.start, item.end) for item in runs.take(now_s) if isinstance(item, Scan)]


def test_a_scan_is_of_one_leader_epoch() -> None:
    """A node that takes it in knows from which offset on the later leader's log was read."""
    runs = ScanRuns()
    runs.note(block(0, 10, epoch=1), 0.0)
    runs.note(block(10, 20, epoch=2), 0.0)

    assert bounds(runs) == [(0, 10), (10, 20)]


def test_blocks_that_follow_each_other_become_one_scan() -> None:
    """Last records, counts, bytes and holes are of both."""
    runs = ScanRuns()
    runs.note(block(0, 10, (9, 4), holes=((0, 1),)), 0.0)
    runs.note(block(10, 20, (-1, 15), holes=((19, 19),), log_start=3), 0.0)

    runs.check()
    (scan,) = runs.take(0.0)

    assert isinstance(scan, Scan)
    assert (scan.start, scan.end, scan.leader_epoch) == (0, 20, 20)
    assert (scan.holes, scan.log_start_offset) == (((0, 1), (19, 19)), 3)
    assert scan.columns.tolist() == [[9, 15], [1, 2], [107, 200]]
    assert len(runs) == runs.cost == 0


def test_other_partitions_gaps_and_repetitions() -> None:
    """A gap or another partition begins another scan; what is in one already says nothing new."""
    runs = ScanRuns()
    runs.note(block(0, 10), 0.0)
    runs.note(block(0, 10), 0.0)
    runs.note(block(2, 9), 0.0)
    runs.note(block(20, 30), 0.0)
    runs.note(block(10, 15), 0.0)
    runs.note(block(15, 18, partition=1), 0.0)
    runs.note(block(15, 18), 0.0)

    assert bounds(runs) == [(0, 10), (20, 30), (10, 18), (15, 18)]


def test_a_cut_goes_first_and_forgets_what_reaches_beyond_it() -> None:
    """Of its partition only; scans of the new log come behind it, the lowest of two cuts counts."""
    runs = ScanRuns()
    runs.note(block(0, 40), 0.0)
    runs.note(block(60, 80), 0.0)
    runs.note(block(60, 80, partition=1), 0.0)
    runs.cut(Cut((TOPIC_ID, 0), 50, 3))
    runs.note(block(50, 55), 0.0)
    runs.cut(Cut((TOPIC_ID, 0), 70, 4))
    runs.note(block(55, 90), 0.0)
    runs.check()

    news = runs.take(0.0)

    assert news[0] == Cut((TOPIC_ID, 0), 50, 4)
    found = [
        (scan.at.partition, scan.start, scan.end) for scan in news[1:] if isinstance(scan, Scan)
    ]
    assert found == [(0, 0, 40), (1, 60, 80), (0, 50, 55), (0, 55, 90)]
    assert runs.dropped == 1


def test_what_has_waited_too_long_is_dropped_but_for_cuts() -> None:
    """A process that was stopped must not publish old news."""
    runs = ScanRuns()
    runs.note(block(0, 10), 0.0)
    runs.cut(Cut((TOPIC_ID, 1), 50, 3))
    runs.note(block(30, 40), 1.0)

    news = runs.take(AGE_S_MAX + 0.5)

    assert [type(item) for item in news] == [Cut, Scan]
    assert runs.dropped == 1


def test_memory_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """By outputs and holes; a split of too many outputs is not kept at all."""
    monkeypatch.setattr(module, "COST_MAX", 7)
    runs = ScanRuns()
    for start in (0, 20, 40):
        runs.note(block(start, start + 10), 0.0)
    assert runs.cost == 6

    runs.note(block(60, 70, holes=((60, 60),)), 0.0)
    runs.check()
    runs.note(block(70, 80, holes=((70, 70), (72, 72))), 0.0)

    assert bounds(runs) == [(40, 50), (60, 80)]
    assert runs.dropped == 2
    large = even_split(OUTPUTS_PUBLISHED_MAX + 1)
    runs.note(block(0, 10, (-1,) * large.output_count, split=large), 0.0)
    assert bounds(runs) == []


@given(
    log=st.lists(st.integers(-1, 1), min_size=1, max_size=40),
    ends=st.sets(st.integers(1, 40), max_size=6),
    lost=st.sets(st.integers(0, 6)),
    takes=st.sets(st.integers(0, 6)),
)
def test_no_position_passes_a_record_by_what_was_published(
    log: list[int], ends: set[int], lost: set[int], takes: set[int]
) -> None:
    """Scans may be joined or lost on the way; a node that gets all knows the same."""
    reader, other, runs, book = ScanIndex(TWO), ScanIndex(TWO), ScanRuns(), SplitBook()
    places = [0, *sorted(end for end in ends if end < len(log)), len(log)]
    packets: list[bytes] = []

    def send() -> None:
        packets.extend(write_packets(Sender(1, bytes(16)), runs.take(0.0), lambda _: False))

    for number, (start, end) in enumerate(pairwise(places)):
        lasts = tuple(
            max((at for at in range(start, end) if log[at] == lane), default=-1) for lane in (0, 1)
        )
        holes = tuple((at, at) for at in range(start, end) if log[at] < 0)
        read = block(start, end, lasts, holes=holes)
        reader.add(start, end, read.last_record_offsets, holes=holes)
        runs.note(read, 0.0)
        runs.check()
        if number in takes:
            send()
    send()
    for number, packet in enumerate(packets):
        reported = read_packet(packet, book)
        for item in reported.news if reported is not None and number not in lost else ():
            assert isinstance(item, Scan)
            other.add(item.start, item.end, item.columns[0], holes=item.holes)
            other.check()

    for lane in (0, 1):
        for offset in range(len(log) + 1):
            key_range = TWO.key_range(lane)
            known = other.effective(key_range, offset)
            first = next((at for at in range(offset, len(log)) if log[at] == lane), len(log))
            assert offset <= known <= max(offset, first)
            if not lost:
                assert known == reader.effective(key_range, offset)
