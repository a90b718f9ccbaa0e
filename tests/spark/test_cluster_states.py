"""States of lanes on a cluster: by URI from two workers, and never beside a worker alone."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from pyarrow import fs

from keylane.pipeline.arrow_files import WorkerFiles, s3_arguments
from keylane.pipeline.lane_states import states_of
from tests.spark.cluster import LOOPBACK, RUN_S, Done, SparkCluster, worker_hosts
from tests.spark.lane_files import LAYOUT, SCHEMA, put_lane_file
from tests.spark.s3 import S3Server, s3_jars

HEAD = """
import os, socket, sys
from pyspark import TaskContext
from pyspark.sql import SparkSession, functions as F
from keylane.errors import KeylaneError
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.job import spark_errors
from keylane.pipeline.keyed_state import LaneFold

def run(frame, lanes, checkpoint):
    writer = frame.writeStream.foreachBatch(lanes).trigger(availableNow=True)
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        with spark_errors("the query"):
            query.awaitTermination()
        print("done")
    except KeylaneError as error:
        print("refused", error)

spark = SparkSession.builder.appName("states").getOrCreate()
"""
OWN_DISK = f"""{HEAD}
folder = "file://" + sys.argv[1]
frame = spark.readStream.format("rate").load().select(
    F.lit(0).alias("partition"), F.col("value").alias("offset"), F.lit(b"k").alias("key"),
    F.lit(b"v").alias("value"))
run(frame, LaneFold(folder + "/states", LaneLayout(1, 1), lambda *record: b""), folder + "/ck")
spark.stop()
"""
KILLED = f"""{HEAD}
uri, door = sys.argv[1], ("{LOOPBACK}", int(sys.argv[2]))

def fold(state, key, offset, value):
    # The last batch's first attempt at one lane comes to no end: its worker is killed.
    if value == b"7" and TaskContext.get().partitionId() and not TaskContext.get().attemptNumber():
        with socket.create_connection(door) as held:
            held.sendall(os.environ["SPARK_LOCAL_IP"].encode())
            held.recv(1)
    return (state or b"") + value

lanes = LaneFold(uri + "/states", LaneLayout({LAYOUT.partition_count}, {LAYOUT.lane_count}), fold)
frame = spark.readStream.schema("{SCHEMA}").option("maxFilesPerTrigger", 2).parquet(uri + "/in")
run(frame, lanes, uri + "/checkpoint")
spark.stop()
"""
FILE_BYTES = 1 << 20
"""Spark counts each file as this long, and puts no second one into a task."""


def test_a_folder_that_workers_do_not_share_is_refused_before_a_record_is_folded(
    spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    """Each executor would keep states that no other finds: one line, and nothing is written."""
    program = tmp_path / "own_disk.py"
    program.write_text(OWN_DISK)

    done = spark_cluster.submit(program, tmp_path, jars=False)

    refused = done.out.splitlines()[-1]
    assert refused.startswith(f"refused the query: LaneFold's folder {tmp_path}/states: of "), done
    assert "0 are on this machine; give a folder that driver and workers share" in refused
    assert not list((tmp_path / "states").iterdir())


@pytest.mark.long
@pytest.mark.timeout(900)
def test_states_survive_the_kill_of_a_worker(
    breakable_cluster: SparkCluster, s3_server: S3Server, tmp_path: Path
) -> None:
    """Two batches of two lanes; a worker dies within the second, and the other one takes over."""
    cluster, uri = breakable_cluster, s3_server.bucket()
    keys = [put_lane_file(s3_server, uri, lane, 0) for lane in (0, 1)]
    for lane in (0, 1):
        put_lane_file(s3_server, uri, lane, 6)
    program = tmp_path / "states.py"
    program.write_text(KILLED)
    settings = {
        **s3_server.settings,
        "spark.sql.files.openCostInBytes": str(FILE_BYTES),
        "spark.sql.files.maxPartitionBytes": str(FILE_BYTES),
    }
    options = [word for pair in settings.items() for word in ("--conf", "=".join(pair))]
    jars = ["--jars", ",".join(map(str, s3_jars()))]

    with socket.create_server((LOOPBACK, 0)) as door:
        door.settimeout(RUN_S)
        port = door.getsockname()[1]
        job = cluster.start_submit(program, uri, port, options=[*jars, *options], jars=False)
        held, _ = door.accept()
        with held:
            cluster.kill_worker(worker_hosts().index(held.recv(64).decode()))
    done = Done.of(job)

    assert done.out.splitlines()[-1] == "done", done
    setting = {name.removeprefix("spark.hadoop."): text for name, text in settings.items()}.get
    path = f"{uri.removeprefix('s3a://')}/states"
    files = WorkerFiles(uri, fs.S3FileSystem(**s3_arguments(setting)), path, True, False)
    found = {key: state for (_, key), (_, state) in states_of(files, LAYOUT).items()}
    ends = [b"0369", b"14710", b"25811"]
    assert found == {key: end for lane in keys for key, end in zip(lane, ends, strict=True)}, done
