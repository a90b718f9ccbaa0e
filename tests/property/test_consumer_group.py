"""Lanes of KIP-848 groups under joins, ends, lost answers and restarts, in any order."""

from __future__ import annotations

from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from keylane.assignor.model import Lane
from tests.reference.consumer_world import (
    DIRECT,
    INTERVAL_S,
    LOAD_S,
    TIMEOUT_S,
    TOPICS,
    Client,
    World,
    lanes_of,
)

PLACES = st.integers(0, 5)
ALL = lanes_of(frozenset(TOPICS))


class MovingLanesMachine(RuleBasedStateMachine):
    """Members join, and load moves lanes: one reader at most, and one each once all is quiet."""

    subscriptions: ClassVar[dict[str, tuple[str, ...]]] = {
        "m0": ("orders",),
        "m1": ("orders",),
        "m2": ("orders",),
    }
    """By place; those that begin with s have static members."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    def client(self, place: int) -> tuple[str, Client | None]:
        name = sorted(self.subscriptions)[place % len(self.subscriptions)]
        return name, self.world.clients.get(name)

    @rule(place=PLACES)
    def joins(self, place: int) -> None:
        name, client = self.client(place)
        if client is None:
            static = name if name.startswith("s") else None
            self.world.start(name, frozenset(self.subscriptions[name]), static)

    @rule(place=PLACES)
    def beats(self, place: int) -> None:
        _, client = self.client(place)
        if client is not None:
            self.world.send(client)

    @rule(number=st.integers(0, 5), is_lost=st.booleans())
    def is_answered(self, number: int, is_lost: bool) -> None:
        if self.world.pending:
            answer = self.world.pending.pop(number % len(self.world.pending))
            self.world.deliver(answer, is_lost=is_lost)

    @rule(place=PLACES)
    def reconciles(self, place: int) -> None:
        _, client = self.client(place)
        if client is not None:
            self.world.reconcile(client)

    @rule(lane=st.sampled_from(sorted(lanes_of(frozenset({"orders"})))))
    def load_moves(self, lane: Lane) -> None:
        """Beyond the time between two plans that only the load asks for."""
        self.world.loads = {lane: 100.0}
        self.world.now_s += LOAD_S + 1

    @invariant()
    def no_lane_has_two_readers(self) -> None:
        self.world.check()

    def settle(self, rounds: int) -> None:
        """Play some rounds in which all goes well."""
        world = self.world
        for _ in range(rounds):
            world.now_s += INTERVAL_S
            for client in list(world.clients.values()):
                world.send(client)
            world.broker.beat_direct()
            for answer in list(world.pending):
                world.pending.remove(answer)
                world.deliver(answer, is_lost=False)
            for client in world.clients.values():
                world.reconcile(client)
            world.check()

    def teardown(self) -> None:
        """Every lane is read by one member, when all is quiet for some heartbeats.

        Beside a member that bypasses keylane, members have the partitions that the broker gives.
        """
        world, broker = self.world, self.world.broker
        live = {client.member_id for client in world.clients.values()} | {DIRECT}
        for member_id in broker.members.keys() - live:
            broker.remove(member_id)
        world.is_slow = False
        world.describe()
        self.settle(16)
        clients = world.clients.values()
        read = [lane for client in clients for lane in client.reading]
        named = frozenset(name for client in clients for name in client.topics)
        expected = lanes_of(named)
        if DIRECT in broker.members:
            parts = frozenset().union(*(broker.assigned[one.member_id] for one in clients))
            expected = lanes_of(named, parts)
            assert not parts & broker.assigned[DIRECT]
            assert all(
                one.reading == lanes_of(one.topics, broker.assigned[one.member_id])
                for one in clients
            )
        assert sorted(read) == sorted(expected)
        if not clients:
            return  # no heartbeat has shown that the last members are gone
        assert world.group.is_settled
        held = world.table.of_group("g")
        assert {lane: name for name, one in held.items() for lane in one.lanes} == {
            lane: client.identity for client in clients for lane in client.reading
        }


class ConsumerGroupMachine(MovingLanesMachine):
    """Also members that end in all ways, descriptions that are late, and restarts."""

    @rule()
    def all_goes_well(self) -> None:
        """A round of heartbeats, each answered and reconciled."""
        self.settle(1)

    @rule(place=PLACES)
    def leaves(self, place: int) -> None:
        """A static one is waited for."""
        name, client = self.client(place)
        if client is not None and not client.is_waiting:
            self.world.leave(name)

    @rule(place=PLACES)
    def is_killed(self, place: int) -> None:
        """Its session has ended when it is seen again."""
        name, client = self.client(place)
        if client is not None:
            del self.world.clients[name]
            self.world.broker.remove(client.member_id)

    @rule(place=PLACES)
    def times_out(self, place: int) -> None:
        """While it lives, or while a static member's next process has not come."""
        name, client = self.client(place)
        broker = self.world.broker
        ids = [one for one, instance in broker.instances.items() if instance == name]
        for member_id in (*ids, *([client.member_id] if client else ())):
            broker.remove(member_id)

    @rule(is_slow=st.booleans())
    def the_description_comes(self, is_slow: bool) -> None:
        """The one that is on its way; later ones may take a while."""
        self.world.is_slow = is_slow
        self.world.describe()

    @rule()
    def restarts(self) -> None:
        self.world.restart()

    @rule(seconds=st.sampled_from([0.5, 3.0, INTERVAL_S + 3.0, TIMEOUT_S + 1, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now_s += seconds


class BusyGroupMachine(ConsumerGroupMachine):
    """Also several topics, static members, commits, loads, and a member that bypasses keylane."""

    subscriptions: ClassVar[dict[str, tuple[str, ...]]] = {
        "m0": ("orders",),
        "m1": ("orders",),
        "m2": ("orders", "shop"),
        "m3": ("shop",),
        "s0": ("orders",),
        "s1": ("orders", "shop"),
    }

    @rule(place=PLACES, number=st.integers(0, 10), is_late=st.booleans())
    def commits(self, place: int, number: int, is_late: bool) -> None:
        _, client = self.client(place)
        if client is not None:
            self.world.commit(client, number, is_late=is_late)

    @rule(number=st.integers(0, 3))
    def a_late_commit_arrives(self, number: int) -> None:
        if number < len(self.world.commits):
            self.world.arrive(self.world.commits.pop(number))

    @rule(topics=st.sampled_from([("orders",), ("shop",), ("orders", "shop")]))
    def a_member_bypasses_keylane(self, topics: tuple[str, ...]) -> None:
        self.world.broker.join(DIRECT, frozenset(topics), None)
        self.direct_beats()

    @rule()
    def direct_beats(self) -> None:
        self.world.broker.beat_direct()

    @rule()
    def it_leaves(self) -> None:
        self.world.broker.remove(DIRECT)

    @rule(lane=st.sampled_from(sorted(ALL)), load=st.sampled_from([1.0, 100.0]))
    def load_changes(self, lane: Lane, load: float) -> None:
        self.world.loads[lane] = load


TestMovingLanes = MovingLanesMachine.TestCase
TestMovingLanes.settings = settings(stateful_step_count=60)
TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = settings(stateful_step_count=60)
TestBusyGroup = BusyGroupMachine.TestCase
TestBusyGroup.settings = settings(stateful_step_count=60)
