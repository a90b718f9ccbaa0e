"""JoinGroup v0-9 of members of lanes: as the broker and as clients see them, and refusals."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from keylane.config.node import LaneRule
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from tests.transcript.consumer_protocol import subscription
from tests.transcript.coordinator import as_stored
from tests.transcript.entities import Values
from tests.transcript.fake import PLAIN, FakeContext, call, is_relayed, make_request, versions

JOIN, LEAVE, SYNC, DESCRIBE, CONSUMER_DESCRIBE = 11, 13, 14, 15, 69
GROUP = "g"
NONE, NOT_COORDINATOR, LATER, INCONSISTENT = 0, 16, 14, 23
FOUR = subscription("plain.lanes-4", version=3, user_data=b"mine", rack="r") + b"later"
FOUR_SEEN = as_stored(FOUR, FakeContext())


def asked(*metadata: bytes, member_id: str = "m", instance_id: str | None = None) -> Values:
    """A member with a protocol for each metadata."""
    return {
        "group_id": GROUP,
        "member_id": member_id,
        "group_instance_id": instance_id,
        "protocol_type": "consumer",
        "protocols": [
            {"name": f"p{number}", "metadata": data} for number, data in enumerate(metadata)
        ],
    }


def led(members: dict[str, bytes], *, me: str = "m", generation_id: int = 1) -> Values:
    """What a leader is answered."""
    return {
        "error_code": NONE,
        "generation_id": generation_id,
        "protocol_type": "consumer",
        "protocol_name": "p0",
        "leader": me,
        "member_id": me,
        "members": [{"member_id": name, "metadata": data} for name, data in members.items()],
    }


def followed(*, me: str = "m", leader: str = "a") -> Values:
    """What any other member is answered."""
    return led({}, me=me) | {"leader": leader}


def state(name: str, members: dict[str, bytes], protocol_type: str = "consumer") -> Values:
    """What the coordinator says of the group."""
    entries = [
        {"member_id": member, "client_id": "c", "client_host": "/h", "member_metadata": data,
         "member_assignment": b""}
        for member, data in members.items()
    ]  # fmt: skip
    return {
        "groups": [
            {"group_id": GROUP, "group_state": name, "protocol_type": protocol_type,
             "protocol_data": "p0", "members": entries}
        ]
    }  # fmt: skip


async def join(context: FakeContext, wanted: Values, version: int = 5) -> Values:
    return await call(context, JOIN, version, wanted)


async def run_aside(context: FakeContext) -> None:
    works, context.world.aside = context.world.aside, []
    for work in works:
        await work()


@pytest.mark.parametrize("version", versions(JOIN))
async def test_the_broker_sees_the_topic_and_the_leader_does_not(version) -> None:
    """In all protocols; user data and later versions' fields are the same bytes both ways."""
    context = FakeContext()
    context.group_names.note_empty(GROUP)
    both = subscription("shop", "plain.lanes-4")
    both_seen = as_stored(both, context)
    context.expect(
        JOIN,
        {
            "protocols": [
                {"name": "p0", "metadata": FOUR_SEEN},
                {"name": "p1", "metadata": both_seen},
            ]
        },
        led({"m": FOUR_SEEN, "b": both_seen}),
    )

    reported = await join(context, asked(FOUR, both), version)

    assert [(one["member_id"], one["metadata"]) for one in reported["members"]] == [
        ("m", FOUR),
        ("b", both),
    ]
    assert (reported["error_code"], reported["leader"], reported["generation_id"]) == (NONE, "m", 1)


@pytest.mark.parametrize("version", versions(JOIN))
@pytest.mark.parametrize(
    ("rules", "metadata"),
    [
        ((), subscription("plain", "shop")),
        ((), b"\0\0\0\0\0\7"),
        ((), b""),
        ((LaneRule(topic="nothing", lanes=2),), subscription("orders")),
    ],
)
async def test_members_without_lanes_pass_as_bytes(version, rules, metadata) -> None:
    """Nothing is asked and nothing kept of their groups, with leaders' answers either."""
    context = FakeContext(*rules)
    request = make_request(JOIN, version, asked(metadata))
    context.expect(JOIN, bytes(request.body), led({"m": metadata, "b": metadata}))

    relayed = is_relayed(context, request)
    reported = await join(context, asked(metadata), version)

    assert relayed
    assert [one["metadata"] for one in reported["members"]] == [metadata, metadata]
    assert GROUP not in context.group_names


async def test_other_protocol_types_pass() -> None:
    """Connect's metadata is its own, even where its bytes look like a subscription."""
    context = FakeContext()
    wanted = asked(subscription("orders", "plain.lanes-4")) | {"protocol_type": "connect"}
    context.expect(JOIN, wanted, followed())

    assert (await join(context, wanted))["error_code"] == NONE


async def test_a_leader_of_a_plain_topic_sees_the_others_as_they_are() -> None:
    """Its own request names no lanes, and passes as bytes."""
    context = FakeContext()
    mine = subscription("shop")
    context.expect(JOIN, None, led({"m": mine, "b": FOUR_SEEN}))

    reported = await join(context, asked(mine))

    assert [one["metadata"] for one in reported["members"]] == [mine, FOUR]
    assert GROUP in context.group_names


@pytest.mark.parametrize("version", versions(JOIN))
@pytest.mark.parametrize(
    "said",
    [("orders.lanes-4",), ("orders.lanes-8",), ("plain",), ("plain.lanes-8", "shop")],
)
async def test_a_newcomer_by_another_name_is_refused(version, said, caplog) -> None:
    """It is never passed on, so that the running members do not even rebalance; logged once."""
    context = FakeContext()
    running = {"a": as_stored(subscription("orders"), context), "b": FOUR_SEEN}
    context.group_names.note_members(
        GROUP, {"a": frozenset({"orders"}), "b": frozenset({"plain.lanes-4"})}
    )
    reported = []

    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            context.expect(DESCRIBE, {"groups": [GROUP]}, state("Stable", running))
            reported.append(await join(context, asked(subscription(*said)), version))

    assert [one["error_code"] for one in reported] == [INCONSISTENT, INCONSISTENT]
    assert (reported[0]["member_id"], reported[0]["members"]) == ("m", [])
    assert context.stats.joins_refused == 2
    assert len(caplog.records) == 1
    assert f"group={GROUP}" in caplog.text
    assert f"refused={said[0]} remedy=" in caplog.text


async def test_a_member_that_names_a_topic_twice_is_refused() -> None:
    """Nothing has to be asked for that."""
    context = FakeContext()

    reported = await join(context, asked(subscription("orders", "orders.lanes-4")))

    assert reported["error_code"] == INCONSISTENT


async def test_names_that_differ_between_protocols_count_together() -> None:
    """The broker may choose either protocol."""
    context = FakeContext()

    reported = await join(context, asked(FOUR, subscription("plain")))

    assert reported["error_code"] == INCONSISTENT


@pytest.mark.parametrize("name", ["Stable", "PreparingRebalance", "CompletingRebalance"])
async def test_after_a_restart_the_coordinator_knows_the_running_name(name) -> None:
    """A stable group shows it; while it rebalances, a new member has to try again."""
    context = FakeContext()
    shown = name == "Stable"
    context.expect(DESCRIBE, None, state(name, {"a": FOUR_SEEN if shown else b""}))

    reported = await join(context, asked(subscription("plain.lanes-8")))

    assert reported["error_code"] == (INCONSISTENT if shown else LATER)
    assert context.stats.joins_refused == shown


async def test_members_of_a_group_that_rebalances_are_let_in() -> None:
    """They were there before: with them the group gets to its names."""
    context = FakeContext()
    context.expect(DESCRIBE, None, state("PreparingRebalance", {"m": b"", "b": b""}))
    context.expect(JOIN, None, followed())

    reported = await join(context, asked(FOUR))

    assert reported["error_code"] == NONE
    context.expect(DESCRIBE, None, state("PreparingRebalance", {"m": b"", "b": b""}))
    later = await join(context, asked(subscription("plain.lanes-8"), member_id="b"))
    assert later["error_code"] == INCONSISTENT


async def test_a_plain_member_is_asked_about_where_its_group_has_lanes() -> None:
    """The journal knows that the group has offsets of lanes on that topic."""
    context = FakeContext()
    key = StateKey(GROUP, PLAIN, 0)
    context.groups.table.put(key, OffsetState(committed=5, topic_name="plain"))
    context.expect(DESCRIBE, None, state("Stable", {"a": FOUR_SEEN}))

    reported = await join(context, asked(subscription("plain")))

    assert reported["error_code"] == INCONSISTENT


@pytest.mark.parametrize("name", ["Empty", "Dead"])
async def test_another_name_after_the_group_has_stopped(name) -> None:
    """The way from one count to another: the group is asked for, and its old name forgotten."""
    context = FakeContext()
    context.group_names.note_members(GROUP, {"a": frozenset({"plain.lanes-4"})})
    context.expect(DESCRIBE, None, state(name, {}))
    context.expect(JOIN, None, followed(leader="m2"))

    reported = await join(context, asked(subscription("plain.lanes-8")))

    assert reported["error_code"] == NONE
    context.expect(DESCRIBE, None, state("PreparingRebalance", {"m": b""}))
    assert (await join(context, asked(FOUR, member_id="n")))["error_code"] == INCONSISTENT


@pytest.mark.parametrize("code", [NOT_COORDINATOR, 15, 30])
async def test_what_the_coordinator_does_not_say_is_left_to_it(code) -> None:
    """The JoinGroup gets the same answer as the question did."""
    context = FakeContext()
    refused = state("", {})
    refused["groups"][0]["error_code"] = code
    context.expect(DESCRIBE, None, refused)
    context.expect(JOIN, None, followed() | {"error_code": code})

    reported = await join(context, asked(FOUR))

    assert reported["error_code"] == code
    assert not context.group_names.is_complete(GROUP)


async def test_a_static_member_that_comes_back_is_itself() -> None:
    """With a new id and another name, alone in its group."""
    context = FakeContext()
    context.group_names.note_members(GROUP, {"static i": frozenset({"plain.lanes-4"})})
    context.expect(JOIN, None, led({"m": as_stored(subscription("plain.lanes-8"), context)}))

    reported = await join(
        context, asked(subscription("plain.lanes-8"), member_id="", instance_id="i")
    )

    assert reported["error_code"] == NONE


async def test_members_by_another_lane_name_are_left_out(caplog) -> None:
    """They came in past this node; a member left out is refused when it asks."""
    context = FakeContext()
    context.group_names.note_generation(
        GROUP, {"m": frozenset({"plain.lanes-4"})}, {"plain": "plain.lanes-4"}, ["m"]
    )
    eight = as_stored(subscription("plain.lanes-8"), context)
    context.expect(JOIN, None, led({"m": FOUR_SEEN, "other": eight, "b": FOUR_SEEN}))

    with caplog.at_level(logging.WARNING):
        reported = await join(context, asked(FOUR))

    assert [one["member_id"] for one in reported["members"]] == ["m", "b"]
    assert "running=plain.lanes-4 refused=plain.lanes-8 remedy=stop" in caplog.text
    for member, code in (("other", INCONSISTENT), ("b", NONE)):
        if code == NONE:
            context.expect(SYNC, None, {"error_code": NONE, "assignment": b""})
        values: dict[str, Any] = {"group_id": GROUP, "member_id": member, "generation_id": 1}
        assert (await call(context, SYNC, 3, values))["error_code"] == code


async def test_a_leader_that_does_not_fit_is_refused_and_leaves() -> None:
    """The group deals out anew at once, not after its time-out."""
    context = FakeContext()
    context.group_names.note_generation(
        GROUP, {"a": frozenset({"plain.lanes-4"})}, {"plain": "plain.lanes-4"}, ["a"]
    )
    context.group_names.note_members(GROUP, {})
    eight = subscription("plain.lanes-8")
    seen = as_stored(eight, context)
    context.expect(JOIN, None, led({"m": seen, "a": FOUR_SEEN}))

    reported = await join(context, asked(eight))

    assert reported["error_code"] == INCONSISTENT
    context.expect(LEAVE, {"group_id": GROUP, "members": [{"member_id": "m"}]}, {"error_code": 0})
    await run_aside(context)
    context.finish()


@pytest.mark.parametrize("version", versions(JOIN))
@pytest.mark.parametrize("topic", ["orders", "plain.lanes-4"])
async def test_a_group_that_the_broker_deals_out_is_no_group_for_lanes(
    version, topic, caplog
) -> None:
    """Its partitions would be taken for lanes, and the other lanes be read by no member."""
    context = FakeContext()
    context.group_names.note_empty(GROUP)
    leaderless = followed(leader="") | {"generation_id": 5}
    context.expect(JOIN, None, leaderless)

    with caplog.at_level(logging.WARNING):
        reported = await join(context, asked(subscription(topic), instance_id="i"), version)

    assert reported["error_code"] == INCONSISTENT
    assert context.stats.joins_refused == 1
    assert f"topic={topic} remedy=" in caplog.text
    context.expect(LEAVE, {"members": [{"member_id": "m"}]}, {"error_code": 0})
    await run_aside(context)
    context.finish()


@pytest.mark.parametrize("has_members", [True, False])
async def test_one_that_was_refused_there_does_not_join_again(has_members, caplog) -> None:
    """librdkafka comes every two seconds: each time the others would have been rebalanced."""
    context = FakeContext()
    context.group_names.note_empty(GROUP)
    context.expect(JOIN, None, followed(leader=""))
    await join(context, asked(FOUR))
    nothing: Values = {"topic_partitions": []}
    member = {
        "member_id": "d",
        "client_id": "c",
        "client_host": "/h",
        "subscribed_topic_names": [],
        "assignment": nothing,
        "target_assignment": nothing,
    }
    group = {"group_id": GROUP, "group_state": "Stable", "assignor_name": "uniform"}
    context.expect(
        CONSUMER_DESCRIBE,
        {"group_ids": [GROUP]},
        {"groups": [{**group, "members": [member] * has_members}]},
    )
    if not has_members:
        context.expect(JOIN, None, followed())

    reported = await join(context, asked(FOUR))

    assert reported["error_code"] == (INCONSISTENT if has_members else NONE)
    assert context.stats.joins_refused == 1 + has_members
    assert len(caplog.records) == 1
    assert context.group_names.is_brokers(GROUP) is has_members


async def test_a_group_that_the_broker_deals_out_serves_plain_topics() -> None:
    """Classic and KIP-848 members may mix there, as they do direct."""
    context = FakeContext()
    context.expect(JOIN, None, followed(leader=""))

    assert (await join(context, asked(subscription("plain"))))["error_code"] == NONE


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_a_described_group_shows_what_its_members_named(version) -> None:
    """What keylane has added is taken out; an answer without it passes as bytes."""
    context = FakeContext()
    values = state("Stable", {"a": FOUR_SEEN, "b": subscription("plain")})
    context.expect(DESCRIBE, None, values)

    reported = await call(context, DESCRIBE, version, {"groups": [GROUP]})

    (group,) = reported["groups"]
    assert [one["member_metadata"] for one in group["members"]] == [FOUR, subscription("plain")]
