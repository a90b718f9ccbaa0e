"""Nodes never hold the same IC partition at once, whatever hangs, dies, is slow or gets lost."""

from __future__ import annotations

from itertools import chain

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keylane.errors import ConfigInvalid, UpstreamLost
from tests.reference.node_world import IC_PARTITIONS, SESSION_S, Node, World

NODES_MAX = 4
STEP_S = 0.1
PAUSE_S_MAX = 4.0
"""Two rebalances: one without the dead one, one with its return; each a heartbeat long."""
PLACES = st.integers(0, NODES_MAX - 1)


class Nodes(RuleBasedStateMachine):
    """Nodes over a simulated coordinator; after each step of each, holders are checked."""

    @initialize(count=st.integers(1, 3))
    def begin(self, count: int) -> None:
        """A few nodes that have agreed."""
        self.world = World()
        self.hung_at_start: set[Node] = set()
        """The time of their start goes on, and may be over when they wake up."""
        for number in range(count):
            Node(self.world, number)
        self.world.run(3.0)
        assert all(node.is_started for node in self.world.nodes)

    def node(self, place: int) -> Node:
        """One that lives."""
        living = self.living()
        return living[place % len(living)]

    def living(self) -> list[Node]:
        """Processes that have not ended."""
        return [
            node
            for node in self.world.nodes
            if not (node.is_dead or node.is_stopped or node.outcome)
        ]

    def suspend(self, node: Node) -> None:
        """It is turned no more until it wakes up."""
        node.is_hung = True
        if not node.is_started:
            self.hung_at_start.add(node)

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.1, 3.0, 7.0, 9.0, 11.0, 20.0]))
    def time_goes_on(self, seconds: float) -> None:
        """Up to two session time-outs."""
        self.world.run(seconds)

    @precondition(lambda self: len(self.living()) < NODES_MAX)
    @rule(number=st.integers(0, NODES_MAX), rate=st.sampled_from([0.9, 1.0, 1.1]))
    def start(self, number: int, rate: float) -> None:
        """A node more; its number may be taken, its clock may be wrong by a tenth."""
        Node(self.world, number, rate=rate)

    @precondition(lambda self: self.living())
    @rule(place=PLACES)
    def hang(self, place: int) -> None:
        """SIGSTOP."""
        self.suspend(self.node(place))

    @precondition(lambda self: self.living())
    @rule(place=PLACES)
    def wake(self, place: int) -> None:
        """SIGCONT."""
        self.node(place).is_hung = False

    @precondition(lambda self: self.living())
    @rule(place=PLACES)
    def kill(self, place: int) -> None:
        """SIGKILL."""
        self.node(place).kill()

    @precondition(lambda self: self.living())
    @rule(place=PLACES, seconds=st.sampled_from([0.0, 0.5, 3.0, 9.0]))
    def kill_and_come_back(self, place: int, seconds: float) -> None:
        """SIGKILL, and a supervisor that starts it again."""
        node = self.node(place)
        node.kill()
        self.world.run(seconds)
        Node(self.world, node.number, rate=node.rate)

    @precondition(lambda self: self.living())
    @rule(place=PLACES, seconds=st.sampled_from([0.0, 3.0, 9.0]))
    def come_back_beside_a_hung_self(self, place: int, seconds: float) -> None:
        """SIGSTOP, and another process with its number, since it does not answer."""
        node = self.node(place)
        self.suspend(node)
        self.world.run(seconds)
        Node(self.world, node.number)

    @precondition(lambda self: self.living())
    @rule(place=PLACES)
    def stop(self, place: int) -> None:
        """SIGTERM."""
        self.node(place).stop()

    @precondition(lambda self: self.living())
    @rule(place=PLACES)
    def rejoin(self, place: int) -> None:
        """A node's message to the others has changed."""
        node = self.node(place)
        node.control += "x"
        node.deliver(node.group.rejoin)

    @precondition(lambda self: self.living())
    @rule(
        place=PLACES,
        request_s=st.sampled_from([0.0, 0.001, 0.3, 1.9, 5.0, 12.0]),
        answer_s=st.sampled_from([0.0, 0.001, 0.3, 1.9, 5.0, 12.0]),
    )
    def slow_down(self, place: int, request_s: float, answer_s: float) -> None:
        """The network to a node becomes slow, one way or both, or fast again."""
        node = self.node(place)
        node.request_s, node.answer_s = request_s, answer_s

    @precondition(lambda self: self.living())
    @rule(place=PLACES, busy_s=st.sampled_from([0.0, 0.1, 0.5, 9.0]))
    def have_groups_in_hand(self, place: int, busy_s: float) -> None:
        """Before a node gives its groups up it waits for calls that are under way."""
        self.node(place).busy_s = busy_s

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

    @rule(store_s=st.sampled_from([0.0, 0.2, 3.0]))
    def store_slowly(self, store_s: float) -> None:
        """How long the coordinator takes to store a generation."""
        self.world.store_s = store_s

    @invariant()
    def each_is_held_once(self) -> None:
        """Also between steps."""
        if hasattr(self, "world"):
            self.world.check()

    def teardown(self) -> None:
        """When all is well again, the living share all partitions evenly, and agree on it."""
        if not hasattr(self, "world"):
            return
        try:
            self._heal()
        finally:
            self.world.close()

    def _heal(self) -> None:
        world = self.world
        world.store_s = 0.0
        for node in world.nodes:
            node.is_hung = node.is_isolated = False
            node.request_s = node.answer_s = 0.001
        world.run(12 * SESSION_S)
        for node in world.nodes:
            may_be_late = node in self.hung_at_start and isinstance(node.outcome, UpstreamLost)
            assert node.outcome is None or may_be_late or isinstance(node.outcome, ConfigInvalid)
        members = [node for node in self.living() if node.group._lease.is_good(node.time())]
        assert {node.number for node in members} == {node.number for node in self.living()}
        held = [[p for p in range(IC_PARTITIONS) if node.group.holds(p)] for node in members]
        assert sorted(chain.from_iterable(held)) == list(range(IC_PARTITIONS if members else 0))
        assert not members or max(map(len, held)) - min(map(len, held)) <= 1
        assert all(node.reported[-1] == members[0].reported[-1] for node in members)


@given(
    count=st.integers(2, NODES_MAX),
    victim=st.integers(0, NODES_MAX - 1),
    before_s=st.floats(0.0, 3.0),
    away_s=st.floats(0.0, SESSION_S),
    rate=st.sampled_from([0.9, 1.0, 1.1]),
)
def test_only_the_groups_of_a_node_that_comes_back_wait(
    count: int, victim: int, before_s: float, away_s: float, rate: float
) -> None:
    """Whenever it is killed and comes back; all share again in the end."""
    world = World()
    try:
        nodes = [Node(world, number) for number in range(count)]
        world.run(3.0 + before_s)
        dead = nodes.pop(victim % count)
        witness = nodes[0]
        dead.kill()
        world.run(away_s)
        back = Node(world, dead.number, rate=rate)
        paused_s = 0.0
        for _ in range(round(3 * SESSION_S / STEP_S)):
            world.run(STEP_S)
            holds_some = any(witness.group.holds(p) for p in range(IC_PARTITIONS))
            paused_s += 0.0 if holds_some else STEP_S
        assert back.is_started
        held = [p for node in (*nodes, back) for p in range(IC_PARTITIONS) if node.holds(p)]
        assert sorted(held) == list(range(IC_PARTITIONS))
        assert paused_s < PAUSE_S_MAX, f"{paused_s:.1f} s"
    finally:
        world.close()


TestNodes = Nodes.TestCase
TestNodes.settings = settings(
    max_examples=max(40, settings().max_examples // 25), stateful_step_count=25
)
