"""proxy/topics/switches.py: what was set while running goes before what is configured."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.config.node import LaneRule, ProxyConfig
from keylane.errors import AssignmentInvalid
from keylane.proxy.topics.switches import SwitchBoard, Switches


def board(**config: Any) -> SwitchBoard:
    return SwitchBoard(ProxyConfig(bootstrap="kafka:9092", **config))


def test_defaults_of_the_switches() -> None:
    """Commits yes, clients share; a topic is ranged only as lanes."""
    switches = board(lanes=(LaneRule(topic="orders", lanes=4),))

    assert switches.accepts_individual_commit and switches.current.is_empty
    assert switches.allows_individual_commit("anyone")
    assert switches.accepts_range_fetch("orders")
    assert not switches.accepts_range_fetch("shop")
    assert switches.accepts_range_fetch("shop", is_lane_view=True)
    assert not switches.accepts_range_fetch("__consumer_offsets")


def test_start_values_are_configured() -> None:
    """Each level has its key; the first lane rule that fits a topic speaks for it."""
    switches = board(
        lanes=(
            LaneRule(topic="orders", lanes=4, accept_range_fetch=False),
            LaneRule(topic="*", lanes=2),
        ),
        accept_individual_commit=False,
        accept_range_fetch=("orders",),
        refuse_individual_commit=("audit-*",),
    )

    assert not switches.accepts_individual_commit
    assert not switches.accepts_range_fetch("orders", is_lane_view=True)
    assert switches.accepts_range_fetch("shop")
    assert not switches.allows_individual_commit("audit-1")
    assert switches.allows_individual_commit("billing")


def test_a_topic_without_lanes_is_allowed_by_a_glob() -> None:
    """`accept_range_fetch` names topics that have no rule; an internal one is never meant."""
    switches = board(accept_range_fetch=("*",))

    assert switches.accepts_range_fetch("shop")
    assert not switches.accepts_range_fetch("__consumer_offsets")


@pytest.mark.parametrize("is_on", [True, False])
def test_what_was_set_goes_first(*, is_on: bool) -> None:
    """Either value of each level beats the configuration; others are as configured."""
    switches = board(
        lanes=(LaneRule(topic="orders", lanes=4, accept_range_fetch=not is_on),),
        accept_individual_commit=not is_on,
        refuse_individual_commit=("audit-*",) if is_on else (),
    )

    switches.current = Switches(
        version=1,
        accept_individual_commit=is_on,
        topics={"orders": is_on},
        clients={"audit-1": is_on},
    )

    assert not switches.current.is_empty
    assert switches.accepts_individual_commit == is_on
    assert switches.accepts_range_fetch("orders", is_lane_view=True) == is_on
    assert switches.allows_individual_commit("audit-1") == is_on
    assert switches.allows_individual_commit("audit-2") != is_on


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"topics": {"no topic": True}}, "topic 'no topic'"),
        ({"clients": {"": True}}, "client ''"),
        ({"topics": {f"t{n}": True for n in range(501)}}, "501 topics"),
        ({"clients": {f"c{n}": True for n in range(501)}}, "501 clients"),
    ],
)
def test_what_is_out_of_bounds_is_refused(fields: Any, text: str) -> None:
    """Names and counts are bounded."""
    with pytest.raises(AssignmentInvalid, match=text):
        Switches(**fields)
