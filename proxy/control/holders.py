"""Members that hold the lanes of a classic group, as its coordinator keeps them.

Of members that have joined at a broker's own address these are all lanes of their partitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from keylane.assignor.marks import read_shown
from keylane.assignor.model import Lane
from keylane.assignor.protocol import read_assignment
from keylane.errors import FrameInvalid
from keylane.proxy.groups.direct_members import are_lanes, expand
from keylane.proxy.groups.group_plans import LanesBefore, identity_of
from keylane.proxy.topics.registry import TopicRegistry
from keylane.proxy.topics.whole_topics import direct_of, known_topics

CONSUMER: Final = "consumer"


class GroupHolding(NamedTuple):
    """The lanes of a group."""

    owners: Mapping[Lane, str]
    """Member ids."""
    direct: frozenset[str] = frozenset()
    """Member ids of those that bypass keylane."""


def read_holding(described: Any, held: LanesBefore, registry: TopicRegistry) -> GroupHolding:
    """Return the member of each lane. held: the last lanes of members that this node knows."""
    if described.protocol_type != CONSUMER:
        return GroupHolding({})  # other protocols have no lanes
    physical = cache(registry.physical_name)
    shown = {
        str(one.member_id): read_shown(one.member_metadata, physical) for one in described.members
    }
    direct = direct_of(shown, registry)
    given = {str(one.member_id): _read_lanes(one) for one in described.members}
    topics = known_topics({name for one in shown.values() for name in one.names}, registry)
    # Lanes of members without a mark are of a version before it.
    if not direct or are_lanes((given[member_id] for member_id in direct), topics):
        return GroupHolding(
            {lane: member_id for member_id, lanes in given.items() for lane in lanes}
        )
    owners: dict[Lane, str] = {}
    for one in described.members:
        member_id = str(one.member_id)
        known = held.lanes.get(identity_of(member_id, one.group_instance_id))
        lanes = expand(given[member_id], topics) if known is None else known
        owners |= dict.fromkeys(lanes, member_id)
    return GroupHolding(owners, direct)


def _read_lanes(entry: Any) -> tuple[Lane, ...]:
    try:
        return read_assignment(bytes(entry.member_assignment)).lanes
    except FrameInvalid:
        return ()  # of a client with bytes that are not Kafka's: shown without lanes
