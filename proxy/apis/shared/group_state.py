"""A group in the words of its coordinator, asked over the client's own connection.

Source: Kafka protocol guide, DescribeGroups. Its right, DESCRIBE on the group, comes with the right
to join it. A group of KIP-848 is Dead to it, as a group that does not exist; ConsumerGroupDescribe
knows the one from the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId

from keylane.errors import UpstreamLost
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.commits.group_survey import GONE

CONSUMER: Final = "consumer"
STABLE: Final = "Stable"


@dataclass(frozen=True, slots=True)
class GroupState:
    """The coordinator's answer."""

    error_code: ErrorCode
    state: str
    protocol_type: str
    protocol_name: str
    members: tuple[Any, ...]
    """kio entries; their metadata is there while the group is stable."""

    @property
    def has_members(self) -> bool:
        """Return whether the group is there and has members."""
        return self.error_code == ErrorCode.none and self.state not in GONE


async def has_brokers_members(group: str, context: Context) -> bool:
    """Return whether a group of KIP-848 has members; not for brokers that know no such groups.

    False also where the client may not know: then the answer to its JoinGroup shows it.
    """
    answer = await context.ask(
        ConsumerGroupDescribeRequest(
            group_ids=(GroupId(group),), include_authorized_operations=False
        )
    )
    return any(found.error_code == ErrorCode.none and found.members for found in answer.groups)


async def ask_group_state(group: str, context: Context) -> GroupState:
    """Ask the broker that the client is connected with."""
    answer = await context.ask(
        DescribeGroupsRequest(groups=(GroupId(group),), include_authorized_operations=False)
    )
    if len(answer.groups) != 1:
        raise UpstreamLost(f"DescribeGroups has {len(answer.groups)} groups, 1 was asked")
    found = answer.groups[0]
    return GroupState(
        error_code=found.error_code,
        state=str(found.group_state),
        protocol_type=str(found.protocol_type),
        protocol_name=str(found.protocol_data),
        members=tuple(found.members),
    )
