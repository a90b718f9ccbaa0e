"""Refusals of the nodes' own group at keylane's listeners: no client is a member of it.

Behaviour: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, TxnOffsetCommit,
AddOffsetsToTxn, OffsetDelete, DeleteGroups, and the heartbeats and offset changes of the newer
kinds of groups are answered GROUP_AUTHORIZATION_FAILED for `__keylane_nodes`, without a question
to the broker. The broker answers calls that only describe groups.
Not done: the same at the brokers' own listeners, which takes an ACL (docs/security.md).

Source: Kafka message schemas; KIP-848, KIP-932, KIP-1071.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.errors import FrameInvalid
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.refusals import refusal
from keylane.proxy.apis.shared.relay import Handler, Look
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.node_values import GROUP
from keylane.wire.header import ApiKey
from keylane.wire.primitives import Reader

SHORT_NAME: Final = len(GROUP).to_bytes(2, "big") + GROUP.encode()
COMPACT_NAME: Final = bytes([len(GROUP) + 1]) + GROUP.encode()
LONG_SIZE: Final = 0x80
"""First byte of a size that has several bytes: names of less than 127 may have them, too."""
FLEXIBLE_FROM: Final[Mapping[int, int]] = {
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.JOIN_GROUP: 6,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.ADD_OFFSETS_TO_TXN: 3,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.OFFSET_DELETE: 1,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
    ApiKey.SHARE_GROUP_HEARTBEAT: 0,
    ApiKey.STREAMS_GROUP_HEARTBEAT: 0,
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: 0,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: 0,
}
"""By API that names one group: the first version with compact strings."""
BEHIND_TRANSACTION: Final = frozenset({ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT})
"""APIs that name a transactional id before the group."""
PRODUCER_BYTES: Final = 10
"""Bytes of the producer id and epoch between the two names."""


def names_own_group(request: Request) -> bool:
    """Return whether a request of one of these APIs is about the nodes' group; cheap if not."""
    header, frame = request.header, request.frame
    is_flexible = header.api_version >= FLEXIBLE_FROM[header.api_key]
    start = request.body_position
    if header.api_key not in BEHIND_TRANSACTION:
        if not is_flexible:
            return frame[start : start + len(SHORT_NAME)] == SHORT_NAME
        if len(frame) > start and frame[start] < LONG_SIZE:
            return frame[start : start + len(COMPACT_NAME)] == COMPACT_NAME
    try:
        return _read_group(request, is_flexible=is_flexible) == GROUP
    except FrameInvalid:
        return False  # the broker refuses it


def _read_group(request: Request, *, is_flexible: bool) -> str:
    reader = Reader(request.body, flexible=is_flexible)
    if request.api_key in BEHIND_TRANSACTION:
        reader.string()
        if request.api_key == ApiKey.ADD_OFFSETS_TO_TXN:
            reader.advance(PRODUCER_BYTES)
    return reader.string()


def but_own_group(handler: Handler | None, look: Look | None) -> Look:
    """Return a look that refuses the nodes' group, and treats all others as `Route` does."""

    def looked(request: Request, context: Context) -> Handler | None:
        if names_own_group(request):
            return _refuse
        return handler if look is None else look(request, context)

    return looked


async def _refuse(request: Request, _context: Context) -> Buffers:
    return request.answer_entity(refusal(request, ErrorCode.group_authorization_failed))
