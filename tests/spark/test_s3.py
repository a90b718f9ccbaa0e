"""Folders, checkpoints, plans and states of lanes on an S3 server."""

from __future__ import annotations

import json
import struct
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from keylane.assignor.profile import LoadProfile, PartitionLoad, write_profile
from keylane.assignor.range_plan import read_plan
from keylane.cli.main import main
from keylane.errors import ConfigInvalid, JobFailed, KeylaneError, StorageFailed
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline import example_totals
from keylane.pipeline.job import spark_errors
from keylane.pipeline.keyed_state import LaneFold, all_states
from keylane.pipeline.storage import HadoopFolder, open_folder
from tests.integration.conftest import TopicFactory
from tests.integration.keylane_process import KeylaneProcess
from tests.spark.lane_files import LAYOUT, SCHEMA, join, put_lane_file
from tests.spark.s3 import S3Server

TIMEOUT_S = 120


def test_a_folder_of_a_bucket(spark: SparkSession, s3: S3Server) -> None:
    """A file is whole as soon as it is there, is replaced, and is gone when it is removed."""
    uri = s3.bucket()
    folder = open_folder(f"{uri}/a/b", spark)
    folder.write("x", b"one")
    folder.write("x", b"two")

    found = folder.read("x", 3), folder.read("y", 3), folder.names(), s3.keys(f"{uri}/a")
    with pytest.raises(ConfigInvalid, match=r"a/b/x: larger than 2 bytes"):
        folder.read("x", 2)
    folder.delete("x")

    assert found == (b"two", None, {"x"}, {"b/x"})
    assert folder.names() == set()


def test_hadoops_own_local_files_stand_for_a_system_with_renames(
    spark: SparkSession, tmp_path: Path
) -> None:
    """What HDFS does: written aside and renamed over what was there; blanks and % in names."""
    folder = HadoopFolder(spark, f"file://{tmp_path}/a b%20c")
    folder.write("x", b"one")
    folder.write("x", b"two")
    local = open_folder(f"file://{tmp_path}/a b%20c")
    spark.range(3).write.parquet(local.child("rows").uri)

    assert (tmp_path / "a b%20c" / "x").read_bytes() == b"two"
    assert local.names() - {"..x.crc"} == {"x", ".x.crc", "rows"}
    assert not list(tmp_path.rglob("*.tmp"))
    assert spark.read.parquet(folder.child("rows").uri).count() == 3
    assert (folder.read("x", 3), folder.child("none").names()) == (b"two", set())


def at(s3: S3Server, spark: SparkSession, **options: str) -> Callable[[], object]:
    return lambda: open_folder(f"{s3.bucket(**options)}/f", spark)


def test_storage_that_fails_is_one_line_with_its_cause(spark: SparkSession, s3: S3Server) -> None:
    """Wrong keys, no bucket, no server, no such file system, no jar for one."""
    s3.let_in("keylane-no-such")
    cases: list[tuple[Callable[[], object], type[KeylaneError], str]] = [
        (at(s3, spark, secret_key="no"), StorageFailed, "access denied: .*403"),
        (at(s3, spark, access_key="no"), StorageFailed, "access denied: .*403"),
        # Hadoop's own patience with a server that is gone is two minutes.
        (
            at(s3, spark, endpoint="http://127.0.0.1:9", attempts_maximum="5", retry_limit="7"),
            StorageFailed,
            r"127\.0\.0\.1:9 .*Connection refused",
        ),
        (lambda: open_folder("s3a://keylane-no-such/f", spark), StorageFailed, "does not exist"),
        (lambda: open_folder("hdfs://127.0.0.1:9/f", spark), StorageFailed, "refused"),
        (
            lambda: open_folder("gs://bucket/f", spark),
            ConfigInvalid,
            r"no file system for gs: add --conf spark.jars.packages=org.apache.hadoop:hadoop-gcp:3",
        ),
        (
            lambda: open_folder("s3://bucket/f", spark),
            ConfigInvalid,
            "no file system for the scheme s3; Hadoop's scheme is s3a",
        ),
        (lambda: open_folder("nope://b/f", spark), ConfigInvalid, "for the scheme nope$"),
        (lambda: open_folder("file://data/f"), ConfigInvalid, "names another machine"),
        (lambda: open_folder("s3a://bucket/f"), ConfigInvalid, "only Spark reads URIs"),
    ]

    for work, kind, text in cases:
        with pytest.raises(kind, match=text) as caught:
            work()
        assert len(str(caught.value).splitlines()) == 1


def test_plan_and_checkpoint_by_uri(
    spark: SparkSession, s3: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """A profile becomes a plan, and a checkpoint another lane count, without a local file."""
    uri = s3.bucket()
    load = PartitionLoad(start=0, end=90, records=(1, 1), size_bytes=(10, 30))
    profile = LoadProfile(topic="orders", bits=1, partitions=(load,), heavy=())
    open_folder(f"{uri}/profile", spark).write("profile.json", write_profile(profile))
    offsets = json.dumps({"orders": {"0": 7}})
    checkpoint = open_folder(f"{uri}/ck", spark)
    checkpoint.child("offsets").write("3", b"v1\n{}\n" + offsets.encode())
    checkpoint.child("commits").write("3", b"v1\n{}")

    plan = ["plan", f"{uri}/profile/", "--lanes", "2", "-o", f"{uri}/plans/orders.json"]
    move = ["spark", "checkpoint", f"{uri}/ck", "--from", "orders", "--to", "new"]
    move += ["--to-plan", f"{uri}/plans/orders.json"]
    codes = [main(plan), main(move), main([*move, "--write"])]

    data = open_folder(f"{uri}/plans", spark).read("orders.json", 10_000)
    assert codes == [0, 0, 0], capsys.readouterr()
    assert read_plan(data or b"").cuts == ((1 << 62,),)
    moved = checkpoint.child("offsets").read("3", 1000) or b""
    assert json.loads(moved.split(b"\n")[2]) == {"new": {"0": 7, "1": 7}}
    assert s3.keys(f"{uri}/ck") == {"offsets/3", "commits/3", "keylane-backup/offsets-3"}
    assert main(["plan", f"{uri}/none", "--lanes", "2"]) == 2
    assert f"keylane plan: {uri}/none/profile.json: No such file" in capsys.readouterr().err


def start_fold(spark: SparkSession, uri: str, states: str, checkpoint: str) -> StreamingQuery:
    fold = LaneFold(states, LAYOUT, join)
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{uri}/in")
    writer = frame.writeStream.foreachBatch(fold).trigger(availableNow=True)
    return writer.option("checkpointLocation", f"{uri}/{checkpoint}").start()


def test_states_on_s3_go_on_after_a_restart_and_with_no_other_checkpoint(
    spark: SparkSession, s3: S3Server
) -> None:
    """Three batches, with a restart in between; then a fresh checkpoint is refused."""
    uri = s3.bucket()
    states = f"{uri}/states"
    keys = [key for lane in (0, 1) for key in put_lane_file(s3, uri, lane, 0)]
    assert start_fold(spark, uri, states, "ck").awaitTermination(TIMEOUT_S)
    put_lane_file(s3, uri, 0, 6)
    assert start_fold(spark, uri, states, "ck").awaitTermination(TIMEOUT_S)
    whole = all_states(states, LAYOUT, spark)

    query = start_fold(spark, uri, states, "other")
    with pytest.raises(JobFailed) as caught, spark_errors("the query"):
        query.awaitTermination(TIMEOUT_S)

    places = {
        f"p0-{part.lo}-{part.hi}" for part in (LAYOUT.key_range(0, 0), LAYOUT.key_range(0, 1))
    }
    ends = [b"0369", b"14710", b"25811", b"03", b"14", b"25"]
    assert {key: state for (_, key), (_, state) in whole.items()} == dict(
        zip(keys, ends, strict=True)
    )
    assert all_states(states, LAYOUT, spark) == whole
    assert {name.split("/")[0] for name in s3.keys(states)} == {"fold.json", *places}
    assert str(caught.value).startswith(f"the query: {states}: has the states of query ")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_example_job_keeps_everything_on_s3(
    spark: SparkSession,
    s3: S3Server,
    kafka: str,
    topic: TopicFactory,
    shared_keylane: KeylaneProcess,
) -> None:
    """Totals of real lanes, the states and the checkpoint in a bucket, over a restart."""
    orders, uri = topic("orders", partitions=2), s3.bucket()
    args = Namespace(
        bootstrap=shared_keylane.bootstrap,
        brokers=kafka,
        topic=orders,
        lanes=2,
        hash="xxh64",
        folder=f"{uri}/totals",
        group=None,
        source="kafka",
        batch_records=1000,
        once=True,
        option=["kafka.client.id=totals"],
    )

    for _ in range(2):
        producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
        for number in range(40):
            producer.produce(orders, b"1", b"key-%d" % (number % 10))
        assert producer.flush(60) == 0
        example_totals.run(spark, args)

    states = all_states(f"{uri}/totals/states", LaneLayout(2, 2), spark)
    totals = {
        key: struct.unpack(example_totals.STATE, state) for (_, key), (_, state) in states.items()
    }
    assert totals == {b"key-%d" % number: (8, 8.0, 1.0, 0.0) for number in range(10)}
