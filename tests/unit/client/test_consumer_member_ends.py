"""A member of the consumer protocol: refusals, the end of a session, polls that lack, leaves."""

from __future__ import annotations

import math

import pytest

from keylane.client.group.consumer_protocol import MemberPhase
from keylane.client.group.effects import (
    CoordinatorMoved,
    GroupFailed,
    PartsLost,
)
from keylane.client.group.settings import GroupTopics
from tests.reference.heartbeat_stage import (
    REVOKE_S,
    SESSION_S,
    Stage,
    T,
    joined_stage,
    part,
)


@pytest.fixture
def stage() -> Stage:
    """A member that has not joined yet."""
    return Stage()


@pytest.fixture
def joined() -> Stage:
    """A member with partitions 0 and 1, its acknowledgement sent and answered."""
    return joined_stage()


@pytest.mark.parametrize("code", [25, 110])
def test_an_ended_member_loses_all_and_joins_anew(joined, code) -> None:
    """UNKNOWN_MEMBER_ID and FENCED_MEMBER_EPOCH: all lost, then epoch 0 with all fields."""
    joined.wait(3.0)
    joined.ask()

    joined.answer(code)

    assert joined.effects() == [PartsLost(frozenset({part(0), part(1)}))]
    assert joined.machine.member.epoch_or_generation == -1
    request = joined.ask()
    assert (request.epoch, request.owned) == (0, frozenset())
    assert request.topics == {"t"}


def test_a_member_that_is_fenced_as_it_joins_leaves_first(joined) -> None:
    """The coordinator has the member at an epoch: after a leave it may join, each with a pause."""
    joined.wait(3.0)
    joined.ask()
    joined.answer(110)
    joined.ask()
    joined.answer(110)
    assert joined.machine.request(joined.now_s) is None

    joined.wait(1.0)
    assert joined.ask().epoch == -1
    joined.answer(0, epoch=-1)

    assert joined.ask().epoch == 0


@pytest.mark.parametrize(("code", "moves"), [(14, False), (15, True), (16, True)])
def test_a_busy_coordinator_is_asked_again_after_a_pause(joined, code, moves) -> None:
    """Codes 14 to 16: nothing is lost; the next heartbeat says all, with the epoch."""
    joined.wait(3.0)
    joined.ask()

    joined.answer(code)

    assert joined.effects() == ([CoordinatorMoved()] if moves else [])
    assert joined.machine.request(joined.now_s) is None
    joined.wait(0.2)
    request = joined.ask()
    assert request.epoch == 1
    assert request.owned == {(T, 0), (T, 1)}
    assert request.topics == {"t"}
    assert joined.owned == {0, 1}


def test_pauses_grow_to_a_second(stage) -> None:
    """Ten failures: each pause is twice the one before, within a fifth, and a second at most."""
    pauses = []
    for _ in range(10):
        stage.ask()
        stage.machine.failed(stage.now_s)
        pauses.append(stage.machine.next_s - stage.now_s)
        stage.wait(pauses[-1])

    assert pauses[0] == pytest.approx(0.1, rel=0.2)
    assert pauses[-1] == pytest.approx(1.0, rel=0.2)
    assert pauses == sorted(pauses)


@pytest.mark.parametrize("code", [24, 29, 30, 35, 42, 69, 81, 82, 112, 128, 999])
def test_a_refusal_is_fatal_with_the_brokers_message(joined, code) -> None:
    """Rights, size, assignor, a clash of names: all is lost, the error has code and message."""
    joined.wait(3.0)
    joined.ask()

    joined.answer(code, message="topic t is lanes elsewhere")

    lost, failed = joined.effects()
    assert lost == PartsLost(frozenset({part(0), part(1)}))
    assert isinstance(failed, GroupFailed)
    assert failed.error.code == code
    assert str(failed.error) == f"group g: CODE_{code} ({code}): topic t is lanes elsewhere"
    assert joined.machine.next_s == math.inf


def test_a_new_subscription_ends_a_refusal(joined) -> None:
    """After a fatal code the consumer subscribes to something else and joins again."""
    joined.wait(3.0)
    joined.ask()
    joined.answer(42, message="no")

    joined.machine.subscribe(GroupTopics(frozenset({"u"})), joined.now_s)

    request = joined.ask()
    assert (request.epoch, request.topics) == (0, {"u"})


def test_an_instance_id_in_use_is_waited_for(stage) -> None:
    """UNRELEASED_INSTANCE_ID is repeated for a session time, and then fatal."""
    stage = Stage(instance_id="i")
    refused = 0
    while stage.machine.phase is not MemberPhase.FATAL:
        stage.ask()
        stage.answer(111)
        refused += 1
        stage.now_s += 1.3
    assert refused == 1 + math.ceil(SESSION_S / 1.3)


def test_a_session_without_an_answer_loses_all(joined) -> None:
    """Heartbeats fail for the session time since the last answered one was sent: all is lost."""
    answered_s = joined.now_s
    while joined.now_s < answered_s + SESSION_S - 1:
        if joined.machine.request(joined.now_s):
            joined.machine.failed(joined.now_s)
        joined.wait(0.5)
    assert joined.owned == {0, 1}
    joined.effects()

    joined.wait(answered_s + SESSION_S - joined.now_s)

    assert joined.effects() == [PartsLost(frozenset({part(0), part(1)}))]
    joined.wait(1.2)
    assert joined.ask().epoch == -1
    joined.answer(25)
    assert joined.ask().epoch == 0


def test_a_session_counts_from_the_time_of_sending(joined) -> None:
    """An answer that is late does not prolong the session."""
    joined.wait(3.0)
    sent_s = joined.now_s
    joined.ask()
    joined.wait(5.0)
    joined.answer()

    joined.wait(sent_s + SESSION_S - joined.now_s)

    assert joined.owned == set()


def test_an_answer_behind_its_session_is_none(stage) -> None:
    """A join that is answered after the session time gives nothing: it leaves, and joins."""
    stage.ask()
    stage.now_s += SESSION_S

    stage.give(0, 1)

    assert stage.owned == set()
    assert stage.effects() == []
    assert stage.ask().epoch == -1


def test_an_answer_to_an_ended_life_is_ignored(joined) -> None:
    """The session ends while a heartbeat is out; its answer does not bring the partitions back."""
    joined.wait(3.0)
    joined.ask()
    joined.wait(SESSION_S)
    joined.effects()

    joined.give(0, 1)

    assert joined.owned == set()
    assert joined.ask().epoch == -1


def test_a_member_that_does_not_poll_leaves_and_comes_back(joined) -> None:
    """No poll for the poll interval: all lost, a leave, silence; the next poll joins."""
    for _ in range(20):
        joined.wait(2.9)
        if joined.machine.request(joined.now_s):
            joined.answer()
    joined.effects()

    joined.wait(2.9)

    assert joined.effects() == [PartsLost(frozenset({part(0), part(1)}))]
    assert joined.ask().epoch == -1
    joined.answer(0, epoch=-1)
    assert joined.machine.phase is MemberPhase.STALE
    assert joined.machine.request(joined.now_s + 100) is None
    joined.machine.note_poll(joined.now_s)
    assert joined.ask().epoch == 0


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("i", -2)])
def test_a_leave_gives_all_up_without_an_effect(instance_id, epoch) -> None:
    """Epoch -1, of a static member -2; then nothing is sent any more."""
    stage = Stage(instance_id=instance_id)
    stage.exchange(0, 1)
    stage.effects()

    stage.machine.leave(stage.now_s)

    assert (stage.owned, stage.effects()) == (set(), [])
    request = stage.ask()
    assert (request.epoch, request.instance_id) == (epoch, instance_id)
    assert (request.topics, request.owned, request.asks_ranges) == (None, None, False)
    stage.answer(0, epoch=epoch)
    assert stage.machine.phase is MemberPhase.IDLE
    assert stage.machine.next_s == math.inf


def test_a_leave_behind_a_join_on_its_way_leaves(stage) -> None:
    """The join's answer is not looked at, and the member still leaves."""
    stage.ask()
    stage.machine.leave(stage.now_s)
    assert stage.machine.request(stage.now_s) is None

    stage.give(0)

    assert stage.owned == set()
    assert stage.ask().epoch == -1


def test_a_leave_is_tried_once(joined) -> None:
    """A leave without an answer ends the membership as well: the session does the rest."""
    joined.machine.leave(joined.now_s)
    joined.ask()

    joined.machine.failed(joined.now_s)

    assert joined.machine.phase is MemberPhase.IDLE


def test_a_member_that_never_joined_leaves_without_a_request(stage) -> None:
    """Nothing is sent."""
    stage.machine.leave(stage.now_s)

    assert stage.machine.phase is MemberPhase.IDLE


def test_no_subscription_at_all_leaves(joined) -> None:
    """An empty subscription leaves the group; a later one joins it."""
    joined.machine.subscribe(GroupTopics(), joined.now_s)
    assert joined.ask().epoch == -1
    joined.machine.subscribe(GroupTopics(frozenset({"t"})), joined.now_s)

    joined.answer(0, epoch=-1)

    assert joined.ask().epoch == 0


def test_a_release_that_the_coordinator_may_not_know_of_ends_all(joined) -> None:
    """No answer to a heartbeat without the partition, by the rebalance time-out: all is lost."""
    joined.wait(3.0)
    joined.exchange(0)
    asked_s = joined.now_s
    while joined.now_s < asked_s + REVOKE_S:
        joined.wait(3.0)
        joined.machine.note_poll(joined.now_s)
        if joined.owned == {0, 1}:
            joined.ask()
            joined.answer()
    assert joined.effects()[-1] == PartsLost(frozenset({part(1)}))
    assert joined.ask().owned == {(T, 0)}

    joined.wait(3.0)

    assert joined.effects() == [PartsLost(frozenset({part(0)}))]
    joined.machine.failed(joined.now_s)
    assert joined.ask().epoch == -1


def test_a_poll_before_the_leave_is_answered_joins_after_it(joined) -> None:
    """The leave for a lack of polls is out; its answer is followed by a join."""
    for _ in range(21):
        joined.wait(2.9)
        if joined.machine.request(joined.now_s):
            joined.answer()
    joined.machine.note_poll(joined.now_s)
    if joined.machine.phase is MemberPhase.LEAVING:
        joined.ask()
        joined.answer(0, epoch=-1)

    assert joined.ask().epoch == 0


def test_a_leave_before_a_join_is_repeated_where_the_coordinator_moves(joined) -> None:
    """The session is over: NOT_COORDINATOR to the leave, then the leave again, then the join."""
    joined.wait(SESSION_S)
    joined.effects()
    joined.ask()

    joined.answer(16)

    assert joined.effects() == [CoordinatorMoved()]
    joined.wait(0.2)
    assert joined.ask().epoch == -1
    joined.answer(0, epoch=-1)
    assert joined.ask().epoch == 0
