"""Faults at a moment: they wait for what a broker is about to answer, and strike before it does.

A process that dies or hangs does so between two of its awaits; which two decides what is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, Committed
    from tests.simulation.world import World

PUSH, LOOK, APPEND, INTENT, EPOCH, BACK, BEAT = (
    "api 8", "api 9", "append", "intent", "api 22", "back", "api 68",
)  # fmt: skip
POINTS = (PUSH, APPEND, PUSH, APPEND, LOOK, EPOCH)
PATIENCE_S = 8.0
"""A moment that does not come by then is waited for no longer."""


@dataclass(eq=False)
class Trap:
    """Waits for one moment of some hosts; `strike` is called with the host."""

    point: str
    hosts: Collection[str]
    until_s: float
    strike: Callable[[str], None]


class Traps:
    """The traps of a run."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self._world = world
        self._set: list[Trap] = []
        self._stands: dict[tuple[str, str, int], int] = {}
        self._has_gone_back = False
        cluster.on_moment.append(self._note)
        cluster.on_commit.append(self._note_commit)

    @property
    def is_set(self) -> bool:
        """Return whether something may still strike."""
        self._set = [each for each in self._set if each.until_s > self._world.now_s]
        return bool(self._set)

    def set(self, point: str, hosts: Collection[str], strike: Callable[[str], None]) -> None:
        """Have something done when the moment comes."""
        self._set.append(Trap(point, hosts, self._world.now_s + PATIENCE_S, strike))

    def _note_commit(self, group: str, topic: str, partition: int, what: Committed) -> None:
        place = group, topic, partition
        self._has_gone_back |= what.offset < self._stands.get(place, -1)
        self._stands[place] = what.offset

    def _note(self, what: str, host: str) -> None:
        self._strike(what, host)
        if what == INTENT:  # it was appended as well
            self._strike(APPEND, host)
        if what == PUSH and self._has_gone_back:
            self._has_gone_back = False
            self._strike(BACK, host)

    def _strike(self, what: str, host: str) -> None:
        now_s = self._world.now_s
        due = [
            each
            for each in self._set
            if each.point == what and host in each.hosts and each.until_s > now_s
        ]
        self._set = [each for each in self._set if each not in due and each.until_s > now_s]
        for each in due:
            self._world.report(f"TRAP {what} of {host}")
            each.strike(host)
