"""A node's right to serve partitions of share groups, among many nodes.

Source: docs/decisions/020, 048. A session that is opened at a broker ends that of any other node,
so it is opened only where no other node can think that it serves the partition. A node that has
hung finds records that others have finished meanwhile: it hands out nothing when its lease is over,
and forgets all where it may have missed an agreement of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """Questions to the nodes' group; the defaults are the lone node's."""

    has_lease: Callable[[], bool] = lambda: True
    """Returns whether places are sure at this moment: no other node may go by others."""
    has_time: Callable[[], bool] = lambda: True
    """Returns whether the time of the lease is not over, also while the nodes agree anew."""
    breaks: Callable[[], int] = lambda: 0
    """Returns a number that grows when another node may have served what is this node's."""
