"""`keylane spark profile` where executors and files are elsewhere: a cluster, an object store."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from keylane.assignor.profile import read_profile
from keylane.assignor.range_plan import read_plan
from keylane.cli.main import main
from keylane.pipeline.profile.rolling import SLICES_FOLDER, SliceStore, run_rolling
from keylane.pipeline.storage import open_folder
from keylane.pipeline.topic_range import find_range
from tests.integration.conftest import TopicFactory
from tests.spark.cluster import SparkCluster
from tests.spark.s3 import S3Server
from tests.spark.test_profile import KEEP, command, expect, fill

__all__ = ("command",)

START_MS = 1_700_000_400_000
FILES = {"profile.json", "buckets.parquet", "heavy.parquet", "load.png", "load.svg"}
HOUR_FILES = {"worth.parquet", "hours.png", "hours.svg", "worth.png", "worth.svg"}


@pytest.mark.long
def test_a_cluster_that_shares_no_folder_profiles_alike(
    spark_cluster: SparkCluster, kafka: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """Once and by hour, to the record and byte; a plan for all hours from what the driver wrote."""
    name = topic(partitions=2, config=KEEP)
    records = fill(kafka, name, 2_000, time_ms=START_MS)
    where = ["--bootstrap", kafka, "--topic", name]

    done = spark_cluster.keylane("profile", *where, "--by-hour", "--out", tmp_path / "out")

    assert done.code == 0, done
    expect(read_profile((tmp_path / "out" / "profile.json").read_bytes()), records)
    hours = [pq.read_table(tmp_path / "out" / "hours" / f"partition-{n}.parquet") for n in (0, 1)]
    assert sum(sum(rows["records"].to_pylist()) for rows in hours) == len(records)
    planned = ["plan", str(tmp_path / "out"), "--lanes", "4", "--for", "all-hours"]
    assert main([*planned, "-o", str(tmp_path / "plan.json")]) == 0
    assert read_plan((tmp_path / "plan.json").read_bytes()).partition_count == 2


@pytest.mark.long
def test_a_rolling_profile_on_a_cluster_survives_its_workers(
    breakable_cluster: SparkCluster, kafka: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """Checkpoint and slices on the driver's disk, a worker killed between two runs: exact."""
    name = topic(partitions=2, config=KEEP)
    where = ["--bootstrap", kafka, "--topic", name, "--out", tmp_path / "out"]
    follow = ["--follow", "--until-caught-up", "--checkpoint", tmp_path / "checkpoint"]

    counted = []
    for seed in (1, 2):
        fill(kafka, name, 1_000, seed=seed, time_ms=START_MS)
        done = breakable_cluster.keylane("profile", *where, *follow)
        assert done.code == 0, done
        counted.append(read_profile((tmp_path / "out" / "profile.json").read_bytes()).records)
        breakable_cluster.kill_worker(0)

    assert counted == [1_000, 2_000]


@pytest.mark.long
def test_a_profile_goes_to_a_bucket(
    command,
    kafka: str,
    topic: TopicFactory,
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All files stand in the bucket, and no folder of that name on this machine."""
    monkeypatch.chdir(tmp_path)
    name = topic(partitions=2, config=KEEP)
    records = fill(kafka, name, 500, time_ms=START_MS)
    uri = f"{s3.bucket()}/profiles/orders"

    assert command("--bootstrap", kafka, "--topic", name, "--out", uri, "--by-hour") == 0

    hours = {f"hours/partition-{number}.parquet" for number in (0, 1)}
    assert s3.keys(uri) == FILES | HOUR_FILES | hours
    bucket, _, prefix = uri.removeprefix("s3a://").partition("/")
    summary = s3.client().get_object(Bucket=bucket, Key=f"{prefix}/profile.json")["Body"].read()
    expect(read_profile(summary), records)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_rolling_profile_in_a_bucket_goes_on(
    spark: SparkSession, kafka: str, topic: TopicFactory, s3: S3Server
) -> None:
    """Checkpoint and slices in a bucket: two runs count every record once."""
    name = topic(partitions=2, config=KEEP)
    uri = s3.bucket()
    store = SliceStore(
        folder=open_folder(f"{uri}/out", spark).child(SLICES_FOLDER),
        topic=name,
        topic_id=find_range(spark, kafka, name, may_be="empty").topic_id,
        slice_s=60,
        slice_count=2,
    )
    seen: list[int] = []

    for seed in (1, 2):
        fill(kafka, name, 100, seed=seed, time_ms=START_MS)
        run_rolling(
            spark,
            find_range(spark, kafka, name),
            store,
            checkpoint=open_folder(f"{uri}/checkpoint", spark),
            until_caught_up=True,
            write=lambda profile: seen.append(profile.records),
        )

    assert seen == [100, 200]
    assert s3.keys(f"{uri}/out/{SLICES_FOLDER}") == {"query.json", f"{START_MS // 1_000}.parquet"}
