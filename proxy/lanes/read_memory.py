"""Memory for one read of a partition: taken before the bytes come, given back when they are gone.

Source: docs/decisions/035, 040; KIP-74 (a first batch is sent however large); Choudhury, Hahne:
Dynamic queue length thresholds (the share).

Theory. A read holds nothing while it waits for its broker to begin an answer: a broker that hangs
would hold everything. The first bytes of an answer say its size; then the answer waits at the
broker for room, and counts for that broker while it comes (shares: `ByteGate`). What
fits in the first bytes, 64 KiB, is in memory at once, and gets its room before it is split.
An ordinary answer and one block of it go through the gate of `filtering_bytes_max`. A larger
answer goes through two other gates, one for its bytes as they come and one for its split batches,
so that it holds up no ordinary read. The order is always filtering, large answers, large batches,
and a read that waits at one holds nothing in a later one: so no read waits without end.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass
from typing import Final, NamedTuple

from keylane.errors import AnswerTooLarge

LARGE_PLAIN_COST: Final = 3
"""Memory of a batch in split: decompressed, divided, and the tables, in plain sizes of it."""
ANSWER_OVERHEAD_BYTES: Final = 64 * 1024
"""Bytes of an answer beside records: names, offsets, a list of aborted transactions."""
LARGE_OVERHEAD_BYTES: Final = 1024**2


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


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates that all reads share."""

    filtering: ByteGate
    large_answers: ByteGate
    large_batches: ByteGate

    @classmethod
    def of(cls, filtering_bytes_max: int, batch_bytes_max: int) -> Gates:
        """Return the gates for these bounds."""
        return cls(
            ByteGate(filtering_bytes_max),
            ByteGate(batch_bytes_max + LARGE_OVERHEAD_BYTES),
            ByteGate(LARGE_PLAIN_COST * batch_bytes_max),
        )

    @property
    def bytes_used(self) -> int:
        """Return the bytes held in all gates."""
        gates = (self.filtering, self.large_answers, self.large_batches)
        return sum(gate.bytes_used for gate in gates)


class ReadRoom:
    """The memory that one read holds. `leave` gives it back, and may be called again."""

    __slots__ = (
        "_batch", "_block_bytes", "_gates", "_is_over", "_read_bytes", "_wire", "_wire_bytes",
        "broker_id", "is_large",
    )  # fmt: skip

    def __init__(self, gates: Gates, *, read_bytes: int, block_bytes: int) -> None:
        """read_bytes: asked of the broker; block_bytes: plain bytes of one block."""
        self._gates, self._read_bytes, self._block_bytes = gates, read_bytes, block_bytes
        self._wire: Ticket | None = None
        self._batch: Ticket | None = None
        self._wire_bytes = 0
        self._is_over = False
        self.broker_id: int | None = None
        """The broker that answers."""
        self.is_large = False
        """True: the blocks go through the gate of large batches, one by one."""

    def take(self, size_bytes: int) -> bool:
        """Hold what an ordinary answer of this size needs, if it is free now."""
        if size_bytes > self._ordinary_bytes_max:
            return False
        self._give_back()
        self._wire_bytes = size_bytes
        self._wire = self._gates.filtering.take(size_bytes + self._block_bytes, self.broker_id)
        return self._wire is not None

    async def for_answer(self, size_bytes: int) -> None:
        """Wait for room for an answer of known size, before it comes. Raises: AnswerTooLarge.

        For a small answer this is called when it is there.
        """
        self._give_back()
        self._wire_bytes = size_bytes
        if size_bytes > self._gates.large_answers.bytes_max:
            raise AnswerTooLarge(size_bytes)
        if size_bytes <= self._ordinary_bytes_max:
            gate, held_bytes = self._gates.filtering, size_bytes + self._block_bytes
        else:
            gate, held_bytes = self._gates.large_answers, size_bytes
            self.is_large = True
        self._wire = await gate.enter(held_bytes, self.broker_id)
        if self._is_over:
            self.leave()

    async def for_records(self, size_bytes: int) -> None:
        """Hold an answer that is there and one block of it; the broker is done."""
        if self._wire is None:
            await self.for_answer(size_bytes)
        elif not self.is_large:
            self._wire_bytes = size_bytes
            self._wire.shrink(size_bytes + self._block_bytes)
        if self._wire is not None:
            self._wire.settle()

    async def for_batch(self, plain_bytes: int) -> None:
        """Wait before a block of a large read, or a batch larger than a block, is split."""
        if not self.is_large and self._wire is not None:
            self._wire.shrink(self._wire_bytes)
            self.is_large = True
        self.batch_done()
        self._batch = await self._gates.large_batches.enter(LARGE_PLAIN_COST * plain_bytes)

    def batch_done(self) -> None:
        """Give back a block's memory: its slices are handed out."""
        if self._batch is not None:
            self._batch.leave()
            self._batch = None

    def leave(self) -> None:
        """End the read."""
        self._is_over = True
        self.batch_done()
        self._give_back()

    def _give_back(self) -> None:
        """Give back the bytes of an answer; after a lost connection it may be asked for again."""
        if self._wire is not None:
            self._wire.leave()
        self._wire, self.is_large = None, False

    @property
    def _ordinary_bytes_max(self) -> int:
        """Return the largest size of an answer that leaves room for others."""
        return max(self._read_bytes, self._gates.filtering.bytes_max // 8) + ANSWER_OVERHEAD_BYTES
