"""The outcome of a rebalance that an operator asks for, or its preview."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneMove:
    """A lane that would go to another member."""

    topic: str
    lane_index: int
    from_member: str
    to_member: str
    bytes_per_s: float | None
    """None: not measured yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalanced:
    """A rebalance of a group, or what it would be."""

    balance: float | None
    """Load of the busiest member, as part of the mean; None: not known."""
    balance_after: float | None
    moves: tuple[LaneMove, ...]
    is_asked: bool
    """True: the group moves these lanes, or plans anew with its next heartbeats."""
    reason: str | None
    """The reason why nothing is asked of the group; None: it is asked, or would be."""


def nothing(reason: str) -> Rebalanced:
    """Return a rebalance that does nothing."""
    return Rebalanced(balance=None, balance_after=None, moves=(), is_asked=False, reason=reason)
