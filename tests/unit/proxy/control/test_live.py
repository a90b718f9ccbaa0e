"""What the live page is sent: compact lists by lane index, borders as texts, rates of counters."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.config.node import LaneRule
from keylane.keyrange.space import split_even
from keylane.proxy.control.describe import GroupReport, LaneName, MemberReport
from keylane.proxy.control.lane_reports import LaneReport
from keylane.proxy.control.live import NO_MEMBER, Rates, layout_of, state_of
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.scans.loads import LaneLoads
from tests.transcript.fake import FakeContext


@pytest.fixture
def views() -> list[Any]:
    """Orders (2 partitions, 4 lanes) and shop (1 partition, 2 lanes)."""
    context = FakeContext(LaneRule(topic="orders", lanes=4), LaneRule(topic="shop", lanes=2))
    return [context.lanes("shop"), context.lanes("orders")]


def lane(topic: str, index: int, member_id: str | None, lag: int | None, **more: Any) -> LaneReport:
    values: dict[str, Any] = {
        "topic": topic,
        "lane_index": index,
        "partition": 0,
        "key_range": (0, 1),
        "member_id": member_id,
        "committed": 0,
        "committed_ms": None,
        "log_end": 9,
        "lag": lag,
        "lag_is_exact": True,
        "offset_lag": 9,
        "bytes_per_s": None,
        "records_per_s": None,
        **more,
    }
    return LaneReport(**values)


def member(member_id: str, **more: Any) -> MemberReport:
    values: dict[str, Any] = {
        "member_id": member_id,
        "instance_id": None,
        "client_id": f"client-{member_id}",
        "host": "/127.0.0.1",
        "lane_count": 1,
        "bytes_per_s": 10.4,
        "lag": 7,
        "lanes_gained": None,
        "lanes_lost": None,
        **more,
    }
    return MemberReport(**values)


def state(views: list[Any], *reports: GroupReport) -> dict[str, Any]:
    return state_of(
        views,
        reports,
        loads=LaneLoads(lambda: 0.0),
        stats=ProxyStats(),
        rates=Rates(lambda: 1.0),
        groups_left_out=3,
    )


def report(members: tuple[MemberReport, ...], lanes: tuple[LaneReport, ...]) -> GroupReport:
    return GroupReport(
        group="g",
        state="Stable",
        assignor="range",
        coordinator=1,
        generation_id=None,
        refusal=None,
        members=members,
        lanes=lanes,
    )


def test_borders_are_decimal_texts_and_stand_once(views) -> None:
    """Numbers beyond 2^53 do not survive JavaScript; partitions that are cut alike share a list."""
    borders = [str(key_range.lo) for key_range in split_even(4)[1:]]

    assert layout_of(views) == [
        {"name": "orders", "partitions": 2, "lanes": 4, "borders": [borders], "range_of": None},
        {
            "name": "shop",
            "partitions": 1,
            "lanes": 2,
            "borders": [[str(split_even(2)[1].lo)]],
            "range_of": None,
        },
    ]


def test_a_lane_by_murmur2_has_the_range_that_is_its_own() -> None:
    """Its ranges are in another order than its lanes."""
    context = FakeContext(LaneRule(topic="orders", lanes=4, hash="murmur2"))
    view = context.registry.view("orders")
    assert view is not None

    (shown,) = layout_of([view])

    assert shown["range_of"] == [0, 2, 1, 3]
    assert shown["borders"][0][1] == str(view.layout.key_range(0, 1).lo)


def test_lanes_are_lists_by_index(views) -> None:
    """Owners are places in the list of members; a lane without an owner is shown as such."""
    lanes = (
        lane("shop", 1, "b", 5),
        lane("shop", 0, "gone", None, lag_is_exact=False),
        lane("dropped", 0, "a", 5),
    )

    found = state(views, report((member("a"), member("b", instance_id="pod-1")), lanes))

    (group,) = found["groups"]
    assert group["topics"] == [
        {
            "name": "shop",
            "owner": [NO_MEMBER, 1],
            "lag": [None, 5],
            "lag_is_exact": [0, 1],
            "lag_s": [None, None],
            "consumed_per_s": [None, None],
        }
    ]
    assert [one["label"] for one in group["members"]] == ["client-a", "pod-1"]
    assert found["groups_left_out"] == 3
    assert [topic["name"] for topic in found["topics"]] == ["orders", "shop"]


def test_moves_are_counted_where_they_are_known(views) -> None:
    """A group whose own assignor deals out lanes has none to show."""
    moved = member("a", lanes_gained=(LaneName(topic="shop", lane_index=1),) * 2, lanes_lost=())

    (group,) = state(views, report((moved, member("b")), ()))["groups"]

    assert [(one["gained"], one["lost"]) for one in group["members"]] == [(2, 0), (None, None)]


def test_rates_are_taken_between_two_looks() -> None:
    """The first look has none; a counter that a restart set back gives none either."""
    now_s, stats = iter([10.0, 12.0, 13.0]), ProxyStats()
    rates = Rates(lambda: next(now_s))

    assert set(rates.take(stats).values()) == {None}
    stats.records = 100
    assert rates.take(stats)["records_per_s"] == 50
    stats.records = 0
    assert rates.take(stats)["records_per_s"] == 0
