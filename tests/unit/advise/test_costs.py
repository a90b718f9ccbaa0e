"""Costs: the constants are those of docs/performance.md, and sums are right."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from keylane.advise import costs
from keylane.advise.costs import find_costs, node_records_per_s, reader_s_per_record

PAGE: Final = (Path(__file__).parents[3] / "docs" / "performance.md").read_text(encoding="utf-8")
TOLERANCE: Final = 0.35
"""A new run of the page may differ as much; by more, the constants are to be taken from it."""


def cells(start: str) -> list[float]:
    """First number of each cell behind the start of a row."""
    line = next(line for line in PAGE.splitlines() if line.startswith(start))
    found = [re.match(r"\s*([\d.]+)", cell) for cell in line[len(start) :].split("|")]
    return [float(number[1]) for number in found if number]


@pytest.mark.parametrize("size", [1000, 100])
def test_unit_costs_are_those_of_the_page(size: int) -> None:
    """CPU per GB, the rate of a node, and that of a direct reader, by the size of records."""
    lanes = cells(f"| {size} B | 16 members |")
    direct = cells(f"| {size} B | direct |")

    cpu_s = (costs.CPU_S_PER_RECORD + costs.CPU_S_PER_BYTE * size) * 1e9 / size

    assert cpu_s == pytest.approx(lanes[4], rel=TOLERANCE)
    assert node_records_per_s(size) * size / 1e6 == pytest.approx(lanes[0], rel=TOLERANCE)
    assert size / reader_s_per_record(size) / 1e6 == pytest.approx(direct[0], rel=TOLERANCE)


def test_memory_and_members_cost_what_the_page_says() -> None:
    """RSS when ready, a connection, a partition, a lane, a member at 10 ms of work."""
    assert cells("| RSS when ready |") == [pytest.approx(costs.READY_BYTES / 1e6, rel=TOLERANCE)]
    connection = cells("| per connection, of 2,000 idle |")
    assert connection == [pytest.approx(costs.CONNECTION_BYTES / 1e3, rel=TOLERANCE)]
    partition = cells("| per partition, of 50 read once |")
    assert partition == [pytest.approx(costs.PARTITION_BYTES / 1e3, rel=TOLERANCE)]
    lane = cells("| per lane, of 800 read once |")
    assert lane == [pytest.approx(costs.LANE_BYTES / 1e3, rel=TOLERANCE)]
    microseconds = cells("| K=8 | keylane |")
    assert pytest.approx(microseconds[-1] * 1e-6 * 100, rel=TOLERANCE) == costs.MEMBER_CPU_SHARE


def test_costs_grow_with_rate_members_and_lanes() -> None:
    """At rest a member costs its polls; memory at most has the cache in it."""
    idle = find_costs(0, record_bytes=100, wire_bytes=40, partitions=2, lanes=16, members=8)
    busy = find_costs(1e6, record_bytes=100, wire_bytes=40, partitions=2, lanes=16, members=8)

    assert idle.cpu_cores == pytest.approx(8 * costs.MEMBER_CPU_SHARE)
    assert busy.cpu_cores - idle.cpu_cores == pytest.approx(0.207, rel=0.01)
    assert busy.from_brokers_bytes_per_s == 40e6
    assert busy.to_members_bytes_per_s == 100e6
    assert idle.memory_bytes == 149_000_000 + 200_000 + 40_000 + 44_800
    assert idle.memory_bytes_max == idle.memory_bytes + 262_144_000
