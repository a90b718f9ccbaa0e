"""Nodes with other secrets, without one, and strangers: no two ever hold the same partition."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.reference.node_world import SESSION_S, Node, World

SECRETS, OTHER = (b"s" * 32,), (b"o" * 32,)
NODES_MAX = 4
PLACES = st.integers(0, NODES_MAX - 1)


class Camps(RuleBasedStateMachine):
    """The world asserts after each step of each node that no partition has two holders."""

    @initialize(count=st.integers(0, 2), secrets=st.sampled_from([SECRETS, OTHER, ()]))
    def begin(self, count: int, secrets: tuple[bytes, ...]) -> None:
        """Some that have agreed, or none."""
        self.world = World()
        for number in range(count):
            Node(self.world, number, secrets=secrets)
        self.world.run(3.0)

    def living(self) -> list[Node]:
        """Processes that have not ended."""
        return [
            node
            for node in self.world.nodes
            if not (node.is_dead or node.is_stopped or node.outcome)
        ]

    def node(self, place: int) -> Node:
        """One that lives."""
        living = self.living()
        return living[place % len(living)]

    @rule(seconds=st.sampled_from([0.01, 0.5, 1.1, 3.0, 7.0, 11.0, 14.0, 30.0]))
    def time_goes_on(self, seconds: float) -> None:
        """Up to the patience of a node that is new, twice."""
        self.world.run(seconds)

    @precondition(lambda self: len(self.living()) < NODES_MAX)
    @rule(
        number=st.integers(0, NODES_MAX),
        secrets=st.sampled_from([SECRETS, OTHER, ()]),
        rate=st.sampled_from([0.95, 1.0, 1.05]),
    )
    def start(self, number: int, secrets: tuple[bytes, ...], rate: float) -> None:
        """A node more, of any camp; its clock may be wrong by a twentieth."""
        Node(self.world, number, secrets=secrets, rate=rate)

    @precondition(lambda self: self.living())
    @rule(place=PLACES, is_hung=st.booleans())
    def hang(self, place: int, is_hung: bool) -> None:
        """SIGSTOP, SIGCONT."""
        self.node(place).is_hung = is_hung

    @precondition(lambda self: self.living())
    @rule(place=PLACES)
    def kill(self, place: int) -> None:
        """SIGKILL."""
        self.node(place).kill()

    @precondition(lambda self: self.living())
    @rule(place=PLACES)
    def stop(self, place: int) -> None:
        """SIGTERM."""
        self.node(place).stop()

    @precondition(lambda self: self.living())
    @rule(place=PLACES, is_isolated=st.booleans())
    def isolate(self, place: int, is_isolated: bool) -> None:
        """Packets vanish without an error."""
        self.node(place).is_isolated = is_isolated

    @precondition(lambda self: self.living())
    @rule(place=PLACES)
    def break_connections(self, place: int) -> None:
        """Answers under way are lost."""
        self.node(place).break_links()

    @rule(load_s=st.sampled_from([0.0, 0.5, 5.0]))
    def move_coordinator(self, load_s: float) -> None:
        """To the other broker, in good order."""
        self.world.move(load_s)

    @rule(down_s=st.sampled_from([0.1, 3.0, 15.0]))
    def crash_coordinator(self, down_s: float) -> None:
        """What it has not stored is lost."""
        self.world.crash(down_s)

    def teardown(self) -> None:
        """When all others are gone, one node serves everything."""
        if not hasattr(self, "world"):
            return
        try:
            for node in self.living():
                node.kill()
            last = Node(self.world, 0, secrets=SECRETS)
            self.world.run(8 * SESSION_S)
            assert last.is_started and all(last.group.holds(p) for p in range(7))
        finally:
            self.world.close()


TestCamps = Camps.TestCase
TestCamps.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
