"""keylane/pipeline/expressions.py: what Spark SQL computes is what the proxy computes."""

from __future__ import annotations

import random
from bisect import bisect_right
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from keylane.kernel.hashes import hash_key, hash_offset
from keylane.kernel.jit import JIT, kernel
from keylane.kernel.library import address_of, as_bytes_array
from keylane.keyrange.hash import key_hash
from keylane.keyrange.space import HASH_MAX
from keylane.pipeline import expressions

KEY_COUNT = 1_000_000 if JIT else 2_000


@kernel
def hash_all(address: int, starts: Any, is_null: Any, offsets: Any, hashes: Any) -> None:
    """The proxy's hash of each key: key i is bytes starts[i] to starts[i + 1] after `address`."""
    for i in range(is_null.size):
        if is_null[i]:
            hashes[i] = hash_offset(offsets[i])
        else:
            hashes[i] = hash_key(address + starts[i], starts[i + 1] - starts[i])


def make_keys(count: int) -> list[bytes | None]:
    """Null, empty, binary of 1 to 400 bytes, and texts of many scripts."""
    chance = random.Random(6)
    letters = "aZ09-äßéЖ中日本語한글🙂\u0000\u202e\uffff"
    keys: list[bytes | None] = []
    for _ in range(count):
        kind = chance.random()
        if kind < 0.1:
            keys.append(None)
        elif kind < 0.15:
            keys.append(b"")
        elif kind < 0.6:
            keys.append(chance.randbytes(chance.randint(1, 70)))
        elif kind < 0.61:
            keys.append(chance.randbytes(chance.randint(71, 400)))
        else:
            keys.append("".join(chance.choices(letters, k=chance.randint(1, 20))).encode())
    return keys


def test_a_million_keys_hash_alike_in_spark_in_the_kernel_and_in_xxhash(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Empty, binary, unicode and null keys: one hash wherever it is computed."""
    keys = make_keys(KEY_COUNT)
    offsets = np.arange(KEY_COUNT, dtype=np.int64) * 7_919 + 2**33
    table = pa.table({"key": pa.array(keys, pa.binary()), "offset": offsets})
    pq.write_table(table, tmp_path / "keys.parquet")
    hashed = [o.tobytes() if k is None else k for k, o in zip(keys, offsets, strict=True)]
    digests = [xxhash.xxh64_intdigest(data, seed=42) for data in hashed]
    by_xxhash = np.array(digests, np.uint64) >> np.uint64(1)

    found = (
        spark.read.parquet(str(tmp_path / "keys.parquet"))
        .select("offset", expressions.key_hash())
        .toArrow()
        .sort_by("offset")
    )
    by_spark = found["key_hash"].to_numpy().astype(np.uint64)
    data = as_bytes_array(b"".join(key or b"" for key in keys) or b"\0")
    starts = np.cumsum([0, *(len(key or b"") for key in keys)])
    is_null = np.array([key is None for key in keys])
    by_kernel = np.zeros(KEY_COUNT, np.uint64)
    with np.errstate(over="ignore"):
        hash_all(address_of(data), starts, is_null, offsets, by_kernel)

    assert int((by_spark != by_xxhash).sum()) == 0
    assert int((by_kernel != by_xxhash).sum()) == 0


def test_a_text_is_hashed_as_its_bytes(spark: SparkSession) -> None:
    """A collation decides what is equal, not where a key lies."""
    texts = spark.createDataFrame([("ABC", 1), ("abc", 2)], "text string, offset bigint")
    folded = texts.select(F.collate("text", "UTF8_LCASE").alias("key"), "offset")

    hashes = [row["key_hash"] for row in folded.select(expressions.key_hash()).collect()]

    assert sorted(hashes) == sorted([key_hash(b"ABC"), key_hash(b"abc")])


@pytest.mark.parametrize("bits", [1, 12, 30])
def test_buckets_are_equal_parts_of_the_hash_space(spark: SparkSession, bits: int) -> None:
    """The first and the last hash of a bucket are in it, also at both ends of the space."""
    last = (1 << bits) - 1
    starts = [number << (expressions.HASH_BITS - bits) for number in (0, 1, last)]
    hashes = [*starts, starts[1] - 1, HASH_MAX]
    frame = spark.createDataFrame([(value,) for value in hashes], "key_hash bigint")

    found = [row["bucket"] for row in frame.select(expressions.bucket(bits=bits)).collect()]

    assert found == [0, 1, last, 0, last]


def test_the_lane_is_found_by_the_cuts_of_the_partition(spark: SparkSession) -> None:
    """Cuts per partition and cuts that all share, at each cut and beside it."""
    chance = random.Random(1)
    for lane_count in (1, 2, 7, 64):
        rows = [sorted(chance.sample(range(1, HASH_MAX), lane_count - 1)) for _ in range(5)]
        for cuts in (rows, rows[:1] * 5):
            hashes = {0, HASH_MAX, *(cut + step for row in cuts for cut in row for step in (-1, 0))}
            places = [(p, value) for p in range(-1, 6) for value in sorted(hashes)]
            frame = spark.createDataFrame(places, "partition int, key_hash bigint")

            lane = expressions.lane_of(cuts)
            found = {(r[0], r[1]): r[2] for r in frame.select("*", lane).collect()}

            expected = {
                (p, value): bisect_right(cuts[p], value) if 0 <= p < 5 else None
                for p, value in places
            }
            assert found == expected


@pytest.mark.parametrize("cuts", [[[5, 5]], [[7, 3]], [[0]], [[2**63]]])
def test_wrong_cuts_are_refused(cuts: list[list[int]]) -> None:
    """Cuts that leave a lane without a hash, or lie outside the space."""
    with pytest.raises(ValueError, match="cuts of partition 0 must ascend"):
        expressions.lane_of(cuts)


def test_bytes_are_those_of_key_value_and_headers(spark: SparkSession) -> None:
    """Null counts as nothing; headers count where they are asked for."""
    schema = "key binary, value binary, headers array<struct<key: string, value: binary>>"
    rows = [
        (b"abc", b"12", [("h", b"xyz"), ("é", None)]),
        (None, b"", None),
        (b"k", None, []),
    ]
    frame = spark.createDataFrame(rows, schema)

    plain = [row[0] for row in frame.select(expressions.record_bytes()).collect()]
    sizes = frame.select(expressions.record_bytes(headers="headers")).collect()

    assert plain == [5, 0, 1]
    assert [row[0] for row in sizes] == [11, 0, 1]
