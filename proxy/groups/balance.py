"""Balance of a group: the load of its busiest member beside that of the mean. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from keylane.assignor.model import Lane


def balance_of(lanes: Mapping[str, Iterable[Lane]], loads: Mapping[Lane, float]) -> float | None:
    """Return the load of the busiest member by the mean of all; 1.0 is even.

    lanes: by member. None: there is no member, or nothing is known of the load.
    """
    return evenness([sum(loads.get(lane, 0.0) for lane in own) for own in lanes.values()])


def evenness(member_loads: Iterable[float]) -> float | None:
    """Return the largest load by the mean; None: there is no load."""
    found = list(member_loads)
    total = sum(found)
    return max(found) * len(found) / total if total > 0 else None
