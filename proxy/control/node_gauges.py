"""Metrics of a node among the nodes: its peers, and what it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from keylane.proxy.runtime.stats import GAUGE, Sample
from keylane.proxy.topics.node_values import NO_NODE, Membership

MEMBERS: Final = "Nodes in front of the cluster, by the last agreement with this one."
OWNED: Final = "Partitions of the journal whose groups this node serves now."
UNSERVED: Final = "Partitions of the journal that no node serves."
DISPUTED: Final = "Topics that are refused, since nodes do not agree on their lanes."


class NodeGauges:
    """Gauges of a node with a number; the only node has none of them."""

    def __init__(
        self,
        number: int,
        membership: Callable[[], Membership | None],
        holds: Callable[[int], bool],
        disputes: Callable[[], Mapping[str, str]],
    ) -> None:
        """`holds` says whether this node serves a partition at this moment."""
        self._number, self._membership = number, membership
        self._holds, self._disputes = holds, disputes

    def samples(self) -> Iterator[Sample]:
        """Return what is so now; a node whose lease is over serves nothing, whatever was agreed."""
        known = self._membership()
        owned = known.owned_by(self._number) if known else ()
        values = (
            ("node_members", MEMBERS, len(known.nodes) if known else 0),
            ("node_partitions_owned", OWNED, sum(map(self._holds, owned))),
            ("node_partitions_unserved", UNSERVED, known.owners.count(NO_NODE) if known else 0),
            ("topics_disputed", DISPUTED, len(self._disputes())),
        )
        for name, text, value in values:
            yield Sample(f"keylane_{name}", GAUGE, text, (), value)
