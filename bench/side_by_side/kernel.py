"""The kernel beside its floors: memcpy, and the decompression alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np

from bench.micro.kernel import BATCH_BYTES, BYTES_MAX, make_block
from bench.side_by_side.lineup import Lineup, progress
from bench.side_by_side.outcome import Outcome
from keylane.kernel.split import split_block
from keylane.kernel.warmup import warm_up
from keylane.keyrange.lane import LaneLayout
from keylane.proxy.runtime.heap import keep_freed_memory
from keylane.wire.batch import BATCH_HEADER_BYTES, read_batch_header
from keylane.wire.compression import decompress

FORMS: Final = ("none", "lz4", "snappy", "zstd", "gzip")
SIZES: Final = (100, 1024)
BATCHES: Final = 8
SECONDS: Final = 0.4
"""Per figure."""
MEMCPY_BYTES: Final = 64 << 20
PLAIN_RECORDS_PER_S: Final = 26e6
PLAIN_MEMCPY_BYTES_PER_S: Final = 9.9e9
"""The issue's pair: 26 M records of 100 B where memcpy gives 9.9 GB/s."""


def run(lineup: Lineup) -> Outcome:
    """Measure every codec and size."""
    keep_freed_memory()  # as the proxy does
    warm_up()
    outcome = Outcome(
        "kernel",
        "Kernel, one core: decompress, check, walk, hash, split, rebuild",
        ("codec, records", "M rec/s, 16 lanes", "plain MB/s", "decompression alone MB/s",
         "to decompression alone", "64 lanes to 16"),
    )  # fmt: skip
    seconds = SECONDS * max(0.25, lineup.scale)
    memcpy = measure_memcpy(seconds)
    outcome.notes.append(f"memcpy of {MEMCPY_BYTES >> 20} MiB: {memcpy / 1e9:.1f} GB/s")
    for form in FORMS:
        for size in SIZES:
            progress(f"kernel {form} {size} B")
            measure(outcome, form, size, seconds, memcpy)
    return outcome


def measure(outcome: Outcome, form: str, size: int, seconds: float, memcpy: float) -> None:
    """One row."""
    block = make_block(form, size, BATCH_BYTES // size, BATCHES)
    few_s, many_s, alone_s = best_of(
        (split_of(block, 16), split_of(block, 64), decompression_of(block, form)), seconds
    )
    split = split_block(
        block,
        LaneLayout(1, 16).key_split(0),
        plain_bytes_max=BYTES_MAX,
        batch_bytes_max=BYTES_MAX,
    )
    assert split is not None
    rate = split.record_count / few_s
    alone = "-" if form == "none" else f"{split.plain_bytes / alone_s / 1e6:.0f}"
    ratio = "-" if form == "none" else f"{few_s / alone_s:.2f}"
    outcome.rows.append(
        (f"{form}, {size} B", f"{rate / 1e6:.1f}", f"{split.plain_bytes / few_s / 1e6:.0f}", alone,
         ratio, f"{many_s / few_s:.2f}")
    )  # fmt: skip
    outcome.keep(f"{form}, {size} B", records_per_s=[rate], alone_s=[alone_s], split_s=[few_s],
                 split_64_s=[many_s])  # fmt: skip
    outcome.target(f"{form} {size} B: time of 64 lanes to 16", many_s / few_s, at_most=1.3)
    if form in {"lz4", "snappy", "zstd"}:
        text = f"{form} {size} B: time to decompression alone"
        outcome.target(text, few_s / alone_s, at_most=1.5)
    if form == "none" and size == SIZES[0]:
        floor = PLAIN_RECORDS_PER_S * memcpy / PLAIN_MEMCPY_BYTES_PER_S
        text = "none 100 B: rate to 26 M rec/s per 9.9 GB/s of memcpy"
        outcome.target(text, rate / floor, at_least=1.0)


def best_of(jobs: tuple[Callable[[], object], ...], seconds: float) -> list[float]:
    """Best CPU time of each, taken in turns: what else runs on the core does not count."""
    for job in jobs:
        job()  # the first time pays for memory that was never touched
    best = [float("inf")] * len(jobs)
    deadline_s = time.thread_time() + seconds * len(jobs)
    while time.thread_time() < deadline_s:
        for index, job in enumerate(jobs):
            started_s = time.thread_time()
            job()
            best[index] = min(best[index], time.thread_time() - started_s)
    return best


def split_of(block: bytes, lanes: int) -> Callable[[], object]:
    """A split into so many lanes."""
    key_split = LaneLayout(1, lanes).key_split(0)
    return lambda: split_block(
        block, key_split, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX
    )


def decompression_of(block: bytes, form: str) -> Callable[[], object]:
    """Return what the codec takes for the same batches."""
    payloads = []
    view, position = memoryview(block), 0
    while (found := read_batch_header(view, position)) is not None:
        header, size_bytes = found
        payloads.append(
            (
                header.attributes & 7,
                view[position + BATCH_HEADER_BYTES :][: size_bytes - BATCH_HEADER_BYTES],
            )
        )
        position += size_bytes
    if form == "none":
        return lambda: None
    return lambda: [decompress(codec, payload, bytes_max=BYTES_MAX) for codec, payload in payloads]


def measure_memcpy(seconds: float) -> float:
    """Bytes per second."""
    source, target = np.ones(MEMCPY_BYTES, np.uint8), np.zeros(MEMCPY_BYTES, np.uint8)
    (best_s,) = best_of((lambda: np.copyto(target, source),), seconds)
    return MEMCPY_BYTES / best_s
