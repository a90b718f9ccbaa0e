"""Splits of blocks: at once, in a thread, or when there is room for a large batch; their CPU time.

Source: docs/decisions/004, 035.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from keylane.errors import BatchUnsupported
from keylane.kernel.recompress import recompress
from keylane.keyrange.key_split import PartitionSplit
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.lanes.split_io import ReaderKit, SplitFunction
from keylane.proxy.runtime.stats import ProxyStats
from keylane.wire.batch import CODEC_NONE

AT_ONCE_BYTES_MAX: Final = 8 * 1024
AT_ONCE_PLAIN_BYTES_MAX: Final = 64 * 1024
"""Bytes that are split in the loop's own thread: it takes some 50 us. To wake another thread and
come back takes 200 us, and milliseconds on a busy machine."""


def timed(
    split: SplitFunction, stats: ProxyStats, *, clock: Callable[[], float] = time.thread_time
) -> SplitFunction:
    """Return `split`, which adds its CPU seconds in all threads to `stats.kernel_seconds`."""
    lock = threading.Lock()

    def call(*args: Any, **options: Any) -> Any:
        started_s = clock()
        try:
            return split(*args, **options)
        finally:
            spent_s = clock() - started_s
            with lock:  # the one number that is written outside the event loop
                stats.kernel_seconds += spent_s

    return call


async def split_next(
    kit: ReaderKit, records: memoryview, at: PartitionSplit, codec: int, room: ReadRoom
) -> tuple[Any, NDArray[np.int64]] | None:
    """Split one block in a thread. A batch larger than a block waits for memory first.

    Few bytes are split at once, since to wake a thread takes longer.
    Raises: BatchUnsupported (larger than any may be, or of an old format), BatchCorrupt.
    """
    if len(records) <= AT_ONCE_BYTES_MAX:
        bound = min(AT_ONCE_PLAIN_BYTES_MAX, kit.plain_bytes_max)
        with suppress(BatchUnsupported):  # it is small on the wire only
            return _split_and_sum(kit.split, records, at, codec, bound, bound)
    loop = asyncio.get_running_loop()
    job = partial(_split_and_sum, kit.split, records, at, codec, kit.plain_bytes_max)
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


def _split_and_sum(
    split: SplitFunction,
    records: memoryview,
    at: PartitionSplit,
    codec: int,
    plain_bytes_max: int,
    batch_bytes_max: int,
) -> tuple[Any, NDArray[np.int64]] | None:
    """Split in a thread, compress where asked to, and find each lane's last record."""
    block = split(
        records,
        at.key_split,
        plain_bytes_max=plain_bytes_max,
        batch_bytes_max=batch_bytes_max,
        partition=at.partition,
    )
    if block is None:
        return None
    if codec != CODEC_NONE:
        block = recompress(block, codec)
    last_record_offsets = np.full(len(block.outputs), -1, np.int64)
    for lane, part in enumerate(block.outputs):
        if part is not None:
            last_record_offsets[lane] = part.last_record_offsets.max()
    return block, last_record_offsets
