"""DescribeGroups v0-6: members by the names that they have joined with.

Behaviour: topics that keylane adds to the subscriptions of members of lanes are taken out of the
answer; without any it passes as bytes.
Not done: ConsumerGroupDescribe, whose groups have no lanes.

Source: docs/decisions/024.
"""

from __future__ import annotations

from keylane.assignor.subscribed_names import take_hidden_names
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.group_state import CONSUMER
from keylane.proxy.apis.shared.request import SIZE, Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.wire.group_members import (
    DESCRIBE_FLEXIBLE_VERSION,
    read_described_groups,
    replace_bytes,
    splice,
)


def without_hidden_names(request: Request, frame: Frame, context: Context) -> Buffers:
    """Return the answer as clients see it. Raises: FrameInvalid."""
    flexible = request.api_version >= DESCRIBE_FLEXIBLE_VERSION
    body = request.answer_body(frame)
    physical_name = context.registry.physical_name
    edits = []
    for group in read_described_groups(body, request.api_version):
        for member in group.members if group.protocol_type == CONSUMER else ():
            taken = take_hidden_names(member.metadata.data, physical_name)
            if taken is not None:
                edits.append(replace_bytes(member.metadata, taken, flexible=flexible))
    if not edits:
        return (frame,)
    changed = splice(body, edits)
    head = memoryview(frame)[SIZE.size : request.answer_position(frame)]
    return (SIZE.pack(len(head) + len(changed)), head.tobytes(), changed)
