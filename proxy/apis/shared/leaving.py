"""A member that keylane has refused leaves its group, so that others do not wait for it."""

from __future__ import annotations

import logging

from kio.schema.leave_group.v4.request import LeaveGroupRequest, MemberIdentity
from kio.schema.types import GroupId

from keylane.errors import KeylaneError
from keylane.proxy.apis.shared.context import Context

log = logging.getLogger("keylane.groups")


async def leave_group(
    group: str, member_id: str, instance_id: str | None, context: Context
) -> None:
    """Ask the broker to drop a member, over the client's connection."""
    member = MemberIdentity(member_id=member_id, group_instance_id=instance_id)
    try:
        await context.ask(LeaveGroupRequest(group_id=GroupId(group), members=(member,)))
    except KeylaneError as error:
        # The broker drops the member at its session time-out.
        log.info("member did not leave: its session times out group=%s reason=%s", group, error)
