"""Records of a broker's answer, indexed: at once, in a thread, or when there is room.

Source: docs/decisions/035, 048.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from keylane.errors import BatchCorrupt, BatchUnsupported
from keylane.kernel.pick import RecordBlock, index_records
from keylane.proxy.lanes.block_split import AT_ONCE_BYTES_MAX, AT_ONCE_PLAIN_BYTES_MAX
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.lanes.split_io import ReaderKit


@dataclass(frozen=True, slots=True)
class Indexed:
    """Blocks of an answer, in order, and the error at which they end."""

    blocks: Sequence[RecordBlock]
    error: BatchCorrupt | None = None

    @property
    def next_offset(self) -> int:
        """Offset behind the last batch that was read; -1: there is none."""
        return self.blocks[-1].next_offset if self.blocks else -1


async def index_all(kit: ReaderKit, records: memoryview, room: ReadRoom) -> Indexed:
    """Index an answer block by block; a bad batch ends it."""
    blocks: list[RecordBlock] = []
    position = 0
    while position < len(records):
        try:
            block = await _index_next(kit, records[position:], room)
        except BatchCorrupt as error:
            return Indexed(blocks, error)
        finally:
            room.batch_done()
        if block is None:
            return Indexed(blocks, BatchCorrupt("no whole batch", position=position))
        blocks.append(block)
        position += block.wire_bytes
    return Indexed(blocks)


async def _index_next(kit: ReaderKit, records: memoryview, room: ReadRoom) -> RecordBlock | None:
    """Index one block. Raises: BatchUnsupported, BatchCorrupt."""
    if len(records) <= AT_ONCE_BYTES_MAX:
        bound = min(AT_ONCE_PLAIN_BYTES_MAX, kit.plain_bytes_max)
        with suppress(BatchUnsupported):  # it is small on the wire only
            return index_records(records, plain_bytes_max=bound, batch_bytes_max=bound)
    loop = asyncio.get_running_loop()
    bound = kit.plain_bytes_max
    if room.is_large:
        await room.for_batch(bound)
    try:
        return await loop.run_in_executor(kit.pool, _job(records, bound, bound))
    except BatchUnsupported as error:
        bytes_max = kit.bound_of(error, len(records))
        if bytes_max <= bound:
            raise
    await room.for_batch(bytes_max)
    return await loop.run_in_executor(kit.pool, _job(records, bound, bytes_max))


def _job(
    records: memoryview, plain_bytes_max: int, batch_bytes_max: int
) -> partial[RecordBlock | None]:
    return partial(
        index_records, records, plain_bytes_max=plain_bytes_max, batch_bytes_max=batch_bytes_max
    )
