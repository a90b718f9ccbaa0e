"""FindCoordinator v0-6, DescribeCluster v0-2: brokers' addresses become keylane's.

Behaviour: every host and port that a client could connect to is replaced; librdkafka takes
the coordinator's address from here, so leaving one would let it go around keylane.
Controllers (DescribeCluster endpoint type 2) are not clients' business and stay.
Not done: nothing.

In:    requests and answers.  Out: the answer with addresses replaced.
Next:  `session` writes it.
Pure:  the outside world is the `Context` argument.
Source: KIP-699 (many coordinators), KIP-700, KIP-919 (endpoint types).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from keylane.proxy.apis.context import Context, Request
from keylane.proxy.connection import Buffers

ENDPOINT_CONTROLLER: Final = 2


async def handle_find_coordinator(request: Request, context: Context) -> Buffers:
    """Relay, then replace the coordinator's address."""
    pending = context.send((request.frame,))
    context.release()
    answer = request.decode_answer(await pending)
    if request.api_version >= 4:
        found = [entry for entry in answer.coordinators if entry.node_id >= 0]
        await context.learn_brokers(found)
        coordinators = tuple(_readdress(entry, context) for entry in answer.coordinators)
        return request.answer_entity(replace(answer, coordinators=coordinators))
    if answer.node_id >= 0:
        await context.learn_brokers((answer,))
    return request.answer_entity(_readdress(answer, context))


async def handle_describe_cluster(request: Request, context: Context) -> Buffers:
    """Relay, then replace the brokers' addresses."""
    wanted = request.decode()
    frame = await context.send((request.frame,))
    if getattr(wanted, "endpoint_type", 1) == ENDPOINT_CONTROLLER:
        return (frame,)
    answer = request.decode_answer(frame)
    await context.learn_brokers(answer.brokers)
    brokers = tuple(_readdress(entry, context, "broker_id") for entry in answer.brokers)
    return request.answer_entity(replace(answer, brokers=brokers))


def _readdress(entry: Any, context: Context, id_field: str = "node_id") -> Any:
    node_id = int(getattr(entry, id_field))
    if node_id < 0:
        return entry  # no coordinator: an error code, no address
    host, port = context.address_of(node_id)
    return replace(entry, host=host, port=type(entry.port)(port))
