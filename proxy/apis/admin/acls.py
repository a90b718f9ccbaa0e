"""CreateAcls v1-3: rights stand under a topic's own name.

Behaviour: brokers know no lane names, and clients read and commit lanes with the rights to their
topic. So a rule for a lane name would allow or deny nothing: it is refused with INVALID_REQUEST
and a message. Other rules, and requests that describe or delete rules, pass unchanged.
Not done: nothing.

Source: KIP-11, KIP-290 (patterns).
"""

from __future__ import annotations

from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.own_names import TOPIC_RESOURCE
from keylane.proxy.apis.shared.refusals import pass_rest, refused_entry
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers

LITERAL: Final = 3
"""A pattern type; a prefix is of names that brokers know, whatever else it matches."""


async def handle_create_acls(request: Request, context: Context) -> Buffers:
    """Refuse rules for lane names, pass the rest; results go by their place."""
    wanted = request.decode()
    refused: dict[int, Any] = {}
    for position, entry in enumerate(wanted.creations):
        if _is_lane_name(entry, context):
            topic = context.registry.physical_name(entry.resource_name)
            reason = (
                f"keylane: {entry.resource_name} means lanes of the topic {topic}, "
                f"and has the rights of it; name {topic} itself"
            )
            code = ErrorCode.invalid_request
            refused[position] = refused_entry(request, entry, code, reason)
    # The broker refuses a client that may not set rules, also when nothing is left to ask.
    return await pass_rest(request, wanted.creations, refused, context, is_judged_whole=True)


def _is_lane_name(entry: Any, context: Context) -> bool:
    if int(entry.resource_type) != TOPIC_RESOURCE or int(entry.resource_pattern_type) != LITERAL:
        return False
    name = str(entry.resource_name)
    return context.registry.physical_name(name) != name
