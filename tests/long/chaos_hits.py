"""One hit of a round of chaos: at one of the nodes, brokers, members, disks or logs.

In:    targets, a seeded chance.  Out: the same, which work again, and the hit in words.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from typing import Final

from tests.integration.nodes import Nodes
from tests.long.chaos_cluster import ChaosCluster
from tests.long.chaos_group import ChaosGroup, ChaosProducer
from tests.long.chaos_topics import KEYS

KINDS: Final = (
    "node-kill",
    "node-hang",
    "node-restart",
    "broker-kill",
    "broker-hang",
    "broker-restart",
    "member-kill",
    "unclean",
    "replica-loss",
    "disk-loss",
    "log-gone",
    "log-cut",
    "retention",
    "quiet",
)
DOWN_S: Final[Mapping[str, tuple[float, float]]] = {
    "node-hang": (1.0, 9.0),  # around the nodes' session of 6 s
    "broker-hang": (1.0, 5.0),  # around the brokers' session of 2 s
    "node-kill": (0.0, 3.0),
    "broker-kill": (0.0, 4.0),
    "retention": (0.5, 3.0),
}
CUTTING: Final = frozenset({"unclean", "log-gone", "log-cut", "retention"})
REPLACE_SHARE: Final = 0.5
"""Share of events that also cost a member, so that others ask for its lanes' positions."""


class ChaosHits:
    """Hits one thing after the other."""

    def __init__(
        self,
        *,
        cluster: ChaosCluster,
        nodes: Nodes,
        groups: Mapping[str, ChaosGroup],
        producer: ChaosProducer,
        chance: random.Random,
    ) -> None:
        self._cluster, self._nodes, self._groups = cluster, nodes, groups
        self._producer, self._chance = producer, chance
        self._pause = threading.Event()
        self._quiet_number = 0

    def span(self, kind: str) -> float:
        """Draw the seconds that the next hit of a kind lasts."""
        return round(self._chance.uniform(*DOWN_S.get(kind, (0.0, 2.0))), 1)

    def act(self, kind: str, down_s: float) -> str:
        """Hit, wait, and put it right again; what was hit, in words. Raises: AssertionError."""
        what = self._act(kind, down_s)
        if kind in CUTTING and self._chance.random() < REPLACE_SHARE:
            # Positions that are in memory hide what keylane itself takes for committed.
            group = self._chance.choice(["own", "lane"])
            what += f", {self._replace(group, is_kill=self._chance.random() < 0.5)}"
        return what

    def _act(self, kind: str, down_s: float) -> str:
        cluster, chance = self._cluster, self._chance
        if kind.startswith("node-"):
            return self._hit_node(kind, down_s)
        if kind.startswith("broker-"):
            return self._hit_broker(kind, down_s)
        if kind == "member-kill":
            return self._replace(chance.choice(["own", "lane"]), is_kill=True)
        if kind == "quiet":
            return self._hit_quiet()
        if kind == "unclean":
            return cluster.elect_stale("weak")
        if kind == "replica-loss":
            topics = ["safe", "__consumer_offsets", "__individual_commit_offsets"]
            return cluster.lose_replica(chance.choice(topics))
        if kind == "disk-loss":
            return cluster.lose_disk()
        if kind == "log-gone":
            return cluster.lose_replica("lone")
        if kind == "log-cut":
            return cluster.cut_log("lone", 0)
        assert kind == "retention", f"no hit is called {kind}"
        return self._expire(down_s)

    def _hit_node(self, kind: str, down_s: float) -> str:
        place = self._chance.randrange(len(self._nodes.processes))
        node = self._nodes[place]
        if kind == "node-hang":
            node.pause()
            self._pause.wait(down_s)
            node.resume()
            return f"{place} for {down_s} s"
        if kind == "node-kill":
            node.kill()
        else:
            code = node.stop()
            assert code == 0, f"node {place} ended with {code}"
        self._pause.wait(down_s)
        node.start()
        return f"{place} for {down_s} s"

    def _hit_broker(self, kind: str, down_s: float) -> str:
        place = self._chance.randrange(3)
        brokers = self._cluster.brokers
        if kind == "broker-hang":
            brokers.pause(place)
            self._pause.wait(down_s)
            brokers.resume(place)
            return f"{place + 1} for {down_s} s"
        brokers[place].kill() if kind == "broker-kill" else brokers[place].stop()
        self._pause.wait(down_s)
        self._cluster.kafka.start()
        return f"{place + 1} for {down_s} s"

    def _replace(self, group_name: str, *, is_kill: bool) -> str:
        group = self._groups[group_name]
        name = self._chance.choice(sorted(group.members))
        if is_kill:
            group.kill(name)
        else:
            group.end(name)
        library = name.removeprefix(f"{group_name}-").rpartition("-")[0]
        return f"{name}, then {group.add(library)}"

    def _hit_quiet(self) -> str:
        """Members of the quiet group ask for their positions again; now and then it has work."""
        what = self._replace("still", is_kill=self._chance.random() < 0.5)
        if self._chance.random() < 0.3:
            self._quiet_number += 1
            for key in KEYS[:3]:
                self._producer.write("quiet", key, self._quiet_number)
            self._producer.flush()
            what += ", three records"
        return what

    def _expire(self, down_s: float) -> str:
        """Retention passes what a hung member has not read yet."""
        group = self._groups[self._chance.choice(["own", "lane"])]
        name = self._chance.choice(sorted(group.members))
        group.hang(name)
        try:
            self._pause.wait(down_s)
            what = self._cluster.expire(self._chance.choice(["lone", "weak"]))
        finally:
            group.go_on(name)
        return f"{what} while {name} hung"
