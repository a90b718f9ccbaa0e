"""A rolling profile: load by bucket over the last slices of time, as records come in.

A batch gives whole sums of the groups that it changed, not differences, so that a batch which is
repeated after a restart puts the same numbers into the same places.

Keys are not counted one by one here: a state per key would grow with the keys of the topic, one
per bucket and slice does not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keylane.assignor.profile import LoadProfile
from keylane.errors import JobFailed
from keylane.files import replacing
from keylane.pipeline import expressions
from keylane.pipeline.expressions import BUCKET_BITS
from keylane.pipeline.job import source_options, spark_errors
from keylane.pipeline.profile.loads import build_partitions, keyless_sum
from keylane.pipeline.topic_range import TopicRange

SLICES_FOLDER: Final = "slices"
KEYS: Final = ("slice", "partition", "bucket")
LATE_SLICES: Final = 1
"""Slices that a record may come late and still be counted in its own."""


def slice_loads(records: DataFrame, *, slice_s: int) -> DataFrame:
    """Sums by time, partition and bucket, of a stream or of a batch.

    Columns: slice (its start, in seconds since 1970), partition, bucket, records, bytes,
    keyless_records, keyless_bytes, first and last offset.
    """
    late = f"{LATE_SLICES * slice_s} seconds"
    each = records.withWatermark("timestamp", late).select(
        F.window("timestamp", f"{slice_s} seconds").alias("window"),
        "partition",
        "offset",
        expressions.bucket(expressions.key_hash()),
        expressions.record_bytes(),
        F.col("key").isNull().alias("keyless"),
    )
    return (
        each.groupBy("window", "partition", "bucket")
        .agg(
            F.count(F.lit(1)).alias("records"),
            F.sum("bytes").alias("bytes"),
            F.count_if("keyless").alias("keyless_records"),
            keyless_sum("bytes"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
        )
        .select(F.unix_seconds("window.start").alias("slice"), "*")
        .drop("window")
    )


class SliceStore:
    """The sums of each slice of time, a Parquet file each, and the profile of the newest.

    Invariant: a file holds one row per partition and bucket; a row that comes again replaces the
    one before.
    """

    def __init__(self, folder: Path, *, slice_s: int, slice_count: int) -> None:
        self._folder = folder / SLICES_FOLDER
        self.slice_s, self._slice_count = slice_s, slice_count

    def merge(self, rows: pa.Table) -> None:
        """Put rows of `slice_loads` in place of those before; drop slices that are too old."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for start in pc.unique(rows["slice"]).to_pylist():
            path = self._path(start)
            new = rows.filter(pc.equal(rows["slice"], start))
            if path.exists():
                old = pq.read_table(path)
                kept = old.join(new.select(list(KEYS)), list(KEYS), join_type="left anti")
                new = pa.concat_tables([kept.select(new.column_names), new])
            with replacing(path) as partial:
                pq.write_table(new, partial)
        starts = self._starts()
        for start in starts:
            if start <= starts[-1] - self._slice_count * self.slice_s:
                self._path(start).unlink()

    def profile(self, topic: str, partition_count: int) -> LoadProfile:
        """The sum of all slices that are kept."""
        tables = [pq.read_table(self._path(start)) for start in self._starts()]
        summed = (
            pa.concat_tables(tables)
            .group_by(["partition", "bucket"])
            .aggregate(
                [
                    ("records", "sum"),
                    ("bytes", "sum"),
                    ("keyless_records", "sum"),
                    ("keyless_bytes", "sum"),
                    ("first", "min"),
                    ("last", "max"),
                ]
            )
        )
        rows = [
            {name.removesuffix("_sum"): value for name, value in row.items()}
            for row in summed.to_pylist()
        ]
        starts, ends = [0] * partition_count, [0] * partition_count
        for number in range(partition_count):
            own = [row for row in rows if row["partition"] == number]
            starts[number] = min((row["first_min"] for row in own), default=0)
            ends[number] = max((row["last_max"] + 1 for row in own), default=0)
        return LoadProfile(
            topic=topic,
            bits=BUCKET_BITS,
            partitions=build_partitions(starts, ends, rows, knows_keys=False),
            knows_heavy=False,
        )

    def _path(self, start: int) -> Path:
        return self._folder / f"{start}.parquet"

    def _starts(self) -> list[int]:
        return sorted(int(path.stem) for path in self._folder.glob("*.parquet"))


def run_rolling(
    spark: SparkSession,
    chosen: TopicRange,
    store: SliceStore,
    *,
    checkpoint: Path,
    until_caught_up: bool,
    write: Callable[[LoadProfile], None],
) -> None:
    """Count until the query ends, or all records are counted; `write` each profile of `store`.

    Of `chosen` the topic counts, from its earliest record on, or from where the checkpoint stands.

    Raises:
        JobFailed: Kafka or Spark failed. What `write` raises comes through.
    """
    topic = chosen.topic
    failures: list[Exception] = []

    def take(batch: DataFrame, _number: int) -> None:
        try:
            with spark_errors(f"profile {topic}"):
                rows = batch.toArrow()
            if rows.num_rows:
                store.merge(rows)
                write(store.profile(topic, chosen.partition_count))
        except Exception as error:
            # Spark would give it as a text of many lines that ends in "Traceback".
            failures.append(error)
            raise

    options = source_options(chosen.bootstrap, topic, chosen.options)
    records = spark.readStream.format("kafka").options(**options).load()
    writer = slice_loads(records, slice_s=store.slice_s).writeStream.outputMode("update")
    writer = writer.option("checkpointLocation", str(checkpoint)).foreachBatch(take)
    if until_caught_up:
        writer = writer.trigger(availableNow=True)
    try:
        with spark_errors(f"profile {topic}"):
            query = writer.queryName(f"keylane profile {topic}").start()
            try:
                query.awaitTermination()
            finally:
                query.stop()
    except JobFailed:
        if failures:
            raise failures[0] from None
        raise
