"""A member of a classic group: each answer, each clock, each wish."""

from __future__ import annotations

import math
from typing import Any

import pytest

from keylane.assignor.protocol import read_assignment, read_subscription, write_assignment
from keylane.client.group.classic import ClassicMember, ClassicPhase
from keylane.client.group.classic_calls import (
    ClassicAnswer,
    ClassicBeat,
    ClassicCall,
    ClassicJoin,
    ClassicLeave,
    ClassicSync,
)
from keylane.client.group.classic_plan import write_ranges
from keylane.client.group.effects import (
    CoordinatorMoved,
    Effect,
    GroupFailed,
    PartsAssigned,
    PartsLost,
    RevokeRequested,
)
from keylane.client.group.settings import GroupSettings, GroupTopics
from keylane.client.values import TopicPartition
from keylane.keyrange.space import KeyRange
from keylane.wire.extensions import LaneRange

SESSION_S, REBALANCE_S = 10.0, 60.0


def part(number: int) -> TopicPartition:
    return TopicPartition("t", number)


class Table:
    """A member and its clock; the coordinator's answers are the test's."""

    def __init__(self, **options: Any) -> None:
        values: dict[str, Any] = {
            "group_id": "g",
            "topics": frozenset({"t"}),
            "session_timeout_s": SESSION_S,
            "rebalance_timeout_s": REBALANCE_S,
            **options,
        }
        self.now_s = 100.0
        self.machine = ClassicMember(GroupSettings(**values), "x", now_s=self.now_s)

    def ask(self, kind: type[Any] = ClassicBeat) -> Any:
        call: ClassicCall | None = self.machine.request(self.now_s)
        assert isinstance(call, kind), call
        return call

    def answer(self, code: int = 0, **values: Any) -> None:
        answer = ClassicAnswer(code=code, name=f"CODE_{code}", **values)
        self.machine.answered(answer, self.now_s)

    def join(self, *numbers: int, generation_id: int = 1) -> ClassicJoin:
        """Follow another member as the leader, up to an assignment."""
        joining: ClassicJoin = self.ask(ClassicJoin)
        self.answer(member_id="m", generation_id=generation_id, leader="other")
        self.ask(ClassicSync)
        self.give(*numbers)
        return joining

    def give(self, *numbers: int, user_data: bytes = b"") -> None:
        lanes = [("t", number) for number in numbers]
        self.answer(assignment=write_assignment(lanes, version=3, user_data=user_data))

    def beat(self, code: int = 0) -> None:
        self.wait(3.0)
        self.ask(ClassicBeat)
        self.answer(code)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.machine.tick(self.now_s)

    def effects(self) -> list[Effect]:
        return self.machine.take_effects()

    @property
    def owned(self) -> set[int]:
        return {each.partition for each in self.machine.held.owned}


@pytest.fixture
def joined() -> Table:
    """A member with partitions 0 and 1 in generation 1."""
    table = Table()
    table.join(0, 1)
    table.effects()
    return table


def owned_in(join: ClassicJoin) -> set[int]:
    return {index for _, index in read_subscription(join.metadata).owned}


def test_a_first_join_asks_for_a_member_id() -> None:
    """MEMBER_ID_REQUIRED: the same join again at once, with the id (KIP-394)."""
    table = Table()
    assert table.ask(ClassicJoin).member_id == ""

    table.answer(79, member_id="m")

    assert table.ask(ClassicJoin).member_id == "m"
    assert table.machine.member == ("g", "m", -1, None)


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
    assert table.machine.member == ("g", "m", 1, None)


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


def test_lanes_have_their_keys_from_the_user_data() -> None:
    """Marked user data of the assignment says the meaning of each lane index."""
    lane = LaneRange(0, KeyRange(0, 9))
    table = Table()
    table.ask(ClassicJoin)
    table.answer(member_id="m", generation_id=1, leader="other")
    table.ask(ClassicSync)

    table.give(0, user_data=write_ranges([("t", 0)], {("t", 0): lane}))

    assert table.effects() == [PartsAssigned({part(0): lane})]


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
