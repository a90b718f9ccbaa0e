"""Checks that a lane is at one member in a generation, and that a node gives out one log.

In:    members' notes.  Out: breaches in words.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from itertools import chain
from math import inf
from typing import TYPE_CHECKING

from tests.long.chaos_history import Commit, Cut, GroupHistory, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.simulation.fetching import Handed
    from tests.simulation.member import Member
    from tests.simulation.scenario import GroupPlan


def two_at_once(group: GroupHistory, deleted: Iterable[tuple[str, float]]) -> list[str]:
    """Lanes that two members committed in one generation.

    deleted: groups, and when; their generations begin anew. A member has its generation before it
    asks: the answer to a commit may be on its way while the group is deleted.
    """
    owners: dict[tuple[Place, int, int], set[str]] = defaultdict(set)
    ends_s = [at_s for name, at_s in deleted if name == group.group]
    for commit in group.of(Commit):
        if commit.is_acknowledged and commit.generation >= 0:
            life = bisect_left(ends_s, commit.asked_s)
            owners[commit.place, commit.generation, life].add(commit.member)
    return [
        f"two: {group.group}: {place} generation {generation}: {sorted(names)}"
        for (place, generation, _), names in owners.items()
        if len(names) > 1
    ]


def stale(
    plan: GroupPlan,
    partitions: int,
    members: Sequence[Member],
    cuts: Mapping[tuple[str, int], Sequence[Cut]],
    written_s: Mapping[int, float],
) -> list[str]:
    """Records of an old log that the one node gave out after records of the new one.

    written_s: when each record was, by its number.
    """
    handed: dict[int, list[Handed]] = defaultdict(list)
    for member in members:
        if member.habits.group == plan.name:
            for each in chain.from_iterable(member.handed):
                handed[each.place.lane % partitions].append(each)
    found = []
    for partition, records in handed.items():
        for cut in cuts.get((plan.topic, partition), ()):
            behind = [each for each in records if each.offset >= cut.offset]
            new = [e.at_s for e in behind if written_s[e.number] > cut.end_s]
            found += [
                f"stale: {plan.name}: {each} is of the log that was cut at {cut}"
                for each in behind
                if written_s[each.number] < cut.begin_s and each.asked_s > min(new, default=inf)
            ]
    return found[:1]
