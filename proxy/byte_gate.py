"""Bounds the bytes that are being worked on at once; whoever came first goes first.

In:    how many bytes a piece of work holds.  Out: a ticket, once they are free.
Next:  `reader` enters before it has answers and records in memory.
Shell: asyncio.
Source: REQUIREMENTS S004-46 (`max.bytes.fetcher.filtering`).
"""

from __future__ import annotations

import asyncio
from collections import deque


class Ticket:
    """Bytes held; given back by `leave`, which may be called again."""

    __slots__ = ("_gate", "size_bytes")

    def __init__(self, gate: ByteGate, size_bytes: int) -> None:
        self._gate, self.size_bytes = gate, size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Hold no more than `size_bytes` from now on."""
        if size_bytes < self.size_bytes:
            freed, self.size_bytes = self.size_bytes - size_bytes, size_bytes
            self._gate.free(freed)

    async def change(self, size_bytes: int) -> None:
        """Give all back and wait for `size_bytes` in the row."""
        self.leave()
        ticket = await self._gate.enter(size_bytes)
        self.size_bytes = ticket.size_bytes

    def leave(self) -> None:
        """Give all back."""
        self.shrink(0)


class ByteGate:
    """A semaphore over bytes, first come first served.

    First come: a large piece of work is not overtaken for ever by small ones. What is larger
    than the bound waits until it is alone and then goes.
    Invariants: 0 <= bytes_used <= bytes_max; nobody waits while what the first one wants is free.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max, self.bytes_used = bytes_max, 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, size_bytes: int) -> Ticket:
        """Wait until `size_bytes` are free, and hold them."""
        size_bytes = min(size_bytes, self.bytes_max)
        if not self._waiting and self.bytes_used + size_bytes <= self.bytes_max:
            self.bytes_used += size_bytes
            return Ticket(self, size_bytes)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, future))
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.free(size_bytes)
            else:
                self._admit()
            raise
        return Ticket(self, size_bytes)

    def free(self, size_bytes: int) -> None:
        """Take bytes back and let in who fits."""
        self.bytes_used -= size_bytes
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            size_bytes, future = self._waiting[0]
            if not future.done():
                if self.bytes_used + size_bytes > self.bytes_max:
                    return
                self.bytes_used += size_bytes
                future.set_result(None)
            self._waiting.popleft()
