"""A member of a classic group: joins, assignments, what moves, refusals."""

from __future__ import annotations

import math

import pytest

from keylane.assignor.protocol import read_assignment, read_subscription
from keylane.client.group.classic_calls import (
    ClassicBeat,
    ClassicJoin,
    ClassicSync,
)
from keylane.client.group.effects import (
    CoordinatorMoved,
    GroupFailed,
    PartsAssigned,
    PartsLost,
    RevokeRequested,
)
from keylane.client.group.settings import GroupTopics
from tests.reference.classic_table import REBALANCE_S, Table, owned_in, part


@pytest.fixture
def joined() -> Table:
    """A member with partitions 0 and 1 in generation 1."""
    table = Table()
    table.join(0, 1)
    table.effects()
    return table


def test_a_first_join_asks_for_a_member_id() -> None:
    """MEMBER_ID_REQUIRED: the same join again at once, with the id (KIP-394)."""
    table = Table()
    assert table.ask(ClassicJoin).member_id == ""

    table.answer(79, member_id="m")

    assert table.ask(ClassicJoin).member_id == "m"
    assert table.machine.member[:4] == ("g", "m", -1, None)


def test_a_follower_syncs_with_nothing() -> None:
    """Its assignment comes with the answer; then heartbeats each interval."""
    table = Table()
    table.ask(ClassicJoin)
    table.answer(member_id="m", generation_id=1, leader="other")

    sync = table.ask(ClassicSync)
    assert (sync.generation_id, sync.assignments) == (1, ())
    table.give(0, 1)

    assert table.effects() == [PartsAssigned({part(0): None, part(1): None})]
    assert table.machine.request(table.now_s + 2.9) is None
    table.wait(3.0)
    assert table.ask(ClassicBeat).generation_id == 1
    assert table.machine.member[:4] == ("g", "m", 1, None)


def test_a_leader_plans_as_partitions_are_counted() -> None:
    """Between the join and the sync it waits for counts of all subscribed topics."""
    table = Table()
    join = table.ask(ClassicJoin)
    table.answer(member_id="m", generation_id=1, leader="m", members=(("m", None, join.metadata),))
    assert table.machine.topics_to_count == {"t"}
    assert table.machine.request(table.now_s) is None

    table.machine.counted({"t": 2}, table.now_s)

    ((member_id, data),) = table.ask(ClassicSync).assignments
    assert member_id == "m"
    assert read_assignment(data).lanes == (("t", 0), ("t", 1))
    assert table.machine.topics_to_count == frozenset()
    table.give(0, 1)
    assert table.machine.topics_led == {"t"}


def test_a_leader_that_skips_the_plan_syncs_with_nothing() -> None:
    """A static leader that came back keeps the assignment of the generation (KIP-814)."""
    table = Table(instance_id="i")
    join = table.ask(ClassicJoin)
    members = (("m", "i", join.metadata),)

    table.answer(member_id="m", generation_id=1, leader="m", members=members, skips_plan=True)

    assert table.ask(ClassicSync).assignments == ()


def test_what_moves_stays_until_its_release_and_then_a_join_follows(joined) -> None:
    """Heartbeats go on meanwhile; the join has what is left, in the generation it is of."""
    joined.beat(27)
    assert owned_in(joined.join(0, generation_id=2)) == {0, 1}
    assert joined.effects() == [RevokeRequested(frozenset({part(1)}), joined.now_s + REBALANCE_S)]
    joined.beat()
    joined.beat()
    assert joined.owned == {0, 1}

    joined.machine.release([part(1)], joined.now_s)

    join = joined.ask(ClassicJoin)
    assert owned_in(join) == {0}
    assert read_subscription(join.metadata).generation_id == 2


def test_the_join_waits_for_all_that_moves(joined) -> None:
    """Two partitions are asked for: after one release heartbeats go on."""
    joined.beat(27)
    joined.join(generation_id=2)
    joined.machine.release([part(1)], joined.now_s)
    joined.beat()

    joined.machine.release([part(0)], joined.now_s)

    assert owned_in(joined.ask(ClassicJoin)) == set()


def test_a_rebalance_meanwhile_is_joined_with_all_that_is_held(joined) -> None:
    """What is asked back and not released yet is still claimed, so no member gets it."""
    joined.beat(27)
    joined.join(0, generation_id=2)

    joined.beat(27)

    assert owned_in(joined.ask(ClassicJoin)) == {0, 1}


def test_a_release_during_a_join_is_followed_by_another_one(joined) -> None:
    """The join claimed the partition, so its new owner gets it only after the next one."""
    joined.beat(27)
    joined.join(0, generation_id=2)
    joined.beat(27)
    joined.ask(ClassicJoin)
    joined.machine.release([part(1)], joined.now_s)
    joined.answer(member_id="m", generation_id=3, leader="other")
    joined.ask(ClassicSync)

    joined.give(0)

    assert owned_in(joined.ask(ClassicJoin)) == {0}


def test_a_part_that_is_given_again_moves_nowhere(joined) -> None:
    """The next plan leaves it here: after its release it is a new one, and no join follows."""
    joined.beat(27)
    joined.join(0, generation_id=2)
    joined.beat(27)
    joined.join(0, 1, generation_id=3)
    joined.effects()

    joined.machine.release([part(1)], joined.now_s)

    assert joined.effects() == [PartsAssigned({part(1): None})]
    joined.beat()


def test_what_is_not_released_in_time_is_lost_and_moves(joined) -> None:
    """At the deadline the partition is lost, and the member joins again."""
    joined.beat(27)
    joined.join(0, generation_id=2)
    joined.effects()
    for _ in range(19):
        joined.machine.note_poll(joined.now_s)
        joined.beat()

    joined.wait(3.0)

    assert joined.effects() == [PartsLost(frozenset({part(1)}))]
    assert owned_in(joined.ask(ClassicJoin)) == {0}


@pytest.mark.parametrize(("code", "member_id"), [(22, "m"), (25, "")])
def test_a_fenced_member_loses_all_and_joins_anew(joined, code, member_id) -> None:
    """ILLEGAL_GENERATION keeps the member id, UNKNOWN_MEMBER_ID does not."""
    joined.beat(code)

    assert joined.effects() == [PartsLost(frozenset({part(0), part(1)}))]
    join = joined.ask(ClassicJoin)
    assert join.member_id == member_id
    assert owned_in(join) == set()
    assert read_subscription(join.metadata).generation_id == -1


@pytest.mark.parametrize("code", [14, 15, 16])
def test_a_busy_coordinator_is_asked_again_after_a_pause(joined, code) -> None:
    """The heartbeat is repeated; 15 and 16 have the coordinator looked up."""
    joined.beat(code)

    assert joined.effects() == ([] if code == 14 else [CoordinatorMoved()])
    assert joined.machine.request(joined.now_s) is None
    joined.wait(0.2)
    joined.ask(ClassicBeat)
    assert joined.owned == {0, 1}


@pytest.mark.parametrize("code", [23, 24, 26, 30, 81, 82])
def test_a_refusal_is_fatal(joined, code) -> None:
    """Protocols that differ, rights, size, a static member elsewhere: all is lost."""
    joined.beat(27)
    joined.ask(ClassicJoin)

    joined.answer(code)

    lost, failed = joined.effects()
    assert lost == PartsLost(frozenset({part(0), part(1)}))
    assert isinstance(failed, GroupFailed)
    assert failed.error.code == code
    assert joined.machine.next_s == math.inf
    joined.machine.subscribe(GroupTopics(frozenset({"u"})), joined.now_s)
    joined.ask(ClassicJoin)


@pytest.mark.parametrize("code", [27, 16])
def test_a_sync_without_success_is_followed_by_a_join(joined, code) -> None:
    """A rebalance has begun, or another node serves the group; nothing is lost."""
    joined.beat(27)
    joined.ask(ClassicJoin)
    joined.answer(member_id="m", generation_id=2, leader="other")
    joined.ask(ClassicSync)

    joined.answer(code)
    joined.wait(0.2)

    join = joined.ask(ClassicJoin)
    assert owned_in(join) == {0, 1}
    assert read_subscription(join.metadata).generation_id == 1


def test_a_sync_without_an_answer_is_followed_by_a_join(joined) -> None:
    """The connection broke; the generation may go on without this member."""
    joined.beat(27)
    joined.ask(ClassicJoin)
    joined.answer(member_id="m", generation_id=2, leader="other")
    joined.ask(ClassicSync)

    joined.machine.failed(joined.now_s)
    joined.wait(0.2)

    assert owned_in(joined.ask(ClassicJoin)) == {0, 1}
