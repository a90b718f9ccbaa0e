"""Each kernel beside its naive twin and its floor: ns per record, one thread.

python -m bench.micro.kernel_parts [--seconds 0.3]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import thread_time
from typing import Any, Final

import google_crc32c
import numpy as np

from bench.micro.kernel import BATCH_BYTES, BYTES_MAX, make_block
from keylane.kernel import library, source, split
from keylane.kernel.warmup import warm_up
from keylane.keyrange.lane import LaneLayout
from keylane.proxy.runtime.heap import keep_freed_memory
from keylane.wire.batch import BATCH_HEADER_BYTES
from keylane.wire.compression import decompress
from tests.reference import kernel as twin

LANES: Final = 16
BATCHES: Final = 4
TWIN_RECORDS: Final = 400
SIZES: Final = (100, 1024)
STAGES: Final = ("scan_batches", "walk_batches", "join_batches", "plan_lanes", "write_lanes")


def best_of(job: Callable[[], object], seconds: float) -> float:
    """Best CPU time of a job, in seconds; it runs twice at least."""
    best, end = float("inf"), thread_time() + seconds
    runs = 0
    while runs < 2 or thread_time() < end:
        started = thread_time()
        job()
        best = min(best, thread_time() - started)
        runs += 1
    return best


def time_stages(block: bytes, seconds: float) -> dict[str, float]:
    """Best CPU time of each kernel inside of whole splits, and of all together."""
    best: dict[str, float] = {}
    key_split = LaneLayout(1, LANES).key_split(0)

    def timed(name: str) -> Callable[..., Any]:
        kernel = getattr(library, name)

        def call(*arguments: Any) -> Any:
            started = thread_time()
            answer = kernel(*arguments)
            best[name] = min(best.get(name, float("inf")), thread_time() - started)
            return answer

        return call

    def whole() -> object:
        return split.split_block(
            block, key_split, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX
        )

    callers = {name: split if hasattr(split, name) else source for name in STAGES}
    for name, module in callers.items():
        setattr(module, name, timed(name))
    try:
        best_of(whole, seconds)
    finally:
        for name, module in callers.items():
            setattr(module, name, getattr(library, name))
    best["whole"] = best_of(whole, seconds)
    return best


def time_twin(block: bytes) -> dict[str, float]:
    """The twin's time for the parts that it has, and for all of it."""
    limits = LaneLayout(1, LANES).key_split(0).limits.tolist()
    batches: list[Any] = []

    def read() -> None:
        batches.clear()
        rest = block
        while rest:
            batch = twin._read_batch(rest, BYTES_MAX)  # noqa: SLF001 -- part of the twin
            assert batch is not None
            batches.append(batch)
            rest = rest[len(batch.wire) :]

    def walk() -> None:
        for batch in batches:
            for record in batch.records:
                twin.lane_of(record.key, record.offset, limits)

    owners, slice_lane = list(range(LANES)), twin._slice_lane  # noqa: SLF001 -- part of the twin
    times = {"scan_batches": best_of(read, 0), "walk_batches": best_of(walk, 0)}
    times["join_batches"] = best_of(lambda: twin._join_all(batches), 0)  # noqa: SLF001
    times["write_lanes"] = best_of(
        lambda: [slice_lane(batches, lane, limits, owners) for lane in owners],
        0,
    )
    times["whole"] = best_of(
        lambda: twin.split_block(
            block, limits, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX
        ),
        0,
    )
    return times


def time_floors(block: bytes, form: str, plain_bytes: int, seconds: float) -> dict[str, float]:
    """CRC by the library, each cache line touched once, memcpy, the codec alone."""
    wire = np.frombuffer(block, np.uint8)
    plain = np.ones(plain_bytes, np.uint8)
    target, words = np.empty_like(plain), plain[: plain_bytes // 8 * 8].view(np.uint64)[::8]
    crc = best_of(lambda: google_crc32c.value(block), seconds)
    copy = best_of(lambda: np.copyto(target, plain), seconds)
    floors = {
        "scan_batches": crc if form == "none" else 0.0,
        "walk_batches": best_of(words.sum, seconds),
        "join_batches": copy,
        "write_lanes": copy + crc * plain_bytes / wire.size,
    }
    alone = 0.0
    if form != "none":
        batches: list[Any] = []
        rest = memoryview(block)
        while rest:
            size = 12 + int.from_bytes(rest[8:12], "big")
            batches.append((rest[22] & 7, rest[BATCH_HEADER_BYTES:size]))
            rest = rest[size:]
        alone = best_of(
            lambda: [decompress(codec, data, bytes_max=BYTES_MAX) for codec, data in batches],
            seconds,
        )
    floors["whole"] = crc + alone + floors["write_lanes"]
    return floors


def measure(name: str, form: str, shape: tuple[int, int, int], seconds: float) -> None:
    """Print a line per kernel; shape is bytes per record, records per batch, batches."""
    size, per_batch, count = shape
    block = make_block(form, size, per_batch, count)
    few = max(1, TWIN_RECORDS // per_batch)
    twin_block = make_block(form, size, min(per_batch, TWIN_RECORDS), few)
    records = per_batch * count
    kernel = time_stages(block, seconds)
    naive = time_twin(twin_block)
    floors = time_floors(block, form, records * size, seconds / 4)
    for part, best in kernel.items():
        ours = 1e9 * best / records
        line = f"{name:30} {part:13} {ours:8.2f} ns"
        if part in naive:
            theirs = 1e9 * naive[part] / (min(per_batch, TWIN_RECORDS) * few)
            line += f"   twin {theirs:9.0f} ns = {theirs / ours:6.0f} x"
        if floors.get(part):
            floor = 1e9 * floors[part] / records
            line += f"   floor {floor:7.2f} ns, kernel to floor {ours / floor:5.2f}"
        print(line, flush=True)


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description="measure each kernel, its twin and its floor")
    parser.add_argument("--seconds", type=float, default=0.3, help="per figure")
    options = parser.parse_args()
    keep_freed_memory()
    warm_up()
    for form in ("none", "lz4"):
        for size in SIZES:
            shape = (size, BATCH_BYTES // size, BATCHES)
            measure(f"{form}, {size} B, 1 MiB batches", form, shape, options.seconds)
    measure("none, 100 B, batches of 1", "none", (100, 1, 5_000), options.seconds)


if __name__ == "__main__":
    main()
