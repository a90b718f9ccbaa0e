"""Lanes of consumer groups in members' hands, by the members' own records."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(eq=False)
class Possession:
    """A lane at a member, from when it took it until it gave it up, or its process died."""

    member_id: str
    lane: int
    from_s: float
    epoch: int
    """The member's when it was given the lane."""
    until_s: float = inf

    def end(self, now_s: float) -> None:
        """It has given the lane up."""
        self.until_s = min(self.until_s, now_s)


@dataclass(eq=False)
class Unheard:
    """A member whose heartbeat has no answer, from when it asked until it has one.

    The coordinator may have moved its epoch on, and keylane not have learnt it either.
    """

    member_id: str
    from_s: float
    until_s: float = inf
