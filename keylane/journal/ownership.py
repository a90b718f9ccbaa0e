"""Whether this node may serve a group's offsets at this moment.

Source: docs/decisions/020.
"""

from __future__ import annotations

from typing import Protocol


class Tenure(Protocol):
    """What `groups` asks; implemented by `Alone`, and by `group.NodeGroup` among many nodes."""

    def holds(self, ic_partition: int) -> bool:
        """Return whether this node surely owns the partition: its lease is good, none is joining.

        Cheap and synchronous: call it right before sending. A process that was stopped in
        between finds its lease over, since the monotonic clock goes on meanwhile.
        """

    def term(self, ic_partition: int) -> int:
        """A number that stays the same while ownership is unbroken; -1 while it is not owned.

        What was loaded in one term is worth nothing in another: somebody else may have written.
        """

    async def settled(self) -> None:
        """Wait until no rebalance of the nodes is under way; at most for a few seconds."""


class Alone:
    """The one node of its cluster: it owns everything, always."""

    def holds(self, ic_partition: int) -> bool:
        """Always."""
        del ic_partition
        return True

    def term(self, ic_partition: int) -> int:
        """Always the same."""
        del ic_partition
        return 0

    async def settled(self) -> None:
        """Nothing to wait for."""
