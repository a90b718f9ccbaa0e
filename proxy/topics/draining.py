"""Drain of this node: it gives its groups and clients to the others, and goes on running.

Source: docs/decisions/052; Kubernetes' `kubectl drain`, which is undone the same way.

Whether a node drains is published with all that it says of itself, and kept nowhere else: a process
that starts again serves. The leader of the nodes deals nothing out to one that drains, unless all
do, and no client is sent there.
"""

from __future__ import annotations

from dataclasses import dataclass

SERVING = "serving"
DRAINING = "draining"
DRAINED = "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """A node, and what it has still to give away."""

    node: int
    state: str
    """`serving`, `draining` or `drained`: without a group and a connection of a client."""
    partitions: int
    """Partitions of the journal, and with them groups, that it serves."""
    groups: tuple[str, ...]
    """Groups on lanes among them, as far as they are loaded."""
    groups_left_out: int
    """Groups beyond those that are named."""
    connections: int
    """Connections of clients."""


def state_of(*, is_draining: bool, partitions: int, connections: int) -> str:
    """Return the state of a node."""
    if not is_draining:
        return SERVING
    return DRAINING if partitions or connections else DRAINED
