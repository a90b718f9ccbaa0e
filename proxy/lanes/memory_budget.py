"""Bound of the bytes in work at one time; the first in the row goes first.

Source: docs/decisions/035, 040; Choudhury, Hahne: Dynamic queue length thresholds (the share).
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import NamedTuple


class Ticket:
    """Bytes held; given back by `leave`, which may be called again."""

    __slots__ = ("_gate", "_origin", "size_bytes")

    def __init__(self, gate: ByteGate, size_bytes: int, origin: int | None = None) -> None:
        self._gate, self.size_bytes, self._origin = gate, size_bytes, origin

    def shrink(self, size_bytes: int) -> None:
        """Hold no more than `size_bytes` from now on."""
        if size_bytes < self.size_bytes:
            freed, self.size_bytes = self.size_bytes - size_bytes, size_bytes
            self._gate.free(freed, self._origin)

    def settle(self) -> None:
        """Note that the bytes wait for their origin no more, and count for none from now on."""
        origin, self._origin = self._origin, None
        if origin is not None:
            self._gate.settle(self.size_bytes, origin)

    async def change(self, size_bytes: int) -> None:
        """Give back all bytes and wait for `size_bytes` in the row."""
        self.leave()
        ticket = await self._gate.enter(size_bytes)
        self.size_bytes, self._origin = ticket.size_bytes, None

    def leave(self) -> None:
        """Give back all bytes."""
        self.shrink(0)


class _Waiter(NamedTuple):
    size_bytes: int
    origin: int | None
    future: asyncio.Future[None]


class ByteGate:
    """A semaphore over bytes, first come first served.

    A large piece of work is not overtaken without end by small ones. One that is larger than the
    bound waits until it is alone and then goes.
    Work that waits for an origin, such as a broker, holds bytes until the origin answers. So an
    origin gets no more than it leaves free: alone half of the gate, and where several hang at once,
    a share each, and one share is left for all others. Work that waits for its origin's share is
    overtaken by others.
    Invariants: 0 <= bytes_used <= bytes_max; no work waits while the bytes of the first in the row,
    among those whose origin has room, are free.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max, self.bytes_used = bytes_max, 0
        self._waiting: deque[_Waiter] = deque()
        self._by_origin: Counter[int] = Counter()

    def take(self, size_bytes: int, origin: int | None = None) -> Ticket | None:
        """Return a ticket as `enter` does, if nothing waits before it; else None."""
        size_bytes = min(size_bytes, self.bytes_max)
        if self._waiting or not self._fits(size_bytes) or self._is_greedy(size_bytes, origin):
            return None
        self._grant(size_bytes, origin)
        return Ticket(self, size_bytes, origin)

    async def enter(self, size_bytes: int, origin: int | None = None) -> Ticket:
        """Wait until `size_bytes` are free, and hold them."""
        ticket = self.take(size_bytes, origin)
        if ticket is not None:
            return ticket
        size_bytes = min(size_bytes, self.bytes_max)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiter(size_bytes, origin, future))
        self._admit()  # those before may all wait for another origin
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self.free(size_bytes, origin)
            else:
                self._admit()
            raise
        return Ticket(self, size_bytes, origin)

    def free(self, size_bytes: int, origin: int | None = None) -> None:
        """Take bytes back and admit waiting work that fits."""
        self.bytes_used -= size_bytes
        if origin is not None:
            self.settle(size_bytes, origin)
        else:
            self._admit()

    def settle(self, size_bytes: int, origin: int) -> None:
        """Note that an origin holds these bytes no more."""
        self._by_origin[origin] -= size_bytes
        if not self._by_origin[origin]:
            del self._by_origin[origin]
        self._admit()

    def _fits(self, size_bytes: int) -> bool:
        return self.bytes_used + size_bytes <= self.bytes_max

    def _is_greedy(self, size_bytes: int, origin: int | None) -> bool:
        """Return whether an origin holds bytes and wants more than it would leave free."""
        if origin is None or origin not in self._by_origin:
            return False
        held = self._by_origin[origin] + size_bytes
        return held > self.bytes_max - self.bytes_used

    def _grant(self, size_bytes: int, origin: int | None) -> None:
        self.bytes_used += size_bytes
        if origin is not None:
            self._by_origin[origin] += size_bytes

    def _admit(self) -> None:
        kept: list[_Waiter] = []
        while self._waiting:
            waiter = self._waiting[0]
            if not waiter.future.done():
                if self._is_greedy(waiter.size_bytes, waiter.origin):
                    kept.append(waiter)
                elif not self._fits(waiter.size_bytes):
                    break
                else:
                    self._grant(waiter.size_bytes, waiter.origin)
                    waiter.future.set_result(None)
            self._waiting.popleft()
        self._waiting.extendleft(reversed(kept))
