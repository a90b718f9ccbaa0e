"""Records held one by one: what it costs to index a block, and to pick or keep some of it.

    python -m bench.micro.pick [--seconds 0.3]

Records of 100 B. The best of several runs, one thread.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from time import thread_time
from typing import Final

import numpy as np

from bench.micro.kernel import BATCH_BYTES, BYTES_MAX, make_block
from keylane.kernel.pick import RecordBlock, index_records
from keylane.kernel.warmup import warm_up
from keylane.proxy.runtime.heap import keep_freed_memory

RECORD_BYTES: Final = 100
BATCH_RECORDS: Final = (BATCH_BYTES // RECORD_BYTES, 10, 1)
BLOCK_RECORDS: Final = 10_000
"""Records of a block at least, whatever its batches have."""
FORMS: Final = ("none", "lz4", "zstd")
PICKED: Final = (1, 10, 500)
TURN_S: Final = 0.005
"""Several calls are timed together, for about so many seconds: the clock counts microseconds."""


def best_us(job: Callable[[], object], seconds: float) -> float:
    """Best CPU time of one call, in microseconds."""
    started = thread_time()
    job()
    calls = max(1, int(TURN_S / max(1e-6, thread_time() - started)))
    best, end = float("inf"), thread_time() + seconds
    while thread_time() < end:
        started = thread_time()
        for _ in range(calls):
            job()
        best = min(best, (thread_time() - started) / calls)
    return 1e6 * best


def index(wire: bytes) -> RecordBlock:
    """Index a block that is good."""
    block = index_records(wire, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX)
    assert block is not None and block.error is None
    return block


def measure_index(form: str, per_batch: int, seconds: float) -> None:
    """Print the time per record, and the memory."""
    wire = make_block(form, RECORD_BYTES, per_batch, -(-BLOCK_RECORDS // per_batch))
    block, took_us = index(wire), best_us(lambda: index(wire), seconds)
    count = len(block.offsets)
    print(
        f"index {form}, batches of {per_batch:5}: {1e3 * took_us / count:7.1f} ns/record, "
        f"{len(np.unique(block.points))} keys, keeps {block.size_bytes / count:.0f} B/record",
        flush=True,
    )


def measure_pick(block: RecordBlock, rows: list[int], seconds: float) -> None:
    """Print the time to pick the rows, and to compact the block to them."""
    pick_us = best_us(lambda: block.pick(rows), seconds)
    compact_us = best_us(lambda: block.compact(rows), seconds)
    print(
        f"pick {len(rows):3} records, {block.sizes[rows].sum():5} B, of "
        f"{len(np.unique(block.batch_of[rows])):3} batches: {pick_us:6.1f} us, "
        f"compact {compact_us:6.1f} us",
        flush=True,
    )


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description="measure the records that are held one by one")
    parser.add_argument("--seconds", type=float, default=0.3, help="per figure")
    options = parser.parse_args()
    keep_freed_memory()
    warm_up()
    for form in FORMS:
        for per_batch in BATCH_RECORDS:
            measure_index(form, per_batch, options.seconds)
    rng = random.Random(7)
    for per_batch in BATCH_RECORDS:
        block = index(make_block("none", RECORD_BYTES, per_batch, -(-BLOCK_RECORDS // per_batch)))
        for count in PICKED:
            rows = sorted(rng.sample(range(len(block.offsets)), count))
            measure_pick(block, rows, options.seconds)


if __name__ == "__main__":
    main()
