"""Lanes in the hands of members that are surely gone are forgotten, and no others."""

from __future__ import annotations

import pytest

from keylane.offsets.records.held import HeldLanes
from tests.reference.forgetting_world import DESCRIBE, DESCRIBE_848, FIND, Node, run

NOT_COORDINATOR, LOADING, GROUP_DENIED = 16, 14, 30
HANDS = HeldLanes("m1", None, 3, frozenset({("orders", 0), ("orders", 2)}))
LATER = HeldLanes("m1", None, 4, frozenset({("orders", 0)}))


async def hold(node: Node, group: str, held: HeldLanes = HANDS) -> None:
    """A member of a KIP-848 group has been given lanes."""
    async with node.groups.lock(group):
        await node.groups.save_held(group, {"m1": held})


@pytest.mark.parametrize("knows_848", [False, True])
def test_lanes_of_members_that_are_gone_are_forgotten(knows_848: bool) -> None:
    """Of a group without commits, by the second look; those of a group with members stay."""

    async def test(node: Node) -> None:
        node.cluster.knows_848 = knows_848
        await hold(node, "gone")
        await hold(node, "there")
        node.kafka.states["there"] = "Stable"

        await node.rounds(1)
        after_one = node.table.held.groups()
        await node.rounds(1)

        assert sorted(after_one) == ["gone", "there"]
        assert node.table.held.groups() == node.reloaded().held.groups() == ["there"]
        assert node.deserted == ["gone"]

    run(test)


def test_lanes_of_members_that_the_broker_assigns_stay() -> None:
    """To DescribeGroups such a group is Dead."""

    async def test(node: Node) -> None:
        await hold(node, "g")
        node.kafka.members_848.add("g")

        await node.rounds(4)

        assert (node.table.held.groups(), node.deserted) == (["g"], [])

    run(test)


def test_lanes_of_a_group_with_commits_stay_as_long_as_these() -> None:
    """Its members are looked at when the next one comes."""

    async def test(node: Node) -> None:
        await node.commit("g")
        await hold(node, "g")

        await node.rounds(4)
        with_commits = node.table.held.groups()
        node.kafka.offsets.clear()
        await node.rounds(2)

        assert (with_commits, node.reloaded().held.groups()) == (["g"], [])

    run(test)


def test_lanes_that_were_given_since_the_last_look_stay() -> None:
    """A member has come, and gone again: the next look but one forgets its lanes."""

    async def test(node: Node) -> None:
        await hold(node, "g")
        await node.rounds(1)
        await hold(node, "g", LATER)

        await node.rounds(1)
        kept = node.table.held.of_group("g")
        await node.rounds(1)

        assert kept == {"m1": LATER}
        assert node.table.held.groups() == []

    run(test)


def test_a_member_that_comes_while_its_group_is_judged_keeps_its_lanes() -> None:
    """The broker has answered that there is none; then one is given lanes."""

    async def test(node: Node) -> None:
        await hold(node, "g")
        await node.rounds(1)

        async def come(api: int) -> None:
            if api == DESCRIBE_848:
                await hold(node, "g", LATER)

        node.kafka.before_answer = come
        await node.rounds(1)

        assert node.reloaded().held.of_group("g") == {"m1": LATER}
        assert node.deserted == []

    run(test)


@pytest.mark.parametrize("api", [FIND, DESCRIBE])
@pytest.mark.parametrize("code", [NOT_COORDINATOR, LOADING, GROUP_DENIED])
def test_lanes_stay_where_the_broker_does_not_say(api: int, code: int) -> None:
    """An error is no answer."""

    async def test(node: Node) -> None:
        await hold(node, "g")
        node.kafka.codes[api, "g"] = code

        await node.rounds(4)

        assert node.table.held.groups() == ["g"]

    run(test)


def test_lanes_are_forgotten_by_the_node_that_serves_the_group() -> None:
    """Another node has taken the journal's partition over: it looks."""

    async def test(node: Node) -> None:
        await hold(node, "g")
        await node.rounds(1)
        node.ownership.is_held = False
        records = len(node.journal.records)

        await node.rounds(2)

        assert len(node.journal.records) == records

    run(test, is_lone=False)


def test_lanes_whose_end_the_journal_does_not_take_are_looked_at_again() -> None:
    """The record is there after a restart, whose rounds judge it anew."""

    async def test(node: Node) -> None:
        await hold(node, "g")
        await node.rounds(1)
        node.journal.is_away = True
        await node.rounds(1)
        node.journal.is_away = False

        assert node.reloaded().held.groups() == ["g"]

    run(test)
