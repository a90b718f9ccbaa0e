"""Broker addresses in answers that are otherwise relayed: Produce, Fetch, ShareFetch and co.

Behaviour: an answer that names a partition's new leader has the leader's address beside it
(KIP-951). keylane's address replaces it; else clients would leave keylane, and see partitions in
the place of lanes. An answer without addresses stays unchanged. Among many nodes ids are those of
this node's pairs, also that of the replica that a client is to read from (KIP-392): the client
came here since the partition is placed here, with its replicas.
Not done: nothing.

Source: KIP-951, KIP-932, KIP-392; NodeEndpoints in the message schemas.
"""

from __future__ import annotations

from collections.abc import Sequence

from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers
from keylane.wire.endpoints import may_name_replica, rewrite_brokers
from keylane.wire.primitives import Buffer


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
