"""Heartbeat v0-4: a group whose measured load is out of balance is asked to rebalance, once."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from keylane.config.node import GroupRule
from tests.transcript.consumer_protocol import assignment, subscription
from tests.transcript.coordinator import GROUP, ORDERS_LANES, Coordinator, all_of, world
from tests.transcript.entities import Values
from tests.transcript.fake import FakeContext, call, versions

JOIN, BEAT, DESCRIBE = 11, 12, 15
NONE, ILLEGAL_GENERATION, REBALANCING = 0, 22, 27
STEP_S = 60.0
"""A tenth of `load_rebalance_interval_s`."""
INTERVAL_S = 600.0
SAID = subscription("orders")
SKEWED = {index: 300.0 if index < 2 else 20.0 for index in range(8)}
"""Lanes 0 and 1 have most, and are at one member where clients have dealt out halves."""


async def beat(
    context: FakeContext, member_id: str, *, code: int = NONE, version: int = 4, generation: int = 1
) -> int:
    """Send a heartbeat; the code that its member gets."""
    values: Values = {"group_id": GROUP, "generation_id": generation, "member_id": member_id}
    context.expect(BEAT, values, {"error_code": code})
    return int((await call(context, BEAT, version, values))["error_code"])


async def run_aside(context: FakeContext) -> int:
    """Do what is to be done beside the requests; return how much it was."""
    works = list(context.world.aside)
    context.world.aside.clear()
    for work in works:
        await work()
    context.finish()
    return len(works)


async def skewed(context: FakeContext, **how: Any) -> Coordinator:
    """A generation of two members that was dealt out before the load was known."""
    group = Coordinator(context)
    dealt = await group.deal({"a": SAID, "b": SAID}, **how)
    hot = [index for _, index in dealt["a"]][:2]
    context.loads.rates["orders"] = {index: 300.0 if index in hot else 20.0 for index in range(8)}
    return group


@pytest.mark.parametrize("version", versions(BEAT))
async def test_the_leader_is_asked_to_join_again(version, caplog) -> None:
    """After a minute of measured load; the follower's heartbeats pass. The log has the reason."""
    context = world()
    group = await skewed(context)
    await beat(context, "a", version=version)
    context.world.now_s += STEP_S

    with caplog.at_level(logging.INFO):
        first = await beat(context, "b", version=version)
        await run_aside(context)
        codes = [await beat(context, name, version=version) for name in "bab"]

    assert [first, *codes] == [NONE, NONE, REBALANCING, NONE]
    assert context.stats.rebalances_asked == 1
    assert f"rebalance asked for: load is out of balance group={GROUP}" in caplog.text
    after = await group.deal({"a": SAID, "b": SAID})
    loads = [sum(context.loads.rates["orders"][index] for _, index in after[m]) for m in "ab"]
    assert max(loads) < 1.1 * min(loads)


async def test_a_balanced_group_is_left_alone() -> None:
    """Look after look, and nothing is asked for."""
    context = world()
    group = await skewed(context)
    dealt = await group.deal({"a": SAID, "b": SAID})

    codes = []
    for _ in range(20):
        context.world.now_s += STEP_S
        codes += [await beat(context, name, generation=2) for name in "ab"]
        await run_aside(context)

    assert all_of(dealt) == ORDERS_LANES
    assert set(codes) == {NONE}
    assert context.stats.rebalances_asked == 0


async def test_little_load_is_no_reason() -> None:
    """Of a record every ten minutes, which lane has more is chance."""
    context = world()
    await skewed(context)
    context.loads.rates["orders"] = {
        index: rate * 1e-5 for index, rate in context.loads.rates["orders"].items()
    }
    await beat(context, "a")
    context.world.now_s += STEP_S

    await beat(context, "a")
    await run_aside(context)

    assert await beat(context, "a") == NONE


async def test_the_next_one_comes_after_the_interval() -> None:
    """The load has changed by then: not sooner, however much it is out of balance."""
    context = world()
    group = await skewed(context)
    await beat(context, "a")
    context.world.now_s += STEP_S
    await beat(context, "a")
    await run_aside(context)
    dealt = await group.deal({"a": SAID, "b": SAID})
    mine = {index for _, index in dealt["b"]}
    context.loads.rates["orders"] = {index: 300.0 if index in mine else 1.0 for index in range(8)}

    codes = []
    for _ in range(10):
        codes.append(await beat(context, "a", generation=2))
        await run_aside(context)
        context.world.now_s += STEP_S
    late = [await beat(context, "a", generation=2)]
    await run_aside(context)
    late.append(await beat(context, "a", generation=2))

    assert set(codes) == {NONE}
    assert late == [NONE, REBALANCING]
    assert context.stats.rebalances_asked == 2


@pytest.mark.parametrize(
    "rule",
    [
        GroupRule(group="*", rebalance_by_load=False),
        GroupRule(group="*", assignor="client"),
    ],
)
async def test_a_rule_switches_it_off(rule) -> None:
    """Lanes move when members come and go, or as the client's assignor has them."""
    context = world(rule)
    group = Coordinator(context)
    await group.join({"a": SAID, "b": SAID})
    await group.sync({"a": assignment(ORDERS_LANES[:4]), "b": assignment(ORDERS_LANES[4:])})
    context.loads.rates["orders"] = SKEWED
    await beat(context, "a")
    context.world.now_s += INTERVAL_S

    await beat(context, "a")
    await run_aside(context)

    assert await beat(context, "a") == NONE
    assert context.stats.rebalances_asked == 0


async def test_a_heartbeat_that_the_broker_refuses_is_no_clock() -> None:
    """Any client can name a group: the error passes, and nothing is looked at."""
    context = world()
    await skewed(context)

    codes = []
    for _ in range(3):
        codes.append(await beat(context, "ghost", code=ILLEGAL_GENERATION, generation=7))
        context.world.now_s += INTERVAL_S

    assert codes == [ILLEGAL_GENERATION] * 3
    assert await run_aside(context) == 0


def described(members: dict[str, tuple[bytes, bytes]], **other: Any) -> Values:
    """The coordinator's description of a group: metadata and assignment of each member."""
    group = {"group_id": GROUP, "group_state": "Stable", "protocol_type": "consumer",
             "protocol_data": "range"} | other  # fmt: skip
    entries = [
        {"member_id": name, "member_metadata": said, "member_assignment": given}
        for name, (said, given) in members.items()
    ]
    return {"groups": [group | {"members": entries}]}


async def started_since(context: FakeContext, **other: Any) -> None:
    """Meet a running group: its first heartbeat, and what the coordinator knows."""
    context.generations.note_leader(GROUP, 1, "a")  # not known: of no effect
    context.generations.warn_once(GROUP)  # so that the group is known to have lanes
    halves = {
        "a": (SAID, assignment([*ORDERS_LANES[:4], ("plain", 0)])),
        "b": (SAID, assignment(ORDERS_LANES[4:])),
    }
    context.registry.view("orders")
    await beat(context, "b")
    context.expect(DESCRIBE, None, described(halves, **other))
    assert await run_aside(context) == 1


async def test_a_group_that_was_there_before_keeps_its_lanes() -> None:
    """keylane was started since, or upgraded: eager members say nothing, the coordinator does."""
    context = world()
    await started_since(context)
    group = Coordinator(context)
    group.generation_id = 1

    dealt = await group.deal({"a": SAID, "b": SAID, "c": SAID})

    assert set(dealt["a"]) <= set(ORDERS_LANES[:4])
    assert set(dealt["b"]) <= set(ORDERS_LANES[4:])
    assert all_of(dealt) == ORDERS_LANES


async def test_a_join_right_after_the_start_finds_the_lanes_of_before() -> None:
    """No heartbeat has come yet: the question for the members' names has their lanes, too."""
    context = world()
    group = Coordinator(context)
    context.group_names.forget_where(lambda _: True)
    halves = {
        "a": (SAID, assignment(ORDERS_LANES[:4])),
        "b": (SAID, assignment(ORDERS_LANES[4:])),
    }
    context.expect(DESCRIBE, None, described(halves))

    dealt = await group.deal({"a": SAID, "b": SAID, "c": SAID})

    assert set(dealt["a"]) <= set(ORDERS_LANES[:4])
    assert set(dealt["b"]) <= set(ORDERS_LANES[4:])
    assert all_of(dealt) == ORDERS_LANES


async def test_the_clients_lanes_are_balanced_by_load_after_an_upgrade() -> None:
    """The leader is not known: one follower is asked, the broker's answer names the leader."""
    context = world()
    await started_since(context)
    context.loads.rates["orders"] = SKEWED
    context.world.now_s += STEP_S
    await beat(context, "b")
    await run_aside(context)

    before = [await beat(context, name) for name in "bab"]
    context.generations.note_leader(GROUP, 1, "a")
    after = [await beat(context, name) for name in "bab"]

    assert before == [REBALANCING, NONE, REBALANCING]
    assert after == [NONE, REBALANCING, NONE]
    assert context.stats.rebalances_asked == 1


@pytest.mark.parametrize(
    "other",
    [
        {"group_state": "PreparingRebalance"},
        {"protocol_data": "stream"},
        {"protocol_data": "own"},
        {"protocol_type": "connect"},
        {"error_code": 15},
    ],
)
async def test_a_group_that_is_not_dealt_out_here_is_left_alone(other) -> None:
    """It is under way, of another protocol, or its coordinator has moved."""
    context = world(GroupRule(group="other"))
    await started_since(context, **other)

    assert context.generations.current(GROUP, 1) is None
    assert await beat(context, "a") == NONE


async def test_a_followers_answer_names_the_leader() -> None:
    """It joined again without a change, so the generation goes on."""
    context = world()
    context.generations.warn_once(GROUP)
    values = {
        "group_id": GROUP, "member_id": "b", "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("plain")}],
    }  # fmt: skip
    answer = {"generation_id": 4, "protocol_name": "range", "leader": "a", "member_id": "b"}
    context.expect(JOIN, None, answer)

    await call(context, JOIN, 5, values)

    assert context.generations.leader(GROUP, 4) == "a"
    assert context.generations.leader(GROUP, 5) is None


async def test_what_cannot_be_read_passes() -> None:
    """Assignments of the coordinator that are not the consumer protocol's."""
    context = world()
    context.generations.warn_once(GROUP)
    await beat(context, "b")
    context.expect(DESCRIBE, None, described({"b": (SAID, b"\0\0\0\0\0\7")}))

    await run_aside(context)

    assert context.generations.current(GROUP, 1) is None
