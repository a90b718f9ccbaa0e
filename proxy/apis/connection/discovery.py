"""FindCoordinator v0-6, DescribeCluster v0-2, UnregisterBroker v0: brokers at keylane's addresses.

Behaviour: every host and port that a client could connect to is replaced. librdkafka takes the
coordinator's address from here, so a remaining one would lead it around keylane. Controllers
(DescribeCluster endpoint type 2) are no targets of clients and stay.
Among many nodes a group's coordinator is the broker at the node that serves the group's offsets.
If no node does, the answer is COORDINATOR_NOT_AVAILABLE, upon which clients ask again. A share
group's partition goes with its group; a transaction's coordinator is the broker at this node.
Not done: nothing.

Source: KIP-699 (many coordinators), KIP-700, KIP-919 (endpoint types), KIP-932 (share keys).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.places import show_brokers
from keylane.proxy.apis.shared.relay import forward, relay
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.response_order import Buffers

ENDPOINT_CONTROLLER: Final = 2
GROUP: Final = 0
SHARE: Final = 2
MANY_KEYS_VERSION: Final = 4


async def handle_find_coordinator(request: Request, context: Context) -> Buffers:
    """Relay, then answer with keylane's address of the coordinator."""
    wanted = None if context.placement.is_alone else request.decode()
    answer = request.decode_answer(await forward(request, context))
    if request.api_version >= MANY_KEYS_VERSION:
        found = [entry for entry in answer.coordinators if entry.node_id >= 0]
        await context.learn_brokers(found)
        coordinators = tuple(
            _readdress(entry, _group_of(wanted, entry.key), context)
            for entry in answer.coordinators
        )
        return request.answer_entity(replace(answer, coordinators=coordinators))
    if answer.node_id >= 0:
        await context.learn_brokers((answer,))
    group = None if wanted is None else _group_of(wanted, wanted.key)
    return request.answer_entity(_readdress(answer, group, context))


async def handle_describe_cluster(request: Request, context: Context) -> Buffers:
    """Relay, then replace the brokers' addresses."""
    wanted = request.decode()
    frame = await context.send((request.frame,))
    if getattr(wanted, "endpoint_type", 1) == ENDPOINT_CONTROLLER:
        return (frame,)
    answer = request.decode_answer(frame)
    await context.learn_brokers(answer.brokers)
    controller_id = context.placement.home_id(int(answer.controller_id))
    return request.answer_entity(
        replace(
            answer,
            brokers=show_brokers(answer.brokers, context, "broker_id"),
            controller_id=type(answer.controller_id)(controller_id),
        )
    )


async def handle_unregister_broker(request: Request, context: Context) -> Buffers:
    """Relay with the broker's own id; called among many nodes, where clients know other ids."""
    wanted = request.decode()
    broker_id = context.placement.real_id(int(wanted.broker_id))
    changed = replace(wanted, broker_id=type(wanted.broker_id)(broker_id))
    return await relay(request, context, changed)


def _group_of(wanted: Any, key: str) -> str | None:
    """Return the group whose coordinator is asked for; None for other keys and the lone node."""
    key_type = GROUP if wanted is None else int(getattr(wanted, "key_type", GROUP))
    if wanted is None or key_type not in (GROUP, SHARE):
        return None
    # A share group's key is `group:topic id:partition`; a group's name may have colons, too.
    return key.rsplit(":", 2)[0] if key_type == SHARE else key


def _readdress(entry: Any, group: str | None, context: Context) -> Any:
    broker_id = int(entry.node_id)
    if broker_id < 0:
        return entry  # no coordinator: an error code, no address
    own = context.address_of(broker_id)
    placed: tuple[int, tuple[str, int]] | None = None
    if own is not None:
        placed = context.placement.home_place(broker_id, own)
    if group is not None:
        placed = context.placement.coordinator(group, broker_id, own)
    if placed is None:
        return _unavailable(entry)
    virtual_id, (host, port) = placed
    node_id = type(entry.node_id)(virtual_id)
    return replace(entry, node_id=node_id, host=host, port=type(entry.port)(port))


def _unavailable(entry: Any) -> Any:
    changes: dict[str, Any] = {"error_message": None} if hasattr(entry, "error_message") else {}
    return replace(
        entry,
        node_id=type(entry.node_id)(-1),
        host="",
        port=type(entry.port)(-1),
        error_code=ErrorCode.coordinator_not_available,
        **changes,
    )
