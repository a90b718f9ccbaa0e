"""pipeline/audit on a cluster whose workers share no folder with the driver."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient

from tests.integration.conftest import make_topic_factory
from tests.spark.audit_log import AUDIT_PARTITIONS, PARTITIONS, AuditLog, make_log
from tests.spark.cluster import Done, SparkCluster
from tests.spark.test_audit_job import write_log


@pytest.fixture(scope="module")
def faulty(kafka: str) -> tuple[AuditLog, list[str]]:
    """A log with all five faults, and the arguments that name its topics."""
    make = make_topic_factory(AdminClient({"bootstrap.servers": kafka}), "clustered")
    orders, audit_topic = make(partitions=PARTITIONS), make(partitions=AUDIT_PARTITIONS)
    log = make_log(3000, seed=7, keys=100)  # enough for a commit before the rebalance
    write_log(kafka, log, orders, audit_topic)
    conf = ["--conf", "spark.sql.shuffle.partitions=4"]
    return log, ["--bootstrap", kafka, "--input", orders, "--audit", audit_topic, *conf]


@pytest.mark.long
def test_faults_are_found_without_a_shared_folder(
    spark_cluster: SparkCluster, faulty: tuple[AuditLog, list[str]], tmp_path: Path
) -> None:
    """A path of the driver gets all findings; what executors cannot reach is refused for --land."""
    log, topics = faulty

    done = spark_cluster.keylane("audit", *topics, "--out", tmp_path / "out")
    refused = spark_cluster.keylane(
        "audit", *topics, "--out", tmp_path / "none", "--land", tmp_path / "land"
    )

    assert_found(done, log, tmp_path / "out")
    assert refused.code == 2, refused
    (line,) = [line for line in refused.error.splitlines() if "spark audit:" in line]
    assert f"--land {tmp_path}/land: " in line
    assert not (tmp_path / "none" / "verdict.json").exists()


def test_faults_are_found_when_a_worker_is_killed(
    breakable_cluster: SparkCluster, faulty: tuple[AuditLog, list[str]], tmp_path: Path
) -> None:
    """kill -9 of a worker that holds reports: Spark reads them again, and no finding is missed."""
    log, topics = faulty
    job = breakable_cluster.start_keylane("audit", *topics, "--out", tmp_path / "out")
    job.await_line("offsets of the input")  # the reports are read then, and held

    breakable_cluster.kill_worker(0)

    assert_found(job.wait(), log, tmp_path / "out")


def assert_found(done: Done, log: AuditLog, out: Path) -> None:
    """Exactly the faults of the log are in the findings, and exit status 1 says so."""
    assert done.code == 1, done
    rows = pq.read_table(out / "findings").to_pylist()
    found = {(row["kind"], row["partition"], row["offset"]) for row in rows}
    assert found == {(kind, *place) for kind, places in log.expected.items() for place in places}
    assert len(rows) == len(found)
    verdict = json.loads((out / "verdict.json").read_text())
    assert verdict["counts"] == {kind: len(places) for kind, places in log.expected.items()}
    assert (verdict["status"], verdict["reasons"]) == ("findings", [])
