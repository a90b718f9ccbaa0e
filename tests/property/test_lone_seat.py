"""One lone node holds the seat, none beside numbered ones, whatever hangs, dies or gets lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keylane.errors import ConfigInvalid
from keylane.proxy.nodes import lone_seat as lone
from keylane.proxy.nodes.group import NodeGroup
from keylane.proxy.nodes.lone_seat import SEAT, SEAT_COUNT, LoneSeat
from keylane.proxy.nodes.process_mark import Life
from keylane.proxy.topics.node_values import NodeInfo
from tests.reference.node_world import IC_PARTITIONS, SESSION_S, Node, World

NODES_MAX = 4
INITIAL_DELAY_S = 3.0
"""`group.initial.rebalance.delay.ms`, as brokers have it."""
PLACES = st.integers(0, NODES_MAX - 1)


class LoneNode(Node):
    """A process without a number; `place` is where its record of processes has it."""

    partition_count = SEAT_COUNT

    def make_group(self) -> NodeGroup:
        """Its seat."""
        mark = str(len(self.world.nodes))

        def refused(error: ConfigInvalid) -> None:
            self.outcome = error

        return LoneSeat(
            self,  # type: ignore[arg-type]  # stands for its Cluster
            session_timeout_ms=round(SESSION_S * 1000),
            describe=lambda: NodeInfo(number=0, bootstrap=("h", 1), lone=True, process=mark),
            on_membership=self._on_membership,
            on_refused=refused,
            clock=self.time,
        )


class Seats(RuleBasedStateMachine):
    """Lone nodes, and numbered ones that come by mistake, over a simulated coordinator."""

    @initialize()
    def begin(self) -> None:
        """An empty group."""
        self.patch = pytest.MonkeyPatch()
        self.world = World()
        self.world.group.initial_delay_s = INITIAL_DELAY_S
        self.patch.setattr(lone, "look_up", self.look_up)

    def look_up(self, mark: str) -> Life:
        """What a node of the same machine can prove."""
        if not mark.isdecimal():
            return Life.UNKNOWN
        node = self.world.nodes[int(mark)]
        return Life.ENDED if node.is_dead else Life.UNKNOWN if node.is_hung else Life.RUNS

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

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.1, 3.0, 7.0, 9.0, 11.0, 20.0]))
    def time_goes_on(self, seconds: float) -> None:
        """Up to two session time-outs."""
        self.world.run(seconds)

    @precondition(lambda self: len(self.living()) < NODES_MAX)
    @rule(rate=st.sampled_from([0.9, 1.0, 1.1]))
    def start(self, rate: float) -> None:
        """A lone node more."""
        LoneNode(self.world, 0, rate=rate)

    @precondition(lambda self: len(self.living()) < NODES_MAX)
    @rule(number=st.integers(0, 2))
    def start_numbered(self, number: int) -> None:
        """A node that does not belong here."""
        Node(self.world, number)

    @precondition(lambda self: self.living())
    @rule(place=PLACES, is_hung=st.booleans())
    def hang(self, place: int, is_hung: bool) -> None:
        """SIGSTOP, or SIGCONT."""
        self.node(place).is_hung = is_hung

    @precondition(lambda self: self.living())
    @rule(place=PLACES, seconds=st.sampled_from([0.0, 0.5, 3.0, 9.0]))
    def kill_and_come_back(self, place: int, seconds: float) -> None:
        """SIGKILL, and a supervisor."""
        self.node(place).kill()
        self.world.run(seconds)
        LoneNode(self.world, 0)

    @precondition(lambda self: self.living())
    @rule(place=PLACES)
    def stop(self, place: int) -> None:
        """SIGTERM."""
        self.node(place).stop()

    @precondition(lambda self: self.living())
    @rule(place=PLACES, seconds=st.sampled_from([0.0, 0.001, 0.3, 1.9, 5.0, 12.0]))
    def slow_down(self, place: int, seconds: float) -> None:
        """The network to a node becomes slow, or fast again."""
        self.node(place).request_s = self.node(place).answer_s = seconds

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

    # A coordinator stores no member before the first generation: what was held before it is known
    # to no node after a fail-over, and the journal's epoch alone keeps two apart (decision 030).
    @precondition(lambda self: not any(each.group._lease.is_assumed for each in self.world.nodes))
    @rule(load_s=st.sampled_from([0.0, 0.5, 5.0]))
    def move_coordinator(self, load_s: float) -> None:
        """To the other broker, in good order."""
        self.world.move(load_s)

    @precondition(lambda self: not any(each.group._lease.is_assumed for each in self.world.nodes))
    @rule(down_s=st.sampled_from([0.1, 3.0, 15.0]))
    def crash_coordinator(self, down_s: float) -> None:
        """What it has not stored is lost."""
        self.world.crash(down_s)

    @invariant()
    def the_holder_of_the_seat_is_the_only_one(self) -> None:
        """Of lone nodes and numbered ones."""
        if not hasattr(self, "world"):
            return
        self.world.check()
        holders = [n for n in self.world.nodes if any(map(n.holds, range(IC_PARTITIONS)))]
        seated = [n for n in holders if isinstance(n, LoneNode) and n.holds(SEAT)]
        assert not seated or holders == seated, f"{holders} at {self.world.now_s:.3f}"

    def teardown(self) -> None:
        """Loops are closed; what is patched is put back."""
        if hasattr(self, "world"):
            self.world.close()
            self.patch.undo()


TestSeats = Seats.TestCase
TestSeats.settings = settings(max_examples=60, stateful_step_count=30)


@pytest.fixture
def world() -> World:
    """With the delay of default brokers."""
    made = World()
    made.group.initial_delay_s = INITIAL_DELAY_S
    return made


def test_a_start_does_not_wait_for_the_first_generation(world: World) -> None:
    """The coordinator holds it for 3 s; the seat is held in a fraction of that, in one term."""
    node = LoneNode(world, 0)

    world.run(0.5)
    early, term = node.is_started and node.holds(SEAT), node.group.term(SEAT)
    world.run(5.0)

    assert early
    assert node.holds(SEAT)
    assert node.group.term(SEAT) == term
    world.close()


def test_of_two_starts_at_one_moment_one_holds_the_seat(world: World) -> None:
    """The other is refused with the address of the first."""
    nodes = [LoneNode(world, 0), LoneNode(world, 0)]

    world.run(5.0)

    assert sum(node.holds(SEAT) for node in nodes) == 1
    (refused,) = [node.outcome for node in nodes if node.outcome is not None]
    assert "has to be the only one" in str(refused)
    world.close()
