"""ConsumerGroupHeartbeat v0-1 (KIP-848): lanes for members, partitions at the broker."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from keylane.config.node import LaneRule
from tests.transcript.fake import (
    ORDERS,
    PLAIN,
    SHOP,
    FakeContext,
    check,
    make_request,
    serve,
    versions,
)
from tests.transcript.lane_group import (
    ALL,
    GRACE_S,
    HEARTBEAT,
    NOTHING,
    assigned,
    beat,
    described,
    full,
    given,
    hand_over,
    held,
    join_second,
    lanes,
    not_there,
    partial,
    start,
    takes,
    topics_of,
)

METADATA = 3
BUSY, GROUP_DENIED, INVALID, FENCED_EPOCH, UNREADABLE = 14, 30, 42, 110, 128
UNKNOWN_MEMBER = 25
NEW = uuid.UUID(int=0xD4)
SHOWN = {"topics": [{"name": "orders", "error_code": 0}]}
HIDDEN = {"topics": [{"name": "orders", "error_code": 29}]}


def wish(*names: str, **fields: Any) -> dict[str, Any]:
    """A heartbeat of a member that was there before, with names or without."""
    asked = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 3,
        "subscribed_topic_names": list(names) or None,
    }
    return asked | fields


# Members without lanes.


@pytest.mark.parametrize("version", versions(HEARTBEAT))
@pytest.mark.parametrize(
    "values",
    [
        wish("plain", "shop"),
        wish(),
        wish(subscribed_topic_regex="pl.*"),
        wish(subscribed_topic_regex=""),
        wish("plain", member_epoch=0, topic_partitions=[]),
        wish(member_epoch=-1),
        wish("orders", member_epoch=-1),
    ],
    ids=["names", "partial", "pattern", "no pattern", "joins", "leaves", "leaves lanes"],
)
async def test_members_without_lanes_pass(version, values) -> None:
    """Byte for byte, and the answer too; a leave passes, whatever the member reads."""
    context = FakeContext()
    context.consumer_groups.note_plain("g", "m")
    asked = make_request(HEARTBEAT, version, values)
    takes(context, 4, assigned={PLAIN: [0, 1]})
    context.world.steps[0].wants = bytes(asked.body)

    answer = asked.decode_answer(await serve(context, asked))

    assert answer.member_epoch == 4 and answer.heartbeat_interval.total_seconds() == 5
    assert answer.assignment.topic_partitions[0].partitions == (0, 1)
    assert context.consumer_groups.names() == [] and context.groups.journal == []


@pytest.mark.parametrize("regex", [r"\pL+(", r"\pL", "a" * 1025, "(a){900}(b){101}", "ü.*"])
async def test_a_pattern_that_cannot_be_compared(regex) -> None:
    """Refused while there are lane topics, with the code of patterns, which does not repeat it."""
    context = FakeContext()

    found = await beat(context, wish(subscribed_topic_regex=regex))

    check({"error_code": UNREADABLE, "member_epoch": 3}, found)
    assert "cannot be compared" in found["error_message"] and regex not in found["error_message"]


async def test_too_many_patterns_at_once() -> None:
    """COORDINATOR_LOAD_IN_PROGRESS: all stock clients ask again."""
    context = FakeContext()
    context.world.are_patterns_busy = True

    found = await beat(context, wish(subscribed_topic_regex="pl.*"))

    check({"error_code": BUSY, "member_epoch": 3}, found)


@pytest.mark.parametrize(("config", "denied"), [({"lanes": ()}, ()), ({}, ("g",))])
async def test_patterns_that_nothing_is_compared_with(config, denied) -> None:
    """Without lane topics, and without READ on the group, the broker has the answer."""
    context = FakeContext()
    context.config = context.config.model_copy(update=config)
    context.world.groups_denied.update(denied)
    takes(context, 4, {"subscribed_topic_regex": r"\pL"}, error_code=GROUP_DENIED)

    found = await beat(context, wish(subscribed_topic_regex=r"\pL"))

    assert found["error_code"] == GROUP_DENIED
    assert context.world.compared == [] and context.consumer_groups.names() == []


@pytest.mark.parametrize("is_full", [True, False])
async def test_partitions_of_a_lane_topic_that_a_plain_member_does_not_name(is_full: bool) -> None:
    """The broker still gives them: they are left out of a full answer, and else asked for anew."""
    context = FakeContext()
    takes(context, 3, member_id="p")
    await beat(context, full("p", 3, "plain"))
    takes(context, 3, member_id="p", assigned={PLAIN: [0, 2], ORDERS: [1]})
    said = full("p", 3, "plain", topic_partitions=[]) if is_full else partial("p", 3)

    answer = await beat(context, said)

    if is_full:
        assert assigned(answer) == {PLAIN: [0, 2]}
    else:
        check({"error_code": 15, "member_epoch": 3, "assignment": None}, answer)


async def test_a_client_without_the_group_learns_nothing_of_it() -> None:
    """A join of a lane topic: the broker answers, and no group is begun or asked for."""
    context = FakeContext()
    context.world.groups_denied.add("g")
    takes(context, 0, {"subscribed_topic_names": ["orders"]}, error_code=GROUP_DENIED)

    found = await beat(context, full("a", 0))

    assert found["error_code"] == GROUP_DENIED
    assert context.consumer_groups.names() == []


async def test_a_lane_topic_that_the_client_may_not_describe() -> None:
    """Brokers leave it out of the pattern, and that it is there does not show."""
    context = FakeContext()
    context.expect(METADATA, {"topics": [{"name": "orders"}]}, HIDDEN)
    takes(context, 4, {"subscribed_topic_regex": "ord.*"}, assigned={PLAIN: [0]})

    found = await beat(context, wish(subscribed_topic_regex="ord.*"))

    assert assigned(found) == {PLAIN: [0]}
    assert context.consumer_groups.names() == []


# Members of lanes.


@pytest.mark.parametrize("version", versions(HEARTBEAT))
async def test_a_join_of_a_lane_topic(version) -> None:
    """Upstream each topic once and no lane; the answer has all 8 lanes, by the client's id."""
    context = FakeContext()
    not_there(context)
    names = ["orders", "plain", "shop.lanes-8", "plain"]
    wants = {
        "member_id": "a",
        "member_epoch": 0,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": ["orders", "plain", "shop"],
        "server_assignor": None,
        "topic_partitions": [],
    }
    parts = {ORDERS: [0, 1], PLAIN: [0, 1, 2], SHOP: [0]}
    takes(context, 1, wants, member_id="a", assigned=parts)
    described(context, "a", parts={"a": parts})

    asked = full("a", 0, *names, server_assignor="key-range")
    answer = await beat(context, asked, version=version)

    view_id = context.lanes("shop.lanes-8").view_id
    assert view_id != SHOP
    assert assigned(answer) == {ORDERS: list(ALL), PLAIN: [0, 1, 2], view_id: list(range(8))}
    check({"member_id": "a", "member_epoch": 1, "heartbeat_interval": 500}, answer)


async def test_another_assignor_passes() -> None:
    """The broker judges `uniform`; lanes are planned all the same."""
    context = FakeContext()
    not_there(context)
    takes(context, 1, {"server_assignor": "uniform"}, member_id="a", assigned=lanes(0, 1))
    described(context, "a")

    answer = await beat(context, full("a", 0, server_assignor="uniform"))

    assert given(answer) == list(ALL)


async def test_a_member_id_that_the_broker_makes() -> None:
    """Version 0 joins without one: the second heartbeat comes with the id of the answer."""
    context = FakeContext()
    not_there(context)
    takes(context, 1, {"member_id": ""}, member_id="made", assigned=lanes(0, 1))
    described(context, "made")
    answer = await beat(context, full("", 0), version=0)
    takes(context, 1, {"member_id": "made"}, member_id="made")

    confirmed = await beat(context, partial("made", 1, assigned(answer)), version=0)

    check({"error_code": 0, "assignment": None, "heartbeat_interval": 5000}, confirmed)
    assert held(context) == {"made": set(ALL)}


async def test_what_a_member_owns_for_the_broker() -> None:
    """The partitions that the broker has assigned, an empty list where it has none, never null."""
    context = FakeContext()
    await start(context)
    takes(context, 1, {"topic_partitions": topics_of(lanes(0, 1))}, member_id="a")
    await beat(context, partial("a", 1))
    await join_second(context)
    takes(context, 2, {"topic_partitions": []}, member_id="b", assigned=lanes(1))
    await beat(context, partial("b", 2))
    takes(context, 2, {"topic_partitions": topics_of(lanes(1))}, member_id="b")

    answer = await beat(context, partial("b", 2))

    assert answer["error_code"] == 0


async def test_a_lane_goes_over_after_its_member_has_confirmed() -> None:
    """Member b has nothing until a has said that it reads 4 lanes only; each is asked at 0.5 s."""
    context = FakeContext()
    await start(context)

    first = await join_second(context)
    takes(context, 2, member_id="a")
    asked = await beat(context, partial("a", 1))
    takes(context, 2, member_id="b")
    early = await beat(context, partial("b", 2))
    kept = given(asked)
    assert kept is not None
    takes(context, 2, member_id="a")
    await beat(context, partial("a", 2, lanes(*kept)))
    takes(context, 2, member_id="b")
    second = await beat(context, partial("b", 2))

    assert (given(first), given(early), len(kept)) == ([], None, 4)
    assert given(second) == sorted({*ALL} - {*kept})
    assert {each["heartbeat_interval"] for each in (first, asked, early, second)} == {500}
    assert held(context) == {"a": {*kept}, "b": {*ALL} - {*kept}}


@pytest.mark.parametrize(("is_librdkafka", "interval_ms"), [(False, 500), (True, 2000)])
async def test_librdkafka_gets_time_for_its_answers(is_librdkafka, interval_ms) -> None:
    """It waits for an answer for as long as the interval, and closes the connection then."""
    context = FakeContext()
    context.is_librdkafka = is_librdkafka
    await start(context)

    assert (await join_second(context))["heartbeat_interval"] == interval_ms


async def test_the_brokers_interval_counts_once_all_have_confirmed() -> None:
    """5 s for both members; what has not changed is not in the answers."""
    context = FakeContext()
    await start(context)
    _, new = await hand_over(context)

    takes(context, 2, member_id="b")
    confirmed = await beat(context, partial("b", 2, lanes(*new)))
    takes(context, 2, member_id="a")
    settled = await beat(context, partial("a", 2))

    for answer in (confirmed, settled):
        check({"error_code": 0, "assignment": None, "heartbeat_interval": 5000}, answer)


async def test_a_full_heartbeat_is_always_answered_with_lanes() -> None:
    """As by the broker: also of a member that has confirmed them."""
    context = FakeContext()
    await start(context)
    takes(context, 1, member_id="a", assigned=lanes(0, 1))

    answer = await beat(context, full("a", 1, topic_partitions=topics_of(lanes(*ALL))))

    assert given(answer) == list(ALL)


async def test_plain_partitions_pass_beside_lanes() -> None:
    """Up as the member owns them, down as the broker gives them, lanes in neither."""
    context = FakeContext()
    not_there(context)
    takes(context, 1, member_id="a", assigned={ORDERS: [0, 1], PLAIN: [0, 2]})
    described(context, "a")
    first = await beat(context, full("a", 0, "orders", "plain"))
    wants = {"topic_partitions": topics_of({ORDERS: [0, 1], PLAIN: [0, 2]})}
    takes(context, 2, wants, member_id="a", assigned={ORDERS: [0, 1], PLAIN: [0]})
    described(context, "a")

    second = await beat(context, partial("a", 1, assigned(first)))

    assert assigned(first) == {ORDERS: list(ALL), PLAIN: [0, 2]}
    assert assigned(second) == {ORDERS: list(ALL), PLAIN: [0]}


async def test_plain_partitions_stay_while_lanes_move() -> None:
    """An answer with new lanes repeats the plain partitions that the broker has not repeated."""
    context = FakeContext()
    not_there(context)
    takes(context, 1, member_id="a", assigned={ORDERS: [0, 1], PLAIN: [0, 2]})
    described(context, "a")
    await beat(context, full("a", 0, "orders", "plain"))
    takes(context, 1, member_id="a")
    await beat(context, partial("a", 1, {ORDERS: ALL, PLAIN: [0, 2]}))
    await join_second(context)
    takes(context, 2, member_id="a")

    answer = await beat(context, partial("a", 1))

    found = assigned(answer)
    assert found is not None and found[PLAIN] == [0, 2] and len(found[ORDERS]) == 4


async def test_a_topic_that_is_not_there_yet() -> None:
    """A member of a lane topic that the broker does not know yet is served, with no lane."""
    context = FakeContext(LaneRule(topic="orders", lanes=4), LaneRule(topic="new", lanes=2))
    context.world.unready["new"] = 5
    not_there(context)
    takes(context, 1, member_id="a", assigned=lanes(0, 1))
    described(context, "a")

    answer = await beat(context, full("a", 0, "orders", "new"))

    assert given(answer) == list(ALL)


async def test_a_topic_that_appears_for_a_pattern() -> None:
    """The member is asked to say all again, and has the topic's 8 lanes."""
    context = FakeContext()
    context.registry.forget("orders")
    by_pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": "ord.*"}
    takes(context, 1, by_pattern, member_id="a", assigned=NOTHING)
    joined = await beat(context, full("a", 0) | by_pattern)
    context.registry.learn("orders", ORDERS, 2)
    takes(context, 2, member_id="a", assigned=lanes(0, 1))
    asked_again = await beat(context, partial("a", 1))
    context.expect(METADATA, {"topics": [{"name": "orders"}]}, SHOWN)
    described(context, "a")
    takes(context, 2, by_pattern, member_id="a", assigned=lanes(0, 1))
    described(context, "a")
    await beat(context, full("a", 2) | by_pattern)
    context.world.now_s += GRACE_S
    takes(context, 2, member_id="a")

    answer = await beat(context, partial("a", 2))

    assert (assigned(joined), asked_again["error_code"]) == ({}, 15)
    assert given(answer) == list(ALL)


async def test_a_second_topic_that_appears_for_a_pattern() -> None:
    """A partial heartbeat of a member with lanes finds it: its lanes come with the next plan."""
    context = FakeContext(LaneRule(topic="orders", lanes=4), LaneRule(topic="new", lanes=2))
    by_pattern = {"subscribed_topic_names": None, "subscribed_topic_regex": ".*"}
    context.expect(METADATA, {"topics": [{"name": "orders"}]}, SHOWN)
    await start(context, "a", **by_pattern)
    context.registry.learn("new", NEW, 1)
    shown = {"topics": [{"name": name, "error_code": 0} for name in ("orders", "new")]}
    context.expect(METADATA, None, shown)
    takes(context, 2, member_id="a", assigned={ORDERS: [0, 1], NEW: [0]})
    described(context, "a")

    answer = await beat(context, partial("a", 1))

    assert assigned(answer) == {ORDERS: list(ALL), NEW: [0, 1]}


# Members that end.


async def test_a_member_that_leaves_frees_its_lanes() -> None:
    """Epoch -1: member b has all 8 lanes with its next heartbeat."""
    context = FakeContext()
    await start(context)
    await join_second(context)
    takes(context, -1, {"member_epoch": -1}, member_id="a")
    await beat(context, partial("a", -1))
    takes(context, 3, member_id="b")
    described(context, "b")

    answer = await beat(context, partial("b", 2))

    assert given(answer) == list(ALL)
    assert held(context) == {"b": set(ALL)}


async def test_a_leave_that_the_broker_refuses_frees_nothing() -> None:
    """The member is still one of the group."""
    context = FakeContext()
    await start(context)
    takes(context, -1, error_code=15)

    await beat(context, partial("a", -1))

    assert held(context) == {"a": set(ALL)}


async def test_a_static_member_comes_back_to_its_lanes() -> None:
    """Epoch -2, then a join with another member id: all 8 lanes, and b has none of them."""
    context = FakeContext()
    await start(context, instance_id="i")
    takes(context, 2, member_id="b", assigned=NOTHING)
    described(context, "i/a", "b")
    await beat(context, full("b", 0))
    takes(context, -2, member_id="a")
    await beat(context, partial("a", -2, instance_id="i"))
    takes(context, 2, member_id="b")
    waiting = await beat(context, partial("b", 2))
    takes(context, 2, {"member_id": "a2", "instance_id": "i"}, member_id="a2", assigned=lanes(0, 1))

    answer = await beat(context, full("a2", 0, instance_id="i"))

    assert given(waiting) is None
    assert given(answer) == list(ALL)
    assert held(context) == {"static i": set(ALL)}


async def test_a_member_that_the_broker_has_ended() -> None:
    """UNKNOWN_MEMBER_ID passes, and the lanes go to b."""
    context = FakeContext()
    await start(context)
    await join_second(context)
    takes(context, 0, error_code=UNKNOWN_MEMBER)
    refused = await beat(context, partial("a", 1))
    takes(context, 3, member_id="b")
    described(context, "b")

    answer = await beat(context, partial("b", 2))

    assert (refused["error_code"], given(answer)) == (UNKNOWN_MEMBER, list(ALL))


async def test_a_fenced_member_has_its_lanes_until_it_joins_anew() -> None:
    """FENCED_MEMBER_EPOCH may not have reached it; with epoch 0 it has dropped its lanes."""
    context = FakeContext()
    await start(context)
    await join_second(context)
    takes(context, 0, error_code=FENCED_EPOCH)
    await beat(context, partial("a", 1))
    takes(context, 2, member_id="b")
    waiting = await beat(context, full("b", 2))
    takes(context, 0, error_code=FENCED_EPOCH)
    await beat(context, full("a", 0))
    takes(context, 2, member_id="b")

    answer = await beat(context, full("b", 2))

    assert given(waiting) == []
    assert given(answer) == list(ALL)


async def test_another_error_ends_no_member() -> None:
    """NOT_COORDINATOR passes, and member a keeps its lanes."""
    context = FakeContext()
    await start(context)
    takes(context, 0, error_code=16)

    refused = await beat(context, partial("a", 1))

    assert refused["error_code"] == 16
    assert held(context) == {"a": set(ALL)}
