"""Which commits can only be of an earlier turn: bookkeeping, and a twin that looks it all up."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.proxy.groups import gained_lanes
from keylane.proxy.groups.gained_lanes import GainedLane, GainedLanes, MemberLanes

A, B, C = (("orders", index) for index in range(3))


def gained(lane: Any = A, answered: int = 500) -> tuple[GainedLanes, MemberLanes]:
    """A member that had another lane, has been given `lane`, and was answered its offset."""
    shared = GainedLanes()
    member = MemberLanes(shared)
    member.note_given("g", "rdkafka", [C])
    member.note_given("g", "rdkafka", [lane, C])
    member.note_answered("g", lane, answered)
    return shared, member


def test_a_lower_commit_without_a_fetch_is_left_over() -> None:
    """Below the answer, and only there."""
    _, member = gained()

    assert member.is_left_over("g", A, 499)
    assert not member.is_left_over("g", A, 500)


def test_a_seek_of_any_connection_of_the_client_counts() -> None:
    """One fetch below what was answered, and commits there are meant."""
    shared, member = gained()

    shared.note_fetched("another", "orders", [(0, 100)])
    shared.note_fetched("rdkafka", "orders", [(0, 500), (1, 7)])
    before = member.is_left_over("g", A, 120)
    shared.note_fetched("rdkafka", "orders", [(0, 100)])

    assert before
    assert not member.is_left_over("g", A, 120)


def test_a_fetch_before_the_answer_counts_too() -> None:
    """A member that was assigned with its own offsets, and asks later what is committed."""
    shared = GainedLanes()
    member = MemberLanes(shared)
    member.note_given("g", "rdkafka", [])
    member.note_given("g", "rdkafka", [A])

    shared.note_fetched("rdkafka", "orders", [(0, 100)])
    member.note_answered("g", A, 500)

    assert not member.is_left_over("g", A, 120)


def test_a_second_answer_does_not_raise_the_first() -> None:
    """`committed()` in the middle of the work is no position."""
    _, member = gained()

    member.note_answered("g", A, 900)

    assert not member.is_left_over("g", A, 700)


def test_a_lane_that_was_held_before_is_not_watched() -> None:
    """Nor are all those of the first generation that a connection sees."""
    _, member = gained()
    member.note_given("g", "rdkafka", [A])
    member.note_answered("g", A, 500)

    fresh = MemberLanes(GainedLanes())
    fresh.note_given("g", "rdkafka", [A])
    fresh.note_answered("g", A, 500)

    assert not member.is_left_over("g", A, 1)
    assert not fresh.is_left_over("g", A, 1)


def test_another_group_is_not_meant() -> None:
    """One connection may commit for several groups."""
    _, member = gained()
    member.note_answered("h", B, 500)

    assert not member.is_left_over("h", A, 1)
    assert not member.is_left_over("h", B, 1)


def test_nothing_stays_of_a_connection_that_is_gone() -> None:
    """Two members of one client id, one after the other."""
    shared, one = gained()
    two = MemberLanes(shared)
    two.note_given("h", "rdkafka", [])
    two.note_given("h", "rdkafka", [A])

    one.clear()
    held = shared.lane_count, len(shared.by_client["rdkafka"][A])
    two.clear()

    assert held == (1, 1)
    assert shared == GainedLanes()


def test_beyond_the_bound_commits_count_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes of all members together are bounded, and nothing is left of those refused."""
    monkeypatch.setattr(gained_lanes, "LANES_MAX", 2)
    shared = GainedLanes()
    member = MemberLanes(shared)
    member.note_given("g", "rdkafka", [])

    member.note_given("g", "rdkafka", [A, B, C])
    member.note_answered("g", A, 500)

    assert not member.is_left_over("g", A, 1)
    assert shared == GainedLanes()


def test_a_lane_has_a_bounded_number_of_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client id in very many groups cannot make each Fetch of that id dear."""
    monkeypatch.setattr(gained_lanes, "WATCHERS_MAX", 1)
    shared, first = gained()
    second = MemberLanes(shared)
    second.note_given("h", "rdkafka", [])
    second.note_given("h", "rdkafka", [A])
    second.note_answered("h", A, 500)

    assert first.is_left_over("g", A, 1)
    assert not second.is_left_over("h", A, 1)
    second.clear()
    first.clear()
    assert shared == GainedLanes()


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("given"), st.integers(0, 1), st.sets(st.sampled_from([A, B]))),
        st.tuples(
            st.just("answered"), st.integers(0, 1), st.sampled_from([A, B]), st.integers(0, 5)
        ),
        st.tuples(st.just("fetched"), st.sampled_from([A, B]), st.integers(0, 5)),
        st.tuples(st.just("closed"), st.integers(0, 1)),
    ),
    max_size=25,
)


@given(EVENTS, st.sampled_from([A, B]), st.integers(0, 6))
def test_it_says_what_a_search_through_the_history_says(events, lane, offset) -> None:
    """Two members of one client id, and any order of what happens to them."""
    shared = GainedLanes()
    members = [MemberLanes(shared), MemberLanes(shared)]
    for event in events:
        if event[0] == "given":
            members[event[1]].note_given("g", "rdkafka", event[2])
        elif event[0] == "answered":
            members[event[1]].note_answered("g", event[2], event[3])
        elif event[0] == "fetched":
            shared.note_fetched("rdkafka", event[1][0], [(event[1][1], event[2])])
        else:
            members[event[1]].clear()

    for number, member in enumerate(members):
        assert member.is_left_over("g", lane, offset) == search(events, number, lane, offset)


def search(events: list[Any], number: int, lane: Any, offset: int) -> bool:
    """The twin: find the last two assignments, then the answer and the fetches behind them."""
    since_close: list[Any] = []
    for event in events:
        since_close = [] if event == ("closed", number) else [*since_close, event]
    turns = [i for i, e in enumerate(since_close) if e[:2] == ("given", number)]
    if len(turns) < 2:
        return False
    before, now = (since_close[i][2] for i in turns[-2:])
    if lane not in now or lane in before:
        return False
    later = since_close[turns[-1] :]
    answers = [e[3] for e in later if e[:3] == ("answered", number, lane)]
    fetched = [e[2] for e in later if e[:2] == ("fetched", lane)]
    return bool(answers) and offset < answers[0] and all(at >= answers[0] for at in fetched)


def test_lanes_of_a_consumer_group_come_and_go_one_by_one() -> None:
    """A lane is watched until it goes, whatever comes beside it."""
    shared = GainedLanes()
    member = MemberLanes(shared)
    for lanes in ([C], [A, C], [A, C], [A, B, C]):
        member.note_held("g", "rdkafka", frozenset(lanes))
    member.note_answered("g", A, 500)
    member.note_held("g", "rdkafka", frozenset([A, B]))
    before = member.is_left_over("g", A, 499)
    member.note_held("g", "rdkafka", frozenset([B]))

    assert before and not member.is_left_over("g", A, 499)
    assert shared.lane_count == 1 and shared.by_client == {"rdkafka": {B: [GainedLane()]}}


def test_too_many_lanes_of_consumer_groups_are_not_watched(monkeypatch) -> None:
    """Those of the member that goes beyond the bound, as with a generation."""
    monkeypatch.setattr(gained_lanes, "LANES_MAX", 2)
    shared = GainedLanes()
    member = MemberLanes(shared)
    member.note_held("g", "rdkafka", frozenset([A, B]))

    member.note_held("g", "rdkafka", frozenset([A, B, C]))

    assert shared.lane_count == 0 and shared.by_client == {}
