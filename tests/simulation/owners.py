"""Owners of groups: one node in a generation of the nodes' own group.

In:    commits that brokers take, and their nodes.  Out: breaches in words.
Source: docs/decisions/020, 030.

A commit that was sent in time may arrive late; so the first second of a generation has no owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.proxy.topics.node_values import GROUP

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, Committed
    from tests.simulation.waits import Troubles
    from tests.simulation.world import World

GRACE_S = 1.0
PUSHES = {"api 8", "api 28"}


class Owners:
    """Owners of all groups of a run with many nodes."""

    def __init__(self, world: World, cluster: Cluster, troubles: Troubles) -> None:
        self._world, self._cluster, self._troubles = world, cluster, troubles
        self._began_s: dict[int, float] = {}
        """Begin of each generation of the nodes."""
        self._owners: dict[tuple[str, int], str] = {}
        self._taken: dict[str, float] = {}
        """When an offset of a group was written last."""
        self.breaches: list[str] = []
        cluster.on_commit.append(self._note_commit)
        cluster.on_moment.append(self._note)

    def _note_commit(self, group: str, _topic: str, _partition: int, _what: Committed) -> None:
        self._taken[group] = self._world.now_s

    def _note(self, what: str, host: str) -> None:
        now_s = self._world.now_s
        generation = self._cluster.group(GROUP).twin.generation_id
        began_s = self._began_s.setdefault(generation, now_s)
        if what not in PUSHES or now_s < began_s + GRACE_S:
            return
        for group, taken_s in self._taken.items():
            owner = self._owners.setdefault((group, generation), host) if taken_s == now_s else host
            if owner != host and not any(self._is_late(each, began_s) for each in (owner, host)):
                said = f"{owner} and {host} both serve {group} in generation {generation}"
                self.breaches.append(f"owners: {now_s:.3f} {said}")

    def _is_late(self, host: str, since_s: float) -> bool:
        """Return whether a broker, or the way to one, may have kept the request that long."""
        return any(
            self._troubles.touch((name,), since_s, self._world.now_s)
            for name in self._troubles.known
            if "kafka" in name and (host in name or " and " not in name)
        )
