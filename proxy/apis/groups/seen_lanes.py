"""Lanes of a stable group, by its coordinator: this process has not dealt them out.

It was started since, or its client has dealt them out: before an upgrade, or because the leader's
JoinGroup was not seen. The next plan leaves lanes at members that say nothing about them.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.assignor.protocol import read_assignment, split_names
from keylane.errors import FrameInvalid
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import CONSUMER, STABLE, GroupState
from keylane.proxy.groups.assignors import is_replaced
from keylane.proxy.groups.group_plans import Joined, JoinedMember, LanesBefore

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
    members, lanes = [], {}
    physical = cache(context.registry.physical_name)
    for one in found.members:
        metadata = bytes(one.member_metadata)
        _, shown = split_names(metadata, physical)
        member = JoinedMember(
            member_id=str(one.member_id),
            instance_id=one.group_instance_id,
            metadata=metadata if shown is None else shown,
        )
        members.append(member)
        try:
            assigned = read_assignment(bytes(one.member_assignment)).lanes
        except FrameInvalid:
            return None  # its client may be able to read it
        lanes[member.identity] = tuple(
            lane for lane in assigned if context.registry.rule_of(lane[0]) is not None
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
