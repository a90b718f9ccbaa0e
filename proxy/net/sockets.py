"""Sockets of peers that may vanish: probed while silent, and their acknowledged bytes.

Source: RFC 1122 4.2.3.6 (keep-alives), RFC 5482 (user time-out), tcp(7).

A machine that loses its power or its network says nothing, and a peer that only waits never finds
out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import sys
from contextlib import suppress
from typing import Any, Final

log = logging.getLogger("keylane.sockets")

KEEPALIVE_IDLE_S: Final = 60
"""Silence before the first probe. Kafka's brokers leave it to the system: two hours on Linux."""
MACOS_IDLE: Final = "TCP_KEEPALIVE"
"""macOS's name of TCP_KEEPIDLE."""
KEEPALIVE_INTERVAL_S: Final = 15
KEEPALIVE_COUNT: Final = 4
"""Probes without an answer until the peer counts as gone: two minutes after its last word."""
UNACKNOWLEDGED_MS_MAX: Final = 120_000
"""The same for bytes that were sent, which Linux else repeats for 15 minutes (tcp_retries2)."""
CLOSE_WAIT: Final = bytes([8])
"""`tcpi_state` where the peer has sent its last byte, and we have not."""
ACKNOWLEDGED: Final = struct.Struct("=120xQ")
"""`tcpi_bytes_acked` of Linux's `struct tcp_info`."""


def keep_alive(transport: asyncio.BaseTransport, *, unacknowledged_ms_max: int = 0) -> None:
    """Have the system find out that a peer is gone, which ends the connection.

    unacknowledged_ms_max: time for which bytes may be unacknowledged; 0: the system's rule. It
    also ends the connection of a peer that lives and does not read, so it is not for clients.
    """
    connection = _socket_of(transport)
    if connection is None:
        return
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (
        ("TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else MACOS_IDLE, KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", unacknowledged_ms_max),
    ):
        option = getattr(socket, name, None)  # each of them is missing on some system
        if option is not None and value:
            options.append((socket.IPPROTO_TCP, option, value))
    with suppress(OSError):  # it was reset already, which the transport is about to report
        for level, option, value in options:
            connection.setsockopt(level, option, value)


def acknowledged_bytes(transport: asyncio.BaseTransport) -> int | None:
    """Return the bytes that the peer's system has taken so far; None: not known here.

    They count below TLS and the transport's own buffer, which see large pieces only.
    """
    connection = _socket_of(transport)
    if connection is None or sys.platform != "linux":  # others have other fields in TCP_INFO
        return None
    try:
        reported = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, ACKNOWLEDGED.size)
    except OSError as error:  # a sandbox that knows no TCP_INFO, or it was reset already
        log.debug("acknowledged bytes are not known reason=%s", error)
        return None
    return int(ACKNOWLEDGED.unpack(reported)[0]) if len(reported) == ACKNOWLEDGED.size else None


def has_left(transport: asyncio.BaseTransport | None) -> bool:
    """Return whether the peer has closed its side; False also where the system does not say.

    It is for a connection that is not read, whose end is else not seen.
    """
    connection = None if transport is None else _socket_of(transport)
    if connection is None or sys.platform != "linux":
        return False
    try:
        reported = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return True  # it was reset
    return bool(reported == CLOSE_WAIT)


def _socket_of(transport: asyncio.BaseTransport) -> Any:
    """Return the transport's TCP socket; None: it has none."""
    connection = transport.get_extra_info("socket")
    is_tcp = connection is not None and connection.family in {socket.AF_INET, socket.AF_INET6}
    return connection if is_tcp else None
