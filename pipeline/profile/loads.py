"""The profile of a topic's load: what each part of the hash space weighs, and which keys.

One pass over Kafka: records are grouped by the hash of their key, a long, which Spark's fastest
hash map takes, and everything else comes from those groups. That is exact; it shuffles one row per
key and partition, at most a row per record.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from keylane.assignor.profile import (
    SUMMARY_NAME,
    HeavyKey,
    LoadProfile,
    PartitionLoad,
    write_profile,
)
from keylane.embedded.resolve import Progress
from keylane.files import replacing
from keylane.keyrange.space import HASH_MAX
from keylane.pipeline import expressions
from keylane.pipeline.expressions import BUCKET_BITS, HASH_BITS
from keylane.pipeline.job import spark_errors, tracked
from keylane.pipeline.topic_range import TopicRange, read_range

HEAVY_COUNT: Final = 20
RECORDS_PER_TASK: Final = 1_000_000
"""A second or two of work: the steps of progress. Order does not matter here, but each task
sends a row per key that it met: 500,000 records cost a fifth more CPU."""

BUCKET_MASK: Final = HASH_MAX >> (HASH_BITS - BUCKET_BITS) << (HASH_BITS - BUCKET_BITS)
"""The bits of a hash that name its bucket."""

BUCKETS: Final = "buckets.parquet"
HEAVY: Final = "heavy.parquet"


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
    if headers:
        chosen = replace(chosen, options={**chosen.options, "includeHeaders": "true"})
    tasks = max(chosen.partition_count, -(-chosen.offset_count // RECORDS_PER_TASK))
    records = read_range(spark, chosen, min_partitions=tasks)
    what = f"profile {chosen.topic}"
    with spark_errors(what), tracked(spark, what, progress):
        keys = key_loads(records, headers=headers).persist()
        try:
            buckets = bucket_loads(keys).toArrow().to_pylist()
            heavy = heavy_keys(keys, heavy_count).toArrow().to_pylist()
        finally:
            keys.unpersist()
        names: dict[int, bytes] = {}
        if show_keys and heavy:
            rows = name_keys(records, [row["key_hash"] for row in heavy]).collect()
            names = {row["key_hash"]: bytes(row["key"]) for row in rows}
    return LoadProfile(
        topic=chosen.topic,
        bits=BUCKET_BITS,
        partitions=build_partitions(chosen.starts, chosen.ends, buckets),
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
    starts: Sequence[int],
    ends: Sequence[int],
    rows: Sequence[Mapping[str, Any]],
    *,
    knows_keys: bool = True,
) -> tuple[PartitionLoad, ...]:
    """Rows of `bucket_loads` as dense loads of each partition."""
    rows_of: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        rows_of[row["partition"]].append(row)
    found = []
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        own = rows_of[number]
        records, size_bytes = [0] * (1 << BUCKET_BITS), [0] * (1 << BUCKET_BITS)
        for row in own:
            records[row["bucket"]], size_bytes[row["bucket"]] = row["records"], row["bytes"]
        found.append(
            PartitionLoad(
                start=start,
                end=end,
                records=tuple(records),
                size_bytes=tuple(size_bytes),
                keyless_records=sum(row["keyless_records"] for row in own),
                keyless_bytes=sum(row["keyless_bytes"] for row in own),
                distinct_keys=sum(row["keys"] for row in own) if knows_keys else None,
            )
        )
    return tuple(found)


def save_profile(profile: LoadProfile, folder: Path) -> None:
    """Write the summary and the two Parquet files into `folder`, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    buckets = [
        (profile.topic, number, bucket, load.records[bucket], load.size_bytes[bucket])
        for number, load in enumerate(profile.partitions)
        for bucket in range(profile.bucket_count)
    ]
    _write_parquet(
        folder / BUCKETS,
        buckets,
        {
            "topic": pa.string(),
            "partition": pa.int32(),
            "bucket": pa.int32(),
            "records": pa.int64(),
            "bytes": pa.int64(),
        },
    )
    heavy = [
        (profile.topic, key.partition, key.key_hash, key.records, key.size_bytes, key.key)
        for key in profile.heavy
    ]
    _write_parquet(
        folder / HEAVY,
        heavy,
        {
            "topic": pa.string(),
            "partition": pa.int32(),
            "key_hash": pa.int64(),
            "records": pa.int64(),
            "bytes": pa.int64(),
            "key": pa.binary(),
        },
    )
    with replacing(folder / SUMMARY_NAME) as partial:
        partial.write_bytes(write_profile(profile))


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


def _write_parquet(path: Path, rows: Sequence[tuple[Any, ...]], schema: dict[str, Any]) -> None:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = {
        name: pa.array(column, kind)
        for column, (name, kind) in zip(columns, schema.items(), strict=True)
    }
    with replacing(path) as partial:
        pq.write_table(pa.table(arrays), partial)
