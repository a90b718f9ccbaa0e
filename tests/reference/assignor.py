"""Naive twin of the balance: heaviest lane first, each to the lightest member.

Source: Graham, "Bounds on Multiprocessing Timing Anomalies" (1969), LPT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from keylane.assignor.model import Lane


def plan_heaviest_first(
    member_ids: Sequence[str], weights: Mapping[Lane, int]
) -> dict[str, list[Lane]]:
    """Give the heaviest remaining lane to the member with the least, until none remains."""
    plan: dict[str, list[Lane]] = {member_id: [] for member_id in member_ids}
    for lane in sorted(weights, key=lambda lane: (-weights[lane], lane)):
        lightest = min(plan, key=lambda m: (sum(weights[held] for held in plan[m]), m))
        plan[lightest].append(lane)
    return plan
