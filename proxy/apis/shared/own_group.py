"""The nodes' own group, which no client has to do with: refused at keylane's listeners.

Behaviour: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, OffsetCommit, TxnOffsetCommit,
AddOffsetsToTxn, OffsetDelete, DeleteGroups, and the heartbeats and offset changes of the newer
kinds of groups are answered GROUP_AUTHORIZATION_FAILED for `__keylane_nodes`, and the broker is
not asked. Calls that only describe groups are the broker's matter.
Not done: the same at the brokers' own listeners, which takes an ACL (docs/security.md).

In:    requests.  Out: the same handlers as before, or the refusal.
Source: Kafka message schemas; KIP-848, KIP-932, KIP-1071.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final

from kio.index import load_payload_module, load_request_schema
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType
from kio.static.primitive import i32, i32Timedelta

from keylane.errors import FrameInvalid
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.refusals import REFUSALS, refusal
from keylane.proxy.apis.shared.relay import Handler, Look
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.topics.node_values import GROUP
from keylane.wire.primitives import Reader

REFUSED: Final = ErrorCode.group_authorization_failed
SHORT_NAME: Final = len(GROUP).to_bytes(2, "big") + GROUP.encode()
COMPACT_NAME: Final = bytes([len(GROUP) + 1]) + GROUP.encode()
LONG_SIZE: Final = 0x80
"""From here on a size has several bytes, which no name of less than 127 needs, but may have."""
FLEXIBLE_FROM: Final[Mapping[int, int]] = {
    8: 8, 11: 6, 12: 4, 13: 4, 14: 4, 25: 3, 28: 3, 47: 1, 68: 0, 76: 0, 88: 0, 91: 0, 92: 0,
}  # fmt: skip
"""By API that names one group: the first version with compact strings."""
BEHIND_TRANSACTION: Final = frozenset({25, 28})
"""The group does not stand first: AddOffsetsToTxn, TxnOffsetCommit."""
ADD_OFFSETS_TO_TXN: Final = 25
PRODUCER_BYTES: Final = 10
"""Producer id and epoch, which stand between."""
ZERO: Final = i32Timedelta.parse(timedelta(0))
EMPTY: Final[Mapping[str, Any]] = {
    "throttle_time": ZERO, "error_message": None, "member_epoch": i32(0),
    "heartbeat_interval": ZERO, "assignment": None, "acceptable_recovery_lag": i32(0),
    "task_offset_interval": ZERO, "status": None, "active_tasks": None, "standby_tasks": None,
    "warmup_tasks": None, "endpoint_information_epoch": i32(0),
    "partitions_by_user_endpoint": None, "responses": (), "members": (), "member_id": "",
}  # fmt: skip
"""What an answer says beside its error."""


def names_own_group(request: Request) -> bool:
    """Whether a request of one of these APIs is about the nodes' group; cheap for all others."""
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
        return False  # the broker says so


def _read_group(request: Request, *, is_flexible: bool) -> str:
    reader = Reader(request.body, flexible=is_flexible)
    if request.api_key in BEHIND_TRANSACTION:
        reader.string()
        if request.api_key == ADD_OFFSETS_TO_TXN:
            reader.advance(PRODUCER_BYTES)
    return reader.string()


def but_own_group(handler: Handler | None, look: Look | None) -> Look:
    """A look that has the nodes' group refused, and all others treated as `Route` says it."""

    def looked(request: Request, context: Context) -> Handler | None:
        if names_own_group(request):
            return _refuse
        return handler if look is None else look(request, context)

    return looked


async def _refuse(request: Request, _context: Context) -> Buffers:
    return request.answer_entity(refuse_own_group(request))


def refuse_own_group(request: Request) -> Any:
    """The whole request refused, as a kio entity."""
    if request.api_key in REFUSALS:
        return refusal(request, REFUSED)
    schema = load_request_schema(request.api_key, request.api_version)
    module: Any = load_payload_module(request.api_key, request.api_version, EntityType.response)
    response = getattr(module, schema.__name__.removesuffix("Request") + "Response")
    values = {field.name: EMPTY[field.name] for field in fields(response) if field.name in EMPTY}
    return response(error_code=REFUSED, **values)
