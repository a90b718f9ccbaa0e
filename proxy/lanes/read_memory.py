"""Memory for one read of a partition: taken before the bytes come, given back when they are gone.

Source: docs/decisions/035, 040; KIP-74 (a first batch is sent however large).

Theory. A read holds nothing while it waits for its broker to begin an answer: a broker that hangs
would hold everything. The first bytes of an answer say its size; then the answer waits at the
broker for room, and counts for that broker while it comes (shares: `memory_budget`). What
fits in the first bytes, 64 KiB, is in memory at once, and gets its room before it is split.
An ordinary answer and one block of it go through the gate of `filtering_bytes_max`. A larger
answer goes through two other gates, one for its bytes as they come and one for its split batches,
so that it holds up no ordinary read. The order is always filtering, large answers, large batches,
and a read that waits at one holds nothing in a later one: so no read waits without end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from keylane.errors import AnswerTooLarge
from keylane.proxy.lanes.memory_budget import ByteGate, Ticket

LARGE_PLAIN_COST: Final = 3
"""Memory of a batch in split: decompressed, divided, and the tables, in plain sizes of it."""
ANSWER_OVERHEAD_BYTES: Final = 64 * 1024
"""Bytes of an answer beside records: names, offsets, a list of aborted transactions."""
LARGE_OVERHEAD_BYTES: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates that all reads share."""

    filtering: ByteGate
    large_answers: ByteGate
    large_batches: ByteGate

    @classmethod
    def of(cls, filtering_bytes_max: int, batch_bytes_max: int) -> Gates:
        """The gates for these bounds."""
        return cls(
            ByteGate(filtering_bytes_max),
            ByteGate(batch_bytes_max + LARGE_OVERHEAD_BYTES),
            ByteGate(LARGE_PLAIN_COST * batch_bytes_max),
        )

    @property
    def bytes_used(self) -> int:
        """Bytes held in all gates."""
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
