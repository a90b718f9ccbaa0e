"""A member of a classic group: sessions that end, polls that lack, leaves, subscriptions."""

from __future__ import annotations

import math

import pytest

from keylane.assignor.protocol import read_subscription
from keylane.client.group.classic import ClassicPhase
from keylane.client.group.classic_calls import (
    ClassicBeat,
    ClassicJoin,
    ClassicLeave,
    ClassicSync,
)
from keylane.client.group.effects import (
    GroupFailed,
    PartsLost,
)
from keylane.client.group.settings import GroupTopics
from tests.reference.classic_table import SESSION_S, Table, owned_in, part


@pytest.fixture
def joined() -> Table:
    """A member with partitions 0 and 1 in generation 1."""
    table = Table()
    table.join(0, 1)
    table.effects()
    return table


def test_a_session_without_an_answer_loses_all(joined) -> None:
    """The session time since the last answered request was sent; then a join with nothing."""
    for _ in range(3):
        joined.wait(3.0)
        joined.ask(ClassicBeat)
        joined.machine.failed(joined.now_s)
    joined.effects()
    assert joined.owned == {0, 1}

    joined.wait(1.0)

    assert joined.effects() == [PartsLost(frozenset({part(0), part(1)}))]
    assert owned_in(joined.ask(ClassicJoin)) == set()


def test_a_join_that_waits_for_others_keeps_all(joined) -> None:
    """The coordinator counts no session meanwhile: up to the rebalance time-out."""
    joined.beat(27)
    joined.ask(ClassicJoin)

    joined.wait(40.0)
    joined.machine.note_poll(joined.now_s)
    assert joined.owned == {0, 1}
    joined.wait(20.0)

    assert joined.effects() == [PartsLost(frozenset({part(0), part(1)}))]


def test_a_join_that_fails_counts_from_the_last_answer(joined) -> None:
    """Without a join at the coordinator the session goes on as it was."""
    joined.beat(27)
    asked_s = joined.now_s
    joined.ask(ClassicJoin)
    joined.wait(5.0)
    joined.machine.failed(joined.now_s)
    assert joined.owned == {0, 1}

    joined.wait(asked_s + SESSION_S - joined.now_s)

    assert joined.owned == set()


def test_a_rebalance_that_is_not_joined_ends_with_its_time_out() -> None:
    """With a rebalance time-out below the session's, the former counts from the last quiet beat."""
    table = Table(rebalance_timeout_s=6.0)
    table.join(0)
    quiet_s = table.now_s
    table.wait(3.0)
    table.machine.note_poll(table.now_s)
    table.ask(ClassicBeat)
    table.answer(27)
    table.ask(ClassicJoin)
    table.machine.failed(table.now_s)

    table.wait(quiet_s + 6.0 - table.now_s)

    assert table.owned == set()


def test_a_member_that_does_not_poll_leaves_and_comes_back(joined) -> None:
    """All lost, a LeaveGroup, silence; the next poll joins as a new member."""
    for _ in range(19):
        joined.beat()
    joined.wait(3.0)

    assert joined.effects() == [PartsLost(frozenset({part(0), part(1)}))]
    assert joined.ask(ClassicLeave).member_id == "m"
    joined.answer()
    assert joined.machine.phase is ClassicPhase.STALE
    joined.machine.note_poll(joined.now_s)
    assert joined.ask(ClassicJoin).member_id == ""


def test_a_leave_gives_all_up_without_an_effect(joined) -> None:
    """One LeaveGroup, and nothing after it, even without an answer."""
    joined.machine.leave(joined.now_s)

    assert (joined.owned, joined.effects()) == (set(), [])
    joined.ask(ClassicLeave)
    joined.machine.failed(joined.now_s)
    assert joined.machine.phase is ClassicPhase.IDLE
    assert joined.machine.next_s == math.inf


def test_a_leave_behind_a_join_on_its_way_leaves() -> None:
    """The member id of the join's answer is the one that leaves."""
    table = Table()
    table.ask(ClassicJoin)
    table.machine.leave(table.now_s)
    assert table.machine.request(table.now_s) is None

    table.answer(79, member_id="m")

    assert table.ask(ClassicLeave).member_id == "m"


def test_a_static_member_does_not_leave() -> None:
    """Its partitions wait for its return until its session ends (KIP-345)."""
    table = Table(instance_id="i")
    assert table.join(0).instance_id == "i"

    table.machine.leave(table.now_s)

    assert table.machine.phase is ClassicPhase.IDLE
    assert table.owned == set()


def test_a_changed_subscription_is_joined_with(joined) -> None:
    """Another topic means another join, with what is held; the same one means none."""
    joined.machine.subscribe(GroupTopics(frozenset({"t"})), joined.now_s)
    joined.beat()

    joined.machine.subscribe(GroupTopics(frozenset({"t", "u"})), joined.now_s)

    join = joined.ask(ClassicJoin)
    assert read_subscription(join.metadata).topics == ("t", "u")
    assert owned_in(join) == {0, 1}


def test_no_subscription_at_all_leaves(joined) -> None:
    """An empty subscription leaves; a later one joins as that is over."""
    joined.machine.subscribe(GroupTopics(), joined.now_s)
    joined.ask(ClassicLeave)
    joined.machine.subscribe(GroupTopics(frozenset({"t"})), joined.now_s)

    joined.answer()

    joined.ask(ClassicJoin)


def test_a_rejoin_keeps_what_is_held(joined) -> None:
    """Another request was refused: a join with the member id finds out."""
    joined.machine.rejoin(joined.now_s)

    join = joined.ask(ClassicJoin)
    assert join.member_id == "m"
    assert owned_in(join) == {0, 1}


def test_a_poll_before_the_leave_is_answered_joins_after_it(joined) -> None:
    """The leave for a lack of polls is out; its answer is followed by a join."""
    for _ in range(19):
        joined.beat()
    joined.wait(3.0)
    joined.ask(ClassicLeave)
    joined.machine.note_poll(joined.now_s)

    joined.answer()

    joined.ask(ClassicJoin)


def test_a_leave_during_a_leave_stays_out(joined) -> None:
    """The member that left for a lack of polls is left for good by the consumer."""
    for _ in range(19):
        joined.beat()
    joined.wait(3.0)
    joined.ask(ClassicLeave)
    joined.machine.leave(joined.now_s)

    joined.answer()

    assert joined.machine.phase is ClassicPhase.IDLE


@pytest.mark.parametrize("code", [25, 27])
def test_a_refused_join_is_repeated_after_a_pause(code) -> None:
    """UNKNOWN_MEMBER_ID or REBALANCE_IN_PROGRESS of a join itself."""
    table = Table()
    table.ask(ClassicJoin)

    table.answer(code)

    assert table.machine.request(table.now_s) is None
    table.wait(0.2)
    table.ask(ClassicJoin)


def test_a_group_of_other_strategies_is_refused_with_the_cure() -> None:
    """INCONSISTENT_GROUP_PROTOCOL: of librdkafka's defaults, range and roundrobin, say."""
    table = Table()
    table.ask(ClassicJoin)

    table.answer(23)

    (failed,) = table.effects()
    assert isinstance(failed, GroupFailed)
    assert "cooperative-sticky" in str(failed.error)


def test_a_member_knows_that_the_group_moves_on(joined) -> None:
    """From its join to its assignment it has the generation of before."""
    joined.beat(27)
    joined.ask(ClassicJoin)
    moving = [joined.machine.member]
    joined.answer(member_id="m", generation_id=2, leader="other")
    moving.append(joined.machine.member)
    joined.ask(ClassicSync)
    joined.give(0, 1)

    assert [(each.epoch_or_generation, each.is_moving) for each in moving] == [(1, True)] * 2
    member = joined.machine.member
    assert (member.epoch_or_generation, member.is_moving) == (2, False)


def test_a_pattern_that_matches_late_does_not_bring_a_member_back(joined) -> None:
    """Its topics were looked up when the member left."""
    joined.machine.leave(joined.now_s)
    joined.machine.matched(GroupTopics(frozenset({"t", "u"}), ".*"), joined.now_s)

    joined.ask(ClassicLeave)
    joined.answer()

    assert joined.machine.phase is ClassicPhase.IDLE


def test_what_nothing_was_asked_for_is_ignored(joined) -> None:
    """An answer without a request, and a failure to a request of an ended life."""
    joined.answer(25)
    assert joined.owned == {0, 1}
    joined.wait(3.0)
    joined.ask(ClassicBeat)
    joined.machine.rejoin(joined.now_s)

    joined.machine.failed(joined.now_s)

    joined.ask(ClassicJoin)


def test_the_parts_of_a_member_are_checked(joined) -> None:
    """`check` holds before and while something is asked back."""
    joined.machine.held.check()
    joined.beat(27)
    joined.join(0, generation_id=2)
    joined.machine.held.check()
