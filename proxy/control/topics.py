"""Topics with lanes, and the place of a key: its partition, its lane, and the member that reads it.

Source: docs/decisions/044; Kafka's `BuiltInPartitioner.partitionForKey` for the partition of a key.
A key is the content of a record: it is in no log line and in no error.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from keylane.errors import ConfigInvalid
from keylane.keyrange.hash import HashName, positive_murmur2
from keylane.proxy.control.api.assignments import ClusterTopics
from keylane.proxy.control.api.problems import Problem
from keylane.proxy.control.describe import Holders, MisplacedReport, misplaced_of
from keylane.proxy.control.lane_reports import Misplaced
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.topics.registry import TopicRegistry
from keylane.proxy.topics.view import View

GROUPS_ASKED_MAX: Final = 100
"""Groups that are asked for one key: each is a request to its coordinator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """A topic that has lanes under its own name."""

    topic: str
    partition_count: int
    lane_count: int
    """Lanes of each partition."""
    hash: HashName
    misplaced: tuple[MisplacedReport, ...]
    """Met by readers of this node since its start; of topics by murmur2 only."""
    bytes_per_s: float | None = None
    """Flow into its lanes, as readers of this node have met it; None: it was not read here."""
    records_per_s: float | None = None
    group_count: int = 0
    """Groups with offsets of its lanes at this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsReport:
    """All of them that this node knows."""

    topics: tuple[TopicReport, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGroup:
    """A group that reads the topic in lanes, and its member that holds the key's lane now."""

    group: str
    topic: str
    """The name by which the group reads the topic."""
    lane_index: int
    member_id: str | None
    """None: no member holds the lane at this moment, such as in a rebalance."""
    client_id: str | None
    host: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyReport:
    """The place of a key."""

    topic: str
    partition_count: int
    hash: HashName
    """The hash whose points are cut into lanes."""
    point: str
    """The point of the key in the hash space, in decimal digits."""
    partition: int
    """The partition that Kafka's default partitioner has for the key; others may differ."""
    partitioner: str
    partitioner_hash: int
    """The hash whose remainder is `partition`."""
    lane: int | None
    """The lane inside the partition; None: the topic has no lanes there."""
    lane_index: int | None
    """The partition number that clients see."""
    groups: tuple[KeyGroup, ...]
    groups_left_out: int
    """Groups that were not asked, as there are too many."""


class TopicDescriber:
    """Topics as this node's rules have them. Use: `topics` and `place_of`."""

    def __init__(
        self,
        registry: TopicRegistry,
        topics: ClusterTopics,
        *,
        misplaced: Misplaced,
        groups: Callable[[uuid.UUID], Mapping[str, bool]],
        group_counts: Callable[[], Mapping[uuid.UUID, int]],
        loads: LaneLoads,
        ask: Callable[[str], Awaitable[Holders]],
    ) -> None:
        """`groups` gives groups that may read lanes of a topic, as far as this node knows.

        True: the group has offsets there, so it is shown even if no member holds a lane.
        group_counts: gives the number of these, by topic; one without them may be left out.
        ask: returns what members of a group hold. Raises: UpstreamLost.
        """
        self._registry, self._topics, self._ask = registry, topics, ask
        self._misplaced, self._loads = misplaced, loads
        self._groups, self._group_counts = groups, group_counts

    def topics(self) -> TopicsReport:
        """Return the topics that have lanes under their own names."""
        registry = self._registry
        names = sorted(name for name in registry.lane_topics() if not registry.is_refused(name))
        views = (registry.view(name) for name in names)
        counts = self._group_counts()
        return TopicsReport(
            topics=tuple(
                self._topic(view, counts.get(view.topic_id, 0))
                for view in views
                if view is not None
            )
        )

    async def place_of(self, topic: str, key: bytes) -> KeyReport | None:
        """Return the place of a key; None: there is no such topic.

        topic: its own name or a lane name. Raises: UpstreamLost; Problem, the name is refused.
        """
        registry = self._registry
        physical = registry.physical_name(topic)
        count = await self._topics.partition_count(physical, at_least=1)
        if count is None:
            return None
        try:
            view = registry.view(topic)
        except ConfigInvalid as error:
            raise Problem(HTTPStatus.CONFLICT, str(error), field="topic") from None
        positive = positive_murmur2(key)
        partition = positive % count
        key_hash = registry.key_hash_of(physical)
        topic_id = registry.id_of_name(physical)
        groups = self._groups(topic_id) if topic_id is not None and view is not None else {}
        found = [
            entry
            for group in list(groups)[:GROUPS_ASKED_MAX]
            async for entry in self._in_group(group, view, partition, key)
            if entry.member_id is not None or groups[group]
        ]
        return KeyReport(
            topic=topic,
            partition_count=count,
            hash=key_hash.name,
            point=str(key_hash.point(key)),
            partition=partition,
            partitioner="default",
            partitioner_hash=positive,
            lane=_lane_of(view, partition, key),
            lane_index=_index_of(view, partition, key),
            groups=tuple(found),
            groups_left_out=max(0, len(groups) - GROUPS_ASKED_MAX),
        )

    async def _in_group(
        self, group: str, asked: View | None, partition: int, key: bytes
    ) -> AsyncIterator[KeyGroup]:
        """Yield the key's lane at a group under each name by which it reads the topic."""
        owners, described = await self._ask(group)
        members = {str(member.member_id): member for member in described}
        for view in self._views_of(asked, {topic for topic, _ in owners}):
            index = _index_of(view, partition, key)
            if index is None:
                continue
            member_id = owners.get((view.name, index))
            member = members.get(member_id or "")
            yield KeyGroup(
                group=group,
                topic=view.name,
                lane_index=index,
                member_id=member_id,
                client_id=None if member is None else str(member.client_id),
                host=None if member is None else str(member.client_host),
            )

    def _views_of(self, asked: View | None, names: set[str]) -> Iterator[View]:
        """Yield views of the topic under the group's names; without one the view that is asked."""
        registry = self._registry
        if asked is None:
            return
        mine = sorted(n for n in names if registry.physical_name(n) == asked.topic)
        views = [registry.view(name) for name in mine if not registry.is_refused(name)]
        yield from [view for view in views if view is not None] or [asked]

    def _topic(self, view: View, group_count: int) -> TopicReport:
        return TopicReport(
            topic=view.topic,
            partition_count=view.layout.partition_count,
            lane_count=view.layout.lane_count,
            hash=view.layout.hash,
            misplaced=misplaced_of(view, self._misplaced),
            bytes_per_s=_sum(self._loads.bytes_per_s(view)),
            records_per_s=_sum(self._loads.records_per_s(view)),
            group_count=group_count,
        )


def _lane_of(view: View | None, partition: int, key: bytes) -> int | None:
    if view is None or view.lanes is None or partition >= view.lanes.partition_count:
        return None
    split = view.lanes.key_split(partition)
    return split.output_at(split.key_hash.point(key))


def _index_of(view: View | None, partition: int, key: bytes) -> int | None:
    lane = _lane_of(view, partition, key)
    return None if lane is None or view is None else view.layout.lane_index(partition, lane)


def _sum(rates: Mapping[int, float]) -> float | None:
    return round(sum(rates.values()), 1) if rates else None
