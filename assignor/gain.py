"""Gain of a group that is planned anew: load that its busiest member would have less.

A plan of the same members costs them a rebalance, and the moved lanes their readers' state. So the
gain has to be worth it, and must not be chance.

Source: docs/decisions/045; counts of a steady flow vary by their square root (Poisson).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from keylane.assignor.level import COARSE, Margins
from keylane.assignor.model import Lane, LaneTopic, Loads, Member, Plan
from keylane.assignor.sticky import plan_sticky, weigh_lanes

SIGMAS: Final = 4.0
"""Chance exceeds this once in 30,000 looks: at one look a minute, once in three weeks."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Loads of the busiest member, as parts of the mean, and the lanes that would move."""

    busiest: float
    after: float
    mean_part: float
    """Part of all load that the mean is: one divided by the members."""
    moved_count: int

    def is_worth(self, record_count: float, margins: Margins = COARSE) -> bool:
        """Return whether to rebalance: the busiest member is well above what it could have.

        record_count: records that the loads were measured by; of few, the busiest member's are
        more by chance.
        """
        if not self.moved_count or self.busiest < margins.busy_max * self.after:
            return False
        mean = record_count * self.mean_part
        return (self.busiest - self.after) * mean > SIGMAS * math.sqrt(self.busiest * mean)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The lanes that members own, beside a plan for the same members."""

    owners: Mapping[Lane, str]
    """Member ids."""
    plan: Plan
    gain: Gain

    def moves(self) -> list[tuple[Lane, str, str]]:
        """Return the lanes that would move, each with its giver and its receiver."""
        return sorted(
            (lane, self.owners[lane], name)
            for name, lanes in self.plan.items()
            for lane in lanes
            if self.owners[lane] != name
        )


def compare(
    members: Sequence[Member],
    topics: Sequence[LaneTopic],
    loads: Loads,
    margins: Margins = COARSE,
) -> Comparison | None:
    """Compare the lanes that members own with a plan for the same members.

    None: some lane is at no member, or at two, so that a generation is still to come.
    Cost: that of `plan_sticky`.
    """
    weights = weigh_lanes(topics, loads)
    owners = {lane: member.member_id for member in members for lane in member.owned}
    if owners.keys() != weights.keys() or len(owners) != sum(len(one.owned) for one in members):
        return None
    plan = plan_sticky(members, topics, loads, margins=margins)
    mean = sum(weights.values()) / len(members)
    busiest = max(sum(weights[lane] for lane in member.owned) for member in members)
    after = max(sum(weights[lane] for lane in lanes) for lanes in plan.values())
    moved = sum(owners[lane] != name for name, lanes in plan.items() for lane in lanes)
    gain = Gain(busiest / mean, after / mean, 1 / len(members), moved)
    return Comparison(owners, plan, gain)


def find_gain(
    members: Sequence[Member],
    topics: Sequence[LaneTopic],
    loads: Loads,
    margins: Margins = COARSE,
) -> Gain | None:
    """Return the gain of `compare`."""
    found = compare(members, topics, loads, margins)
    return None if found is None else found.gain
