"""Checks of lanes in the hands of a consumer group's members, by docs/guarantees.md.

Source: docs/decisions/043.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

from tests.long.chaos_history import Commit
from tests.reference.consumer_coordinator import STALE_MEMBER_EPOCH
from tests.simulation.possession import Possession, Unheard

if TYPE_CHECKING:
    from tests.simulation.member import Member
    from tests.simulation.scenario import GroupPlan

QUIET_S = 2.0
"""Beyond a heartbeat interval, in which lanes stay where they are after a start."""
FASTEST = 1.25
"""Above the rates of nodes' clocks."""
Spans = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Quiet:
    """The time after a node's start in which no lane changes hands."""

    from_s: float
    until_s: float


@dataclass(frozen=True)
class Hands:
    """A group's lanes in its members' hands, and the members that the broker had."""

    name: str
    possessions: Sequence[Possession]
    memberships: Mapping[str, Spans]
    unheard: Sequence[Unheard] = ()

    def _was_member(self, member_id: str, from_s: float, until_s: float) -> bool:
        spans = self.memberships.get(member_id, ())
        return any(first_s <= from_s and until_s <= last_s for first_s, last_s in spans)

    def at_two(self) -> list[str]:
        """Return lanes that two members had at once, both members to the broker at that time."""
        by_lane: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
        for each in self.possessions:
            for from_s, until_s in self.memberships.get(each.member_id, ()):
                begin_s, end_s = max(from_s, each.from_s), min(until_s, each.until_s)
                if begin_s < end_s:
                    by_lane[each.lane].append((begin_s, end_s, each.member_id))
        for lane, spans in sorted(by_lane.items()):
            last: dict[str, tuple[float, float, str]] = {}
            for span in sorted(spans):
                for other in last.values():
                    if span[0] < other[1] and span[2] != other[2]:
                        return [f"hands: {self.name}: lane {lane} is at {other} and {span}"]
                last[span[2]] = max(last.get(span[2], span), span, key=itemgetter(1))
        return []

    def too_soon(self, quiet: Iterable[Quiet]) -> list[str]:
        """Return lanes that went over in a quiet time, while the last member still read them.

        The broker may have ended that one while no node was there.
        """
        for time in quiet:
            for new in self.possessions:
                if not time.from_s <= new.from_s < time.until_s:
                    continue
                for old in self.possessions:
                    is_read = old.lane == new.lane and old.from_s < time.from_s
                    is_read = is_read and old.member_id != new.member_id
                    if is_read and old.until_s > new.from_s:
                        return [f"soon: {self.name}: {new}, and {old}, in {time}"]
        return []

    def stale(self, commits: Iterable[Commit]) -> list[str]:
        """Return commits refused for their epoch though the member had the lane all the time.

        It had it under the epoch that the commit names, until it was answered, and no heartbeat of
        it was lost before that.
        """
        for each in commits:
            if each.error != STALE_MEMBER_EPOCH:
                continue
            member_id = f"{each.member}-id"
            if any(
                lost.member_id == member_id
                and lost.from_s < each.answered_s
                and each.asked_s < lost.until_s
                for lost in self.unheard
            ):
                continue
            if self._was_member(member_id, each.asked_s, each.answered_s) and any(
                had.member_id == member_id
                and had.lane == each.place.lane
                and had.epoch <= each.generation
                and had.from_s <= each.asked_s
                and each.answered_s <= had.until_s
                for had in self.possessions
            ):
                return [f"stale: {self.name}: {each} is refused"]
        return []


def judge_hands(
    plan: GroupPlan,
    members: Sequence[Member],
    memberships: Mapping[str, Spans],
    served_s: Sequence[float],
) -> list[str]:
    """Return breaches of one group. served_s: times from which the only node has served."""
    group = [each for each in members if each.habits.group == plan.name]
    had = list(chain.from_iterable(each.possessions for each in group))
    unheard = list(chain.from_iterable(each.unheard for each in group))
    hands = Hands(plan.name, had, memberships, unheard)
    quiet_s = (plan.heartbeat_s + QUIET_S) / FASTEST
    quiet = [Quiet(at_s, at_s + quiet_s) for at_s in served_s[1:]]
    events = chain.from_iterable(each.events for each in group)
    commits = [event for event in events if isinstance(event, Commit)]
    return hands.at_two() + hands.too_soon(quiet) + hands.stale(commits)
