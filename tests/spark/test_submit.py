"""The start of Spark, and its failures, on a cluster: what is there already is respected."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession

from keylane.assignor.profile import read_profile
from keylane.cli.main import main
from keylane.embedded.ports import find_free_port
from keylane.errors import ConfigInvalid
from keylane.pipeline.arguments import start_session
from keylane.pipeline.start import open_session
from tests.integration.byte_tap import tapped_broker
from tests.integration.conftest import TopicFactory
from tests.spark.s3 import S3Server, s3_jars

from .cluster import BOTH, WORKERS, Job, SparkCluster
from .gate import Gate

COMMAND = """
import sys
from keylane.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
GIVEN = f"""
from keylane.pipeline.start import open_session
spark = open_session("given")
print("jars", spark.sparkContext.getConf().get("spark.jars"))
{COMMAND}"""
RECORDS = 200
PARTITIONS = 3
TOPIC = "held"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The command line as a program for spark-submit."""
    path = tmp_path / "run.py"
    path.write_text(COMMAND)
    return path


@dataclass(frozen=True)
class Held:
    """A topic that driver and producers reach, and executors from `gate.open` on."""

    arguments: list[str]
    gate: Gate

    def start(self, cluster: SparkCluster, out: Path) -> Job:
        """Start a profile; returns when both executors are in a task, and wait."""
        job = cluster.start_keylane("profile", *self.arguments, *BOTH, "--out", out)
        self.gate.await_executors(WORKERS)
        return job


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    """A broker whose executors wait, with records whose partitions are known."""
    with tapped_broker(tmp_path / "kafka") as tap:
        gate = tap.sent = Gate()
        producer = Producer({"bootstrap.servers": tap.bootstrap})
        admin = AdminClient({"bootstrap.servers": tap.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(60)
        for number in range(RECORDS):
            producer.produce(TOPIC, b"value", b"key-%d" % number, number % PARTITIONS)
        assert producer.flush(60) == 0
        try:
            yield Held(["--bootstrap", tap.bootstrap, "--topic", TOPIC], gate)
        finally:
            gate.open.set()


def one_line(text: str) -> str:
    """The only line of a command's stderr that is not progress."""
    lines = [line for line in text.splitlines() if " tasks" not in line]
    assert len(lines) == 1, text
    return lines[0]


def test_spark_submit_runs_on_its_master(
    spark_cluster: SparkCluster, kafka: str, topic: TopicFactory, tmp_path: Path, program: Path
) -> None:
    """Its master wins over `local[*]`, and the jars that it was not given are added."""
    name = topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(RECORDS):
        producer.produce(name, b"value", b"key-%d" % number)
    assert producer.flush(60) == 0
    where = ["--bootstrap", kafka, "--topic", name, "--out", tmp_path / "out"]

    done = spark_cluster.submit(program, "spark", "profile", *where, jars=False)

    assert done.code == 0, done
    assert spark_cluster.application(f"keylane profile {name}")["state"] == "FINISHED"
    profile = read_profile((tmp_path / "out" / "profile.json").read_bytes())
    assert profile.records == RECORDS
    assert sum(load.distinct_keys or 0 for load in profile.partitions) == RECORDS


@pytest.mark.long
def test_jars_that_spark_submit_was_given_are_those_that_are_used(
    spark_cluster: SparkCluster,
    held: Held,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A list as `keylane spark jars --paths` prints it: executors read with it, none is added."""
    held.gate.open.set()
    assert main(["spark", "jars", "--to", str(tmp_path / "jars"), "--paths"]) == 0
    paths = capsys.readouterr().out.strip()
    program = tmp_path / "given.py"
    program.write_text(GIVEN)
    arguments = ["spark", "profile", *held.arguments, "--out", tmp_path / "out"]

    done = spark_cluster.submit(program, *arguments, options=["--jars", paths], jars=False)

    assert done.code == 0, done
    (shown,) = [line for line in done.out.splitlines() if line.startswith("jars ")]
    used = [urlsplit(jar).path for jar in shown.removeprefix("jars ").split(",")]
    assert sorted(used) == sorted(paths.split(","))
    assert read_profile((tmp_path / "out" / "profile.json").read_bytes()).records == RECORDS


@pytest.mark.long
def test_jars_of_a_store_are_shipped_beside_the_connector(
    spark_cluster: SparkCluster, held: Held, s3_server: S3Server
) -> None:
    """`--conf spark.jars` without a connector: keylane adds its own, and both reach executors."""
    held.gate.open.set()
    uri = f"{s3_server.bucket()}/out"
    given = {**s3_server.settings, "spark.jars": ",".join(map(str, s3_jars()))}
    conf = [word for pair in given.items() for word in ("--conf", "=".join(pair))]

    done = spark_cluster.keylane("profile", *held.arguments, *conf, "--out", uri)

    assert done.code == 0, done
    assert "profile.json" in s3_server.keys(uri)


@pytest.mark.long
def test_another_master_than_spark_submits_is_refused(
    spark_cluster: SparkCluster, tmp_path: Path, program: Path
) -> None:
    """One line names both; so does a setting that comes too late for the JVM."""
    where = ["--bootstrap", "127.0.0.1:1", "--topic", "t", "--out", tmp_path / "out"]

    done = spark_cluster.submit(program, "spark", "profile", *where, "--master", "local[3]")

    assert done.code == 2, done
    (line,) = [text for text in done.out.splitlines() if "keylane spark" in text]
    assert line == (
        "keylane spark profile: --master local[3]: Spark's JVM runs already, with"
        f" {spark_cluster.url}"
    )
    assert "Traceback" not in done.out + done.error


def test_a_dead_master_is_one_line(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """Exit status 3, without Spark's own minute of attempts and without a JVM."""
    where = ["--bootstrap", "127.0.0.1:1", "--topic", "t", "--out", tmp_path / "out"]
    dead = f"spark://127.0.0.1:{find_free_port()}"

    done = spark_cluster.keylane("profile", *where, "--conf", f"spark.master={dead}", master=False)

    assert done.code == 3, done
    assert one_line(done.error) == (
        f"keylane spark profile: {dead}: no master answers (connection refused)"
    )


def test_a_session_that_runs_is_respected(spark: SparkSession) -> None:
    """It is what a command gets, with what it can still take, and it stays open."""
    conf = ["spark.sql.shuffle.partitions=7", "spark.driver.memory=1g"]
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))

    with start_session("another", master="local[2]", conf=conf) as found:
        shuffles = found.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", before)

    assert found.sparkContext is spark.sparkContext
    assert shuffles == "7"
    assert spark.range(3).count() == 3
    with pytest.raises(ConfigInvalid, match=r"--master spark://x:1: a Spark session runs already"):
        open_session("another", master="spark://x:1")
    with pytest.raises(ConfigInvalid, match=r"--conf spark.driver.memory: a Spark session runs"):
        open_session("another", config={"spark.driver.memory": "77g"})


@pytest.mark.long
def test_a_killed_worker_changes_no_count(
    breakable_cluster: SparkCluster, held: Held, tmp_path: Path
) -> None:
    """kill -9 of a worker and its executor in the middle of a task: each record counts once."""
    job = held.start(breakable_cluster, tmp_path / "out")

    breakable_cluster.kill_worker(0)
    held.gate.open.set()
    done = job.wait()

    assert done.code == 0, done
    profile = read_profile((tmp_path / "out" / "profile.json").read_bytes())
    expected = [len(range(number, RECORDS, PARTITIONS)) for number in range(PARTITIONS)]
    assert [sum(load.records) for load in profile.partitions] == expected
    assert [load.distinct_keys for load in profile.partitions] == expected


def test_a_removed_application_is_one_line(
    spark_cluster: SparkCluster, held: Held, tmp_path: Path
) -> None:
    """The master ends it when its executors have failed ten times: status 3, no stack trace."""
    more = ["--conf", "spark.executorEnv.JAVA_HOME=/none", "--out", tmp_path / "out"]

    done = spark_cluster.keylane("profile", *held.arguments, *more)

    assert done.code == 3, done
    line = one_line(done.error)
    assert "removed this application" in line or "Master removed our application: FAILED" in line


@pytest.mark.long
def test_a_killed_jvm_is_one_line(spark_cluster: SparkCluster, held: Held, tmp_path: Path) -> None:
    """The driver's JVM ends in the middle of a job, as for want of memory."""
    job = held.start(spark_cluster, tmp_path / "out")
    (jvm,) = [
        child
        for child in psutil.Process(job.pid).children(recursive=True)
        if child.name() == "java"
    ]

    jvm.kill()
    done = job.wait()

    assert done.code == 3, done
    assert "Spark's JVM has ended" in one_line(done.error)


@pytest.mark.long
def test_a_cluster_without_a_free_executor_is_reported(
    spark_cluster: SparkCluster, held: Held, tmp_path: Path
) -> None:
    """A job that gets no executor waits, and says so; Ctrl-C ends it on one line."""
    more = ["--conf", "spark.executor.memory=64g", "--out", tmp_path / "out"]
    job = spark_cluster.start_keylane("profile", *held.arguments, *more)
    line = job.await_line("runs no task")

    job.interrupt()
    done = job.wait()

    assert "no executor is free, or stays up (64g each)" in line
    assert done.code == 130, done
    lines = [text for text in done.error.splitlines() if text and "runs no task" not in text]
    assert lines == ["keylane: interrupted"]
