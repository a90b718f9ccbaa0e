"""Time of the expressions that place a record: XXH64, murmur2, and the lane by murmur2.

`python -m bench.spark.hashes [--records 1000000]`. They take turns, and the best turn of each is
printed, beside that of the bytes of the keys alone.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column
from pyspark.sql import functions as F

from keylane.keyrange.lane import LaneLayout
from keylane.pipeline import expressions
from keylane.pipeline.start import open_session

TURNS = 4


def write_keys(path: Path, count: int) -> None:
    """Write keys of 15 bytes with their offsets; the same each time."""
    rng = random.Random(44)
    keys = [b"order-%09d" % rng.randrange(10**9) for _ in range(count)]
    table = {"key": pa.array(keys, pa.binary()), "offset": np.arange(count)}
    pq.write_table(pa.table(table), path)


def main() -> None:
    """Print a line per expression."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    count = parser.parse_args().records
    columns: dict[str, Column] = {}
    best_s: dict[str, float] = {}
    with (
        tempfile.TemporaryDirectory(prefix="keylane-bench-") as folder,
        open_session("bench hashes", master="local[2]") as spark,
    ):
        path = Path(folder) / "keys.parquet"
        write_keys(path, count)
        columns["bytes alone"] = expressions.record_bytes(value="key")
        columns["xxh64"] = expressions.key_hash()
        columns["murmur2"] = expressions.murmur2()
        columns["lane by murmur2"] = expressions.murmur2_lane(LaneLayout(2, 16, hash="murmur2"))
        for _ in range(TURNS):
            for name, column in columns.items():
                started_s = time.perf_counter()
                spark.read.parquet(str(path)).select(column.alias("x")).agg(F.max("x")).collect()
                taken_s = time.perf_counter() - started_s
                best_s[name] = min(taken_s, best_s.get(name, taken_s))
    for name, taken_s in best_s.items():
        print(f"{name:16} {taken_s:6.2f} s, {taken_s / count * 1e6:6.2f} us per record")


if __name__ == "__main__":
    main()
