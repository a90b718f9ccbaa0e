"""Members of a generation that keylane deals lanes out to, kept for the leader's SyncGroup."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from keylane.assignor.marks import ShownMember
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.groups.assignors import is_foreign, is_replaced
from keylane.proxy.groups.group_plans import Joined, JoinedMember
from keylane.wire.group_members import JoinAnswer

log = logging.getLogger("keylane.groups")


def note_planned(
    group: str,
    answer: JoinAnswer,
    shown: Mapping[str, ShownMember],
    refused: Collection[str],
    direct: Collection[str],
    context: Context,
) -> None:
    """Remember the members of a generation that keylane deals out lanes to.

    With direct members these are whole partitions, and no client could deal them out.
    """
    rule, protocol = context.config.group_rule(group), answer.protocol_name
    is_replacing = bool(direct) or is_replaced(protocol, rule)
    if not is_replacing or answer.leader != answer.member_id:
        context.generations.note_left_out(group)
        if is_foreign(protocol, rule) and context.generations.warn_once(group):
            log.info(
                "lanes left to the client's assignor: it is of no client library group=%s "
                "assignor=%s remedy=set `assignor: key-range` in a rule for lanes by load",
                group, protocol,
            )  # fmt: skip
        return
    members = tuple(
        JoinedMember(
            member_id=one.member_id,
            instance_id=one.instance_id,
            metadata=shown[one.member_id].sent(one.metadata.data),
            is_direct=one.member_id in direct,
        )
        for one in answer.members
        if one.member_id not in refused
    )
    context.generations.note_joined(
        group,
        Joined(
            generation_id=answer.generation_id,
            leader_id=answer.leader,
            protocol_name=str(protocol),
            members=members,
        ),
    )
