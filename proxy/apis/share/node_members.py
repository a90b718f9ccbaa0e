"""Share sessions of groups without an order, at each of many nodes.

A broker has one share session per group and member id. A member opens one at each node, since a
broker is another one to clients at each node. So a node of many sends another member id with a
session's requests: the member's and its own number. Brokers hand records out to member ids that are
no members, too, and locks are those of the session that acquired them. Heartbeats keep the id.

Source: KIP-932, "Share sessions"; `SharePartitionManager.newContext` of Apache Kafka 4.3.
"""

from __future__ import annotations

import hashlib
from typing import Final

from keylane.proxy.apis.share.plain_acks import note_plain_acks
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.places import with_own_endpoints
from keylane.proxy.apis.shared.relay import forward
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers
from keylane.share.sessions import MEMBER_ID_LENGTH_MAX
from keylane.wire.primitives import Reader, Writer

DIGEST_BYTES: Final = 16
"""In hexadecimal and with a node's number, an id is as long as it may be."""


async def handle_share_session(request: Request, context: Context) -> Buffers:
    """Pass a request of a share session with the member id of this node's sessions."""
    number = context.placement.number
    assert number is not None, "the lone node relays"
    note_plain_acks(request, context)
    body = with_node_member(request.body, number)
    answer = await forward(request, context, frame=request.with_body(body))
    return with_own_endpoints(request, answer, context)


def with_node_member(body: memoryview, number: int) -> bytes:
    """Return the body of a ShareFetch or ShareAcknowledge with the member id at a node.

    An id that brokers refuse stays. Raises: FrameInvalid.
    """
    reader = Reader(body, flexible=True)
    reader.nullable_string()  # the group
    start = reader.position
    member_id = reader.nullable_string()
    writer = Writer(flexible=True)
    writer.raw(body[:start])
    writer.string(node_member_id(member_id, number) if member_id else member_id)
    writer.raw(body[reader.position :])
    return writer.to_bytes()


def node_member_id(member_id: str, number: int | None) -> str:
    """Return the id by which a member's share sessions at a node are known to brokers.

    number: None at the lone node.
    """
    if number is None or len(member_id) > MEMBER_ID_LENGTH_MAX:
        return member_id
    own = f"{member_id}.{number}"
    if len(own) <= MEMBER_ID_LENGTH_MAX:
        return own
    return f"{hashlib.blake2b(member_id.encode(), digest_size=DIGEST_BYTES).hexdigest()}.{number}"
