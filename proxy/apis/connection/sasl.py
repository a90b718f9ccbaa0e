"""SaslHandshake v1, SaslAuthenticate v0-2: the client's own login, live at its own broker.

Behaviour: mechanisms, tokens and answers pass as bytes, also when a client logs in again before
its session ends (KIP-368). keylane keeps neither passwords nor tokens. Between a handshake and the
last token a broker accepts nothing else, so a handshake waits until keylane has answered the
client's earlier requests, and keylane sends no other request in between. If keylane logs in
itself, or has a certificate for the brokers, a client's first requests must be its login:
otherwise every client would have keylane's rights. The name in a token counts as the client's once
the broker has ended the login, and for bounds only (`login_watch`).
Not done: SaslHandshake v0: its tokens have no request header and would be read as frames. Every
client since 2018 has v1.

Source: KIP-43, KIP-152, KIP-368.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from keylane.errors import FrameInvalid
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.framing import Frame
from keylane.proxy.net.response_order import Buffers

ERROR_CODE: Final = struct.Struct(">h")
TOKEN_BYTES_MAX: Final = 512 * 1024
"""Kafka's `sasl.server.max.receive.size` default, also of a client that logs in again."""


async def handle_sasl_handshake(request: Request, context: Context) -> Buffers:
    """Relay a handshake once no request of keylane itself can come between it and the tokens.

    Nor one of the client's: no token of an earlier login can be taken for one of this.
    """
    await context.others_done()
    await context.caught_up()
    context.login.begin(request.decode().mechanism)
    return (await context.send((request.frame,)),)


def note_login(request: Request, frame: Frame, context: Context) -> Buffers:
    """Note whether the broker accepted a token, and whether that ended the login.

    A broker accepts tokens on a listener with SASL only, and there nothing else until the last one.
    """
    start = request.answer_position(frame)
    if len(frame) < start + ERROR_CODE.size:
        raise FrameInvalid("answer to SaslAuthenticate is too short")
    error_code = ERROR_CODE.unpack_from(frame, start)[0]
    if error_code != 0:
        context.login.answered(b"", error_code, b"")
        return (frame,)
    answer = request.decode_answer(frame)
    token = request.decode().auth_bytes if context.login.is_watching else b""
    step = context.login.answered(token, error_code, answer.auth_bytes, lifetime_ms_of(answer))
    context.note_login(is_over=step.is_over)
    if step.principal is not None:
        context.note_principal(step.principal)
    return (frame,)


def lifetime_ms_of(answer: Any) -> int:
    """Return the lifetime of the login in ms; 0: that of the connection, or not over."""
    lifetime = getattr(answer, "session_lifetime", None)  # from v1 on
    return 0 if lifetime is None else int(lifetime.total_seconds() * 1000)
