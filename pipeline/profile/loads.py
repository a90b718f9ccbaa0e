"""The profile of a topic's load: what each part of the hash space weighs, and which keys.

One pass over Kafka: records are grouped by the hash of their key, a long, which Spark's fastest
hash map takes, and everything else comes from those groups. That is exact; it shuffles one row per
key and partition, at most a row per record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from keylane.assignor.profile import HeavyKey, LoadProfile, PartitionLoad
from keylane.embedded.resolve import Progress
from keylane.keyrange.space import HASH_MAX
from keylane.pipeline import expressions
from keylane.pipeline.expressions import BUCKET_BITS, HASH_BITS
from keylane.pipeline.job import spark_errors, tracked
from keylane.pipeline.topic_range import TopicRange, count_tasks, read_range

HEAVY_COUNT: Final = 20
BUCKET_MASK: Final = HASH_MAX >> (HASH_BITS - BUCKET_BITS) << (HASH_BITS - BUCKET_BITS)
"""The bits of a hash that name its bucket."""


def key_loads(records: DataFrame, *, headers: bool = False) -> DataFrame:
    """Records and bytes per key: (partition, key_hash, keyless, records, bytes).

    Records without a key have as many hashes as there are of them; they are summed by bucket, and
    `key_hash` is the first of it. `headers`: the source has the column, and it counts.
    """
    each = records.select(
        "partition",
        expressions.key_hash(),
        F.col("key").isNull().alias("keyless"),
        expressions.record_bytes(headers="headers" if headers else None),
    )
    unit = F.when(F.col("keyless"), F.col("key_hash").bitwiseAND(F.lit(BUCKET_MASK)))
    unit = unit.otherwise(F.col("key_hash"))
    return (
        each.withColumn("key_hash", unit)
        .groupBy("partition", "key_hash", "keyless")
        .agg(F.count(F.lit(1)).alias("records"), F.sum("bytes").alias("bytes"))
    )


def bucket_loads(keys: DataFrame) -> DataFrame:
    """`key_loads` by bucket: (partition, bucket, records, bytes, keys, keyless_records, ..._bytes).

    `keys` counts distinct keys. A bucket without records has no row.
    """
    return keys.groupBy("partition", expressions.bucket()).agg(
        F.sum("records").alias("records"),
        F.sum("bytes").alias("bytes"),
        F.count_if(~F.col("keyless")).alias("keys"),
        keyless_sum("records"),
        keyless_sum("bytes"),
    )


def keyless_sum(name: str) -> Column:
    """Sum of a column over what has no key."""
    found = F.when(F.col("keyless"), F.col(name)).otherwise(F.lit(0).cast("bigint"))
    return F.sum(found).alias(f"keyless_{name}")


def heavy_keys(keys: DataFrame, count: int = HEAVY_COUNT) -> DataFrame:
    """The heaviest keys by bytes: (partition, key_hash, records, bytes), in a fixed order."""
    heaviest = keys.where(~F.col("keyless")).drop("keyless")
    return heaviest.orderBy(F.desc("bytes"), "key_hash", "partition").limit(count)


def name_keys(records: DataFrame, hashes: Sequence[int]) -> DataFrame:
    """A key of each hash: (key_hash, key). Reads the records once more."""
    each = records.where(F.col("key").isNotNull()).select("key", expressions.key_hash())
    chosen = each.where(F.col("key_hash").isin(list(hashes)))
    return chosen.groupBy("key_hash").agg(F.min("key").alias("key"))


def run_profile(
    spark: SparkSession,
    chosen: TopicRange,
    *,
    heavy_count: int = HEAVY_COUNT,
    show_keys: bool = False,
    headers: bool = False,
    progress: Progress,
) -> LoadProfile:
    """Profile a range of a topic.

    Raises:
        JobFailed: Kafka or Spark failed; the text says with what.
    """
    records = open_range(spark, chosen, headers=headers)
    what = f"profile {chosen.topic}"
    with (
        spark_errors(what),
        tracked(spark, what, progress),
        loads_of(records, headers=headers) as keys,
    ):
        return build_profile(
            keys,
            chosen.topic,
            list(zip(chosen.starts, chosen.ends, strict=True)),
            heavy_count=heavy_count,
            named=records if show_keys else None,
        )


def open_range(spark: SparkSession, chosen: TopicRange, *, headers: bool = False) -> DataFrame:
    """The records of a range, in tasks of `count_tasks`; the order in a key is lost."""
    if headers:
        chosen = replace(chosen, options={**chosen.options, "includeHeaders": "true"})
    return read_range(spark, chosen, min_partitions=count_tasks(chosen))


@contextmanager
def loads_of(records: DataFrame, *, headers: bool = False) -> Iterator[DataFrame]:
    """`key_loads`, kept by Spark while the block runs: two questions are asked of them."""
    keys = key_loads(records, headers=headers).persist()
    try:
        yield keys
    finally:
        keys.unpersist()


def build_profile(
    keys: DataFrame,
    topic: str,
    offsets: Sequence[tuple[int, int]],
    *,
    heavy_count: int = HEAVY_COUNT,
    named: DataFrame | None = None,
) -> LoadProfile:
    """The profile that `key_loads` make; `offsets` are the first and the end of each partition.

    `named`: records that have the heavy keys themselves. At most 4,096 rows of a partition and
    `heavy_count` keys come to the driver.
    """
    buckets = bucket_loads(keys).toArrow()
    heavy = heavy_keys(keys, heavy_count).toArrow().to_pylist()
    names: dict[int, bytes] = {}
    if named is not None and heavy:
        rows = name_keys(named, [row["key_hash"] for row in heavy]).collect()
        names = {row["key_hash"]: bytes(row["key"]) for row in rows}
    return LoadProfile(
        topic=topic,
        bits=BUCKET_BITS,
        partitions=build_partitions(offsets, buckets),
        heavy=tuple(
            HeavyKey(
                partition=row["partition"],
                key_hash=row["key_hash"],
                records=row["records"],
                size_bytes=row["bytes"],
                key=names.get(row["key_hash"]),
            )
            for row in heavy
        ),
    )


def build_partitions(
    offsets: Sequence[tuple[int, int]], rows: pa.Table, *, knows_keys: bool = True
) -> tuple[PartitionLoad, ...]:
    """Rows of `bucket_loads` as dense loads of each partition."""
    rows = rows.sort_by("partition")
    columns = {name: rows[name].to_numpy() for name in rows.column_names}
    bounds = np.searchsorted(columns["partition"], np.arange(len(offsets) + 1))
    found = []
    for number, (start, end) in enumerate(offsets):
        own = {
            name: column[bounds[number] : bounds[number + 1]] for name, column in columns.items()
        }
        found.append(
            PartitionLoad(
                start=start,
                end=end,
                records=_dense(own["bucket"], own["records"]),
                size_bytes=_dense(own["bucket"], own["bytes"]),
                keyless_records=int(own["keyless_records"].sum()),
                keyless_bytes=int(own["keyless_bytes"].sum()),
                distinct_keys=int(own["keys"].sum()) if knows_keys else None,
            )
        )
    return tuple(found)


def describe(profile: LoadProfile) -> str:
    """Return what a profile says, as text. Keys stand in it only where they were asked for."""
    records, size = profile.records, profile.size_bytes
    keyless = sum(load.keyless_records for load in profile.partitions)
    distinct = [load.distinct_keys for load in profile.partitions]
    known = "" if None in distinct else f", {sum(filter(None, distinct)):,} distinct keys"
    head = (
        f"{profile.topic}: {len(profile.partitions)} partitions, {records:,} records,"
        f" {size:,} bytes{known}, {keyless / max(records, 1):.1%} without a key"
    )
    lines = [head]
    for key in profile.heavy[:5]:
        name = "" if key.key is None else f" {json.dumps(key.key.decode(errors='replace'))}"
        lines.append(
            f"  {key.size_bytes / max(size, 1):6.2%} hash {key.key_hash}{name}, partition"
            f" {key.partition}: {key.records:,} records, {key.size_bytes:,} bytes"
        )
    return "\n".join(lines)


def _dense(buckets: Any, values: Any) -> tuple[int, ...]:
    row = np.zeros(1 << BUCKET_BITS, np.int64)
    row[buckets] = values
    return tuple(row.tolist())
