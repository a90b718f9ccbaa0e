"""Brokers and partitions by the ids and addresses that clients know, and their ids mapped back.

Behaviour: each pair of a node and a broker is a broker to clients; a partition's leader and
replicas are those of the node that it is placed on, and so are its lanes'. Ids that clients send
name the broker, whichever node they are of. The lone node shows everything as brokers do.
An answer that names a partition's new leader has the leader's address beside it (KIP-951), and so
has a share fetch; keylane's stands in its place, else clients would leave keylane and see
partitions in the place of lanes. The replica that a client is to read from (KIP-392) is one of
this node's pairs: the client came here since the partition is placed here, with its replicas. A
Java consumer that does not know the id goes back to the leader, which names the replica again.

Source: KIP-966 (eligible leader replicas), KIP-951, KIP-932, KIP-392.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.wire.endpoints import may_name_replica, rewrite_brokers
from keylane.wire.primitives import Buffer

REPLICA_FIELDS: Final = (
    "replica_nodes",
    "isr_nodes",
    "offline_replicas",
    "eligible_leader_replicas",
    "last_known_elr",
    "replicas",
    "adding_replicas",
    "removing_replicas",
)
"""Fields with ids, of partitions in any answer; each answer and version has some of them."""
BROKER_RESOURCES: Final = (4, 8)
"""BROKER and BROKER_LOGGER; admin clients ask the very broker that is named."""
ID_DIGITS_MAX: Final = 10


def show_brokers(
    entries: Iterable[Any], context: Context, id_field: str = "node_id"
) -> tuple[Any, ...]:
    """Return kio broker entries with keylane's addresses: one per node that has the broker.

    A broker that clients reach through no node is left out.
    """
    shown = []
    for entry in entries:
        broker_id = int(getattr(entry, id_field))
        own = context.address_of(broker_id)
        for virtual_id, (host, port) in context.placement.endpoints(broker_id, own):
            changes: dict[str, Any] = {id_field: type(getattr(entry, id_field))(virtual_id)}
            shown.append(replace(entry, host=host, port=type(entry.port)(port), **changes))
    return tuple(shown)


def are_reached(brokers: Iterable[Any], context: Context) -> bool:
    """Return whether clients reach all kio broker entries of an answer through this node."""
    return all(context.address_of(int(broker.node_id)) is not None for broker in brokers)


def hide_unlistened(topic: Any, context: Context) -> Any:
    """Return a placed kio topic entry of Metadata without leaders that clients cannot reach.

    Brokers show a leader without a listener of the client's kind in the same way
    (KRaftMetadataCache): no leader, and an error on which every client tries again later.
    """
    partitions = tuple(
        entry if _is_reached(int(entry.leader_id), context) else without_leader(entry)
        for entry in topic.partitions
    )
    return replace(topic, partitions=partitions)


def without_leader(entry: Any) -> Any:
    """Return a kio partition entry of Metadata whose leader cannot be reached."""
    leader_id = type(entry.leader_id)(-1)
    return replace(entry, leader_id=leader_id, error_code=ErrorCode.leader_not_available)


def _is_reached(virtual_id: int, context: Context) -> bool:
    number, broker_id = context.placement.split_id(virtual_id)
    if broker_id < 0:
        return True  # it has no leader
    own = context.address_of(broker_id)
    return context.placement.reaches(number, broker_id, own)


def place_topic(topic: Any, context: Context) -> Any:
    """Return a kio topic entry whose partitions are each at the node that they are placed on.

    The entry has the broker's partitions and name of the topic: lanes are made of it later.
    """
    if context.placement.is_alone or not topic.partitions:
        return topic
    count = max(int(entry.partition_index) for entry in topic.partitions) + 1
    count = max(count, context.registry.count_of(topic.name))
    partitions = tuple(
        place_partition(entry, topic.name, count, context) for entry in topic.partitions
    )
    return replace(topic, partitions=partitions)


def real_name(resource: Any, context: Context) -> str:
    """Return the brokers' name of a kio config resource: a broker, or its loggers."""
    name = str(resource.resource_name)
    if context.placement.is_alone or int(resource.resource_type) not in BROKER_RESOURCES:
        return name
    # More digits than those of an int32 are no broker's id; the broker refuses them.
    is_id = name.isascii() and name.isdecimal() and len(name) <= ID_DIGITS_MAX
    return str(context.placement.real_id(int(name))) if is_id else name


def real_ids(virtual_ids: Iterable[Any], context: Context) -> tuple[Any, ...]:
    """Return the brokers' own ids for ids that a client sent."""
    return tuple(type(one)(context.placement.real_id(int(one))) for one in virtual_ids)


def place_partition(entry: Any, topic: str, partition_count: int, context: Context) -> Any:
    """Return a kio partition entry with the virtual ids of the node that it is placed on."""
    leader_id = int(getattr(entry, "leader_id", -1))
    placement = context.placement
    number = placement.node_of_partition(
        topic, int(entry.partition_index), partition_count, leader_id
    )
    changes: dict[str, Any] = {}
    if hasattr(entry, "leader_id"):
        changes["leader_id"] = type(entry.leader_id)(placement.virtual_id(number, leader_id))
    for name in REPLICA_FIELDS:
        replicas = getattr(entry, name, None)
        if replicas:
            changes[name] = tuple(type(r)(placement.virtual_id(number, int(r))) for r in replicas)
    return replace(entry, **changes)


def with_own_endpoints(request: Request, answer: Frame, context: Context) -> Buffers:
    """Return the answer with keylane's addresses; the frame itself when it has none."""
    rewritten = show_endpoints(request, request.answer_body(answer), context)
    return (answer,) if rewritten is None else request.answer(rewritten)


def show_endpoints(request: Request, body: Buffer, context: Context) -> Sequence[Buffer] | None:
    """Return the body of an answer with keylane's addresses; None when it names no broker."""
    api_key, api_version, placement = request.api_key, request.api_version, context.placement
    names_replica = not placement.is_alone and may_name_replica(api_key, api_version, request.body)
    return rewrite_brokers(
        api_key,
        api_version,
        body,
        address_of=context.address_of,
        id_of=placement.own_id,
        names_replica=names_replica,
    )
