"""pipeline/audit_job.py on real topics: what a real group did, and a log with faults in it."""

from __future__ import annotations

import json
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from keylane.cli import main
from keylane.pipeline import audit_cli
from keylane.pipeline.audit_cli import follow, render
from keylane.pipeline.audit_job import AuditRequest, run_audit
from keylane.pipeline.group_offsets import GroupOffsets
from tests.integration.conftest import TopicFactory
from tests.integration.keylane_process import KeylaneProcess
from tests.spark.audit_log import AUDIT_PARTITIONS, PARTITIONS, AuditLog, make_log
from tests.spark.audited_group import AuditedGroup, GroupRun


def write_log(kafka: str, log: AuditLog, input_topic: str, audit_topic: str) -> None:
    """Fill both topics."""
    # Idempotent: a retry that overtakes would be a fault of its own, and it is found.
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    for partition, end in log.ends.items():
        for _ in range(end):
            producer.produce(input_topic, value=b"x", partition=partition)
    for message in log.messages:
        producer.produce(
            audit_topic, key=message.key, value=message.value, partition=message.partition
        )
    assert producer.flush(60) == 0


def test_a_real_group_with_kills_is_clean(
    spark: SparkSession,
    kafka: str,
    topic: TopicFactory,
    shared_keylane: KeylaneProcess,
    tmp_path: Path,
) -> None:
    """Eight stock consumers of three libraries on eight lanes, four of them killed with -9."""
    orders, audit_topic = topic("lanes4", partitions=2), topic("audit", partitions=4)
    run = GroupRun(
        kafka=kafka,
        proxy=shared_keylane.bootstrap,
        topic=orders,
        audit_topic=audit_topic,
        partitions=2,
        lanes=4,
        folder=tmp_path,
        orders=3000,
    )
    ledger = AuditedGroup(run).play()
    request = AuditRequest(
        bootstrap=kafka, input_topic=orders, audit_topic=audit_topic, out=tmp_path / "out"
    )

    verdict = run_audit(spark, request)

    assert verdict.status == "clean", render(verdict)
    assert verdict.exit_code == 0
    assert verdict.records >= run.orders
    # The demo's own books count the same: each told delivery is a report.
    assert verdict.reports >= ledger.counts.deliveries
    assert verdict.redelivered >= ledger.counts.after_kill
    with GroupOffsets(spark, kafka, f"{orders}-group") as offsets:
        committed = offsets.read(orders)
    assert committed == {partition: end for partition, (_, end) in verdict.judged.items()}


def test_seeded_faults_are_found_through_kafka(
    spark: SparkSession, kafka: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """Exact offsets in the findings, counts and exit code in the verdict."""
    log = make_log(6000, seed=5, keys=150)
    orders = topic("orders", partitions=PARTITIONS)
    audit_topic = topic("audit", partitions=AUDIT_PARTITIONS)
    write_log(kafka, log, orders, audit_topic)
    request = AuditRequest(
        bootstrap=kafka, input_topic=orders, audit_topic=audit_topic, out=tmp_path / "out"
    )

    verdict = run_audit(spark, request)

    rows = spark.read.parquet(str(tmp_path / "out" / "findings")).collect()
    found = {(row["kind"], row["partition"], row["offset"]) for row in rows}
    assert found == {(kind, *place) for kind, places in log.expected.items() for place in places}
    assert len(rows) == len(found)
    written = json.loads((tmp_path / "out" / "verdict.json").read_text())
    assert written["counts"] == {kind: len(places) for kind, places in log.expected.items()}
    assert (verdict.status, verdict.exit_code, verdict.reasons) == ("findings", 1, [])
    assert "lost: partition 1 offset" in render(verdict)
    # The same as a stream: what the group has committed and nobody reported.
    with GroupOffsets(spark, kafka, "followed") as offsets:
        offsets.set(orders, log.ends)
    args = Namespace(bootstrap=kafka, input=orders, audit=audit_topic, out=tmp_path / "follow")
    args.follow, args.once = "followed", True
    assert follow(spark, args, {}) == 1
    state = json.loads((args.out / "follow.json").read_text())
    assert {tuple(place) for place in state["lost"]} == log.expected["lost"]
    assert sum(count for _, _, count in state["repeats"]) == verdict.reports - (6000 - 5)


def test_what_cannot_be_told_is_said(
    spark: SparkSession,
    kafka: str,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A record that is no report, and reports of a partition that the input lacks: exit code 2."""
    log = make_log(400, seed=6, keys=20, faulty=False)
    orders = topic("orders", partitions=1)
    audit_topic = topic("audit", partitions=AUDIT_PARTITIONS)
    del log.ends[1]
    write_log(kafka, log, orders, audit_topic)
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(audit_topic, value=b"{not a report")
    assert producer.flush(30) == 0
    with GroupOffsets(spark, kafka, "judged") as offsets:
        offsets.set(orders, {0: 150})
    # The command ends its session; this one is for all tests.
    monkeypatch.setattr(audit_cli, "start_session", lambda *_: nullcontext(spark))
    command = ["spark", "audit", "--bootstrap", kafka, "--audit", audit_topic]
    command += ["--out", str(tmp_path / "out"), "--land", str(tmp_path / "land")]

    code = main([*command, "--input", orders, "--to", "group:judged"])
    told = capsys.readouterr().out.splitlines()
    unknown = [
        main([*command, "--input", "no-such-topic"]),
        main([*command, "--input", orders, "--to", "group:no-such-group"]),
        main([*command, "--input", orders, "--option", "isolation"]),
    ]

    assert code == 2
    again = len(log.messages) - sum(message.key in {b"a", b"c"} for message in log.messages) - 400
    assert told[0] == (
        f"could not tell: 150 records, {400 + again} reports, {again} delivered again uncommitted"
    )
    assert [line.split(" of ")[0] for line in told[2:]] == [
        "could not tell: 1 records",
        "could not tell: 200 reports",
    ]
    assert unknown == [2, 2, 2]
    errors = [line for line in capsys.readouterr().err.splitlines() if "spark audit:" in line]
    assert [line.split(": ")[-1] for line in errors] == [
        f"{kafka} has no such topic",
        f"group no-such-group has committed nothing of {orders}",
        "expected NAME=VALUE",
    ]
