"""keylane/pipeline/profile/rolling.py: a profile that follows a topic, over restarts."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from keylane.assignor.profile import LoadProfile
from keylane.errors import ConfigInvalid
from keylane.pipeline.profile.loads import run_profile
from keylane.pipeline.profile.rolling import (
    BATCH_TIME,
    SLICES_FOLDER,
    SliceStore,
    merge_batch,
    run_rolling,
)
from keylane.pipeline.storage import Folder, LocalFolder
from keylane.pipeline.topic_range import TopicRange, find_range
from tests.integration.conftest import TopicFactory
from tests.spark.test_profile import KEEP, fill

START_MS = 1_700_000_400_000
"""The start of a slice of one minute, and of ten."""
FROM_THE_FUTURE = {"message.timestamp.after.max.ms": str(2**62)}
AHEAD_MS = 9_000_000_000_000
"""In the year 2255."""


class Rolling:
    """Runs of one query, until all records are counted."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, folder: Path) -> None:
        self.spark, self.bootstrap, self.topic, self.folder = spark, bootstrap, topic, folder
        self.seen: list[LoadProfile] = []

    def store(self, *, slice_s: int = 60) -> SliceStore:
        """The newest two minutes."""
        slices: Folder = LocalFolder(self.folder / SLICES_FOLDER)
        return SliceStore(
            folder=slices,
            topic=self.topic,
            topic_id=self.chosen().topic_id,
            slice_s=slice_s,
            slice_count=2,
        )

    def chosen(self, **options: str) -> TopicRange:
        """All that the topic has now."""
        return find_range(self.spark, self.bootstrap, self.topic, options=options, may_be="empty")

    def run(self, write=None, *, store: SliceStore | None = None, **options: str) -> LoadProfile:
        """Return the last profile."""
        run_rolling(
            self.spark,
            self.chosen(**options),
            store or self.store(),
            checkpoint=LocalFolder(self.folder / "checkpoint"),
            until_caught_up=True,
            write=write or self.seen.append,
        )
        return self.seen[-1]

    def whole(self) -> LoadProfile:
        """What one job over the whole topic counts."""
        return run_profile(self.spark, self.chosen(), progress=lambda text: None)


@pytest.fixture
def rolling(spark: SparkSession, kafka: str, topic: TopicFactory, tmp_path: Path) -> Rolling:
    """A query over an empty topic of two partitions."""
    return Rolling(spark, kafka, topic(partitions=2, config=KEEP | FROM_THE_FUTURE), tmp_path)


def expect_same(rolling: LoadProfile, batch: LoadProfile) -> None:
    """The same records, counted once."""
    for own, other in zip(rolling.partitions, batch.partitions, strict=True):
        assert own.records == other.records
        assert own.size_bytes == other.size_bytes
        assert own.keyless_records == other.keyless_records
        assert own.keyless_bytes == other.keyless_bytes
        assert (own.start, own.end) == (0, other.end)


def test_a_rolling_profile_goes_on_where_it_stopped(rolling: Rolling) -> None:
    """Runs on one checkpoint count what one batch job counts; old slices are forgotten."""
    kafka, name = rolling.bootstrap, rolling.topic
    fill(kafka, name, 500, time_ms=START_MS)
    first = rolling.run()
    fill(kafka, name, 500, seed=2, time_ms=START_MS + 1_000)  # the same slice
    fill(kafka, name, 500, seed=3, time_ms=START_MS + 60_000)  # the next
    fill(kafka, name, 50, seed=5, time_ms=START_MS + 2_000)  # late, in a slice that is kept
    both = rolling.run(maxOffsetsPerTrigger="400")
    whole = rolling.whole()
    fill(kafka, name, 300, seed=4, time_ms=START_MS + 120_000)
    fill(kafka, name, 20, seed=6, time_ms=START_MS - 600_000)  # of a slice that is too old
    newest = rolling.run()

    assert first.records == 500
    expect_same(both, whole)
    assert len(rolling.seen) >= 5  # a profile after each batch of 400
    assert not both.knows_heavy
    assert newest.records == 800
    starts = rolling.store().starts()
    assert starts == [START_MS // 1_000 + 60, START_MS // 1_000 + 120]


def test_a_batch_that_is_repeated_counts_once(
    rolling: Rolling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended between two slices of a batch, and between the slices and Spark's own commit."""
    fill(rolling.bootstrap, rolling.topic, 300, time_ms=START_MS)
    fill(rolling.bootstrap, rolling.topic, 300, seed=2, time_ms=START_MS + 60_000)
    write = LocalFolder.write
    written: list[str] = []

    def break_off(folder: LocalFolder, name: str, data: bytes) -> None:
        if written and name.endswith(".parquet"):
            raise OSError("the disk is gone")
        write(folder, name, data)
        written.extend([name] if name.endswith(".parquet") else [])

    with monkeypatch.context() as patch:
        patch.setattr(LocalFolder, "write", break_off)
        with pytest.raises(OSError, match=r"^the disk is gone$"):
            rolling.run()

    def fail(profile: LoadProfile) -> None:
        raise OSError(f"no place for {profile.topic}")

    with pytest.raises(OSError, match=f"^no place for {rolling.topic}$"):
        rolling.run(fail)
    found = rolling.run()

    assert written == [f"{START_MS // 1_000}.parquet"]
    expect_same(found, rolling.whole())


def test_slices_and_checkpoint_belong_together(rolling: Rolling) -> None:
    """One of the two deleted, another length of slices: refused, and nothing is counted."""
    slices = rolling.folder / SLICES_FOLDER
    fill(rolling.bootstrap, rolling.topic, 100, time_ms=START_MS)
    rolling.run()
    fill(rolling.bootstrap, rolling.topic, 100, seed=2, time_ms=START_MS)

    with pytest.raises(ConfigInvalid, match=r"^--slice 30: .* has slices of 60 s$"):
        rolling.run(store=rolling.store(slice_s=30))
    shutil.move(slices, rolling.folder / "elsewhere")
    with pytest.raises(ConfigInvalid, match=r"slices: has no query.json, .* at batch 1: delete"):
        rolling.run()
    shutil.rmtree(rolling.folder / "checkpoint")
    shutil.copytree(rolling.folder / "elsewhere", slices)
    with pytest.raises(ConfigInvalid, match="slices: has slices of another query"):
        rolling.run()
    (slices / "query.json").unlink()
    with pytest.raises(ConfigInvalid, match="slices: has slices of an unknown query"):
        rolling.run()
    (slices / "query.json").write_text("[]")
    with pytest.raises(ConfigInvalid, match="no JSON object"):
        rolling.run()
    shutil.rmtree(slices)

    assert rolling.run().records == 200
    assert json.loads((slices / "query.json").read_text())["slice_s"] == 60


def test_a_long_history_sends_its_newest_slices_to_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A month of slices in one batch, and a clock of the future: two slices are collected."""
    minutes = 31 * 24 * 60
    records = spark.range(minutes).select(
        (F.col("id") % 3).cast("int").alias("partition"),
        F.col("id").alias("offset"),
        F.col("id").cast("string").cast("binary").alias("key"),
        F.lit(b"value").alias("value"),
        F.timestamp_seconds(F.lit(START_MS // 1_000) + F.col("id") * 60).alias("timestamp"),
        F.current_timestamp().alias(BATCH_TIME),
    )
    ahead = records.where("id % 10000 = 1").withColumn(
        "timestamp", F.timestamp_seconds(F.lit(9_000_000_000))
    )
    folder = LocalFolder(tmp_path)
    store = SliceStore(folder=folder, topic="orders", topic_id="id", slice_s=600, slice_count=2)
    taken: list[int] = []
    merge = SliceStore.merge

    def count(own: SliceStore, batch: int, start: int, rows: pa.Table) -> None:
        taken.append(rows.num_rows)
        merge(own, batch, start, rows)

    monkeypatch.setattr(SliceStore, "merge", count)

    merge_batch(records, 0, store)
    history = store.profile(3)
    merge_batch(ahead, 1, store)
    now = store.profile(3)

    assert taken[:2] == [10, 10]
    assert history.records == 20
    assert now.records == ahead.count()
    assert (store.starts()[-1] - START_MS // 1_000) < 9_000_000_000 - START_MS // 1_000


def test_a_repeated_batch_of_records_ahead_of_the_clock_counts_once(rolling: Rolling) -> None:
    """They count at the time of their batch, which is that of its first try."""
    fill(rolling.bootstrap, rolling.topic, 100, time_ms=AHEAD_MS)

    def fail(profile: LoadProfile) -> None:
        raise OSError(f"no place for {profile.topic}")

    with pytest.raises(OSError, match="no place"):
        rolling.run(fail, store=rolling.store(slice_s=1))
    first = rolling.store().starts()
    found = rolling.run(store=rolling.store(slice_s=1))

    assert rolling.store().starts() == first
    assert found.records == 100


def test_a_topic_that_changed_is_refused_in_one_line(rolling: Rolling) -> None:
    """Deleted and made anew, its offsets say nothing of what was counted. Partitions were added."""
    empty = rolling.store()
    fill(rolling.bootstrap, rolling.topic, 100, time_ms=START_MS)
    rolling.run(store=empty)
    fill(rolling.bootstrap, rolling.topic, 100, seed=2, time_ms=START_MS)

    with pytest.raises(ConfigInvalid, match=f"^{rolling.topic} was deleted and made anew"):
        rolling.run(store=replace(empty, topic_id="another"))
    with pytest.raises(ConfigInvalid, match="has more than the 1 partitions of the start"):
        rolling.store().profile(1)
    assert rolling.run().records == 200
