"""Lanes of KIP-848 groups under joins, ends, lost answers and restarts, in any order."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.reference.consumer_world import INTERVAL_S, LANES, World

NAMES = st.sampled_from([f"m{number}" for number in range(6)])


class ConsumerGroupMachine(RuleBasedStateMachine):
    """A lane has one reader at most; each is read once all is quiet."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()

    @rule(name=NAMES)
    def joins(self, name: str) -> None:
        if name not in self.world.clients:
            self.world.start(name)

    @rule(name=NAMES)
    def beats(self, name: str) -> None:
        if name in self.world.clients:
            self.world.send(self.world.clients[name])

    @rule(number=st.integers(0, 5), is_lost=st.booleans())
    def is_answered(self, number: int, is_lost: bool) -> None:
        if number < len(self.world.pending):
            self.world.deliver(self.world.pending.pop(number), is_lost=is_lost)

    @rule(name=NAMES)
    def reconciles(self, name: str) -> None:
        if name in self.world.clients:
            self.world.reconcile(self.world.clients[name])

    @rule(name=NAMES)
    def leaves(self, name: str) -> None:
        client = self.world.clients.get(name)
        if client is not None and not client.is_waiting:
            self.world.remove(name, is_leaving=True)

    @rule(name=NAMES)
    def is_killed(self, name: str) -> None:
        """Its session has ended when it is seen again."""
        if name in self.world.clients:
            self.world.remove(name, is_leaving=False)

    @rule(name=NAMES)
    def times_out(self, name: str) -> None:
        client = self.world.clients.get(name)
        if client is not None and self.world.members.pop(client.member_id, None) is not None:
            self.world.epoch += 1

    @rule()
    def restarts(self) -> None:
        self.world.restart()

    @rule(seconds=st.sampled_from([0.5, 3.0, INTERVAL_S + 3.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now_s += seconds

    @invariant()
    def no_lane_has_two_readers(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        """Every lane is read by one member, when all is quiet for some heartbeats."""
        world = self.world
        for _ in range(12):
            world.now_s += INTERVAL_S
            for client in list(world.clients.values()):
                world.send(client)
            for answer in list(world.pending):
                world.pending.remove(answer)
                world.deliver(answer, is_lost=False)
            for client in world.clients.values():
                world.reconcile(client)
            world.check()
        if world.clients:
            read = [lane for client in world.clients.values() for lane in client.reading]
            assert sorted(read) == sorted(LANES)
            assert world.group.is_settled


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = settings(stateful_step_count=60)
