"""What Kafka has surely forgotten is forgotten, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keylane.keyrange.key_split import PartitionSplit, even_split
from keylane.offsets.records.journal import LayoutValue
from keylane.tasks import spawn
from tests.reference.forgetting_world import (
    DESCRIBE,
    DESCRIBE_848,
    FIND,
    OFFSETS,
    ORDERS,
    SHOP,
    Node,
    run,
    scanned,
)

NOT_COORDINATOR, LOADING, UNSTABLE, GROUP_DENIED, TOPIC_DENIED = 16, 14, 88, 30, 29
FOUR, EIGHT = even_split(4), even_split(8)
"""`orders` has four lanes under its own name."""


@pytest.mark.parametrize("knows_848", [False, True])
def test_a_group_that_kafka_has_forgotten_is_forgotten(knows_848: bool) -> None:
    """By the second look, in memory and in the journal; the other one stays."""

    async def test(node: Node) -> None:
        node.cluster.knows_848 = knows_848
        gone, there = await node.commit("gone"), await node.commit("there")
        node.kafka.states["there"] = "Stable"
        del node.kafka.offsets["gone", "orders", 0]

        await node.rounds(1)
        after_one = node.states()
        await node.rounds(1)

        assert after_one == {gone, there} and node.states() == {there}
        assert {key for key, _ in node.reloaded().items()} == {there}
        assert node.stats.states_forgotten == 1

    run(test)


def test_a_group_with_members_keeps_all() -> None:
    """An offset may have expired under them: that is judged when they ask for it."""

    async def test(node: Node) -> None:
        key = await node.commit("g")
        node.kafka.states["g"] = "PreparingRebalance"
        node.kafka.offsets.clear()

        await node.rounds(4)

        assert node.states() == {key}

    run(test)


def test_members_that_the_broker_assigns_are_members() -> None:
    """To DescribeGroups such a group is Dead."""

    async def test(node: Node) -> None:
        key = await node.commit("g")
        node.kafka.members_848.add("g")
        node.kafka.offsets.clear()

        await node.rounds(4)

        assert node.states() == {key}

    run(test)


def test_only_what_is_missing_goes() -> None:
    """An admin has deleted the offset of one partition; the group is empty."""

    async def test(node: Node) -> None:
        node.kafka.states["g"] = "Empty"
        await node.commit("g", partition=0)
        there = await node.commit("g", partition=1)
        del node.kafka.offsets["g", "orders", 0]

        await node.rounds(2)

        assert node.states() == {there}

    run(test)


@pytest.mark.parametrize(
    ("api", "code"),
    [(FIND, LOADING), (FIND, GROUP_DENIED), (DESCRIBE, NOT_COORDINATOR), (DESCRIBE, GROUP_DENIED),
     (OFFSETS, LOADING), (OFFSETS, NOT_COORDINATOR), (OFFSETS, GROUP_DENIED)],
)  # fmt: skip
def test_an_error_is_no_answer(api: int, code: int) -> None:
    """A coordinator that moves, loads or refuses says nothing of its groups."""

    async def test(node: Node) -> None:
        key = await node.commit("g")
        node.kafka.offsets.clear()
        node.kafka.codes[api, "g"] = code

        await node.rounds(4)

        assert node.states() == {key}
        assert node.forgetting._survey.is_denied == (code == GROUP_DENIED)

    run(test)


@pytest.mark.parametrize("code", [UNSTABLE, TOPIC_DENIED])
def test_one_partition_without_an_answer_keeps_the_group(code: int) -> None:
    """A transaction may be about to commit there; or keylane may not see the topic."""

    async def test(node: Node) -> None:
        keys = {await node.commit("g", partition=0), await node.commit("g", partition=1)}
        node.kafka.offsets.clear()
        node.kafka.place_codes["orders", 1] = code

        await node.rounds(4)

        assert node.states() == keys

    run(test)


@pytest.mark.parametrize("api", [FIND, DESCRIBE, OFFSETS, DESCRIBE_848])
@pytest.mark.parametrize("how", ["silent", "lost"])
def test_a_broker_that_hangs_or_is_gone_says_nothing(api: int, how: str) -> None:
    """The round goes on, and holds no lock meanwhile."""

    async def test(node: Node) -> None:
        key = await node.commit("g")
        node.kafka.offsets.clear()
        (node.kafka.silent if how == "silent" else node.kafka.lost).add(api)

        await node.rounds(3)

        assert node.states() == {key}

    run(test)


def test_a_group_that_came_back_between_two_looks_is_new() -> None:
    """It was used again: what the first look has seen counts no more."""

    async def test(node: Node) -> None:
        await node.commit("g")
        node.kafka.offsets.clear()
        await node.rounds(1)
        key = await node.commit("g", offset=20)
        node.kafka.offsets.clear()

        await node.rounds(1)
        after_second = node.states()
        await node.rounds(1)

        assert after_second == {key} and node.states() == set()

    run(test)


def test_a_commit_after_the_answer_keeps_the_state() -> None:
    """Kafka has said that there is nothing, and the group commits before its lock is taken."""

    async def test(node: Node) -> None:
        await node.commit("g")
        node.kafka.offsets.clear()
        await node.rounds(1)

        async def commit(api: int) -> None:
            if api == OFFSETS:
                node.kafka.before_answer = None
                await node.commit("g", offset=30)
                node.kafka.offsets.clear()

        node.kafka.before_answer = commit
        await node.rounds(1)

        assert len(node.states()) == 1
        (state,) = [state for _, state in node.groups.states()]
        assert state.pushed == 30

    run(test)


def test_a_push_that_may_still_arrive_keeps_the_state() -> None:
    """Its answer was lost; once Kafka was seen without it for some seconds it is not to come."""

    async def test(node: Node) -> None:
        key = await node.commit("g")
        node.kafka.offsets.clear()
        node.table.intents.note_unanswered(key, 40)

        await node.rounds(2)
        at_first = node.states()
        await asyncio.sleep(10)  # of virtual time
        await node.rounds(2)

        assert at_first == {key} and node.states() == set()

    run(test)


def test_another_nodes_groups_are_left_alone() -> None:
    """The partition was lost between two looks: nothing is written."""

    async def test(node: Node) -> None:
        await node.commit("g")
        node.kafka.offsets.clear()
        await node.rounds(1)
        before = len(node.journal.records)
        node.ownership.is_held = False

        await node.rounds(2)

        assert len(node.journal.records) == before

    run(test, is_lone=False)


def test_a_deleted_topic_leaves_nothing() -> None:
    """Under running members too: its id comes never again. Caches first, the journal after."""

    async def test(node: Node) -> None:
        gone, there = await node.commit("g", SHOP), await node.commit("g", ORDERS)
        node.kafka.states["g"] = "Stable"
        scan = PartitionSplit(SHOP, 0, FOUR)
        node.groups.scans.of(scan)
        node.groups.lineages.of((SHOP, 0))
        for known in node.kafka.known_ids.values():
            known.discard(SHOP)

        await node.rounds(1)
        after_one = node.states()
        caches = (
            node.cluster.registry.id_of_name("shop"),
            [place for place in node.cluster.leaders if place[0] == SHOP],
            node.groups.lineages.find((SHOP, 0)),
        )
        await node.rounds(2)

        assert after_one == {gone, there} and node.states() == {there}
        assert caches == (None, [], None) and node.split_ends == [scan]
        assert {key for key, _ in node.reloaded().items()} == {there}
        assert node.cluster.registry.id_of_name("orders") == ORDERS
        assert node.stats.topics_forgotten == 1

    run(test)


def test_times_of_commits_go_with_what_was_committed() -> None:
    """A group that is gone, and a topic that was deleted under one that lives."""

    async def test(node: Node) -> None:
        times = node.groups.commit_times
        for group, name, topic_id in (("gone", "orders", ORDERS), ("there", "orders", ORDERS),
                                      ("there", "shop", SHOP)):  # fmt: skip
            await node.commit(group, topic_id)
            times.note(group, (topic_id, name), 4, [1], 1000)
        all_bytes = times.size_bytes
        node.kafka.states["there"] = "Stable"
        del node.kafka.offsets["gone", "orders", 0]
        for known in node.kafka.known_ids.values():
            known.discard(SHOP)

        await node.rounds(3)

        assert times.last_ms("there", (ORDERS, "orders"), 1) == 1000
        assert times.last_ms("there", (SHOP, "shop"), 1) is None
        assert times.last_ms("gone", (ORDERS, "orders"), 1) is None
        assert times.size_bytes == all_bytes / 3

    run(test)


@pytest.mark.parametrize("how", ["one knows it", "one hangs"])
def test_a_topic_is_there_until_all_brokers_say_otherwise(how: str) -> None:
    """One that lags behind knows nothing of a new topic."""

    async def test(node: Node) -> None:
        key = await node.commit("g", SHOP)
        node.kafka.states["g"] = "Stable"
        node.kafka.known_ids[1].discard(SHOP)
        if how == "one hangs":
            node.kafka.known_ids[2].discard(SHOP)

            async def hang(node_id: int, entity: Any) -> Any:
                if node_id == 2:
                    await asyncio.Event().wait()
                return await node.kafka.answer(node_id, entity)

            node.cluster.ask_broker = hang  # type: ignore[method-assign]

        await node.rounds(4)

        assert node.states() == {key}
        assert node.cluster.registry.id_of_name("shop") == SHOP

    run(test)


@pytest.mark.parametrize("is_lone", [True, False])
def test_layouts_go_with_their_last_group(is_lone: bool) -> None:
    """Where other nodes may have groups on them, with their topic."""

    async def test(node: Node) -> None:
        await node.commit("g")
        await node.groups.ready("g")
        for name, topic_id in (("orders", ORDERS), ("shop.lanes-4", SHOP)):
            layout = LayoutValue(timestamp_ms=1, topic_id=topic_id, partition_count=2, lane_count=4)
            node.journal.records += node.table.pin_layout(name, layout)
            node.groups.layouts.pinned[name] = layout
        node.kafka.states["g"] = "Stable"

        await node.rounds(2)
        while_it_is_there = set(node.reloaded().layouts())
        for known in node.kafka.known_ids.values():
            known.discard(SHOP)
        await node.rounds(3)

        assert while_it_is_there == ({"orders"} if is_lone else {"orders", "shop.lanes-4"})
        assert set(node.reloaded().layouts()) == {"orders"} == set(node.groups.layouts.pinned)

    run(test, is_lone=is_lone)


def test_splits_without_a_reader_are_forgotten() -> None:
    """Not those that were used since the last look, have a reader, or are the operator's."""

    async def test(node: Node) -> None:
        scans = node.groups.scans
        idle, used, read = (PartitionSplit(ORDERS, partition, EIGHT) for partition in range(3))
        own = PartitionSplit(ORDERS, 0, FOUR)
        assert node.cluster.registry.view("orders") is not None
        for key in (idle, used, read, own):
            scans.note(scanned(key))
        node.read.add(read)

        node.forgetting.forget_idle_splits()
        first = list(node.split_ends)
        scans.known(used)
        node.forgetting.forget_idle_splits()

        assert first == [] and node.split_ends == [idle]
        assert scans.known(read).has_passed(5) and scans.known(own).has_passed(5)
        assert not scans.known(idle).has_passed(5)

    run(test)


def test_rounds_go_on_by_themselves() -> None:
    """The first one soon after the start."""

    async def test(node: Node) -> None:
        await node.commit("g")
        node.kafka.offsets.clear()
        running = spawn(node.forgetting.run(), "forgetting")

        await asyncio.sleep(200)  # of virtual time
        after_first = node.states()
        await asyncio.sleep(4000)  # of virtual time
        running.cancel()

        assert len(after_first) == 1 and node.states() == set()

    run(test)


def test_a_forgotten_group_counts_no_more() -> None:
    """Neither for the bound of its principal, nor where another node serves it by now."""

    async def test(node: Node) -> None:
        await node.commit("g")
        counted = node.groups.still_has_offsets("g")
        node.kafka.offsets.clear()
        await node.rounds(2)

        assert counted and not node.groups.still_has_offsets("g")
        node.ownership.is_held = False
        assert not node.groups.still_has_offsets("other")

    run(test)


def test_what_is_not_written_is_not_forgotten() -> None:
    """The journal is away: the states stay, and go with a later round."""

    async def test(node: Node) -> None:
        key = await node.commit("g")
        node.kafka.offsets.clear()
        await node.rounds(1)
        node.journal.is_away = True
        await node.rounds(1)
        while_away = node.states()
        node.journal.is_away = False
        await node.rounds(1)

        assert while_away == {key} and node.states() == set()

    run(test)
