"""Lanes in members' hands by their own records, and the check that no two members have one.

Source: docs/decisions/043.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

Spans = Sequence[tuple[float, float]]


@dataclass(eq=False)
class Possession:
    """A lane at a member, from when it took it until it gave it up, or its process died."""

    member_id: str
    lane: int
    from_s: float
    until_s: float = inf

    def end(self, now_s: float) -> None:
        """It has given the lane up."""
        self.until_s = min(self.until_s, now_s)


@dataclass(frozen=True)
class Restart:
    """A node that begins to serve."""

    at_s: float
    quiet_s: float
    """Seconds in which nothing changes hands."""


def at_two(
    group: str, possessions: Iterable[Possession], memberships: Mapping[str, Spans]
) -> list[str]:
    """Return lanes that two members had at once, both members to the broker at that time."""
    by_lane: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for each in possessions:
        for from_s, until_s in memberships.get(each.member_id, ()):
            begin_s, end_s = max(from_s, each.from_s), min(until_s, each.until_s)
            if begin_s < end_s:
                by_lane[each.lane].append((begin_s, end_s, each.member_id))
    for lane, spans in sorted(by_lane.items()):
        spans.sort()
        for number, one in enumerate(spans):
            for other in spans[number + 1 :]:
                if other[0] < one[1] and other[2] != one[2]:
                    return [f"hands: {group}: lane {lane} is at {one} and {other}"]
    return []
