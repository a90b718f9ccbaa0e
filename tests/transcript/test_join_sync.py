"""JoinGroup v0-9, SyncGroup v0-5: keylane's plan in the place of the leader's, in two steps."""

from __future__ import annotations

import logging
import uuid

import pytest

from keylane.config.node import GroupRule
from keylane.proxy.groups import dealing
from tests.transcript.consumer_protocol import assignment, lanes_of, sticky_data, subscription
from tests.transcript.coordinator import (
    COOPERATIVE,
    GROUP,
    JOIN,
    ORDERS_LANES,
    SYNC,
    Coordinator,
    all_of,
    kept,
    partitions_of,
    world,
)
from tests.transcript.fake import call, make_request, serve, versions

REBALANCING = 27


@pytest.mark.parametrize("join_version", versions(JOIN))
@pytest.mark.parametrize("sync_version", versions(SYNC))
async def test_the_leaders_lanes_are_replaced(join_version, sync_version) -> None:
    """Every lane once, evenly, each member on one partition; plain topics, user data stay."""
    context = world()
    group = Coordinator(context, join_version=join_version, sync_version=sync_version)
    both = subscription("orders", "plain")
    await group.join({"a": both, "b": both})

    got = await group.sync(
        {
            "a": assignment([*ORDERS_LANES, ("plain", 0)], version=1, user_data=b"mine"),
            "b": assignment([("plain", 1), ("plain", 2)]),
        }
    )

    dealt = {name: lanes_of(raw)[0] for name, raw in got.items()}
    plain = [("plain", index) for index in range(3)]
    assert all_of(dealt) == sorted(ORDERS_LANES + plain)
    assert [len(lanes) for lanes in dealt.values()] == [4 + 1, 4 + 2]
    assert ("plain", 0) in dealt["a"]
    for lanes in dealt.values():
        assert len(partitions_of(lane for lane in lanes if lane[0] == "orders")) == 1
    assert got["a"][:2] == b"\0\1"
    assert [lanes_of(raw)[1] for raw in got.values()] == [b"mine", b""]
    assert context.stats.assignments_planned == 1


@pytest.mark.parametrize("version", versions(SYNC))
async def test_a_follower_passes_as_bytes(version) -> None:
    """Only the leader's SyncGroup carries assignments."""
    context = world()
    request = make_request(SYNC, version, {"group_id": GROUP, "member_id": "b", "generation_id": 1})
    context.expect(SYNC, bytes(request.body), {"assignment": b"theirs"})

    await serve(context, request)

    assert context.stats.assignments_unplanned == 0


async def test_eager_members_keep_their_lanes() -> None:
    """They list no owned lanes: what they were given last counts. A new one takes its share."""
    group = Coordinator(world())
    said = subscription("orders")
    before = await group.deal({"a": said, "b": said})

    after = await group.deal({"c": said, "b": said, "a": said}, leader="c")

    assert all_of(after) == ORDERS_LANES
    assert set(after["a"]) < set(before["a"]) or set(after["b"]) < set(before["b"])
    assert {name for name in "ab" if set(after[name]) - set(before[name])} == set()
    assert len(after["c"]) >= 2


@pytest.mark.parametrize("generation_id", [None, 7])
async def test_sticky_members_say_what_they_had(generation_id) -> None:
    """A proxy that was started since keeps lanes where they are; what cannot be read is left."""
    mine, others = ORDERS_LANES[1:5], [*ORDERS_LANES[5:], ORDERS_LANES[0], ("orders", 99)]
    members = {
        "a": subscription("orders", user_data=sticky_data(mine, generation_id)),
        "b": subscription("orders", user_data=sticky_data(others, generation_id)),
    }

    dealt = await Coordinator(world()).deal(members, protocol="sticky")
    garbage = subscription("orders", user_data=b"\0\0\0\7x")
    planned = await Coordinator(world()).deal({"a": garbage, "b": garbage}, protocol="sticky")

    assert sorted(dealt["a"]) == mine
    assert all_of(dealt) == all_of(planned) == ORDERS_LANES


async def test_a_lane_moves_after_its_owner_gave_it_up() -> None:
    """KIP-429: the new member waits one generation for lanes that are still owned."""
    context = world()
    group = Coordinator(context)
    said = subscription("orders", version=1)
    first = await group.deal({"a": said}, protocol=COOPERATIVE)
    owns_all = subscription("orders", version=1, owned=first["a"])

    second = await group.deal({"a": owns_all, "b": said}, protocol=COOPERATIVE)
    kept = subscription("orders", version=1, owned=second["a"])
    third = await group.deal({"a": kept, "b": said}, protocol=COOPERATIVE)

    assert sorted(first["a"]) == ORDERS_LANES
    assert (len(second["a"]), second["b"]) == (4, [])
    assert third["a"] == second["a"]
    assert all_of(third) == ORDERS_LANES
    assert (context.stats.lanes_moved, context.stats.lanes_withheld) == (4, 4)
    assert context.stats.assignments_planned == 3


@pytest.mark.parametrize("protocol", ["range", COOPERATIVE])
async def test_what_a_member_gained_and_lost_is_known(protocol) -> None:
    """A second member: the first loses four lanes; the second gains them, at once or one later."""
    group = Coordinator(world())
    said = subscription("orders", version=1)
    first = await group.deal({"a": said}, protocol=protocol)
    owns_all = subscription("orders", version=1, owned=first["a"])
    second = await group.deal({"a": owns_all, "b": said}, protocol=protocol)
    at_second = group.context.generations.planned(GROUP)
    kept = subscription("orders", version=1, owned=second["a"])

    await group.deal({"a": kept, "b": said}, protocol=protocol)

    at_third = group.context.generations.planned(GROUP)
    assert at_second is not None and at_third is not None
    lost = tuple(lane for lane in ORDERS_LANES if lane not in second["a"])
    assert at_second.lost == {"a": lost}
    given_at_once = at_second if protocol == "range" else at_third
    assert given_at_once.gained == {"b": lost}
    assert at_third.lost == {}


async def test_a_load_that_changes_on_the_way_changes_no_target() -> None:
    """Else each step could ask for another, and the group would never settle."""
    context = world()
    group = Coordinator(context)
    said = subscription("orders", version=1)
    owns_all = subscription("orders", version=1, owned=ORDERS_LANES)
    second = await group.deal({"a": owns_all, "b": said}, protocol=COOPERATIVE)

    context.loads.rates["orders"] = {second["a"][0][1]: 1e6}
    kept = subscription("orders", version=1, owned=second["a"])
    third = await group.deal({"a": kept, "b": said}, protocol=COOPERATIVE)

    assert third["a"] == second["a"]
    assert context.generations.planned(GROUP).withheld_count == 0  # type: ignore[union-attr]


async def test_a_hot_lane_gets_a_member_of_its_own() -> None:
    """The measured load decides, not the count of lanes."""
    context = world()
    context.loads.rates["orders"] = {index: 7000.0 if index == 3 else 1.0 for index in range(8)}
    said = subscription("orders")

    dealt = await Coordinator(context).deal({"a": said, "b": said})

    assert [("orders", 3)] in dealt.values()
    assert all_of(dealt) == ORDERS_LANES


async def test_a_lane_of_many_small_records_is_hot_too() -> None:
    """Work may take time per record: bytes alone would give lane 3 to a member with three."""
    context = world()
    context.loads.rates["orders"] = dict.fromkeys(range(8), 1000.0)
    context.loads.record_rates["orders"] = {i: 7000.0 if i == 3 else 1.0 for i in range(8)}
    said = subscription("orders")

    dealt = await Coordinator(context).deal({"a": said, "b": said})

    (busiest,) = [lanes for lanes in dealt.values() if ("orders", 3) in lanes]
    assert len(busiest) <= 2
    assert all_of(dealt) == ORDERS_LANES


async def test_an_assignor_that_drops_all_before_it_joins_is_not_waited_for() -> None:
    """A protocol of unknown name whose members own nothing is eager in effect."""
    group = Coordinator(world())
    said = subscription("orders", version=1)
    await group.deal({"a": said}, protocol="mine")

    dealt = await group.deal({"a": said, "b": said}, protocol="mine")

    assert all_of(dealt) == ORDERS_LANES


async def test_an_eager_members_owned_lanes_are_not_waited_for() -> None:
    """`range` members drop all before they join: what they claim is out of date."""
    group = Coordinator(world())
    owns_all = subscription("orders", version=1, owned=ORDERS_LANES)

    dealt = await group.deal({"a": owns_all, "b": subscription("orders", version=1)})

    assert all_of(dealt) == ORDERS_LANES


@pytest.mark.parametrize("protocol", ["range", COOPERATIVE])
async def test_a_static_member_that_comes_back_keeps_its_lanes(protocol) -> None:
    """KIP-345: a new member id, the same `group.instance.id`, the same lanes."""
    group = Coordinator(world())
    said = subscription("orders", version=1)
    first = await group.deal({"a-1": said}, instances={"a-1": "a"}, protocol=protocol)
    owned = subscription("orders", version=1, owned=first["a-1"])
    await group.deal({"a-1": owned, "b": said}, instances={"a-1": "a"}, protocol=protocol)
    before = group.context.generations.planned(GROUP)
    assert before is not None
    mine = before.lanes["static a"]
    of_b = subscription("orders", version=1, owned=before.lanes["b"])

    after = await group.deal({"b": of_b, "a-2": said}, instances={"a-2": "a"}, protocol=protocol)

    assert sorted(after["a-2"]) == sorted(mine)


async def test_a_leader_that_asks_again_gets_the_same() -> None:
    """The broker may have its first SyncGroup: another plan would be remembered wrongly."""
    context = world()
    group = Coordinator(context)
    said = subscription("orders")
    await group.join({"a": said, "b": said})
    first = await group.sync()

    context.loads.rates["orders"] = {0: 1e6}
    second = await group.sync()

    assert second == first
    assert context.stats.assignments_planned == 1


async def test_members_get_lanes_of_what_they_subscribe_to() -> None:
    """Different subscriptions, a lane name, and a member of plain topics only."""
    group = Coordinator(world())
    group.context.registry.learn("bills", uuid.UUID(int=0xD4), 2)
    members = {
        "a": subscription("orders"),
        "b": subscription("orders", "plain.lanes-2"),
        "c": subscription("bills"),
    }

    dealt = await group.deal(members)

    renamed = [("plain.lanes-2", index) for index in range(6)]
    assert all_of(dealt) == sorted(ORDERS_LANES + renamed)
    assert {topic for topic, _ in dealt["a"]} == {"orders"}
    assert set(renamed) <= set(dealt["b"])
    assert dealt["c"] == []


async def test_co_partitioned_topics_are_dealt_out_alike() -> None:
    """Lane i of both topics is at one member, so that it can join them by key."""
    rule = GroupRule(group="*", assignor="key-range", co_partitioned=True)
    context = world(rule)
    context.registry.learn("bills", uuid.UUID(int=0xD4), 2)
    said = subscription("orders", "bills.lanes-4", "shop.lanes-6")

    dealt = await Coordinator(context).deal({"a": said, "b": said, "c": said})

    assert len(all_of(dealt)) == 8 + 8 + 6
    for lanes in dealt.values():
        of_topic = {name: {i for topic, i in lanes if topic == name} for name, _ in lanes}
        assert of_topic.get("orders") == of_topic.get("bills.lanes-4")


async def test_a_member_that_the_leader_left_out_is_dealt_to() -> None:
    """Some assignors do not name members without a partition."""
    group = Coordinator(world())
    said = subscription("orders")
    await group.join({"a": said, "b": said})

    got = await group.sync({"a": assignment(ORDERS_LANES)})

    assert all_of({name: lanes_of(raw)[0] for name, raw in got.items()}) == ORDERS_LANES
    assert len(lanes_of(got["b"])[0]) == 4


async def test_an_unknown_member_gets_no_lane() -> None:
    """It joined later, or is made up: the broker decides; lanes of others it cannot have."""
    group = Coordinator(world())
    await group.join({"a": subscription("orders", "plain")})

    got = await group.sync(
        {"a": assignment(()), "ghost": assignment([("orders", 0), ("plain", 1)])}
    )

    assert sorted(lanes_of(got["a"])[0]) == ORDERS_LANES
    assert lanes_of(got["ghost"])[0] == [("plain", 1)]


async def test_a_generation_that_was_not_seen_is_asked_to_join_again(caplog) -> None:
    """The proxy was started since the JoinGroup. The next plan passes; the log has it once."""
    context = world()
    group = Coordinator(context)
    group.members = {"a": b"", "b": b""}
    values = {
        "group_id": GROUP,
        "member_id": "a",
        "generation_id": 5,
        "assignments": [{"member_id": "a", "assignment": assignment(ORDERS_LANES)}],
    }

    with caplog.at_level(logging.WARNING):
        first = await call(context, SYNC, 3, values)
        passed = await kept(group, generation_id=6)

    assert first["error_code"] == REBALANCING
    assert passed
    assert context.stats.assignments_unplanned == 2
    # asyncio may log something that another test has left and that is collected only now.
    (line,) = [record for record in caplog.records if record.name.startswith("keylane")]
    assert f"group={GROUP}" in line.getMessage()


async def test_an_old_generation_keeps_the_clients_plan() -> None:
    """The broker refuses it; the members of the newer one are not mixed in."""
    group = Coordinator(world())
    await group.join({"a": subscription("orders")})
    await group.join({"a": subscription("orders")})

    assert await kept(group, generation_id=1)
    assert group.context.stats.assignments_unplanned == 0


@pytest.mark.parametrize(
    ("how", "metadata"),
    [
        ({"protocol": "stream"}, subscription("orders")),
        ({"protocol_type": "connect"}, subscription("orders")),
        ({}, b"\0\0\0\0\0\7"),
        ({}, b""),
        ({}, subscription("plain")),
        ({}, subscription("unknown")),
    ],
)
async def test_what_is_not_ours_keeps_the_clients_plan(how, metadata) -> None:
    """Kafka Streams, Connect, subscriptions that cannot be read, groups without lanes."""
    group = Coordinator(world())
    await group.join({"a": metadata}, **how)

    assert await kept(group)


async def test_an_assignment_that_cannot_be_read_passes() -> None:
    """What the leader sent is not a consumer assignment: it must know."""
    group = Coordinator(world())
    await group.join({"a": subscription("orders")})

    assert await group.sync({"a": b"\0\0\0\0\0\7"}) == {"a": b"\0\0\0\0\0\7"}


@pytest.mark.parametrize("fault", ["overlap", "gap", "stranger"])
async def test_a_bad_plan_is_refused(fault, monkeypatch, caplog) -> None:
    """keylane's own mistake is logged with its place, and the client's plan is kept."""
    lanes = tuple(ORDERS_LANES)
    plans = {
        "overlap": {"a": lanes, "b": lanes[:1], "c": ()},
        "gap": {"a": lanes[1:], "b": (), "c": ()},
        "stranger": {"a": lanes[1:], "b": (), "c": lanes[:1]},
    }
    monkeypatch.setattr(dealing, "plan_sticky", lambda *_: plans[fault])
    context = world()
    group = Coordinator(context)
    said = subscription("orders")
    await group.join({"a": said, "b": said, "c": subscription("plain")})

    with caplog.at_level(logging.ERROR):
        is_kept = await kept(group)

    assert is_kept
    assert context.stats.assignments_refused == 1
    assert "orders" in caplog.text
    assert "plan refused" in caplog.text


async def test_a_planner_that_fails_does_not_stop_the_group(monkeypatch, caplog) -> None:
    """A mistake of ours is logged with its trace; the members go on with the client's plan."""

    def fail(*_: object) -> None:
        raise IndexError("ours")

    monkeypatch.setattr(dealing, "plan_sticky", fail)
    group = Coordinator(world())
    await group.join({"a": subscription("orders")})

    with caplog.at_level(logging.ERROR):
        is_kept = await kept(group)

    assert is_kept
    assert "IndexError: ours" in caplog.text
    assert group.context.stats.assignments_refused == 1


async def test_a_first_step_that_adds_lanes_is_refused(monkeypatch) -> None:
    """A step may withhold, never give what the target does not."""
    monkeypatch.setattr(
        dealing, "first_step", lambda *_: {"a": tuple(ORDERS_LANES), "b": (ORDERS_LANES[0],)}
    )
    context = world()
    group = Coordinator(context)
    said = subscription("orders", version=1)
    await group.join({"a": said, "b": said}, protocol=COOPERATIVE)

    assert await kept(group)
    assert context.stats.assignments_refused == 1


async def test_a_join_that_cannot_be_read_passes() -> None:
    """An answer that keylane does not understand may be fine for the client."""
    context = world()
    request = make_request(
        JOIN, 5, {"group_id": GROUP, "member_id": "a", "protocol_type": "consumer"}
    )
    context.expect(JOIN, None, b"\1\2\3")

    assert (await serve(context, request)).endswith(b"\1\2\3")
    assert context.generations.joined(GROUP, 1) is None
