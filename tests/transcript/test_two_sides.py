"""Classic groups with members behind keylane and at brokers' own addresses: whole partitions."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from keylane.assignor.marks import unmark
from keylane.assignor.protocol import read_subscription
from keylane.config.node import GroupRule
from tests.transcript.consumer_protocol import assignment, lanes_of, subscription
from tests.transcript.coordinator import (
    COOPERATIVE,
    GROUP,
    JOIN,
    ORDERS_LANES,
    SYNC,
    Coordinator,
    all_of,
    as_stored,
    partitions_of,
    world,
)
from tests.transcript.entities import Values
from tests.transcript.fake import FakeContext, call, is_relayed, make_request, versions

LEAVE, DESCRIBE = 13, 15
NONE, INCONSISTENT, REBALANCING = 0, 23, 27
SAID = subscription("orders")
ZERO = [("orders", index) for index in (0, 2, 4, 6)]
ONE = [("orders", index) for index in (1, 3, 5, 7)]


def described(
    members: dict[str, tuple[bytes, bytes]], *, state: str = "Stable", protocol: str = "range"
) -> Values:
    """The coordinator's word: metadata and assignment of each member."""
    entries = [
        {"member_id": name, "member_metadata": said, "member_assignment": given}
        for name, (said, given) in members.items()
    ]
    group = {"group_id": GROUP, "group_state": state, "protocol_type": "consumer"}
    return {"groups": [group | {"protocol_data": protocol, "members": entries}]}


async def follow(
    context: FakeContext, said: bytes, *, leader: str = "d", protocol: str = "range"
) -> dict[str, Any]:
    """Join as member a, whose leader joined elsewhere; return what the broker got."""
    values: Values = {
        "group_id": GROUP,
        "member_id": "a",
        "protocol_type": "consumer",
        "protocols": [{"name": protocol, "metadata": said}],
    }
    context.group_names.note_empty(GROUP)
    answer = {"generation_id": 7, "protocol_name": protocol, "leader": leader, "member_id": "a"}
    context.expect(JOIN, None, answer)
    await call(context, JOIN, 5, values)
    got: dict[str, Any] = context.world.sent[-1]
    return got


async def sync(
    context: FakeContext,
    given: bytes,
    members: dict[str, tuple[bytes, bytes]],
    *,
    version: int = 3,
    **how: Any,
) -> dict[str, Any]:
    """Sync as member a; `given` is the answer of the broker, which then describes the group."""
    context.expect(SYNC, None, {"error_code": NONE, "assignment": given})
    if members:
        context.expect(DESCRIBE, {"groups": [GROUP]}, described(members, **how))
    asked = {"group_id": GROUP, "member_id": "a", "generation_id": 7, "assignments": []}
    return await call(context, SYNC, version, asked)


async def test_a_leader_here_gives_whole_partitions() -> None:
    """A direct member has the number of a partition, the other all lanes of one."""
    group = Coordinator(world())

    dealt = await group.deal({"a": SAID, "d": SAID}, direct={"d"})

    ((_, partition),) = dealt["d"]
    assert partition in {0, 1}
    assert sorted(dealt["a"]) == (ONE if partition == 0 else ZERO)


@pytest.mark.parametrize("protocol", ["range", "mine"])
@pytest.mark.parametrize("assignor", ["client", None])
async def test_no_assignor_of_a_client_is_left_with_them(protocol, assignor) -> None:
    """It would give lane indexes to direct members. Plain topics stay as it has them."""
    group = Coordinator(world(GroupRule(group="*", assignor=assignor)))
    both = subscription("orders", "plain")
    await group.join({"a": both, "d": both}, protocol=protocol, direct={"d"})

    got = await group.sync(
        {
            "a": assignment([*ORDERS_LANES[:4], ("plain", 0)]),
            "d": assignment([*ORDERS_LANES[4:], ("plain", 1)], user_data=b"mine"),
        }
    )

    dealt = {name: lanes_of(raw)[0] for name, raw in got.items()}
    assert ("plain", 0) in dealt["a"] and ("plain", 1) in dealt["d"]
    assert [index for topic, index in dealt["d"] if topic == "orders"] in ([0], [1])
    assert len([index for topic, index in dealt["a"] if topic == "orders"]) == 4
    assert lanes_of(got["d"])[1] == b"mine"


async def test_lanes_are_spread_when_the_last_direct_member_has_left() -> None:
    """The leave has begun the generation; one member has parts of both partitions again."""
    group = Coordinator(world())
    whole = await group.deal({"a": SAID, "b": SAID, "d": SAID}, direct={"d"})

    spread = await group.deal({"a": SAID, "b": SAID, "c": SAID})

    assert all(len(partitions_of(lanes)) == 1 for lanes in whole.values() if lanes)
    assert all_of(spread) == ORDERS_LANES
    assert all(len(lanes) >= 2 for lanes in spread.values())


async def test_a_direct_member_gets_a_partition_when_all_lanes_are_given_up() -> None:
    """KIP-429: two owners of its lanes give it up; then it has its number, and they the other."""
    group = Coordinator(world())
    owned = {"a": ORDERS_LANES[:4], "b": ORDERS_LANES[4:]}
    said = {name: subscription("orders", version=1, owned=lanes) for name, lanes in owned.items()}
    new = subscription("orders", version=1)

    first = await group.deal({**said, "d": new}, protocol=COOPERATIVE, direct={"d"})
    kept = {name: subscription("orders", version=1, owned=first[name]) for name in "ab"}
    second = await group.deal({**kept, "d": new}, protocol=COOPERATIVE, direct={"d"})

    assert first["d"] == []
    assert all(set(first[name]) <= set(owned[name]) for name in "ab")
    held = [lanes for lanes in second.values() if lanes]
    assert len(held) == 2
    for name in "ab":
        assert sorted(second[name]) in ([], ZERO, ONE)
    assert second["d"] in ([], [("orders", 0)], [("orders", 1)])


async def test_a_direct_member_keeps_what_it_reads() -> None:
    """It says so with the number of its partition: all lanes of that are in its hand."""
    group = Coordinator(world())
    new = subscription("orders", version=1)
    owns = subscription("orders", version=1, owned=[("orders", 0), ("orders", 1)])

    first = await group.deal({"a": new, "d": owns}, protocol=COOPERATIVE, direct={"d"})
    kept = subscription("orders", version=1, owned=first["d"])
    second = await group.deal({"a": new, "d": kept}, protocol=COOPERATIVE, direct={"d"})

    assert first["a"] == [] and len(first["d"]) == 1
    assert second["d"] == first["d"]
    assert sorted(second["a"]) == (ONE if first["d"] == [("orders", 0)] else ZERO)


async def test_partitions_stay_where_they_were_before_keylane() -> None:
    """The first member behind keylane leads: the others keep what the coordinator says."""
    context = world()
    context.registry.view("orders")
    group = Coordinator(context)
    context.group_names.forget_where(lambda _: True)
    before = {"d": (SAID, assignment([("orders", 1)])), "e": (SAID, assignment([("orders", 0)]))}
    context.expect(DESCRIBE, None, described(before))

    dealt = await group.deal({"a": SAID, "d": SAID, "e": SAID}, direct={"d", "e"})

    assert dealt == {"a": [], "d": [("orders", 1)], "e": [("orders", 0)]}


async def test_lane_names_and_the_topic_are_one() -> None:
    """A direct member has the topic by the broker's name, the others by their lane name."""
    group = Coordinator(world())
    members = {"a": subscription("plain.lanes-4"), "d": subscription("plain", "shop")}

    dealt = await group.deal(members, direct={"d"})

    numbers = {index for _, index in dealt["d"]}
    assert {topic for topic, _ in dealt["d"]} == {"plain"}
    assert {topic for topic, _ in dealt["a"]} == {"plain.lanes-4"}
    assert {index % 3 for _, index in dealt["a"]} == {0, 1, 2} - numbers
    assert len(dealt["a"]) == 4 * (3 - len(numbers))


async def test_they_are_logged_and_counted_when_they_change(caplog) -> None:
    """Once for a number of them, and when the last one has left."""
    context = world()
    group = Coordinator(context)
    members = {"a": SAID, "d": SAID, "e": SAID}

    with caplog.at_level(logging.INFO, logger="keylane.groups"):
        for direct in ({"d", "e"}, {"d", "e"}, {"d"}, set()):
            await group.deal(members, direct=direct)

    lines = [one.getMessage() for one in caplog.records if one.name == "keylane.groups"]
    assert [line.split(" remedy=")[0] for line in lines] == [
        f"members bypass keylane: partitions stay whole group={GROUP} members=2",
        f"members bypass keylane: partitions stay whole group={GROUP} members=1",
        f"no member bypasses keylane: lanes are spread group={GROUP}",
    ]
    assert context.stats.members_bypassing == 2


async def test_a_plan_that_cannot_be_made_is_refused() -> None:
    """The client's has lanes in it: the leader leaves, and another one plans."""
    context = world()
    group = Coordinator(context)
    broken = SAID[:-4] + b"\0\0\0\7x"
    await group.join({"a": SAID, "d": broken}, direct={"d"})
    values = {
        "group_id": GROUP,
        "member_id": "a",
        "generation_id": 1,
        "assignments": [{"member_id": "a", "assignment": assignment(ORDERS_LANES)}],
    }

    answer = await call(context, SYNC, 3, values)

    assert answer["error_code"] == INCONSISTENT
    context.expect(LEAVE, {"group_id": GROUP, "members": [{"member_id": "a"}]}, {"error_code": 0})
    (leave,) = context.world.aside
    await leave()
    context.finish()


async def test_a_member_that_is_taken_for_a_direct_one_joins_again() -> None:
    """It came in past this node, before there were marks: its numbers would be lanes to it."""
    context = world()
    group = Coordinator(context)
    await group.deal({"a": SAID, "d": SAID}, direct={"d"})
    values = {"group_id": GROUP, "member_id": "d", "generation_id": 1, "assignments": []}

    answer = await call(context, SYNC, 3, values)

    assert answer["error_code"] == REBALANCING


async def test_streams_beside_direct_instances_is_refused() -> None:
    """Its tasks are of partitions, or of lanes."""
    context = world()
    context.group_names.note_empty(GROUP)
    members = [
        {"member_id": "a", "metadata": as_stored(SAID, context, "stream")},
        {"member_id": "d", "metadata": SAID},
    ]
    answer = {"generation_id": 1, "protocol_name": "stream", "leader": "a", "member_id": "a"}
    context.expect(JOIN, None, answer | {"members": members})
    values: Values = {
        "group_id": GROUP,
        "member_id": "a",
        "protocol_type": "consumer",
        "protocols": [{"name": "stream", "metadata": SAID}],
    }

    reported = await call(context, JOIN, 5, values)

    assert reported["error_code"] == INCONSISTENT
    assert context.stats.joins_refused == 1


async def test_streams_behind_a_direct_leader_is_refused() -> None:
    """Whatever the leader has assigned: it knows no lanes."""
    context = world()
    await follow(context, SAID, protocol="stream")
    members = {"d": (SAID, b""), "a": (as_stored(SAID, context), assignment([("orders", 0)]))}

    context.expect(SYNC, None, {"error_code": NONE, "assignment": assignment([("orders", 0)])})
    context.expect(DESCRIBE, None, described(members, protocol="stream"))
    asked = {"group_id": GROUP, "member_id": "a", "generation_id": 7, "assignments": []}
    answer = await call(context, SYNC, 5, asked | {"protocol_name": "stream"})

    assert answer["error_code"] == INCONSISTENT


@pytest.mark.parametrize("version", versions(SYNC))
async def test_a_direct_leaders_partitions_are_all_their_lanes(version) -> None:
    """Plain topics and user data stay. The members are seen, for plans and pages to come."""
    context = world()
    await follow(context, SAID)
    given = assignment([("orders", 1), ("plain", 2)], version=1, user_data=b"mine")
    members = {
        "d": (SAID, assignment([("orders", 0)])),
        "a": (as_stored(SAID, context), given),
    }

    answer = await sync(context, given, members, version=version)

    assert lanes_of(answer["assignment"]) == ([*ONE, ("plain", 2)], b"mine")
    assert answer["assignment"][:2] == b"\0\1"
    held = context.generations.held(GROUP).lanes
    assert (list(held["d"]), list(held["a"])) == (ZERO, [*ONE, ("plain", 2)])
    assert context.stats.members_bypassing == 1


async def test_a_direct_leaders_partitions_have_the_members_name() -> None:
    """A topic by the lane name itself, which a broker may have made for the leader, is none."""
    context = world()
    said = subscription("plain.lanes-4")
    await follow(context, said)
    given = assignment([("plain", 1), ("plain.lanes-4", 0)])
    members = {
        "d": (subscription("plain"), assignment([("plain", 0), ("plain", 2)])),
        "a": (as_stored(said, context), given),
    }

    answer = await sync(context, given, members)

    assert lanes_of(answer["assignment"])[0] == [
        ("plain.lanes-4", index) for index in (1, 4, 7, 10)
    ]


async def test_of_a_cooperative_group_lanes_wait_for_their_readers() -> None:
    """Another member still reads two of them: it gives them up, and joins again."""
    context = world()
    mine = subscription("orders", version=1, owned=[("orders", 0), ("orders", 2)])
    others = subscription("orders", version=1, owned=[("orders", 4), ("orders", 6)])
    got = await follow(context, mine, protocol=COOPERATIVE)
    given = assignment([("orders", 0)])
    members = {
        "d": (subscription("orders", version=1), assignment([("orders", 1)])),
        "a": (as_stored(mine, context, COOPERATIVE), given),
        "b": (as_stored(others, context, COOPERATIVE), assignment(())),
    }

    answer = await sync(context, given, members, protocol=COOPERATIVE)

    assert lanes_of(answer["assignment"])[0] == ZERO[:2]
    shown = got["protocols"][0]["metadata"]
    claims = [lane for lane in read_subscription(shown).owned if ":" not in lane[0]]
    assert claims == [("orders", 0)]
    assert unmark(shown) == mine


async def test_a_leader_behind_keylane_costs_nothing() -> None:
    """Its followers pass as bytes, once its own answer has passed here."""
    context = world()
    await Coordinator(context).join({"b": SAID, "a": SAID})
    request = make_request(
        SYNC, 3, {"group_id": GROUP, "member_id": "a", "generation_id": 1, "assignments": []}
    )

    assert is_relayed(context, request)


async def test_a_generation_number_that_comes_again_has_its_own_leader() -> None:
    """The group was deleted at the broker meanwhile; its numbers begin anew."""
    context = world()
    group = Coordinator(context)
    group.generation_id = 6
    await group.join({"b": SAID, "a": SAID})
    await follow(context, SAID)
    given = assignment([("orders", 0)])
    members = {"d": (SAID, assignment([("orders", 1)])), "a": (as_stored(SAID, context), given)}

    answer = await sync(context, given, members)

    assert lanes_of(answer["assignment"])[0] == ZERO


@pytest.mark.parametrize("is_marked", [True, False])
async def test_a_plan_of_lanes_passes(is_marked) -> None:
    """Its leader joined elsewhere, and knows lanes: before a restart, or by an earlier version."""
    context = world()
    await follow(context, SAID, leader="b")
    given = assignment(ORDERS_LANES[4:])
    stored = as_stored(SAID, context)
    leader = stored if is_marked else SAID
    members = {"b": (leader, assignment(ORDERS_LANES[:4])), "a": (stored, given)}

    answer = await sync(context, given, members)
    again = make_request(
        SYNC, 3, {"group_id": GROUP, "member_id": "a", "generation_id": 7, "assignments": []}
    )

    assert answer["assignment"] == given
    assert is_relayed(context, again)


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance"])
async def test_while_the_group_rebalances_a_member_joins_again(state) -> None:
    """The coordinator shows no subscription then, and the answer is out of date."""
    context = world()
    await follow(context, SAID)
    given = assignment([("orders", 0)])

    answer = await sync(context, given, {"d": (b"", b""), "a": (b"", b"")}, state=state)

    assert (answer["error_code"], answer["assignment"]) == (REBALANCING, b"")


async def test_a_leader_that_is_not_known_is_asked_for_by_a_join() -> None:
    """keylane was started between the answers: the next JoinGroup answer names the leader."""
    context = world()
    given = assignment([("orders", 0)])
    members = {"d": (SAID, assignment([("orders", 1)])), "a": (as_stored(SAID, context), given)}

    answer = await sync(context, given, members)

    assert answer["error_code"] == REBALANCING


async def test_a_running_member_of_the_plain_topic_goes_on() -> None:
    """It takes partitions as a direct one does; a new one by the plain name is refused."""
    context = world()
    lanes = subscription("plain.lanes-4")
    plain = subscription("plain")
    members = {"a": (as_stored(lanes, context), b""), "p": (plain, b"")}
    context.group_names.note_members(GROUP, {"a": frozenset({"plain.lanes-4"})})
    codes = {}

    for member_id in ("p", "new"):
        context.expect(DESCRIBE, None, described(members))
        values: Values = {
            "group_id": GROUP,
            "member_id": member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": plain}],
        }
        if member_id == "p":
            context.expect(JOIN, values, {"generation_id": 2, "leader": "a", "member_id": "p"})
        codes[member_id] = (await call(context, JOIN, 5, values))["error_code"]

    assert codes == {"p": NONE, "new": INCONSISTENT}
    context.finish()


async def shown_in(
    context: FakeContext, version: int, members: dict[str, tuple[bytes, bytes]]
) -> dict[str, tuple[bytes, bytes]]:
    """Members of the group as a client has them described."""
    context.expect(DESCRIBE, None, described(members), version=version)
    found = await call(context, DESCRIBE, version, {"groups": [GROUP]})
    return {
        one["member_id"]: (one["member_metadata"], one["member_assignment"])
        for one in found["groups"][0]["members"]
    }


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_a_direct_member_is_described_with_all_lanes_of_its_partitions(version) -> None:
    """As offsets of the group are shown; others, plain topics and what is no assignment stay."""
    context = FakeContext()
    said, torn = subscription("orders", "plain"), b"\x00"
    given = assignment([("orders", 1), ("plain", 0)], user_data=b"mine")
    others = {"e": (said, torn), "f": (said, b"")}
    stored = as_stored(SAID, context)

    shown = await shown_in(
        context, version, {"a": (stored, assignment(ZERO)), "d": (said, given)} | others
    )

    lanes = assignment([*ONE, ("plain", 0)], user_data=b"mine")
    assert shown == {"a": (SAID, assignment(ZERO)), "d": (said, lanes)} | others


async def test_members_behind_keylane_are_described_with_lanes_under_a_direct_leader() -> None:
    """It has given them the number of a partition."""
    context = FakeContext()
    one, other = assignment([("orders", 0)]), assignment([("orders", 1)])

    shown = await shown_in(context, 6, {"a": (as_stored(SAID, context), one), "d": (SAID, other)})

    zero, one = (assignment(lanes, user_data=b"") for lanes in (ZERO, ONE))
    assert shown == {"a": (SAID, zero), "d": (SAID, one)}


async def test_members_of_a_keylane_before_marks_are_described_as_they_are() -> None:
    """A lane beyond the partitions shows that they have lanes."""
    context = FakeContext()
    old = {"a": (SAID, assignment([("orders", 0), ("orders", 1)])), "b": (SAID, assignment(ONE))}

    assert await shown_in(context, 6, old) == old
