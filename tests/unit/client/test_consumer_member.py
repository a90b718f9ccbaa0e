"""A member of the consumer protocol: joins, assignments, and what is asked back."""

from __future__ import annotations

import pytest

from keylane.client.group.consumer_protocol import ConsumerMember
from keylane.client.group.effects import (
    PartsAssigned,
    PartsLost,
    RevokeRequested,
)
from keylane.client.group.heartbeats import HeartbeatRequest
from keylane.client.group.settings import GroupSettings, GroupTopics
from keylane.keyrange.space import KeyRange
from keylane.wire.extensions import LaneRange
from tests.reference.heartbeat_stage import (
    OTHER,
    POLL_S,
    REVOKE_S,
    Names,
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


def test_a_join_says_all(stage) -> None:
    """The first heartbeat has epoch 0, all fields, no partition, and asks for lane ranges."""
    request = stage.ask()

    assert request == HeartbeatRequest(
        group_id="g",
        member_id="m",
        epoch=0,
        rebalance_timeout_s=POLL_S,
        topics=frozenset({"t"}),
        owned=frozenset(),
        asks_ranges=True,
        allow_key_share=True,
    )
    assert stage.machine.request(stage.now_s) is None


def test_a_member_of_plain_kafka_sends_no_tag() -> None:
    """Without the feature neither lane ranges are asked for, nor is sharing allowed or refused."""
    settings = GroupSettings(group_id="g", topics=frozenset({"t"}))
    machine = ConsumerMember(settings, "m", Names(), now_s=0.0, asks_ranges=False)

    request = machine.request(0.0)

    assert request is not None
    assert not request.asks_ranges
    assert request.allow_key_share is None


def test_an_assignment_is_acknowledged_at_once(stage) -> None:
    """The next heartbeat has the epoch and the owned partitions, and nothing that is the same."""
    stage.exchange(0, 1)

    assert stage.effects() == [PartsAssigned({part(0): None, part(1): None})]
    request = stage.ask()
    assert request.epoch == 1
    assert request.owned == {(T, 0), (T, 1)}
    assert (request.topics, request.rebalance_timeout_s, request.rack) == (None, None, None)
    assert stage.machine.member[:4] == ("g", "m", 1, None)


def test_a_quiet_member_comes_at_the_interval(joined) -> None:
    """After an answer without news the next heartbeat is due an interval after the last one."""
    assert joined.machine.request(joined.now_s + 2.9) is None
    assert joined.machine.next_s == joined.now_s + 3.0

    joined.wait(3.0)

    request = joined.ask()
    assert (request.owned, request.topics) == (None, None)


def test_what_is_asked_back_stays_owned_until_its_release(joined) -> None:
    """Heartbeats go on with both partitions; after the release one of them is reported gone."""
    joined.wait(3.0)
    joined.exchange(0)
    deadline_s = joined.now_s + REVOKE_S
    assert joined.effects() == [RevokeRequested(frozenset({part(1)}), deadline_s)]
    assert joined.owned == {0, 1}
    joined.wait(3.0)
    assert joined.ask().owned is None
    joined.answer()

    joined.machine.release([part(1), part(0)], joined.now_s)

    assert joined.owned == {0}
    assert joined.ask().owned == {(T, 0)}
    assert joined.effects() == []


def test_the_deadline_counts_from_the_request_that_was_answered(joined) -> None:
    """The coordinator's clock may have begun as the heartbeat left, so the member's does."""
    joined.wait(3.0)
    asked_s = joined.now_s
    joined.ask()
    joined.wait(2.0)

    joined.give(0)

    assert joined.effects() == [RevokeRequested(frozenset({part(1)}), asked_s + REVOKE_S)]


def test_what_is_not_released_in_time_is_lost(joined) -> None:
    """At the deadline the partition is dropped, and the next heartbeat says so."""
    joined.wait(3.0)
    joined.exchange(0)
    joined.effects()
    for _ in range(18):
        joined.wait(3.0)
        joined.machine.note_poll(joined.now_s)
        joined.ask()
        joined.answer()
    assert joined.owned == {0, 1}

    joined.wait(3.0)

    assert joined.effects() == [PartsLost(frozenset({part(1)}))]
    assert joined.ask().owned == {(T, 0)}


def test_a_part_that_is_given_again_comes_back_after_its_release(joined) -> None:
    """A second assignment with the partition does not withdraw the request; it is assigned anew."""
    joined.wait(3.0)
    joined.exchange(0)
    joined.wait(3.0)
    joined.exchange(0, 1)
    joined.effects()

    joined.machine.release([part(1)], joined.now_s)

    assert joined.effects() == [PartsAssigned({part(1): None})]
    assert joined.owned == {0, 1}


def test_other_keys_behind_an_index_are_another_part(stage) -> None:
    """A lane index with other keys is asked back, and assigned anew after its release."""
    first, second = LaneRange(0, KeyRange(0, 9)), LaneRange(0, KeyRange(0, 4))
    stage.ask()
    stage.answer(assignment=((T, 0, first),))
    stage.ask()
    stage.answer(assignment=((T, 0, second),))
    deadline_s = stage.now_s + REVOKE_S
    assert stage.effects() == [
        PartsAssigned({part(0): first}),
        RevokeRequested(frozenset({part(0)}), deadline_s),
    ]

    stage.machine.release([part(0)], stage.now_s)

    assert stage.effects() == [PartsAssigned({part(0): second})]


def test_a_changed_subscription_goes_with_the_next_heartbeat(joined) -> None:
    """Topics are sent, at once; a pattern that is dropped is sent as an empty one."""
    joined.machine.subscribe(GroupTopics(frozenset({"u"}), "x.*"), joined.now_s)
    request = joined.ask()
    assert (request.epoch, request.topics, request.pattern) == (1, {"u"}, "x.*")
    joined.answer()

    joined.machine.subscribe(GroupTopics(frozenset({"u"})), joined.now_s)

    request = joined.ask()
    assert (request.topics, request.pattern) == ({"u"}, "")


def test_a_topic_without_a_name_waits_for_metadata(stage) -> None:
    """Its partitions are taken as the name is known; the others at once."""
    stage.ask()
    stage.answer(assignment=((T, 0, None), (OTHER, 1, None)))
    assert stage.effects() == [PartsAssigned({part(0): None})]
    assert stage.machine.topics_unknown == {OTHER}
    stage.ask()
    stage.answer()

    stage.names.known[OTHER] = "u"
    stage.machine.names_changed(stage.now_s)

    assert stage.machine.topics_unknown == frozenset()
    assert stage.effects() == [PartsAssigned({part(1, "u"): None})]
    assert stage.ask().owned == {(T, 0), (OTHER, 1)}


def test_a_topic_that_was_made_anew_is_another_one(joined) -> None:
    """Same name, another id: the old partition is given up before the new one is taken."""
    joined.names.known[OTHER] = "t"
    joined.wait(3.0)
    joined.ask()
    joined.give(0, topic_id=OTHER)
    joined.effects()
    assert joined.machine.held.revoking == {part(0), part(1)}

    joined.machine.release([part(0), part(1)], joined.now_s)

    assert joined.effects() == [PartsAssigned({part(0): None})]
    assert joined.ask().owned == {(OTHER, 0)}


def test_a_rejoin_says_all_at_once(joined) -> None:
    """Another request was refused for the member's sake: a full heartbeat finds out."""
    joined.machine.rejoin(joined.now_s)

    request = joined.ask()
    assert (request.epoch, request.topics) == (1, {"t"})
    assert request.owned == {(T, 0), (T, 1)}
