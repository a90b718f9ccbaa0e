"""ConsumerGroupHeartbeat: members that end, bypass keylane, or do not fit their group."""

from __future__ import annotations

import logging
import uuid
from typing import Any

import pytest

from keylane.config.node import LaneRule
from keylane.proxy.apis.groups.consumer.contact import begin_group
from keylane.proxy.topics.placement import Placement
from tests.transcript.fake import ORDERS, PLAIN, FakeContext, check
from tests.transcript.lane_group import (
    ALL,
    NOTHING,
    assigned,
    beat,
    described,
    full,
    given,
    held,
    join_second,
    lanes,
    not_there,
    partial,
    start,
    takes,
    topics_of,
)

UNKNOWN_MEMBER, TOPIC_DENIED, GROUP_DENIED, INVALID = 25, 29, 30, 42
EVEN = [0, 2, 4, 6]
"""Lanes of partition 0."""


def asked_of_broker(context: FakeContext) -> list[str]:
    """Names of the requests that the broker has got."""
    return [event.split()[1] for event in context.events if event.startswith("send ")]


# The broker's epoch.


async def test_each_epoch_is_asked_for_once() -> None:
    """Two members, one new epoch, one ConsumerGroupDescribe; none while it stays."""
    context = FakeContext()
    await start(context)
    await join_second(context)
    context.events.clear()
    takes(context, 3, member_id="a")
    described(context, "a", "b")
    await beat(context, partial("a", 1))
    takes(context, 3, member_id="b")
    await beat(context, partial("b", 2))
    takes(context, 3, member_id="a")

    await beat(context, partial("a", 3))

    assert asked_of_broker(context).count("ConsumerGroupDescribe") == 1


async def test_a_member_that_is_not_listed_has_ended() -> None:
    """Its session timed out: b has the lanes with the heartbeat that brought the epoch."""
    context = FakeContext()
    await start(context)
    await join_second(context)
    takes(context, 3, member_id="b")
    described(context, "b")

    answer = await beat(context, partial("b", 2))

    assert given(answer) == list(ALL)
    assert held(context) == {"b": {*ALL}}


async def test_a_group_that_was_deleted_and_made_anew() -> None:
    """Epochs begin with 1 again; b gets the lanes of c, which ends at an epoch below the old ones.

    Kafka forgets an empty group also by itself, when its offsets expire.
    """
    context = FakeContext()
    await start(context)
    takes(context, 57, member_id="a")
    described(context, "a")
    await beat(context, partial("a", 1))
    takes(context, 1, member_id="c", assigned=lanes(0, 1))
    described(context, "c")
    anew = await beat(context, full("c", 0))
    takes(context, 2, member_id="b", assigned=NOTHING)
    described(context, "b", "c")
    await beat(context, full("b", 0))
    takes(context, 3, member_id="b")
    described(context, "b")

    answer = await beat(context, partial("b", 2))

    assert given(anew) == list(ALL)
    assert given(answer) == list(ALL) and held(context) == {"b": {*ALL}}


async def test_a_member_that_joins_while_the_group_is_described() -> None:
    """The description is older than its join: it keeps its lanes, and is asked for once more."""
    context = FakeContext()
    await start(context)
    group = context.consumer_groups.find("g")
    assert group is not None
    asked = group.turn, group.epoch
    await join_second(context)

    gone = group.note_listed([], asked)

    assert gone == ["a"] and "b" in group.members
    takes(context, 3, member_id="b")
    described(context, "b")
    assert given(await beat(context, partial("b", 2))) == list(ALL)


async def test_a_member_that_ends_in_the_description_of_its_own_join() -> None:
    """UNKNOWN_MEMBER_ID: the broker took the heartbeat and has ended the member since."""
    context = FakeContext()
    await start(context)
    takes(context, 2, member_id="b", assigned=NOTHING)
    described(context, "a")

    refused = await beat(context, full("b", 0))

    check({"error_code": UNKNOWN_MEMBER, "member_epoch": 0}, refused)


@pytest.mark.parametrize("code", [TOPIC_DENIED, GROUP_DENIED])
async def test_a_group_that_the_client_may_not_see(code, monkeypatch, caplog) -> None:
    """keylane's own login is asked; where that is refused, too, lanes stay, with a warning."""
    context = FakeContext()
    await start(context)
    await join_second(context)
    asked = []

    async def ask_coordinator(group: str, entity: Any) -> Any:
        asked.append(group)
        return await context.ask(entity)

    monkeypatch.setattr(context, "ask_coordinator", ask_coordinator)
    takes(context, 3, member_id="b")
    described(context, error_code=code)
    described(context, error_code=code)
    with caplog.at_level(logging.WARNING, "keylane.groups"):
        first = await beat(context, partial("b", 2))
    takes(context, 3, member_id="b")
    described(context, error_code=code)
    described(context, "b")

    answer = await beat(context, partial("b", 3))

    assert asked == ["g", "g"] and "remedy=allow DESCRIBE" in caplog.text
    assert (given(first), given(answer)) == (None, list(ALL))


async def test_members_that_begin_a_group_at_once_do_not_wait() -> None:
    """The broker lists a, whose join is on its way through this node: b has lanes at once."""
    context = FakeContext()
    group = begin_group("g", context)
    group.begin_join("a")
    described(context, "a")
    takes(context, 2, member_id="b", assigned=lanes(0, 1))
    described(context, "a", "b")

    answer = await beat(context, full("b", 0))

    assert given(answer) == list(ALL)


async def test_a_member_that_a_sample_finds_before_its_plan_has_joined() -> None:
    """The page samples the group after Kafka took its first member, and before it has lanes."""
    context = FakeContext()
    begin_group("g", context)

    context.event_log.note_members("g", {"a": "a"}, is_first=False)  # the sample
    context.event_log.note_members("g", {"a": "a"}, is_first=True)  # the plan

    assert [event.text for event in context.event_log.after(0, limit=9)] == ["a joined group g."]


async def test_two_first_heartbeats_begin_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another member's heartbeat begins the group while this one's right is asked for."""
    context = FakeContext()
    groups = []

    async def group_error(*_: object) -> int:
        groups.append(begin_group("g", context))
        return 0

    monkeypatch.setattr(context, "group_error", group_error)
    not_there(context)
    takes(context, 1, member_id="a", assigned=lanes(0, 1))
    described(context, "a")

    await beat(context, full("a", 0))

    assert context.consumer_groups.find("g") is groups[0]
    assert list(groups[0].members) == ["a"]


# Members that do not fit.


async def test_a_group_with_classic_members_refuses() -> None:
    """INVALID_REQUEST, with the remedy, before the broker has the member."""
    context = FakeContext()
    not_there(context, "Stable")

    refused = await beat(context, full("a", 0))

    check({"error_code": INVALID, "member_epoch": 0}, refused)
    assert "stop the classic members first" in refused["error_message"]
    assert context.stats.joins_refused == 1


@pytest.mark.parametrize("state", ["Dead", "Empty"])
async def test_a_group_that_classic_members_have_left(state) -> None:
    """It is served: the upgrade with all members stopped."""
    context = FakeContext()
    not_there(context, state)
    takes(context, 1, member_id="a", assigned=lanes(0, 1))
    described(context, "a")

    assert given(await beat(context, full("a", 0))) == list(ALL)


@pytest.mark.parametrize("name", ["orders.lanes-2", "orders.lanes-4"])
async def test_two_names_of_one_topic(name) -> None:
    """INVALID_REQUEST to the second member, which names both; the first goes on."""
    context = FakeContext()
    await start(context)
    described(context, "a")

    refused = await beat(context, full("b", 0, name))

    check({"error_code": INVALID, "member_epoch": 0}, refused)
    message = refused["error_message"]
    assert "reads topic orders as orders," in message and f"names it {name};" in message
    takes(context, 1, member_id="a")
    assert given(await beat(context, partial("a", 1))) is None


async def test_another_name_after_all_members_have_ended() -> None:
    """The group stopped, and one member without a word: the broker, asked, has ended it."""
    context = FakeContext()
    await start(context)
    described(context)
    takes(context, 3, member_id="b", assigned=lanes(0, 1))
    described(context, "b")

    answer = await beat(context, full("b", 0, "orders.lanes-2"))

    view = context.lanes("orders.lanes-2")
    assert assigned(answer) == {view.view_id: [0, 1, 2, 3]}


async def test_two_names_of_one_topic_in_one_subscription() -> None:
    """To the assignor they are two topics, and each key would be there twice."""
    context = FakeContext()
    not_there(context)

    refused = await beat(context, full("a", 0, "orders", "orders.lanes-2"))

    assert refused["error_code"] == INVALID
    assert "send ConsumerGroupHeartbeat" not in context.events


async def test_a_lane_topic_that_the_group_reads_whole() -> None:
    """`plain` beside `plain.lanes-2`: the second is refused."""
    context = FakeContext()
    not_there(context)
    takes(context, 1, member_id="a", assigned={PLAIN: [0, 1, 2]})
    described(context, "a")
    await beat(context, full("a", 0, "plain.lanes-2"))
    described(context, "a")

    refused = await beat(context, full("b", 0, "plain"))

    assert refused["error_code"] == INVALID


async def test_a_member_may_change_the_name_itself() -> None:
    """Alone in its group it goes from one name to another."""
    context = FakeContext()
    await start(context)
    takes(context, 2, {"subscribed_topic_names": ["orders"]}, member_id="a", assigned=lanes(0, 1))
    described(context, "a")

    answer = await beat(context, full("a", 1, "orders.lanes-2"))

    view = context.lanes("orders.lanes-2")
    assert assigned(answer) == {view.view_id: [0, 1, 2, 3]}


async def test_members_that_bypass_keylane(caplog) -> None:
    """What the broker has given to a member here is read here whole, and the rest is withheld."""
    context = FakeContext()
    not_there(context)
    takes(context, 2, member_id="a", assigned=lanes(0))
    described(context, "a", "direct", parts={"a": lanes(0), "direct": lanes(1)})
    with caplog.at_level(logging.INFO, "keylane.groups"):
        joined = await beat(context, full("a", 0))
        during = caplog.text
        takes(context, 3, member_id="a", assigned=lanes(0, 1))
        described(context, "a", parts={"a": lanes(0, 1)})

        answer = await beat(context, partial("a", 2, lanes(*EVEN)))

    assert given(joined) == EVEN and "members bypass keylane" in during
    assert given(answer) == list(ALL)
    assert "no member bypasses keylane" in caplog.text and context.stats.members_bypassing == 1


async def test_a_member_of_plain_topics_at_a_brokers_own_address() -> None:
    """It bypasses no lane: a and b share both partitions by lanes."""
    context = FakeContext()
    await start(context)
    takes(context, 2, member_id="b", assigned=NOTHING)
    described(context, "a", "b", "direct", parts={"direct": {PLAIN: [0]}}, topics=["plain"])
    await beat(context, full("b", 0))
    takes(context, 2, member_id="a")

    answer = await beat(context, partial("a", 1))

    assert len(given(answer) or ()) == 4 and context.stats.members_bypassing == 0


async def test_a_partition_is_claimed_until_it_is_read_no_more() -> None:
    """It goes to a member that bypasses keylane after a has confirmed that it gave its lanes up."""
    context = FakeContext()
    await start(context)
    takes(context, 1, member_id="a", assigned=lanes(0))
    described(context, "a", "direct", parts={"a": lanes(0, 1), "direct": lanes(1)})
    asked = await beat(context, partial("a", 1))
    takes(context, 1, {"topic_partitions": topics_of(lanes(0, 1))}, member_id="a")
    await beat(context, partial("a", 1))
    takes(context, 1, member_id="a")
    await beat(context, partial("a", 1, lanes(*EVEN)))
    takes(context, 2, {"topic_partitions": topics_of(lanes(0))}, member_id="a")
    described(context, "a", "direct", parts={"a": lanes(0), "direct": lanes(1)})

    answer = await beat(context, partial("a", 1))

    assert (given(asked), answer["error_code"]) == (EVEN, 0)


# Topics that change.


async def test_a_topic_that_was_made_anew() -> None:
    """The next answer has the lanes under the new id, also where the broker says nothing new."""
    context = FakeContext()
    await start(context)
    new = uuid.UUID(int=0xE5)
    context.registry.learn("orders", new, 2)
    takes(context, 2, member_id="a")
    described(context, "a")

    answer = await beat(context, partial("a", 1))

    assert assigned(answer) == {new: list(ALL)}


async def test_a_topic_that_comes_after_its_member() -> None:
    """Its lanes are given with the epoch that the broker moves for it, not a minute later."""
    context = FakeContext(LaneRule(topic="orders", lanes=4), LaneRule(topic="new", lanes=2))
    context.world.unready["new"] = 5
    await start(context, "a", "orders", "new")
    context.world.unready.clear()
    new = uuid.UUID(int=0xD4)
    context.registry.learn("new", new, 1)
    takes(context, 2, member_id="a", assigned={ORDERS: [0, 1], new: [0]})
    described(context, "a")

    answer = await beat(context, partial("a", 1))

    assert assigned(answer) == {ORDERS: list(ALL), new: [0, 1]}


async def test_lanes_that_were_left_out_come_back_with_their_topic() -> None:
    """Given and not confirmed while the topic is not served: named again once it is."""
    context = FakeContext()
    not_there(context)
    takes(context, 1, member_id="a", assigned=lanes(0, 1))
    described(context, "a")
    await beat(context, full("a", 0))
    context.world.unready["orders"] = 5
    takes(context, 2, member_id="a")
    described(context, "a")
    without = await beat(context, partial("a", 1))
    context.world.unready.clear()
    takes(context, 3, member_id="a")
    described(context, "a")

    answer = await beat(context, partial("a", 2))

    assert given(answer) == list(ALL) and given(without) in (None, [])


@pytest.mark.parametrize(
    ("is_librdkafka", "placement", "is_watched"),
    [
        (True, Placement(), True),
        (False, Placement(), False),
        (True, Placement(0), False),
    ],
    ids=["librdkafka", "java", "nodes"],
)
async def test_commits_of_an_earlier_turn_are_known_beyond_the_next_heartbeat(
    is_librdkafka, placement, is_watched
) -> None:
    """A lane is watched from the answer that gives it until it is given up; else each step counts.

    Fetches of a member pass other nodes too, and only librdkafka repeats commits.
    """
    context = FakeContext()
    context.is_librdkafka, context.placement = is_librdkafka, placement
    await start(context)
    await join_second(context)
    takes(context, -1, member_id="a")
    await beat(context, partial("a", -1))
    takes(context, 3, member_id="b")
    described(context, "b")
    await beat(context, partial("b", 2))
    context.member_lanes.note_answered("g", ("orders", 0), 500)
    takes(context, 3, member_id="b")

    await beat(context, partial("b", 3, lanes(*ALL)))

    assert context.member_lanes.is_left_over("g", ("orders", 0), 499) is is_watched
