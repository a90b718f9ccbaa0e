"""Groups of the newer kinds that have the name of the nodes' group: asked for, and emptied.

Source: KIP-848 (consumer), KIP-932 (share), KIP-1071 (streams): a heartbeat with the epoch -1
leaves, whatever client sends it.
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.consumer_group_describe.v0.request import ConsumerGroupDescribeRequest
from kio.schema.consumer_group_heartbeat.v0.request import ConsumerGroupHeartbeatRequest
from kio.schema.share_group_describe.v1.request import ShareGroupDescribeRequest
from kio.schema.share_group_heartbeat.v1.request import ShareGroupHeartbeatRequest
from kio.schema.streams_group_describe.v0.request import StreamsGroupDescribeRequest
from kio.schema.streams_group_heartbeat.v0.request import StreamsGroupHeartbeatRequest
from kio.schema.types import GroupId
from kio.static.primitive import i32

LEAVES: Final = i32(-1)
KINDS: Final[tuple[tuple[Any, Any], ...]] = (
    (ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatRequest),
    (ShareGroupDescribeRequest, ShareGroupHeartbeatRequest),
    (StreamsGroupDescribeRequest, StreamsGroupHeartbeatRequest),
)
"""Requests that list the members of a kind, and that end one."""
STREAMS_LISTS: Final = (
    "active_tasks", "standby_tasks", "warmup_tasks", "client_tags", "task_offsets",
    "task_end_offsets",
)  # fmt: skip


def question(describe: Any, group: str) -> Any:
    """Return the request that lists the members."""
    return describe(group_ids=(GroupId(group),), include_authorized_operations=False)


def leaving(heartbeat: Any, group: str, member_id: str) -> Any:
    """The last heartbeat of a member."""
    needed: dict[str, Any] = {}
    if heartbeat is ConsumerGroupHeartbeatRequest:
        needed = {"topic_partitions": None}
    elif heartbeat is StreamsGroupHeartbeatRequest:
        needed = {"endpoint_information_epoch": i32(0), **dict.fromkeys(STREAMS_LISTS)}
    return heartbeat(group_id=GroupId(group), member_id=member_id, member_epoch=LEAVES, **needed)
