"""Split the next block of an answer: at once, in a thread, or when there is room for a large batch.

Source: docs/decisions/004, 035.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from keylane.errors import BatchUnsupported
from keylane.keyrange.key_split import KeySplit
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.lanes.split_io import ReaderKit, split_and_sum

AT_ONCE_BYTES_MAX: Final = 8 * 1024
AT_ONCE_PLAIN_BYTES_MAX: Final = 64 * 1024
"""Bytes that are split in the loop's own thread: it takes some 50 us. To wake another thread and
come back takes 200 us, and milliseconds on a busy machine."""


async def split_next(
    kit: ReaderKit, records: memoryview, key_split: KeySplit, codec: int, room: ReadRoom
) -> tuple[Any, NDArray[np.int64]] | None:
    """Split one block in a thread. A batch larger than a block waits for memory first.

    Few bytes are split at once, since to wake a thread takes longer.
    Raises: BatchUnsupported (larger than any may be, or of an old format), BatchCorrupt.
    """
    if len(records) <= AT_ONCE_BYTES_MAX:
        bound = min(AT_ONCE_PLAIN_BYTES_MAX, kit.plain_bytes_max)
        with suppress(BatchUnsupported):  # it is small on the wire only
            return split_and_sum(kit.split, records, key_split, codec, bound, bound)
    loop = asyncio.get_running_loop()
    job = partial(split_and_sum, kit.split, records, key_split, codec, kit.plain_bytes_max)
    if room.is_large:
        await room.for_batch(kit.plain_bytes_max)
    try:
        return await loop.run_in_executor(kit.pool, job, kit.plain_bytes_max)
    except BatchUnsupported as error:
        bytes_max = kit.bound_of(error, len(records))
        if bytes_max <= kit.plain_bytes_max:
            raise
    await room.for_batch(bytes_max)
    return await loop.run_in_executor(kit.pool, job, bytes_max)
