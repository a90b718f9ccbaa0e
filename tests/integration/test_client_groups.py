"""Memberships of the Python consumer at a real coordinator, by both protocols."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import pytest
from confluent_kafka.admin import AdminClient

from keylane.client.cluster import ClusterClient
from keylane.client.group.effects import GroupRefused
from keylane.client.group.membership import GroupMembership
from keylane.client.group.settings import GroupSettings
from keylane.client.settings import ConsumerSettings
from keylane.client.values import TopicPartition
from keylane.embedded import EmbeddedKafka
from keylane.errors import KeylaneError
from keylane.wire.extensions import LaneRange
from tests.integration.conftest import KEPT, make_topic_factory
from tests.integration.harness import Group

BOTH = pytest.mark.parametrize("protocol", ["consumer", "classic"])
PARTITIONS = 8
PATIENCE_S = 60.0
POLL_S = 0.2
QUICK = KEPT | {
    "group.consumer.min.session.timeout.ms": "10000",
    "group.consumer.session.timeout.ms": "10000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
}
"""Members that are killed are gone after 10 s, and a plan takes half a second. A shorter session
would end where the machine stands still."""


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose groups have short sessions."""
    with EmbeddedKafka(tmp_path_factory.mktemp("groups"), properties=QUICK) as running:
        yield running.bootstrap


@pytest.fixture
def quick_topic(quick, request):
    """Topics of that broker."""
    return make_topic_factory(AdminClient({"bootstrap.servers": quick}), request.node.name)


class Stand:
    """Members of one group, and the owner of each part: never two."""

    def __init__(self, bootstrap: str, topic: str, protocol: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.settings = GroupSettings(
            group_id=f"g-{topic}",
            group_protocol=protocol,
            topics=frozenset({topic}),
            session_timeout_s=10.0,
            heartbeat_interval_s=0.5,
            rebalance_timeout_s=30.0,
            metadata_max_age_s=2.0,
        )
        self.owners: dict[TopicPartition, str] = {}
        self.members: dict[str, Member] = {}
        self.changed = asyncio.Event()

    async def add(self, name: str, **options: object) -> Member:
        settings = replace(self.settings, **options)  # type: ignore[arg-type]
        member = Member(self, name, settings)
        await member.cluster.start()
        await member.membership.start()
        self.members[name] = member
        return member

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), POLL_S)
                for member in self.members.values():
                    if member.polls:
                        member.membership.note_poll()

    def is_shared(self, count: int = PARTITIONS) -> bool:
        """Return whether all parts have an owner, and all members near as many."""
        sizes = [len(each.parts) for each in self.members.values()]
        return sum(sizes) == count and max(sizes) - min(sizes) <= 1


class Member:
    """The consumer's side of a membership."""

    def __init__(self, stand: Stand, name: str, settings: GroupSettings) -> None:
        self.stand, self.name = stand, name
        self.cluster = ClusterClient(ConsumerSettings(bootstrap_servers=stand.bootstrap))
        self.membership = GroupMembership(self.cluster, settings, self)
        self.parts: dict[TopicPartition, LaneRange | None] = {}
        self.revoking: set[TopicPartition] = set()
        self.lost: set[TopicPartition] = set()
        self.errors: list[KeylaneError] = []
        self.polls = True
        self.holds = False
        """True: what is asked back is kept until the test releases it."""

    def on_assigned(self, parts: Mapping[TopicPartition, LaneRange | None]) -> None:
        for part in parts:
            owner = self.stand.owners.setdefault(part, self.name)
            assert owner == self.name, f"{part} at {owner} and {self.name}"
        self.parts.update(parts)
        self.stand.changed.set()

    def on_revoke_requested(self, parts: Collection[TopicPartition], deadline_s: float) -> None:
        assert deadline_s <= asyncio.get_running_loop().time() + 30.0
        self.revoking.update(parts)
        if not self.holds:
            self.release()
        self.stand.changed.set()

    def on_lost(self, parts: Collection[TopicPartition]) -> None:
        self.lost.update(parts)
        self._drop(parts)

    def on_group_error(self, error: KeylaneError) -> None:
        self.errors.append(error)
        self.stand.changed.set()

    def release(self) -> None:
        parts, self.revoking = self.revoking, set()
        self._drop(parts)
        self.membership.release(parts)

    async def leave(self) -> None:
        self._drop(list(self.parts))
        del self.stand.members[self.name]
        await self.membership.leave()
        await self.cluster.close()

    async def kill(self) -> None:
        """End as a process does that is killed: without a word to the coordinator."""
        del self.stand.members[self.name]
        task = self.membership._task
        assert task is not None
        task.cancel()
        await asyncio.wait({task})
        await self.cluster.close()
        self._drop(list(self.parts))

    def _drop(self, parts: Collection[TopicPartition]) -> None:
        for part in parts:
            del self.parts[part], self.stand.owners[part]
            self.revoking.discard(part)
        self.stand.changed.set()


@asynccontextmanager
async def stand_of(bootstrap: str, topic: str, protocol: str) -> AsyncIterator[Stand]:
    """Members that leave at the end."""
    stand = Stand(bootstrap, topic, protocol)
    try:
        yield stand
    finally:
        for member in list(stand.members.values()):
            await member.leave()


@BOTH
def test_members_join_leave_and_die(protocol, quick, quick_topic) -> None:
    """Four members share eight partitions evenly; after a leave and a kill two have them all."""
    name = quick_topic("orders", partitions=PARTITIONS)

    async def play() -> None:
        async with stand_of(quick, name, protocol) as stand:
            first = await stand.add("a")
            await stand.until(stand.is_shared)
            assert first.membership.owned == first.parts.keys()
            for other in ("b", "c", "d"):
                await stand.add(other)
                await stand.until(stand.is_shared)
            assert {each.membership.protocol for each in stand.members.values()} == {protocol}
            assert first.membership.member.epoch_or_generation > 0

            await stand.members["a"].leave()
            await stand.until(stand.is_shared)
            await stand.members["b"].kill()
            await stand.until(stand.is_shared)
            assert not any(each.lost for each in stand.members.values())

    asyncio.run(play())


@BOTH
def test_a_partition_stays_until_its_release(protocol, quick, quick_topic) -> None:
    """A member that does not release yet keeps all; a third one joins meanwhile; then all share."""
    name = quick_topic("orders", partitions=PARTITIONS)

    async def play() -> None:
        async with stand_of(quick, name, protocol) as stand:
            first = await stand.add("a")
            await stand.until(stand.is_shared)
            first.holds = True
            second = await stand.add("b")
            await stand.until(lambda: len(first.revoking) == PARTITIONS // 2)
            third = await stand.add("c")
            await stand.until(lambda: third.membership.member.epoch_or_generation > 0)
            await asyncio.wait_for(first.membership.rejoin(), PATIENCE_S)
            assert len(first.parts) == PARTITIONS
            assert not second.parts
            assert not third.parts

            first.holds = False
            first.release()
            await stand.until(stand.is_shared)
            assert not first.lost

    asyncio.run(play())


@BOTH
def test_a_member_that_does_not_poll_leaves(protocol, quick, quick_topic) -> None:
    """Its partitions are lost, and go to the other; with a poll it comes back."""
    name = quick_topic("orders", partitions=PARTITIONS)

    async def play() -> None:
        async with stand_of(quick, name, protocol) as stand:
            other = await stand.add("other")
            lazy = await stand.add("lazy", rebalance_timeout_s=8.0)
            await stand.until(stand.is_shared)

            # Not before it has its half: a broker's first group may take longer than 8 s.
            lazy.polls = False
            await stand.until(lambda: len(lazy.lost) == PARTITIONS // 2)
            await stand.until(lambda: len(other.parts) == PARTITIONS)
            lazy.polls = True
            await stand.until(stand.is_shared)

            assert len(lazy.parts) == len(other.parts) == PARTITIONS // 2

    asyncio.run(play())


@BOTH
def test_subscriptions_change(protocol, quick, quick_topic) -> None:
    """Another topic, then a pattern that matches both, one of which is made only then."""
    name = quick_topic("orders", partitions=2)
    other = quick_topic("other", partitions=3)

    async def play() -> None:
        async with stand_of(quick, name, protocol) as stand:
            member = await stand.add("a")
            await stand.until(lambda: {part.topic for part in member.parts} == {name})

            member.membership.subscribe([other], None)
            await stand.until(lambda: {part.topic for part in member.parts} == {other})
            assert len(member.parts) == 3

            late = quick_topic("late", partitions=1)
            pattern = f"{name}|{other}|{late}"
            member.membership.subscribe([], pattern)
            await stand.until(lambda: {part.topic for part in member.parts} == {name, other, late})
            member.membership.subscribe([], None)
            member._drop(list(member.parts))
            await stand.until(lambda: member.membership.member.epoch_or_generation == -1)

    asyncio.run(play())


@BOTH
def test_a_static_member_returns_to_its_partitions(protocol, quick, quick_topic) -> None:
    """It leaves, comes back within its session under its instance id, and has the same ones."""
    name = quick_topic("orders", partitions=PARTITIONS)

    async def play() -> None:
        async with stand_of(quick, name, protocol) as stand:
            first = await stand.add("a", instance_id="i")
            second = await stand.add("b")
            await stand.until(stand.is_shared)
            before = set(first.parts)

            await first.leave()
            again = await stand.add("a", instance_id="i")
            await stand.until(lambda: bool(again.parts))

            assert set(again.parts) == before
            assert len(second.parts) == PARTITIONS // 2
            await stand.until(stand.is_shared)

    asyncio.run(play())


def test_a_refusal_has_the_brokers_words(quick, quick_topic) -> None:
    """An assignor that the broker does not have ends the membership with code 112 and its text."""
    name = quick_topic("orders", partitions=1)

    async def play() -> None:
        async with stand_of(quick, name, "consumer") as stand:
            member = await stand.add("a", server_assignor="none-such")
            await stand.until(lambda: bool(member.errors))

            (error,) = member.errors
            assert isinstance(error, GroupRefused)
            assert error.code == 112
            assert "none-such" in str(error)

    asyncio.run(play())


def test_the_better_protocol_is_taken(quick, quick_topic) -> None:
    """With "auto" a broker that has the consumer protocol is joined by it."""
    name = quick_topic("orders", partitions=2)

    async def play() -> None:
        async with stand_of(quick, name, "auto") as stand:
            member = await stand.add("a")
            await stand.until(lambda: len(member.parts) == 2)
            assert member.membership.protocol == "consumer"

    asyncio.run(play())


@pytest.mark.parametrize("library", ["confluent", "java"])
def test_stock_members_share_a_classic_group(library, quick, quick_topic) -> None:
    """With the stock cooperative-sticky assignor; also after either kind has led the group.

    aiokafka has eager assignors only, whose names no member of this client offers.
    """
    name = quick_topic("orders", partitions=PARTITIONS)
    assignor = "cooperative-sticky"
    if library == "java":
        assignor = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"

    async def play() -> None:
        async with stand_of(quick, name, "classic") as stand:
            with Group(quick, name, f"g-{name}", assignor=assignor) as group:
                first = await stand.add("a")
                await stand.until(stand.is_shared)
                (stock,) = group.add(library)
                # Ours polls meanwhile, or it would leave before a slow stock member has its half.
                await stand.until(
                    lambda: len(first.parts) == len(group.seen.lanes[stock]) == PARTITIONS // 2
                )
                ours = {part.partition for part in first.parts}
                assert ours | group.seen.lanes[stock] == set(range(PARTITIONS))

                await first.leave()  # it led: the stock member does from now on
                second = await stand.add("b")
                await stand.until(lambda: len(second.parts) == PARTITIONS // 2)
                await asyncio.to_thread(group.leave, stock)
                await stand.until(stand.is_shared)

    asyncio.run(play())


@BOTH
def test_lanes_are_shared_through_keylane(protocol, kafka, shared_keylane, topic) -> None:
    """Two members have 16 of 32 lane indexes each."""
    name = topic("lanes16", partitions=2)

    async def play() -> None:
        async with stand_of(shared_keylane.bootstrap, name, protocol) as stand:
            # This broker asks for a heartbeat every 5 s, which must be answered in time.
            members = [await stand.add(name, session_timeout_s=45.0) for name in ("a", "b")]
            await stand.until(lambda: stand.is_shared(32))

            assert [len(member.parts) for member in members] == [16, 16]

    asyncio.run(play())
