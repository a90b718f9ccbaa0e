"""How far groups are behind, bounded in series."""

from __future__ import annotations

import uuid

from keylane.keyrange.space import HASH_MAX
from keylane.offsets.keyed_ranges import KeyedRange
from keylane.offsets.positions import PositionMap
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.offsets.values import Position
from keylane.proxy.control.gauges import LABEL_CHARS_MAX, GroupGauges
from keylane.proxy.runtime.stats import Sample

TOPIC_ID = uuid.UUID(int=7)
HALF = HASH_MAX // 2


def make_state(slow: int, fast: int) -> OffsetState:
    """Two lanes, committed up to here."""
    positions = [
        (end, Position(offset=at, counted=at, committed=True))
        for end, at in ((HALF, slow), (HASH_MAX, fast))
    ]
    return OffsetState.restore(
        positions=PositionMap.from_ends(positions),
        ranges=[KeyedRange(fast + 5, fast + 6)],
        pushed=slow,
        topic_name="orders",
    )


def ask(
    states: list[tuple[StateKey, OffsetState]],
    ends: dict[tuple[uuid.UUID, int], int],
) -> list[Sample]:
    """All samples."""
    gauges = GroupGauges(lambda: states, lambda: ends, lambda: 32)
    return list(gauges.samples())


def values(samples: list[Sample]) -> dict[tuple[str, ...], float]:
    """By name and label values."""
    return {(s.name, *(value for _, value in s.labels)): s.value for s in samples}


def test_lag_is_reported_by_group_and_topic() -> None:
    """Two partitions: stable lags add up, of slowest lane and spread the largest counts."""
    states = [
        (StateKey("billing", TOPIC_ID, 0), make_state(100, 140)),
        (StateKey("billing", TOPIC_ID, 1), make_state(10, 20)),
    ]

    reported = values(ask(states, {(TOPIC_ID, 0): 150, (TOPIC_ID, 1): 80}))

    assert reported["keylane_group_stable_lag", "billing", "orders"] == 50 + 70
    assert reported["keylane_group_lane_lag_max", "billing", "orders"] == 70
    assert reported["keylane_group_lane_spread_max", "billing", "orders"] == 40


def test_totals_count_every_state() -> None:
    """Groups, states and ranges count also where no log end is known."""
    states = [
        (StateKey("a", TOPIC_ID, 0), make_state(1, 2)),
        (StateKey("b", TOPIC_ID, 0), make_state(1, 2)),
        (StateKey("b", TOPIC_ID, 1), make_state(1, 2)),
    ]

    reported = values(ask(states, {}))

    assert reported["keylane_groups",] == 2
    assert reported["keylane_offset_states",] == 3
    assert reported["keylane_individual_commits",] == 3
    assert reported["keylane_lanes",] == 32
    assert not [key for key in reported if len(key) > 1]


def test_only_those_furthest_behind_have_series(monkeypatch) -> None:
    """Beyond the bound the least behind are left out, and counted."""
    monkeypatch.setattr("keylane.proxy.control.gauges.SERIES_MAX", 2)
    states = [(StateKey(f"g{lag}", TOPIC_ID, lag), make_state(0, lag)) for lag in range(5)]

    reported = values(ask(states, {(TOPIC_ID, lag): lag for lag in range(5)}))

    lags = [key for key in reported if key[0] == "keylane_group_lane_lag_max"]
    assert lags == [
        ("keylane_group_lane_lag_max", "g3", "orders"),
        ("keylane_group_lane_lag_max", "g4", "orders"),
    ]
    assert reported["keylane_group_series_left_out",] == 3


def test_a_long_group_id_is_cut() -> None:
    """A label is bounded; two ids that differ behind the cut make one series, the larger lag."""
    long = "x" * 400
    states = [
        (StateKey(long + "1", TOPIC_ID, 0), make_state(0, 9)),
        (StateKey(long + "2", TOPIC_ID, 1), make_state(0, 9)),
    ]

    samples = ask(states, {(TOPIC_ID, 0): 10, (TOPIC_ID, 1): 30})

    lags = [sample for sample in samples if sample.name == "keylane_group_lane_lag_max"]
    assert [(dict(lag.labels)["group"], lag.value) for lag in lags] == [
        (long[:LABEL_CHARS_MAX], 30)
    ]


def test_a_position_beyond_a_known_end_is_no_negative_lag() -> None:
    """The log end was learnt before the commit."""
    states = [(StateKey("g", TOPIC_ID, 0), make_state(100, 140))]

    reported = values(ask(states, {(TOPIC_ID, 0): 90}))

    assert reported["keylane_group_stable_lag", "g", "orders"] == 0
    assert reported["keylane_group_lane_spread_max", "g", "orders"] == 0
