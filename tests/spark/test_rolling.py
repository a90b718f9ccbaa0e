"""keylane/pipeline/profile/rolling.py: a profile that follows a topic, over restarts."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from keylane.assignor.profile import LoadProfile
from keylane.pipeline.profile.loads import run_profile
from keylane.pipeline.profile.rolling import SliceStore, run_rolling
from keylane.pipeline.topic_range import find_range
from tests.integration.conftest import TopicFactory
from tests.spark.test_profile import KEEP, fill

START_MS = 1_700_000_000_000


def test_a_rolling_profile_goes_on_where_it_stopped(
    spark: SparkSession, kafka: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """Two runs on one checkpoint count what one batch job counts; old slices are forgotten."""
    name = topic(partitions=2, config=KEEP)
    seen: list[LoadProfile] = []

    def run() -> None:
        run_rolling(
            spark,
            find_range(spark, kafka, name),
            SliceStore(tmp_path / "out", slice_s=60, slice_count=2),
            checkpoint=tmp_path / "checkpoint",
            until_caught_up=True,
            write=seen.append,
        )

    fill(kafka, name, 500, time_ms=START_MS)
    run()
    first = seen[-1]
    fill(kafka, name, 500, seed=2, time_ms=START_MS + 1_000)  # the same slice
    fill(kafka, name, 500, seed=3, time_ms=START_MS + 60_000)  # the next
    run()
    both = seen[-1]
    whole = run_profile(spark, find_range(spark, kafka, name), progress=lambda text: None)
    fill(kafka, name, 300, seed=4, time_ms=START_MS + 120_000)
    run()
    newest = seen[-1]

    assert first.records == 500
    for rolling, batch in zip(both.partitions, whole.partitions, strict=True):
        assert rolling.records == batch.records
        assert rolling.size_bytes == batch.size_bytes
        assert rolling.keyless_records == batch.keyless_records
        assert (rolling.start, rolling.end) == (0, batch.end)
    assert not both.knows_heavy
    assert newest.records == 800


def test_a_failure_in_the_middle_ends_the_query(
    spark: SparkSession, kafka: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """An error while a batch is written ends the query, without a stack trace of Spark."""
    name = topic(partitions=2, config=KEEP)
    fill(kafka, name, 50)

    def write(profile: LoadProfile) -> None:
        raise OSError(f"no place for {profile.topic}")

    with pytest.raises(OSError, match=f"^no place for {name}$"):
        run_rolling(
            spark,
            find_range(spark, kafka, name),
            SliceStore(tmp_path / "out", slice_s=60, slice_count=2),
            checkpoint=tmp_path / "checkpoint",
            until_caught_up=True,
            write=write,
        )


def test_rows_that_come_again_count_once(tmp_path: Path) -> None:
    """A batch that is repeated after a restart, and one that adds to a slice."""
    store = SliceStore(tmp_path, slice_s=60, slice_count=2)

    def rows(start: int, records: int, buckets: list[int]) -> pa.Table:
        columns = ["slice", "partition", "bucket", "records", "bytes"]
        columns += ["keyless_records", "keyless_bytes", "first", "last"]
        return pa.table(
            {
                column: pa.array(
                    [start] * len(buckets)
                    if column == "slice"
                    else buckets
                    if column == "bucket"
                    else [0 if column == "partition" else records] * len(buckets),
                    pa.int32() if column in {"partition", "bucket"} else pa.int64(),
                )
                for column in columns
            }
        )

    def counted() -> dict[int, int]:
        records = store.profile("orders", 1).partitions[0].records
        return {bucket: count for bucket, count in enumerate(records) if count}

    for records, buckets in ((5, [0, 1]), (5, [0, 1]), (7, [1, 2])):
        store.merge(rows(600, records, buckets))
    one_slice = counted()
    store.merge(rows(660, 1, [3]))
    two_slices = counted()
    store.merge(rows(720, 2, [3]))
    newest = counted()

    assert one_slice == {0: 5, 1: 7, 2: 7}
    assert two_slices == {0: 5, 1: 7, 2: 7, 3: 1}
    assert newest == {3: 3}
