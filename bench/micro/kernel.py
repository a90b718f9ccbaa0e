"""Speed of the kernel that splits blocks into lanes: records/s and MB/s by codec and lane count.

    python -m bench.micro.kernel [--codec lz4] [--hash murmur2] [--seconds 0.2]

The best of several runs is printed, and the median beside it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import get_args

from keylane.kernel.split import split_block
from keylane.kernel.warmup import warm_up
from keylane.keyrange.hash import HashName
from keylane.keyrange.lane import LaneLayout
from tests.reference.batches import CODEC_FORMS, Batch, Record, write_batch

FORMS = ("none", "gzip", "snappy", "snappy-xerial", "lz4", "zstd")
BATCH_BYTES = 1 << 20
BATCH_COUNT = 4
BYTES_MAX = 1 << 26
RECORD_BYTES = (100, 1024)
LANE_COUNTS = (1, 4, 16)
SMALL_BATCH_RECORDS = (1, 10)


def make_record(rng: random.Random, delta: int, size: int) -> Record:
    """Make a record of about `size` bytes that compresses as orders do, by three to four."""
    key = b"order-%06d" % rng.randrange(200_000)
    value = b'{"customer":%d,"amount":%d,"currency":"EUR"' % (
        rng.randrange(10**6),
        rng.randrange(10**5),
    )
    while len(value) < size - 24:
        value += b',"item":"%s"' % rng.randbytes(4).hex().encode()
        value += b',"state":"shipped","country":"DE"'
    return Record(delta, key, value[: size - 24], (), delta // 10)


def make_block(form: str, record_bytes: int, batch_records: int, batch_count: int) -> bytes:
    """Make consecutive batches; the same seed each time."""
    rng = random.Random(7)
    records = tuple(make_record(rng, delta, record_bytes) for delta in range(batch_records))
    return b"".join(
        write_batch(Batch(number * batch_records, records, form=form))
        for number in range(batch_count)
    )


def measure(name: str, block: bytes, seconds: float, key_hash: HashName) -> None:
    """Split one block again and again, print a line per lane count."""
    for lane_count in LANE_COUNTS:
        key_split = LaneLayout(1, lane_count, hash=key_hash).key_split(0)
        runs_s: list[float] = []
        deadline_s = time.perf_counter() + seconds
        while True:
            started_s = time.perf_counter()
            split = split_block(
                block, key_split, plain_bytes_max=BYTES_MAX, batch_bytes_max=BYTES_MAX
            )
            runs_s.append(time.perf_counter() - started_s)
            if len(runs_s) >= 3 and time.perf_counter() > deadline_s:
                break
        assert split is not None and split.error is None
        best_s, median_s = min(runs_s), statistics.median(runs_s)
        print(
            f"{name:34} {lane_count:3} lanes  {split.record_count / best_s / 1e6:7.2f} M rec/s "
            f"{split.plain_bytes / best_s / 1e6:7.0f} MB/s   median "
            f"{split.record_count / median_s / 1e6:7.2f} M rec/s "
            f"{split.plain_bytes / median_s / 1e6:7.0f} MB/s",
            flush=True,
        )


def main() -> None:
    """Run all, or one codec."""
    parser = argparse.ArgumentParser(description="measure the record kernel")
    parser.add_argument("--codec", choices=sorted(CODEC_FORMS), action="append")
    parser.add_argument("--hash", choices=get_args(HashName), default="xxh64", help="of keys")
    parser.add_argument("--seconds", type=float, default=0.1, help="per line")
    options = parser.parse_args()
    warm_up()
    for form in options.codec or FORMS:
        for size in RECORD_BYTES:
            block = make_block(form, size, BATCH_BYTES // size, BATCH_COUNT)
            measure(f"{form}, {size} B, 1 MiB batches", block, options.seconds, options.hash)
        for count in SMALL_BATCH_RECORDS:
            block = make_block(form, RECORD_BYTES[0], count, 5_000 // count)
            measure(
                f"{form}, {RECORD_BYTES[0]} B, batches of {count}",
                block,
                options.seconds,
                options.hash,
            )


if __name__ == "__main__":
    main()
