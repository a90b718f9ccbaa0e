"""Steps of the demo: members come, are killed, the proxy is killed, the rest drains."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

CLIENTS: Final = ("confluent-kafka", "aiokafka", "kafka-python")
"""Stock client libraries, given to the members in turn."""
WORKERS: Final = "keylane.client"
"""Members that are `Workers`, many records at once."""

JOIN_TIMEOUT_S: Final = 45.0
"""A group of ten joins in 3 s on two cores; a busy machine may need a multiple."""
DRAIN_TIMEOUT_S: Final = 60.0
"""Longest wait for the rest; a session time-out and a rebalance fit several times."""
STOP_TIMEOUT_S: Final = 15.0
"""A member commits, leaves the group and ends within 2 s; after this it is killed."""


@dataclass(frozen=True, slots=True)
class StartMember:
    """Start a consumer."""

    number: int
    client: str


@dataclass(frozen=True, slots=True)
class KillMember:
    """kill -9."""

    number: int


class Cue(Enum):
    """Actions that concern all of a kind."""

    START_PRODUCER = auto()
    KILL_PROXY = auto()
    """kill -9 of keylane, and start it again."""
    STOP_PRODUCER = auto()
    """No further orders; what was produced is counted."""
    STOP_MEMBERS = auto()
    """Every member commits, leaves the group and ends."""
    KILL_MEMBERS = auto()
    """The members that did not stop in time end now."""


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the viewer."""

    text: str


Action = StartMember | KillMember | Say | Cue


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowSettings:
    """Size and length of the show."""

    seconds: float
    """From the first order to the last."""
    members: int
    """Consumers at the start."""
    kills_proxy: bool
    clients: tuple[str, ...] = CLIENTS
    """Given to the members in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts that the state machine decides by."""

    now_s: float
    alive: int
    """Members whose process lives."""
    reading: int
    """Members that own a lane."""
    reading_possible: int
    """Members that can own one: no more than there are lanes."""
    waiting_records: int
    """Produced and not processed yet."""


class Phase(Enum):
    """Phases of the show."""

    OPENING = auto()
    JOINING = auto()
    PLAYING = auto()
    DRAINING = auto()
    STOPPING = auto()
    DONE = auto()


@dataclass(frozen=True, slots=True)
class ShowBeat:
    """Something that happens at a moment of the show."""

    at_s: float
    actions: tuple[Action, ...]


class Scenario:
    """The show as a state machine.

    OPENING -> JOINING (all start) -> PLAYING (all read, orders flow; the beats)
    -> DRAINING (no further orders) -> STOPPING (nothing waits, or it took too long) -> DONE.
    Invariant: phases only go forward; every beat is played once, in order.
    """

    def __init__(self, settings: ShowSettings) -> None:
        self.settings = settings
        self.phase = Phase.OPENING
        self.drained = False
        """True: the group had read everything when it was stopped."""
        self._beats = list(plan_beats(settings))
        self._phase_began_s = 0.0

    def step(self, facts: Facts) -> tuple[Action, ...]:
        """Return actions to take now. Call it often; it returns each action once."""
        elapsed_s = facts.now_s - self._phase_began_s
        match self.phase:
            case Phase.OPENING:
                self._enter(Phase.JOINING, facts)
                numbers = range(1, self.settings.members + 1)
                text = f"start {len(numbers)} consumers in one group"
                return (Say(text), *_starts(numbers, self.settings))
            case Phase.JOINING if facts.reading >= facts.reading_possible:
                self._enter(Phase.PLAYING, facts)
                return (Say(f"{facts.reading} members read: orders begin"), Cue.START_PRODUCER)
            case Phase.JOINING if elapsed_s > JOIN_TIMEOUT_S:
                self._enter(Phase.PLAYING, facts)
                return (Say("not every member reads yet: orders begin"), Cue.START_PRODUCER)
            case Phase.PLAYING:
                return self._play(facts, elapsed_s)
            case Phase.DRAINING if facts.waiting_records == 0 or elapsed_s > DRAIN_TIMEOUT_S:
                self.drained = facts.waiting_records == 0
                self._enter(Phase.STOPPING, facts)
                text = "nothing waits" if self.drained else f"{facts.waiting_records} still wait"
                return (Say(f"{text}: the members stop"), Cue.STOP_MEMBERS)
            case Phase.STOPPING if facts.alive == 0:
                self._enter(Phase.DONE, facts)
            case Phase.STOPPING if elapsed_s > STOP_TIMEOUT_S:
                self._enter(Phase.DONE, facts)
                return (Say("members did not stop in time: killed"), Cue.KILL_MEMBERS)
        return ()

    def _play(self, facts: Facts, elapsed_s: float) -> tuple[Action, ...]:
        if self._beats and self._beats[0].at_s <= elapsed_s:
            return self._beats.pop(0).actions
        if elapsed_s >= self.settings.seconds:
            self._enter(Phase.DRAINING, facts)
            return (Say("the producer stops; the group reads the rest"), Cue.STOP_PRODUCER)
        return ()

    def _enter(self, phase: Phase, facts: Facts) -> None:
        self.phase, self._phase_began_s = phase, facts.now_s


def client_of(number: int, clients: tuple[str, ...] = CLIENTS) -> str:
    """Client library of a member; numbers start at 1."""
    return clients[(number - 1) % len(clients)]


def _starts(numbers: Iterable[int], settings: ShowSettings) -> Iterator[StartMember]:
    return (StartMember(number, client_of(number, settings.clients)) for number in numbers)


def plan_beats(settings: ShowSettings) -> tuple[ShowBeat, ...]:
    """The beats of a show, ascending in time; a group never shrinks below one member."""
    alive = list(range(1, settings.members + 1))
    beats: list[ShowBeat] = []

    def add(share: float, *actions: Action) -> None:
        beats.append(ShowBeat(settings.seconds * share, actions))

    def kill(share: float, numbers: tuple[int, ...]) -> None:
        victims = [number for number in numbers if number in alive and len(alive) > 1]
        for number in victims:
            alive.remove(number)
            add(share, Say(f"kill -9 member {number}"), KillMember(number))

    kill(0.15, (min(3, settings.members),))
    joiners = (settings.members + 1, settings.members + 2)
    alive.extend(joiners)
    add(0.38, Say("add two more members"), *_starts(joiners, settings))
    kill(0.46, (1, 2) if settings.members > 1 else ())
    if settings.kills_proxy:
        # The group has given the killed members' lanes to others by then: a plan that a new keylane
        # makes before it has measured loads goes by counts of lanes, and stays for a minute.
        add(0.76, Say("kill -9 of keylane itself, and start it again"), Cue.KILL_PROXY)
    return tuple(beats)
