"""Members of a classic group on lanes that have joined at a broker's own address.

They take partitions, where the others take lanes. While a group has such members, a partition is at
one member as a whole: all its lanes at a member behind keylane, or its number at a direct one.

Source: docs/decisions/047; KIP-429.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from keylane.assignor.cooperative import first_step
from keylane.assignor.marks import ShownMember
from keylane.assignor.model import Lane, LaneTopic, Member
from keylane.assignor.protocol import PhysicalName, Subscription


@dataclass(frozen=True, slots=True)
class WholeTopic:
    """A topic with lanes, in whole partitions."""

    physical: str
    """The broker's name."""
    name: str
    """The name by which members behind keylane go."""
    partition_count: int
    lane_count: int

    def lanes_of(self, partition: int) -> list[Lane]:
        """Return all lanes of a partition; none where keylane does not show it."""
        if not 0 <= partition < self.partition_count:
            return []
        indexes = range(partition, self.partition_count * self.lane_count, self.partition_count)
        return [(self.name, index) for index in indexes]


WholeTopics = Mapping[str, WholeTopic]
"""By the broker's name."""


def find_direct(
    members: Mapping[str, ShownMember], has_lanes: Callable[[str], bool], physical: PhysicalName
) -> frozenset[str]:
    """Return the members that take partitions of topics which others have as lanes.

    A member behind keylane to which the topic is plain takes partitions as well. A member without
    the mark that goes by a lane name is of a version before the mark.
    """
    marked = (one.names for one in members.values() if one.is_marked)
    topics = {physical(name) for names in marked for name in names if has_lanes(name)}
    found = set()
    for key, one in members.items():
        is_plain_here = any(name in topics and not has_lanes(name) for name in one.names)
        is_elsewhere = not one.is_marked and any(map(has_lanes, one.names))
        goes_by_lanes = any(physical(name) != name for name in one.names)
        if is_plain_here or (is_elsewhere and not goes_by_lanes):
            found.add(key)
    return frozenset(found)


def are_lanes(plan: Iterable[Iterable[Lane]], topics: WholeTopics) -> bool:
    """Return whether a plan has a lane that is no partition, so that its leader knows lanes."""
    counts = {topic.name: topic.partition_count for topic in topics.values()}
    return any(name in counts and index >= counts[name] for lanes in plan for name, index in lanes)


def expand(partitions: Iterable[Lane], topics: WholeTopics) -> list[Lane]:
    """Return all lanes of partitions, in order; those of topics without lanes as they are.

    A lane name is no topic: a leader that knows one by that name had it made by accident.
    """
    names = {topic.name for topic in topics.values()} - topics.keys()
    lanes: list[Lane] = []
    for name, number in partitions:
        topic = topics.get(name)
        if topic is not None:
            lanes += topic.lanes_of(number)
        elif name not in names:
            lanes.append((name, number))
    return sorted(lanes)


def collapse(lanes: Iterable[Lane], topics: WholeTopics) -> list[Lane]:
    """Return the partitions of lanes, in order."""
    by_name = {topic.name: topic for topic in topics.values()}
    found = set()
    for name, index in lanes:
        topic = by_name[name]
        found.add((topic.physical, index % topic.partition_count))
    return sorted(found)


def with_lanes(said: Subscription, topics: WholeTopics) -> Subscription:
    """Return a direct member's subscription in the words of the others."""
    names = tuple(topics[name].name if name in topics else name for name in said.topics)
    return replace(said, topics=names, owned=tuple(expand(said.owned, topics)))


def take_step(
    member_id: str, lanes: Sequence[Lane], members: Sequence[Member], topics: WholeTopics
) -> list[Lane]:
    """Return the lanes that a member may have now, of those that it is to have.

    Lanes that another member of a cooperative group reads come in the generation after it has
    given them up: its client joins again for that.
    """
    shown = {topic.name for topic in topics.values()}
    whole = [
        LaneTopic(
            name=topic.name, partition_count=topic.partition_count, lane_count=topic.lane_count
        )
        for topic in topics.values()
    ]
    wanted = tuple(lane for lane in lanes if lane[0] in shown)
    step = first_step({member_id: wanted}, members, whole)[member_id]
    return sorted((*step, *(lane for lane in lanes if lane[0] not in shown)))
