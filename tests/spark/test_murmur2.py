"""keylane/pipeline/expressions.py: lanes by Kafka's murmur2, in Spark SQL as in the kernel."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from keylane.keyrange.hash import offset_hash
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline import expressions
from tests.reference.murmur2 import VECTORS, default_partition, to_positive

KEY_COUNT = 20_000


def make_keys() -> list[bytes | None]:
    """Return keys of all lengths, some empty and some null, with bytes above 127."""
    chance = random.Random(44)
    return [
        *VECTORS,
        *(chance.randbytes(chance.randrange(70)) for _ in range(KEY_COUNT - len(VECTORS) - 100)),
        *([None] * 100),
    ]


def write_keys(path: Path) -> list[bytes | None]:
    """Write keys with their offsets as a table; return them."""
    keys = make_keys()
    offsets = np.arange(len(keys), dtype=np.int64)
    pq.write_table(pa.table({"key": pa.array(keys, pa.binary()), "offset": offsets}), path)
    return keys


def test_murmur2_is_that_of_kafka(spark: SparkSession, tmp_path: Path) -> None:
    """Each key has the hash of Kafka's partitioner, and null has none."""
    keys = write_keys(tmp_path / "keys.parquet")

    rows = (
        spark.read.parquet(str(tmp_path / "keys.parquet"))
        .select("offset", expressions.murmur2())
        .toArrow()
        .sort_by("offset")
    )

    expected = [None if key is None else to_positive(key) for key in keys]
    assert rows["murmur2"].to_pylist() == expected


@pytest.mark.parametrize(("partitions", "lanes"), [(1, 8), (3, 12), (2, 7)])
def test_a_lane_is_what_the_proxy_has(
    spark: SparkSession, tmp_path: Path, partitions: int, lanes: int
) -> None:
    """Lane and partition make the partition of a topic with as many partitions as lane indexes."""
    keys = write_keys(tmp_path / "keys.parquet")
    layout = LaneLayout(partitions, lanes, hash="murmur2")

    rows = (
        spark.read.parquet(str(tmp_path / "keys.parquet"))
        .select("offset", expressions.murmur2_lane(layout))
        .toArrow()
        .sort_by("offset")
    )

    split = layout.key_split(0)
    expected = [
        split.output_at(offset_hash(offset))
        if key is None
        else default_partition(key, partitions * lanes) // partitions
        for offset, key in enumerate(keys)
    ]
    assert rows["lane"].to_pylist() == expected
    assert set(expected) == set(range(lanes))


def test_lanes_by_another_hash_are_refused() -> None:
    """Lanes by XXH64 have their cuts, and no remainder."""
    with pytest.raises(ValueError, match="xxh64"):
        expressions.murmur2_lane(LaneLayout(1, 8))
