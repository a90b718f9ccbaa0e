"""proxy/groups/consumer_group.py, consumer_groups.py: words, epochs, plans and hands of a group."""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from keylane.assignor.model import Lane, LaneTopic
from keylane.offsets.records.held import HeldLanes
from keylane.proxy.groups.consumer_group import GRACE_S, MOVES_KEPT, ConsumerGroup
from keylane.proxy.groups.consumer_groups import ConsumerGroups
from keylane.proxy.groups.consumer_members import GroupTopic, Listed, Subscribed, Word

ID, NEW_ID = uuid.UUID(int=1), uuid.UUID(int=2)
LOAD_S = 60.0
NOTHING: frozenset[Lane] = frozenset()


def lanes(*indexes: int) -> frozenset[Lane]:
    """Lanes of t."""
    return frozenset(("t", index) for index in indexes)


def topics(topic_id: uuid.UUID = ID, *, lane_count: int = 2) -> dict[str, GroupTopic]:
    """Topic t with two partitions."""
    made = LaneTopic(name="t", partition_count=2, lane_count=lane_count)
    return {"t": GroupTopic(lanes=made, topic_id=topic_id, view_id=topic_id)}


def says(group: ConsumerGroup, name: str, epoch: int, **fields: Any) -> None:
    """The broker has taken a heartbeat of a member."""
    order = fields.pop("order", group.turn)
    group.take(name, Word(order=order, member_id=name, epoch=epoch, **fields))


def plan(group: ConsumerGroup, now_s: float = 0.0, **target: frozenset[Lane]) -> Sequence[Any]:
    """Put a plan in place; return its moves."""
    _, reason = group.begin_plan()
    planned = {name: tuple(sorted(found)) for name, found in target.items()}
    return group.set_target(planned, reason, now_s, 7)


def begun(*names: str) -> ConsumerGroup:
    """A group whose members have joined with one epoch each."""
    group = ConsumerGroup(0.0)
    group.set_topics(topics())
    subscribed = Subscribed(frozenset({"t"}))
    for epoch, name in enumerate(names, start=1):
        says(group, name, epoch, is_join=True, is_full=True, subscribed=subscribed)
    return group


def settled() -> ConsumerGroup:
    """Member a has lanes 0 to 3, since epoch 1."""
    group = begun("a")
    plan(group, a=lanes(0, 1, 2, 3))
    group.give("a", 0.0)
    says(group, "a", 1, owned=lanes(0, 1, 2, 3))
    return group


# Epochs.


@pytest.mark.parametrize(
    ("epoch", "asked", "sent"),
    [
        (1, lanes(0), 5),
        (4, lanes(0, 3), 5),
        (1, None, 5),
        (1, lanes(), 5),
        (5, lanes(0), 5),
        (6, lanes(0), 6),
        (0, lanes(0), 0),
        (-1, lanes(0), -1),
        (1, lanes(0, 9), 1),
        (0, None, 0),
        (-1, None, -1),
    ],
)
def test_the_epoch_of_a_commit(epoch, asked, sent) -> None:
    """The newest, 5, in the place of older ones of lanes that the member has had since."""
    group = settled()
    says(group, "a", 5)

    assert group.newest_epoch("a", epoch, asked) == sent
    assert group.newest_epoch("b", epoch, asked) == epoch


def test_a_lane_that_was_given_up_and_came_back() -> None:
    """Its epoch is that of the second time; the others keep theirs."""
    group = settled()
    plan(group, a=lanes(1, 2, 3))
    group.give("a", 0.0)
    says(group, "a", 3, owned=lanes(1, 2, 3))
    plan(group, a=lanes(0, 1, 2, 3))
    says(group, "a", 4)
    group.give("a", 0.0)
    says(group, "a", 6)

    sent = [group.newest_epoch("a", epoch, lanes(index)) for index in (0, 1) for epoch in (3, 4)]

    assert sent == [3, 6, 6, 6]


def test_a_member_that_joins_anew_has_a_lower_epoch() -> None:
    """The broker has forgotten the group: what counts is its last answer."""
    group = settled()
    says(group, "a", 9)
    says(group, "a", 2, is_join=True, is_full=True)

    assert group.members["a"].epoch == 2
    assert group.newest_epoch("a", 1, lanes(0)) == 2


# Words.


def test_a_word_that_comes_late_does_not_count() -> None:
    """The order is that of the requests, not of their answers."""
    group = settled()
    says(group, "a", 2, order=20, owned=lanes(0, 1, 2, 3))

    says(group, "a", 1, order=19, owned=lanes())

    assert group.members["a"].owned == lanes(0, 1, 2, 3)
    assert (group.members["a"].epoch, group.epoch) == (2, 2)


def test_what_a_partial_word_does_not_say_stays() -> None:
    """Subscription, rack, time-out and partitions are as before."""
    group = begun()
    part = frozenset({(NEW_ID, 0)})
    says(
        group, "a", 1, is_join=True, is_full=True, subscribed=Subscribed(frozenset({"t"})),
        rack="r", rebalance_timeout_s=9.0, plain_owned=part, plain_parts=part, parts=part,
    )  # fmt: skip

    says(group, "a", 2)

    member = group.members["a"]
    assert (member.rack, member.rebalance_timeout_s) == ("r", 9.0)
    assert (member.plain_owned, member.plain_parts, member.assigned) == (part, part, part)
    assert member.plain_since == {(NEW_ID, 0): 1}
    assert member.subscribed.names == {"t"}


def test_a_static_member_is_known_by_its_last_id() -> None:
    """An old process's id finds none."""
    group = ConsumerGroup(0.0)
    for order, member_id in enumerate(("a1", "a2")):
        word = Word(order=order, member_id=member_id, epoch=1, is_join=True, instance_id="i")
        group.take("static i", word)

    assert group.find("a1") is None and group.find("a2") is group.members["static i"]


def test_a_joining_member_is_not_gone() -> None:
    """A description from before its heartbeat does not list it; it is asked for once more."""
    group = settled()
    asked = group.turn, group.epoch
    says(group, "b", 2, is_join=True, is_full=True)

    gone = group.note_listed([Listed(identity="a", member_id="a")], asked)

    assert gone == [] and group.listed_epoch == -1
    assert group.note_listed([Listed(identity="a", member_id="a")], (group.turn, 2)) == ["b"]
    assert group.listed_epoch == 2


def test_a_member_whose_answer_is_older_than_the_listing() -> None:
    """It may have ended before the broker listed the members: they are asked for again."""
    group = settled()
    group.note_listed([Listed(identity="a", member_id="a")], (group.turn, 5))
    before = group.listed_epoch

    says(group, "b", 4, is_join=True, is_full=True)

    assert (before, group.listed_epoch) == (5, -1)


def test_a_member_that_joins_anew_has_confirmed_nothing() -> None:
    """Its lanes wait for it, and it is asked to come soon until it has confirmed them."""
    group = settled()
    before = group.is_settled

    says(group, "a", 2, is_join=True, is_full=True)

    member = group.members["a"]
    assert (member.owned, member.given) == (NOTHING, lanes(0, 1, 2, 3))
    assert (before, group.is_settled) == (True, False)


def test_a_static_member_that_will_be_back_holds_its_lanes() -> None:
    """Confirmed by no process, and the others need not come sooner for it."""
    group = settled()
    group.pause("unknown")

    group.pause("a")

    member = group.members["a"]
    assert (member.owned, member.held) == (NOTHING, lanes(0, 1, 2, 3))
    assert group.is_settled


# Plans.


def test_moves_have_a_reason() -> None:
    """The first of the list, and the members; lanes that no member had are no moves."""
    group = settled()
    says(group, "b", 2, is_join=True, is_full=True, subscribed=Subscribed(frozenset({"t"})))

    moves = plan(group, a=lanes(0, 2), b=lanes(1, 3))
    later = plan(group, a=lanes(0, 2, 1), b=lanes(3))

    assert moves == [(7, ("t", 1), "a", "b", "join"), (7, ("t", 3), "a", "b", "join")]
    assert later == [(7, ("t", 1), "b", "a", "load")]
    assert list(group.moves) == [*moves, *later]


def test_lanes_of_a_member_that_has_ended_are_no_moves() -> None:
    """They are free: another member's lanes alone count."""
    group = settled()
    says(group, "b", 2, is_join=True, is_full=True, subscribed=Subscribed(frozenset({"t"})))
    group.end("a")

    moves = plan(group, b=lanes(0, 1, 2, 3))

    assert moves == [] and group.target == {"b": lanes(0, 1, 2, 3)}


def test_some_moves_are_kept() -> None:
    """The last 100 of a group."""
    group = settled()
    for _ in range(MOVES_KEPT):
        plan(group, a=lanes(0, 1))
        plan(group, a=lanes(2, 3))

    assert len(group.moves) <= MOVES_KEPT


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda group: group.end("b"), "leave"),
        (lambda group: group.set_topics(topics(lane_count=3)), "topics"),
        (
            lambda group: says(group, "a", 3, subscribed=Subscribed(frozenset({"u"}))),
            "subscription",
        ),
        (lambda group: says(group, "c", 3, is_join=True), "join"),
        (
            lambda group: group.note_listed(
                [Listed(identity=name, member_id=name) for name in "abd"], (group.turn, 2)
            ),
            "bypass",
        ),
    ],
)
def test_changes_that_ask_for_a_plan(change, reason) -> None:
    """Each once."""
    group = begun("a", "b")
    plan(group, a=lanes(0, 1), b=lanes(2, 3))
    before = group.is_plan_due(0.0, LOAD_S)

    change(group)

    assert (before, group.is_plan_due(0.0, LOAD_S)) == (False, True)
    assert group.begin_plan()[1] == reason
    assert not group.is_plan_due(0.0, LOAD_S)


def test_load_asks_for_a_plan_from_time_to_time() -> None:
    """Of a group that has settled; one on its way goes on."""
    group = settled()
    before, after = group.is_plan_due(LOAD_S - 1, LOAD_S), group.is_plan_due(LOAD_S, LOAD_S)
    plan(group, a=lanes(0, 1))
    group.give("a", 0.0)

    assert (before, after, group.is_plan_due(10 * LOAD_S, LOAD_S)) == (False, True, False)


def test_a_lane_on_its_way_is_its_receivers() -> None:
    """The assignor sees member b with it, though a still reads it."""
    group = settled()
    says(group, "b", 2, is_join=True, is_full=True, subscribed=Subscribed(frozenset({"t"})))
    plan(group, a=lanes(0, 1), b=lanes(2, 3))
    group.give("a", 0.0)

    members, _ = group.begin_plan()

    assert {one.member_id: set(one.owned) for one in members} == {
        "a": lanes(0, 1),
        "b": lanes(2, 3),
    }


def test_a_topic_that_was_made_anew_has_no_holder() -> None:
    """Its lanes are free, and the member is answered with them once more."""
    group = settled()
    group.members["a"].sent = lanes(0, 1, 2, 3)

    group.set_topics(topics(NEW_ID))

    member = group.members["a"]
    assert (member.held, member.sent, group.holder_of(("t", 0))) == (NOTHING, None, None)
    assert group.target == {"a": NOTHING} and group.is_stale


# Members that bypass keylane.


def with_foreign() -> ConsumerGroup:
    """Member a has both partitions, of which the broker wants one for another member."""
    group = settled()
    both = frozenset({(ID, 0), (ID, 1)})
    says(group, "a", 2, parts=both)
    assert group.claim("a") == both
    says(group, "a", 3, parts=frozenset({(ID, 0)}))
    listed = [Listed(identity=name, member_id=name) for name in ("a", "direct")]
    group.note_listed(listed, (group.turn, 3))
    return group


def test_partitions_stay_whole_beside_members_that_bypass_keylane() -> None:
    """Whatever the plan: a has the partition that the broker has assigned."""
    group = with_foreign()

    plan(group, a=lanes(0, 1, 2, 3))

    assert group.target == {"a": lanes(0, 2)}


def test_a_partition_is_claimed_while_it_is_read() -> None:
    """Released once no lane of it is in any hands."""
    group = with_foreign()
    plan(group, a=lanes())
    before = group.claim("a")
    group.give("a", 0.0)
    says(group, "a", 3, owned=lanes(0, 2))

    after = group.claim("a")

    assert before == {(ID, 0), (ID, 1)}
    assert after == {(ID, 0)}
    assert group.claim("unknown") == frozenset()


def test_a_member_that_comes_to_keylane_bypasses_it_no_more() -> None:
    """Its first heartbeat here ends it; partitions that the broker gives later ask for a plan."""
    group = with_foreign()
    plan(group, a=lanes())
    says(group, "a", 3, parts=frozenset({(ID, 0), (ID, 1)}))
    is_due = group.is_plan_due(0.0, LOAD_S)

    says(group, "direct", 3, is_full=True)

    assert is_due and group.foreign == {}


def test_a_member_that_is_joining_bypasses_nothing() -> None:
    """The broker lists it before its answer is here; nor does one that has joined just now."""
    group = settled()
    group.begin_join("b")
    listed = [Listed(identity=name, member_id=name) for name in ("a", "b")]
    group.note_listed(listed, (group.turn, 1))
    foreign = [dict(group.foreign)]
    group.end_join("b")
    group.note_listed(listed, (group.turn, 1))
    foreign.append(dict(group.foreign))
    is_there = group.has_passed([listed[1]])
    group.note_listed(listed[:1], (group.turn, 1))

    assert foreign == [{}, {}]
    assert (is_there, group.has_passed([listed[1]])) == (True, False)


# Times.


def test_the_grace_is_an_interval_and_two_seconds() -> None:
    """From the group's beginning, set once; without it nothing waits."""
    group = ConsumerGroup(100.0)
    before = group.is_still(100.0)
    group.still_until_s = math.inf
    group.begin_grace(5.0)
    group.begin_grace(50.0)

    assert not before
    assert group.is_still(104.9 + GRACE_S) and not group.is_still(105.0 + GRACE_S)


def test_a_member_is_late_after_its_own_time_out() -> None:
    """Since it was asked; not at its next request, when it has confirmed in between."""
    group = settled()
    says(group, "a", 1, rebalance_timeout_s=20.0)
    plan(group, a=lanes(0))
    group.give("a", 5.0)
    group.give("a", 24.0)
    times = [len(group.late(now_s)) for now_s in (25.0, 25.1)]
    says(group, "a", 1, owned=lanes(0))
    plan(group, a=NOTHING)
    group.give("a", 100.0)

    assert times == [0, 1]
    assert group.late(110.0) == []


def test_a_member_that_takes_lanes_up_one_after_the_other_is_not_late() -> None:
    """Each word that says more begins its time-out anew; one that says the same does not."""
    group = settled()
    says(group, "a", 1, rebalance_timeout_s=20.0)
    plan(group, a=NOTHING, b=lanes(0))
    says(group, "a", 1, owned=NOTHING)
    plan(group, a=lanes(1, 2, 3), b=lanes(0))
    group.give("a", 0.0)
    says(group, "a", 1, owned=lanes(1))
    group.give("a", 15.0)
    says(group, "a", 1, owned=lanes(1))
    group.give("a", 34.0)

    assert [len(group.late(now_s)) for now_s in (35.0, 35.1)] == [0, 1]


# The journal.


def test_a_lane_in_two_records_is_at_the_later() -> None:
    """The epoch, the ids and the topics come with it."""
    group = ConsumerGroup(0.0)

    group.load([HeldLanes("a", None, 3, lanes(0, 1)), HeldLanes("b", "i", 4, lanes(1, 2))])

    assert {name: one.held for name, one in group.members.items()} == {
        "a": lanes(0),
        "static i": lanes(1, 2),
    }
    assert group.find("b") is group.members["static i"]
    assert group.changes() == {} and group.members["a"].subscribed.names == {"t"}
    assert group.newest_epoch("a", 2, lanes(0)) == 2 and group.epoch == -1


def test_what_changes_while_it_is_written_is_written_again() -> None:
    """What the journal has acknowledged is not, and members without lanes are not at all."""
    group = settled()
    first = group.changes()
    plan(group, a=lanes(0))
    group.give("a", 0.0)
    says(group, "a", 2, owned=lanes(0))
    group.note_written(first)
    second = group.changes()
    group.note_written(second)
    says(group, "b", 2, is_join=True)
    group.end("b")

    assert first == {"a": HeldLanes("a", None, 1, lanes(0, 1, 2, 3))}
    assert second == {"a": HeldLanes("a", None, 2, lanes(0))}
    assert group.changes() == {}
    group.end("a")
    assert group.changes() == {"a": None}


# Groups.


def test_a_group_is_of_the_table_that_it_was_begun_with() -> None:
    """After its journal was loaded anew it is looked at, and not served."""
    groups, group, table = ConsumerGroups(), begun("a"), object()
    groups.begin("g", table, group)

    assert groups.get("g", table) is group and groups.get("g", object()) is None
    assert groups.find("g") is group and groups.member("g", "a") is group.members["a"]
    assert groups.find("h") is None and groups.member("h", "a") is None
    groups.forget_where(lambda name: name == "g")
    assert groups.names() == []
