"""ListGroups v0-5, UnregisterBroker v0: groups and brokers among many nodes.

Behaviour: clients know pairs of node and broker. The id of a pair means its broker, and so does
the broker's own id. A group is listed by the node that serves it, once in all. The lone node
relays both as bytes.
Not done: transactions are listed once per node.

Source: protocol guide.
"""

from __future__ import annotations

from dataclasses import replace

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.relay import forward, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers


def is_alone(_request: Request, context: Context) -> bool:
    """Return whether ids mean the same to clients and brokers."""
    return context.placement.is_alone


async def handle_unregister_broker(request: Request, context: Context) -> Buffers:
    """Relay UnregisterBroker v0 with the broker's own id."""
    wanted = request.decode()
    broker_id = context.placement.real_id(int(wanted.broker_id))
    changed = replace(wanted, broker_id=type(wanted.broker_id)(broker_id))
    return await relay(request, context, changed)


async def handle_list_groups(request: Request, context: Context) -> Buffers:
    """Answer ListGroups v0-5: each group at one node, since clients ask every pair and add up."""
    answer = request.decode_answer(await forward(request, context))
    groups = tuple(entry for entry in answer.groups if context.placement.lists(entry.group_id))
    return request.answer_entity(replace(answer, groups=groups))
