"""Lanes of a stable group, by its coordinator: this process has not dealt them out.

It was started since, or its client has dealt them out: before an upgrade, or because the leader's
JoinGroup was not seen. The next plan leaves lanes at members that say nothing about them.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.assignor.marks import read_shown
from keylane.assignor.protocol import read_assignment
from keylane.errors import FrameInvalid
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import CONSUMER, STABLE, GroupState
from keylane.proxy.groups.assignors import is_replaced
from keylane.proxy.groups.direct_members import are_lanes, expand
from keylane.proxy.groups.group_plans import Joined, JoinedMember, LanesBefore
from keylane.proxy.topics.whole_topics import direct_of, known_topics

UNKNOWN_GENERATION: Final = 0
"""Coordinators do not describe it, and begin with 1."""


def note_lanes(
    group: str, generation_id: int, found: GroupState, context: Context
) -> tuple[Joined, LanesBefore] | None:
    """Remember members and lanes; None: there are none that keylane deals out."""
    rule = context.config.group_rule(group)
    if found.error_code != ErrorCode.none or found.state != STABLE:
        return None
    if found.protocol_type != CONSUMER or not is_replaced(found.protocol_name, rule):
        return None
    registry = context.registry
    physical = cache(registry.physical_name)
    shown = {str(one.member_id): read_shown(one.member_metadata, physical) for one in found.members}
    try:
        given = {
            str(one.member_id): read_assignment(bytes(one.member_assignment)).lanes
            for one in found.members
        }
    except FrameInvalid:
        return None  # its client may be able to read it
    names = {name for one in shown.values() for name in one.names}
    topics = known_topics(names, registry)
    direct = direct_of(shown, registry)
    if are_lanes((given[member_id] for member_id in direct), topics):
        direct = frozenset()  # they joined through a version without the mark
    members, lanes = [], {}
    for one in found.members:
        member_id = str(one.member_id)
        member = JoinedMember(
            member_id=member_id,
            instance_id=one.group_instance_id,
            metadata=shown[member_id].sent(one.member_metadata),
            is_direct=member_id in direct,
        )
        members.append(member)
        assigned = expand(given[member_id], topics) if member.is_direct else given[member_id]
        lanes[member.identity] = tuple(
            lane for lane in assigned if registry.rule_of(lane[0]) is not None
        )
    if not any(lanes.values()):
        return None
    joined = Joined(
        generation_id=generation_id,
        leader_id="",
        protocol_name=found.protocol_name,
        members=tuple(members),
    )
    held = LanesBefore(generation_id, lanes)
    context.generations.note_seen(group, joined, held)
    return joined, held
