"""Values that nodes publish: the addresses of each node, and the node of each group's offsets.

Source: docs/decisions/020, 022.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

Address = tuple[str, int]
"""Host and port in answers to clients."""

GROUP: Final = "__keylane_nodes"
"""The consumer group that the nodes form."""
PROTOCOL: Final = "keylane-nodes"

NO_NODE: Final = -1
"""Owner of an IC partition that no node has at this moment."""
NO_GENERATION: Final = -1
"""Generation of a node that was not in the group yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """One lane rule of a node, in the part that must be the same on all nodes."""

    topic: str
    """Name or glob."""
    lanes: int
    """Lanes per partition."""
    fingerprint: str = ""
    """Fingerprint of a plan's cuts, in hex; empty for equal ranges."""
    hash: str = "xxh64"
    """Name of the hash of keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """One node, in its own words."""

    number: int
    """Configured, unique among the nodes, 0 to NUMBER_MAX; part of its virtual broker ids."""
    bootstrap: Address
    brokers: Mapping[int, Address] = field(default_factory=dict)
    """Addresses of each upstream broker at this node, by broker id."""
    rules: tuple[NodeRule, ...] = ()
    """Rules in order: the first that matches counts."""
    lane_name_pattern: str = ""
    pinned: Mapping[str, int] = field(default_factory=dict)
    """Partition count that lanes keep to, by the id of a topic that has more by now."""
    control: str = ""
    """URL of its control port, without a path; empty: none."""
    version: str = ""
    lone: bool = False
    """True: it was given no number and has to be the only node; `number` then means nothing."""
    journal: int = 0
    """Format of the journal that it can read: `offsets.journal.FORMAT`."""
    is_draining: bool = False
    """True: it is to get no groups and no clients, as it is about to be stopped."""
    process: str = ""
    """Mark of a lone node's process (`process_mark`); empty: not known."""

    @property
    def place(self) -> str:
        """Host and port at which clients reach the node, for a text."""
        return "{}:{}".format(*self.bootstrap)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipClaim:
    """The journal partitions that a node says it has served, when it joins."""

    generation_id: int = NO_GENERATION
    """Generation of the group in which it was given them."""
    partitions: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The message of a node that joins."""

    node: NodeInfo
    ic_partition_count: int
    """Partition count of `__individual_commit_offsets`, as the node sees it."""
    since: int = NO_GENERATION
    """The first generation of this stay in the group: the older node keeps its number."""
    claim: OwnershipClaim = OwnershipClaim()


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The nodes of one generation of their group, and what they own.

    Invariant: nodes are ascending by number, each number once; owners are among them or NO_NODE.
    """

    generation_id: int
    nodes: tuple[NodeInfo, ...]
    owners: tuple[int, ...]
    """By partition of `__individual_commit_offsets`: the number of the node that serves it."""

    @property
    def serving(self) -> tuple[int, ...]:
        """Return the nodes that get groups and clients, ascending. If all drain, none does."""
        return serving_nodes(self.nodes)

    def node(self, number: int) -> NodeInfo | None:
        """Return the node with this number; None when there is none."""
        return next((node for node in self.nodes if node.number == number), None)

    def owned_by(self, number: int) -> frozenset[int]:
        """Return the IC partitions that a node serves."""
        return frozenset(p for p, owner in enumerate(self.owners) if owner == number)


def serving_nodes(nodes: Iterable[NodeInfo]) -> tuple[int, ...]:
    """Return the numbers of nodes that get groups and clients, ascending.

    If all of them drain, all serve: groups are never without a node for that.
    """
    known = sorted(nodes, key=lambda node: node.number)
    serving = tuple(node.number for node in known if not node.is_draining)
    return serving or tuple(node.number for node in known)
