"""State of share groups that brokers share: what coordinators keep, and what has become of records.

Source: Apache Kafka 4.3, `ShareCoordinatorShard` (a write has the start offset of before it, and
the number of finished records behind it), `PersisterStateManager` (one write of a partition after
the other), `ShareGroup`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.world import World

Place = tuple[str, str, int]
"""Group, topic, partition."""
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVED = 0, 1, 2, 4
TERMINAL = frozenset({ACKNOWLEDGED, ARCHIVED})
NOT_LEADER, COORDINATOR_NOT_AVAILABLE, UNKNOWN_SERVER_ERROR = 6, 15, -1
UNKNOWN_START = -1
STORE_S = 0.0006
AGAIN_S = 0.1
"""Pause before a coordinator that hangs is asked again."""
Cells = Mapping[int, tuple[int, int]]
"""By offset: state and delivery count."""


@dataclass
class Stored:
    """The state of a partition as its coordinator has it."""

    start: int = UNKNOWN_START
    complete: int = 0
    leader_epoch: int = -1
    cells: dict[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ShareTimes:
    """Configuration of a share group."""

    lock_s: float = 4.0
    deliveries: int = 5
    locks: int = 200


@dataclass
class Ledger:
    """What has become of records at the brokers, for the judge."""

    finished: dict[tuple[Place, int], tuple[float, int, int]] = field(default_factory=dict)
    """Time, state and delivery count at the first write that ends a record."""
    acquired: dict[tuple[Place, int], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )
    """Times of all acquisitions."""
    timeouts: list[tuple[float, Place, int]] = field(default_factory=list)
    """Locks that have ended at a broker."""
    gaps: set[tuple[Place, int]] = field(default_factory=set)
    """Offsets that were acknowledged as gaps."""
    opened: dict[Place, list[tuple[float, str]]] = field(default_factory=lambda: defaultdict(list))
    """Times at which sessions were opened, and hosts: keylane's sessions have one partition."""
    refused: list[tuple[float, Place, int]] = field(default_factory=list)
    """Outcomes, and renewals, that a broker has refused, with the error."""


class ShareStore:
    """Coordinators' part of share groups, one for a cluster."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self._world, self._cluster = world, cluster
        self.times: dict[str, ShareTimes] = {}
        self.ledger = Ledger()
        self.members: dict[str, dict[str, ShareMembership]] = defaultdict(dict)
        self.initialised: set[Place] = set()
        self.stored: dict[Place, Stored] = defaultdict(Stored)
        self._queues: dict[Place, deque[Callable[[], None]]] = defaultdict(deque)
        self.slow_s = self.slow_until_s = self.fails_until_s = 0.0
        """Fault: writes take so much longer; they fail."""
        self.is_late_failure = False
        """What fails is written all the same."""

    def times_of(self, group: str) -> ShareTimes:
        """Return the configuration of a group."""
        return self.times.get(group, ShareTimes())

    # One after the other.
    def _enqueue(self, place: Place, do: Callable[[], None]) -> None:
        queue = self._queues[place]
        queue.append(do)
        if len(queue) == 1:
            self._world.after(self._latency_s(), partial(self._next, place))

    def _latency_s(self) -> float:
        rng = self._world.rng
        usual_s = STORE_S + (rng.random() * 0.05 if rng.random() < 0.2 else 0.0)
        slow_s = self.slow_s if self._world.now_s < self.slow_until_s else 0.0
        return usual_s + rng.random() * slow_s

    def _next(self, place: Place) -> None:
        coordinator = self._cluster.coordinator(place[0])
        broker = self._world.brokers.get(f"kafka{coordinator}")
        if broker is None or broker.is_hung:
            self._world.after(AGAIN_S, partial(self._next, place))
            return
        queue = self._queues[place]
        queue.popleft()()
        if queue:
            self._world.after(self._latency_s(), partial(self._next, place))

    # Calls of leaders.
    def read(
        self, place: Place, leader_epoch: int, done: Callable[[int, Stored | None], None]
    ) -> None:
        """Have `done` called with an error, or the state."""

        def do() -> None:
            stored = self.stored[place]
            if self._world.now_s < self.fails_until_s:
                done(COORDINATOR_NOT_AVAILABLE, None)
            elif leader_epoch < stored.leader_epoch:
                done(NOT_LEADER, None)
            else:
                stored.leader_epoch = leader_epoch
                done(0, Stored(stored.start, stored.complete, leader_epoch, dict(stored.cells)))

        self._enqueue(place, do)

    def write(
        self,
        place: Place,
        leader_epoch: int,
        start: int,
        complete: int,
        cells: Cells,
        done: Callable[[int], None],
    ) -> None:
        """Have it written, and `done` called with an error; 0: it is written."""

        def do() -> None:
            stored = self.stored[place]
            if leader_epoch < stored.leader_epoch:
                done(NOT_LEADER)
                return
            fails = self._world.now_s < self.fails_until_s
            if not fails or self.is_late_failure:
                stored.start, stored.complete = max(start, stored.start), complete
                stored.cells.update(cells)
                stored.cells = {o: c for o, c in stored.cells.items() if o >= stored.start}
                now_s = self._world.now_s
                for offset, (state, count) in cells.items():
                    if state in TERMINAL:
                        self.ledger.finished.setdefault((place, offset), (now_s, state, count))
                    else:  # an end whose writer did not learn that it was written
                        self.ledger.finished.pop((place, offset), None)
            done(COORDINATOR_NOT_AVAILABLE if fails else 0)

        self._enqueue(place, do)

    # Calls of the group's members, and of tools.
    def initialise(self, group: str, topics: list[str]) -> None:
        """Have partitions' states made, some time after a member has joined."""
        rng = self._world.rng
        for topic in topics:
            found = self._cluster.topics.get(topic)
            for each in () if found is None else found.partitions:
                place = group, topic, each.index
                if place not in self.initialised:
                    self._world.after(
                        0.02 + 0.2 * rng.random(), partial(self.initialised.add, place)
                    )

    def progress(self, place: Place) -> tuple[int, int]:
        """Return the start offset and the lag of the last write; -1: there was none."""
        stored = self.stored[place]
        if stored.start == UNKNOWN_START:
            return UNKNOWN_START, -1
        log = self._cluster.topics[place[1]].partitions[place[2]].log
        return stored.start, log.end - stored.start - stored.complete


@dataclass
class ShareMembership:
    """A member of a share group at its coordinator."""

    epoch: int
    topics: list[str]
    seen_s: float
