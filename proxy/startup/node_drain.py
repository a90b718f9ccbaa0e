"""This node among the others, as its control port drains it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from keylane.proxy.apis.shared.context import Shared
from keylane.proxy.startup.node_parts import NodeParts
from keylane.proxy.startup.overview_setup import groups_with_offsets, joined_groups
from keylane.proxy.topics.draining import DrainReport, state_of

GROUPS_SHOWN: Final = 1_000


class OwnNode:
    """Implements `DrainedNode` of the control port."""

    def __init__(self, nodes: NodeParts, shared: Shared, connections: Callable[[], int]) -> None:
        """connections: gives the number of clients' connections."""
        self._nodes, self._shared, self._connections = nodes, shared, connections

    @property
    def number(self) -> int | None:
        """None: it is the only one, and has no number."""
        return None if self._nodes.group is None else self._shared.config.node

    def is_known(self, number: int) -> bool:
        """Return whether there is a node of this number."""
        return self._shared.placement.knows(number)

    def control_of(self, number: int) -> str | None:
        """Return the control URL of another node; None: it has none."""
        return self._shared.placement.control_of(number)

    def others_serve(self) -> bool:
        """Return whether another node gets groups and clients."""
        return any(number != self.number for number in self._shared.placement.numbers)

    def report(self) -> DrainReport:
        """Return what it has to give away."""
        number, placement = self.number, self._shared.placement
        assert number is not None, "asked of one among many nodes"
        named = groups_with_offsets(self._shared) | joined_groups(self._shared)
        groups = sorted(group for group in named if placement.node_of_group(group) == number)
        partitions, connections = placement.partitions_of(number), self._connections()
        return DrainReport(
            node=number,
            state=state_of(
                is_draining=self._nodes.is_draining,
                partitions=partitions,
                connections=connections,
            ),
            partitions=partitions,
            groups=tuple(groups[:GROUPS_SHOWN]),
            groups_left_out=max(0, len(groups) - GROUPS_SHOWN),
            connections=connections,
        )

    def set_draining(self, *, is_draining: bool) -> bool:
        """Begin or end a drain; False: it is as it was."""
        return self._nodes.set_draining(is_draining=is_draining)
