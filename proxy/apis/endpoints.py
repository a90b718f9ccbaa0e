"""Broker addresses in answers that are otherwise relayed: Produce, Fetch, ShareFetch and co.

Behaviour: an answer that names a partition's new leader brings the leader's address along
(KIP-951); it is replaced by keylane's. An answer without addresses stays as it is.
Not done: nothing.

In:    a request and the frame of its answer.  Out: buffers to write.
Next:  `session` writes them.
Pure:  the outside world is the `Context` argument.
Source: KIP-951, KIP-932; NodeEndpoints in the message schemas.
"""

from __future__ import annotations

from keylane.proxy.apis.context import Context, Request
from keylane.proxy.connection import Buffers
from keylane.proxy.framing import Frame
from keylane.wire.endpoints import rewrite_endpoints


def with_own_endpoints(request: Request, answer: Frame, context: Context) -> Buffers:
    """The answer with keylane's addresses; the frame itself when it has none."""
    body = request.answer_body(answer)
    rewritten = rewrite_endpoints(request.api_key, request.api_version, body, context.address_of)
    return (answer,) if rewritten is None else request.answer(rewritten)
