"""Facts that nodes share: where each is reached, and which one serves a group's offsets.

In:    a node's own facts.  Out: `NodeInfo` and `Membership`, the values that nodes agree on.
Source: docs/decisions/020.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

Address = tuple[str, int]
"""Host and port as clients get them."""

GROUP: Final = "__keylane_nodes"
"""The consumer group that nodes are."""
PROTOCOL: Final = "keylane-nodes"

NO_NODE: Final = -1
"""Owner of an IC partition that is given to no node at this moment."""
NO_GENERATION: Final = -1
"""Of a node that has not been one of the group's yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRule:
    """One lane rule of a node, as far as other nodes must have the same."""

    topic: str
    """Name or glob."""
    lanes: int
    """Lanes per partition."""
    fingerprint: str = ""
    """Of a plan's cuts, in hex; empty for equal ranges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """One node, as the others know it."""

    number: int
    """Configured, unique among the nodes, 0 to NUMBER_MAX; part of its virtual broker ids."""
    bootstrap: Address
    brokers: Mapping[int, Address] = field(default_factory=dict)
    """Where clients reach each upstream broker through this node, by broker id."""
    rules: tuple[NodeRule, ...] = ()
    """In order: the first that matches counts."""
    lane_name_pattern: str = ""
    pinned: Mapping[str, int] = field(default_factory=dict)
    """Partitions that lanes keep to, by the id of a topic that has more by now."""
    control: str = ""
    """URL of its control port, without a path; empty: none."""
    version: str = ""
    lone: bool = False
    """Whether it was given no number, and has to be the only one; `number` means nothing then."""
    journal: int = 0
    """Which format of the journal it can read: `offsets.journal.FORMAT`."""
    process: str = ""
    """Of a lone node: which process it is (`process_mark`); empty: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipClaim:
    """What a node says that it served when it joined."""

    generation_id: int = NO_GENERATION
    """Of the group, in which it was given them."""
    partitions: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a node says when it joins."""

    node: NodeInfo
    ic_partition_count: int
    """Of `__individual_commit_offsets`, as the node sees it."""
    since: int = NO_GENERATION
    """The first generation of this stay in the group: the first to come keeps its number."""
    claim: OwnershipClaim = OwnershipClaim()


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """All nodes of one generation of their group, and what they own.

    Invariant: nodes are ascending by number, each number once; owners are among them or NO_NODE.
    """

    generation_id: int
    nodes: tuple[NodeInfo, ...]
    owners: tuple[int, ...]
    """By partition of `__individual_commit_offsets`: the number of the node that serves it."""

    def node(self, number: int) -> NodeInfo | None:
        """The node with this number; None when it is not there."""
        return next((node for node in self.nodes if node.number == number), None)

    def owned_by(self, number: int) -> frozenset[int]:
        """IC partitions that a node serves."""
        return frozenset(p for p, owner in enumerate(self.owners) if owner == number)
