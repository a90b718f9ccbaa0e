"""A rolling profile: load by bucket over the last slices of time, as records come in.

The query has no state in Spark: each batch is summed by itself, and the command adds its sums to
those before, a Parquet file per slice. A file names the last batch that it holds, so a batch that
Spark repeats after a failure, with the same records and number, adds nothing again. No record is
too late for a slice that is kept, and no executor writes a file.

Keys are not counted one by one here: a state per key would grow with the keys of the topic, one
per bucket and slice does not.

Source: Spark's guide of Structured Streaming, foreachBatch: the number of a batch is the means by
which output becomes exactly-once.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keylane.assignor.profile import LoadProfile
from keylane.errors import ConfigInvalid, JobFailed
from keylane.pipeline import expressions
from keylane.pipeline.expressions import BUCKET_BITS
from keylane.pipeline.job import source_options, spark_errors
from keylane.pipeline.profile.files import parquet_bytes
from keylane.pipeline.profile.loads import build_partitions, keyless_sum
from keylane.pipeline.storage import Folder
from keylane.pipeline.topic_range import TopicRange

SLICES_FOLDER: Final = "slices"
QUERY_FILE: Final = "query.json"
QUERY_BYTES_MAX: Final = 65_536
SLICE_BYTES_MAX: Final = 512 << 20
"""Beyond what 4,096 buckets of 2,000 partitions take."""
BATCH_RECORDS: Final = 10_000_000
"""Offsets of a batch at most, unless `maxOffsetsPerTrigger` is given: half a minute of work, so
that a long history gives profiles on the way and a repeated batch is not the whole of it."""
BATCH: Final = b"keylane.batch"
KEYS: Final = ("partition", "bucket")
SUMS: Final = {
    "records": "sum",
    "bytes": "sum",
    "keyless_records": "sum",
    "keyless_bytes": "sum",
    "first": "min",
    "last": "max",
}

BATCH_TIME: Final = "batch_time"
"""Column with the time that Spark noted for a batch: that of its first try, if it is repeated."""

SLICE_SCHEMA: Final = pa.schema(
    [(name, pa.int32()) for name in KEYS] + [(name, pa.int64()) for name in SUMS]
)


def slice_loads(records: DataFrame, *, slice_s: int) -> DataFrame:
    """Sums of records by time, partition and bucket.

    Columns: slice (its start, in seconds since 1970), partition, bucket, records, bytes,
    keyless_records, keyless_bytes, first and last offset. A record whose time is behind that of its
    batch counts there: a producer's wrong clock must not make all other slices old.
    """
    seconds = F.unix_seconds(F.least("timestamp", BATCH_TIME))
    each = records.select(
        (seconds - F.pmod(seconds, F.lit(slice_s))).alias("slice"),
        "partition",
        "offset",
        expressions.bucket(expressions.key_hash()),
        expressions.record_bytes(),
        F.col("key").isNull().alias("keyless"),
    )
    return each.groupBy("slice", *KEYS).agg(
        F.count(F.lit(1)).alias("records"),
        F.sum("bytes").alias("bytes"),
        F.count_if("keyless").alias("keyless_records"),
        keyless_sum("bytes"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceStore:
    """The sums of each slice of time, a Parquet file each, and the profile of the newest.

    Invariants: a file holds one row per partition and bucket, and each batch up to the one that it
    names exactly once. All files are of the query that `query.json` names.
    """

    folder: Folder
    """Of the slices alone."""
    topic: str
    topic_id: str
    """Of the topic that is counted; another one of its name has another (KIP-516)."""
    slice_s: int
    slice_count: int

    def bind(self, query_id: str, batch: int) -> None:
        """Check that the slices are those of a query that is about to add a batch.

        Raises:
            ConfigInvalid: they are of another query or topic, or gone, or of another length.
        """
        data = self.folder.read(QUERY_FILE, QUERY_BYTES_MAX)
        mine = {
            "query": query_id,
            "topic": self.topic,
            "topic_id": self.topic_id,
            "slice_s": self.slice_s,
        }
        if data is None:
            if batch > 0:
                raise ConfigInvalid(
                    f"{self.folder}: has no {QUERY_FILE}, and the checkpoint stands at batch"
                    f" {batch}: delete the checkpoint, too, to count again from the start"
                )
            if self.starts():
                raise ConfigInvalid(f"{self.folder}: has slices of an unknown query: delete them")
            self.folder.write(QUERY_FILE, json.dumps(mine).encode() + b"\n")
            return
        found = _read_query(str(self.folder), data)
        if found.get("query") != query_id or found.get("topic") != self.topic:
            raise ConfigInvalid(
                f"{self.folder}: has slices of another query, with another checkpoint: give another"
                " --out, or delete the slices"
            )
        if found.get("topic_id") != self.topic_id:
            raise ConfigInvalid(
                f"{self.topic} was deleted and made anew since it was counted: delete {self.folder}"
                " and the checkpoint to count it from its start"
            )
        if found.get("slice_s") != self.slice_s:
            raise ConfigInvalid(
                f"--slice {self.slice_s}: {self.folder} has slices of {found.get('slice_s')} s"
            )

    def merge(self, batch: int, start: int, rows: pa.Table) -> None:
        """Add the rows of one slice in a batch; nothing if the file has that batch already."""
        rows = rows.select(SLICE_SCHEMA.names).cast(SLICE_SCHEMA)
        before = self._read(start)
        if before is not None:
            if int(before.schema.metadata[BATCH]) >= batch:
                return
            rows = _added(before, rows)
        rows = rows.replace_schema_metadata({BATCH: str(batch)}).combine_chunks()
        self.folder.write(_name(start), parquet_bytes(rows.to_batches(), rows.schema))

    def kept(self, starts: list[int]) -> list[int]:
        """Those of `starts` that are not too old beside each other and the slices that are here."""
        oldest = max([*starts, *self.starts()], default=0) - self.slice_count * self.slice_s
        return sorted(start for start in starts if start > oldest)

    def drop_old(self) -> None:
        """Remove the files of slices that are too old."""
        starts = self.starts()
        for start in sorted(set(starts) - set(self.kept(starts))):
            self.folder.delete(_name(start))

    def profile(self, partition_count: int) -> LoadProfile:
        """The sum of all slices that are kept; one is in memory at a time, beside the sum.

        Raises:
            ConfigInvalid: there are records of further partitions.
        """
        summed: pa.Table | None = None
        for start in self.starts():
            table = self._read(start)
            assert table is not None, "a slice that was listed is gone"
            summed = table if summed is None else _added(summed, table)
        offsets = [(0, 0)] * partition_count
        if summed is None:
            summed = SLICE_SCHEMA.empty_table()
        ends = summed.group_by("partition").aggregate([("first", "min"), ("last", "max")])
        for row in ends.to_pylist():
            if row["partition"] >= partition_count:
                raise ConfigInvalid(
                    f"topic {self.topic} has more than the {partition_count} partitions of the"
                    " start: start the command again, it goes on where it is"
                )
            offsets[row["partition"]] = (row["first_min"], row["last_max"] + 1)
        return LoadProfile(
            topic=self.topic,
            bits=BUCKET_BITS,
            partitions=build_partitions(offsets, summed, knows_keys=False),
            knows_heavy=False,
        )

    def starts(self) -> list[int]:
        """Starts of the slices that have a file, oldest first."""
        stems = [name.removesuffix(".parquet") for name in self.folder.names()]
        return sorted(int(stem) for stem in stems if stem.lstrip("-").isdigit())

    def _read(self, start: int) -> pa.Table | None:
        data = self.folder.read(_name(start), SLICE_BYTES_MAX)
        return None if data is None else pq.read_table(pa.BufferReader(data))


def run_rolling(
    spark: SparkSession,
    chosen: TopicRange,
    store: SliceStore,
    *,
    start: str = "earliest",
    checkpoint: Folder,
    until_caught_up: bool,
    write: Callable[[LoadProfile], None],
) -> None:
    """Count until the query ends, or all records are counted; `write` each profile of `store`.

    Counts from `chosen.starts` (which are where the topic starts, with `start` as `earliest`), or
    from where the checkpoint stands. Of a batch no more than `slice_count` slices come to the
    driver, one after the other: 4,096 rows of each partition.

    Raises:
        JobFailed: Kafka or Spark failed. What `store` and `write` raise comes through.
    """
    topic = chosen.topic
    failures: list[Exception] = []

    def take(batch: DataFrame, number: int) -> None:
        try:
            store.bind(_query_id(checkpoint), number)
            with spark_errors(f"profile {topic}"):
                merge_batch(batch, number, store)
            write(store.profile(chosen.partition_count))
        except Exception as error:
            # Spark would give it as a text of many lines that ends in "Traceback".
            failures.append(error)
            raise

    options = {"maxOffsetsPerTrigger": str(BATCH_RECORDS), **chosen.options}
    starting = start
    if start != "earliest":  # which names no offset that retention could remove meanwhile
        starting = json.dumps({topic: dict(enumerate(chosen.starts))})
    options = source_options(chosen.bootstrap, topic, options, starting=starting)
    records = spark.readStream.format("kafka").options(**options).load()
    records = records.withColumn(BATCH_TIME, F.current_timestamp())
    writer = records.writeStream.option("checkpointLocation", checkpoint.uri).foreachBatch(take)
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


def merge_batch(records: DataFrame, number: int, store: SliceStore) -> None:
    """Add the records of a batch to the slices that are kept."""
    sums = slice_loads(records, slice_s=store.slice_s).persist()
    try:
        newest = sums.select("slice").distinct().orderBy(F.desc("slice")).limit(store.slice_count)
        for start in store.kept([row["slice"] for row in newest.collect()]):
            own = sums.where(F.col("slice") == start).drop("slice")
            store.merge(number, start, own.toArrow())
    finally:
        sums.unpersist()
    store.drop_old()


def _query_id(checkpoint: Folder) -> str:
    """The id that Spark gave to the query of a checkpoint when it was made."""
    data = checkpoint.read("metadata", QUERY_BYTES_MAX)
    if data is None:
        raise ConfigInvalid(f"{checkpoint}: the checkpoint is gone")
    return str(_read_query(str(checkpoint), data).get("id"))


def _read_query(place: str, data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise ConfigInvalid(f"{place}: the file that names its query is no JSON object")
    return document


def _added(before: pa.Table, rows: pa.Table) -> pa.Table:
    """The sums of both, by partition and bucket."""
    summed = pa.concat_tables([before, rows]).group_by(list(KEYS)).aggregate(list(SUMS.items()))
    names = {f"{name}_{how}": name for name, how in SUMS.items()}
    return summed.rename_columns(names).select(SLICE_SCHEMA.names).cast(SLICE_SCHEMA)


def _name(start: int) -> str:
    return f"{start}.parquet"
