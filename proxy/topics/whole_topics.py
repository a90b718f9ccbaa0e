"""Topics with lanes as members of classic groups at brokers' own addresses see them.

Source: docs/decisions/047.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from keylane.assignor.marks import ShownMember
from keylane.proxy.groups.direct_members import WholeTopic, WholeTopics, find_direct
from keylane.proxy.topics.registry import TopicRegistry
from keylane.proxy.topics.view import View


def whole_topics(views: Iterable[View]) -> WholeTopics:
    """Return topics with lanes, by the broker's name."""
    return {
        view.topic: WholeTopic(
            view.topic, view.name, view.layout.partition_count, view.layout.lane_count
        )
        for view in views
    }


def known_topics(names: Iterable[str], registry: TopicRegistry) -> WholeTopics:
    """Return topics with lanes, as far as they are known here."""
    views = (registry.view(name) for name in sorted(names) if not registry.is_refused(name))
    return whole_topics(view for view in views if view is not None)


def direct_of(members: Mapping[str, ShownMember], registry: TopicRegistry) -> frozenset[str]:
    """Return the members that take partitions of topics with lanes."""
    if all(one.is_marked for one in members.values()):
        return frozenset()
    return find_direct(
        members, lambda name: registry.rule_of(name) is not None, cache(registry.physical_name)
    )
