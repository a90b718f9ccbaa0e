"""Offsets among many nodes on a real broker: one journal, owners that come and go."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Self
from unittest import mock

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.config.node import LaneRule, ProxyConfig
from keylane.embedded import EmbeddedKafka
from keylane.errors import ConfigInvalid, NotCoordinator, UpstreamLost
from keylane.journal.own_topic import OwnTopicClients
from keylane.journal.owned import Ownership
from keylane.journal.store import APPEND_TIMEOUT_S
from keylane.offsets.records.journal import ic_partition
from keylane.offsets.state import OffsetState
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.topics.view import View

from .conftest import TopicFactory
from .made_topics import make_topic


class Turns:
    """Owners of everything: one node by its name, or several, as after a network split."""

    def __init__(self, *owners: str) -> None:
        self.owners = set(owners)
        self.term_number = 1

    def give(self, *owners: str) -> None:
        """Make these the owners."""
        self.owners = set(owners)
        self.term_number += 1


class Turn:
    """Implements `Ownership` for one node."""

    def __init__(self, turns: Turns, name: str) -> None:
        self._turns, self._name = turns, name

    def holds(self, ic_partition: int) -> bool:
        return self._name in self._turns.owners

    takes_on = holds

    def term(self, ic_partition: int) -> int:
        return self._turns.term_number if self._name in self._turns.owners else -1

    async def settled(self) -> None:
        pass


class Node:
    """The offsets of one node."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        ownership: Ownership | None,
        *,
        lanes: int = 4,
        accept_layout: tuple[str, ...] = (),
        append_timeout_s: float = APPEND_TIMEOUT_S,
    ) -> None:
        config = ProxyConfig(
            bootstrap=bootstrap,
            lanes=(LaneRule(topic=topic, lanes=lanes),),
            accept_layout=accept_layout,
        )
        self.cluster = Cluster(config)
        with mock.patch("keylane.journal.openings.APPEND_TIMEOUT_S", append_timeout_s):
            self.groups = GroupOffsets(
                config,
                self.cluster,
                OwnTopicClients(bootstrap),
                wall_clock=lambda: 1_700_000_000.0,
                ownership=ownership,
            )
        self.topic = topic

    async def __aenter__(self) -> Self:
        await self.cluster.start()
        await self.groups.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.groups.stop()
        self.cluster.stop()

    @property
    def view(self) -> View:
        view = self.cluster.registry.view(self.topic)
        assert view is not None
        return view

    def neighbour(self, group: str) -> str:
        """Another group in the same journal partition."""
        count = self.groups.partition_count
        while ic_partition(other := name_group(), count) != ic_partition(group, count):
            pass
        return other

    async def commit(self, group: str, lane: int, offset: int) -> None:
        """Commit as a handler does: a draft of the state takes its place and is saved."""
        async with self.groups.lock(group):
            draft = await self.draft(group)
            await self.save(group, draft, lane, offset)

    async def draft(self, group: str) -> OffsetState:
        known = self.groups.state_of(group, self.view, 0)
        return (known or await self.groups.adopt(group, self.view, 0, None)).copy()

    async def save(self, group: str, draft: OffsetState, lane: int, offset: int) -> None:
        draft.commit_keys(
            self.view.key_ranges(lane), offset, None, -1, self.groups.scan_of(self.view, 0)
        )
        draft.mark_pushed(draft.stable_position)
        await self.groups.save(group, [(self.view, 0, draft)])

    async def positions(self, group: str) -> list[int]:
        """Return where each lane stands."""
        async with self.groups.lock(group):
            state = await self.draft(group)
            return [state.position_of(*self.view.key_ranges(lane)).offset for lane in range(4)]


def test_a_partition_passes_from_node_to_node_with_all_that_was_saved(
    kafka: str, topic: TopicFactory
) -> None:
    """The next owner finds what the one before saved; that one says so, and knows nothing."""
    orders, group, turns = topic(partitions=1), name_group(), Turns("ann")

    async def scenario() -> None:
        async with (
            Node(kafka, orders, Turn(turns, "ann")) as ann,
            Node(kafka, orders, Turn(turns, "bob")) as bob,
        ):
            await ann.commit(group, 0, 10)
            with pytest.raises(NotCoordinator):
                await bob.commit(group, 1, 99)
            turns.give("bob")
            ann.groups.drop_lost()
            assert [list(node.groups.states()) for node in (ann, bob)] == [[], []]
            with pytest.raises(NotCoordinator):
                await ann.commit(group, 0, 99)
            await bob.commit(group, 1, 20)
            assert await bob.positions(group) == [10, 20, -1, -1]
            turns.give("ann")
            await ann.commit(group, 2, 30)
            assert await ann.positions(group) == [10, 20, 30, -1]

    asyncio.run(scenario())


def test_an_owner_that_does_not_know_of_its_end_can_write_nothing(
    kafka: str, topic: TopicFactory
) -> None:
    """Two nodes believe that they own a group: the journal takes from the later one only."""
    orders, group, turns = topic(partitions=1), name_group(), Turns("ann", "bob")

    async def scenario() -> None:
        async with (
            Node(kafka, orders, Turn(turns, "ann")) as ann,
            Node(kafka, orders, Turn(turns, "bob")) as bob,
        ):
            await ann.commit(group, 0, 10)
            async with ann.groups.lock(group):
                draft = await ann.draft(group)
                await bob.commit(group, 1, 20)
                with pytest.raises(NotCoordinator, match="taken over"):
                    await ann.save(group, draft, 0, 99)
                with pytest.raises(NotCoordinator):
                    ann.groups.check_ownership(group)
            assert await bob.positions(group) == [10, 20, -1, -1]
            # What it had loaded is worth nothing any more: it fences the other, and reads again.
            assert await ann.positions(group) == [10, 20, -1, -1]
            with pytest.raises(NotCoordinator, match="taken over"):
                await bob.commit(group, 1, 99)

    asyncio.run(scenario())


def test_a_change_begun_before_a_loss_does_not_count_after_a_return(
    kafka: str, topic: TopicFactory
) -> None:
    """The draft was made of a state that somebody else has changed since."""
    orders, group, turns = topic(partitions=1), name_group(), Turns("ann")

    async def scenario() -> None:
        async with (
            Node(kafka, orders, Turn(turns, "ann")) as ann,
            Node(kafka, orders, Turn(turns, "bob")) as bob,
        ):
            await ann.commit(group, 0, 10)
            async with ann.groups.lock(group):
                draft = await ann.draft(group)
                turns.give("bob")
                await bob.commit(group, 1, 20)
                turns.give("ann")
                await ann.groups.ready(ann.neighbour(group))
                with pytest.raises(NotCoordinator):
                    ann.groups.state_of(group, ann.view, 0)
                with pytest.raises(NotCoordinator):
                    await ann.save(group, draft, 0, 99)
            assert await ann.positions(group) == [10, 20, -1, -1]

    asyncio.run(scenario())


def test_commits_of_many_groups_at_once(kafka: str, topic: TopicFactory) -> None:
    """A hundred groups of one partition are saved, and found again by the lone node."""
    orders, turns = topic(partitions=1), Turns("ann")

    async def scenario() -> None:
        async with Node(kafka, orders, Turn(turns, "ann")) as ann:
            first = name_group()
            groups = [first, *(ann.neighbour(first) for _ in range(99))]
            commits = [partial(ann.commit, group, 3, 40) for group in groups]
            await asyncio.gather(*map(until_taken, commits))
        async with Node(kafka, orders, None) as lone:
            for group in groups:
                assert await lone.positions(group) == [-1, -1, -1, 40]

    asyncio.run(scenario())


def test_layouts_are_pinned_in_any_partition(kafka: str, topic: TopicFactory) -> None:
    """A layout is in the group's partition; it binds each node that starts, alone or not."""
    orders, group, turns = topic(partitions=1), name_group(), Turns("ann")

    async def scenario() -> None:
        async with Node(kafka, orders, Turn(turns, "ann")) as ann:
            await ann.commit(group, 0, 10)
        for ownership in (None, Turn(turns, "ann")):
            with pytest.raises(ConfigInvalid, match="4 lanes per partition"):
                async with Node(kafka, orders, ownership, lanes=8):
                    pass
        async with Node(kafka, orders, None, lanes=8, accept_layout=(orders,)) as lone:
            await lone.commit(group, 0, 20)  # pinned by the view's name, beside the one before
        for ownership in (None, Turn(turns, "ann")):
            async with Node(kafka, orders, ownership, lanes=8) as node:
                assert node.view.layout.lane_count == 8
            with pytest.raises(ConfigInvalid, match="8 lanes per partition"):
                async with Node(kafka, orders, ownership, lanes=4):
                    pass

    asyncio.run(scenario())


def test_a_broker_that_restarts_costs_no_commit(own_broker: EmbeddedKafka) -> None:
    """Answered commits are there; a failed one is an error, and its partition is read again."""
    group = name_group()

    async def scenario() -> None:
        turn = Turn(Turns("ann"), "ann")
        node = Node(own_broker.bootstrap, "orders", turn, append_timeout_s=3.0)
        admin = AdminClient({"bootstrap.servers": own_broker.bootstrap})
        await asyncio.to_thread(make_topic, admin, NewTopic("orders", 1, 1))
        async with node:
            # A broker that has just started may take longer than the time-out of an append.
            await until_taken(lambda: node.commit(group, 0, 10))
            await asyncio.to_thread(own_broker.kill)
            with pytest.raises((UpstreamLost, NotCoordinator)):
                await node.commit(group, 1, 20)
            await asyncio.to_thread(own_broker.start)
            await until_taken(lambda: node.commit(group, 2, 30))
            assert await node.positions(group) in ([10, -1, 30, -1], [10, 20, 30, -1])

    asyncio.run(scenario())


def name_group() -> str:
    """Return the name of another group."""
    return f"group-{uuid.uuid4()}"


async def until_taken(attempt: Callable[[], Awaitable[None]]) -> None:
    """Commit until it succeeds, as a client does; the broker is coming up, or busy."""
    while True:
        with suppress(UpstreamLost, NotCoordinator):
            return await attempt()
