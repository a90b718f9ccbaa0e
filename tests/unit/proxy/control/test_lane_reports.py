"""proxy/control/lane_reports.py: lanes of a group, and how sure their figures are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from keylane.config.node import LaneRule
from keylane.proxy.control.lane_reports import LaneDescriber, LaneMeasures
from keylane.proxy.control.watch.progress import ProgressBook
from keylane.proxy.scans.lag import Remaining
from keylane.proxy.scans.loads import LaneLoads
from tests.transcript.fake import FakeContext


@pytest.mark.parametrize("is_exact", [True, False])
async def test_an_age_is_as_sure_as_the_lag(is_exact) -> None:
    """No lag by an estimate is no age by an estimate."""
    view = FakeContext(LaneRule(topic="orders", lanes=4)).lanes("orders")
    position = SimpleNamespace(position_of=lambda _: SimpleNamespace(offset=5))
    times = SimpleNamespace(last_ms=lambda *_: None)
    groups: Any = SimpleNamespace(commit_times=times, state_of=lambda *_: position)
    tallies: Any = SimpleNamespace(
        remaining=lambda *_: Remaining(0, is_exact), scanned_end=lambda *_: 9
    )

    async def ends_of(_view: Any) -> list[int]:
        return [9] * view.layout.partition_count

    ends: Any = SimpleNamespace(ends_of=ends_of)
    measures = LaneMeasures(LaneLoads(lambda: 0.0), tallies, lambda _: {}, ends, ProgressBook())

    lanes = await LaneDescriber(groups, measures).describe("billing", view, {})

    assert {(lane.lag, lane.lag_is_exact) for lane in lanes} == {(0, is_exact)}
    assert {(lane.lag_s, lane.lag_s_is_exact) for lane in lanes} == {(0.0, is_exact)}
