"""Answers that wait for a client, and the bytes that it takes."""

from __future__ import annotations

import asyncio
from typing import Final

from keylane.proxy.net.sockets import acknowledged_bytes

FLUSH_S: Final = 30.0
"""Time in which a closed client has to take its last answers; asyncio allows TLS the same."""


def flush(transport: asyncio.Transport, taken_bytes: int | None = None) -> None:
    """End a closed transport that sends what waits to a peer that takes nothing."""
    if not transport.get_write_buffer_size():
        return
    now_bytes = count_taken(transport)
    if now_bytes == taken_bytes:
        transport.abort()
    else:
        asyncio.get_running_loop().call_later(FLUSH_S, flush, transport, now_bytes)


def count_taken(transport: asyncio.Transport) -> int:
    """Return a number that grows as the client takes answers."""
    taken_bytes = acknowledged_bytes(transport)
    return -transport.get_write_buffer_size() if taken_bytes is None else taken_bytes


class Taking:
    """Progress of one client that has answers waiting."""

    def __init__(self) -> None:
        self._taken_bytes: int | None = None  # when the client was last seen to take some
        self._seen_s = 0.0  # that moment

    def forget(self) -> None:
        """Begin anew: nothing waits for the client."""
        self._taken_bytes = None

    def still_s(self, transport: asyncio.Transport, now_s: float) -> float:
        """Return the seconds for which it was seen to take nothing."""
        taken_bytes = count_taken(transport)
        if taken_bytes != self._taken_bytes:
            self._taken_bytes, self._seen_s = taken_bytes, now_s
        return now_s - self._seen_s
