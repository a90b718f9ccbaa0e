"""pipeline/audit/job.py on real topics: what a real group did, and a log with faults in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession

from keylane.cli.main import main
from keylane.pipeline.audit import cli, job
from keylane.pipeline.audit.cli import follow, render
from keylane.pipeline.audit.job import AuditRequest, run_audit
from keylane.pipeline.brokers import SparkGroupOffsets
from keylane.pipeline.topic_range import TopicRange, read_range
from tests.integration.conftest import TopicFactory, make_topic_factory
from tests.integration.keylane_process import KeylaneProcess
from tests.spark.audit_log import AUDIT_PARTITIONS, PARTITIONS, AuditLog, make_log
from tests.spark.audited_group import AuditedGroup, GroupRun


def write_log(kafka: str, log: AuditLog, input_topic: str, audit_topic: str) -> None:
    """Fill both topics."""
    # Idempotent: a retry that overtakes would be one more fault, which the audit finds.
    producer = Producer({"bootstrap.servers": kafka, "enable.idempotence": True})
    for partition, end in log.ends.items():
        for _ in range(end):
            producer.produce(input_topic, value=b"x", partition=partition)
    for message in log.messages:
        producer.produce(
            audit_topic, key=message.key, value=message.value, partition=message.partition
        )
    assert producer.flush(60) == 0


@pytest.fixture(scope="module")
def faulty_topics(kafka: str) -> tuple[str, str]:
    """Names of an input topic and its audit topic, with all kinds of faults in them."""
    make = make_topic_factory(AdminClient({"bootstrap.servers": kafka}), "faulty")
    orders, audit_topic = make(partitions=PARTITIONS), make(partitions=AUDIT_PARTITIONS)
    write_log(kafka, make_log(1200, seed=7, keys=100), orders, audit_topic)
    return orders, audit_topic


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
    # The demo's own ledger counts the same: each delivery is a report.
    assert verdict.reports >= ledger.counts.deliveries
    assert verdict.redelivered >= ledger.counts.after_kill
    with SparkGroupOffsets(spark, kafka, f"{orders}-group") as offsets:
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
    # The same as a stream: records that the group has committed and no member reported.
    with SparkGroupOffsets(spark, kafka, "followed") as offsets:
        offsets.set(orders, log.ends)
    args = SimpleNamespace(
        bootstrap=kafka, input=orders, audit=audit_topic, out=tmp_path / "follow"
    )
    args.follow, args.once = "followed", True
    assert follow(spark, args, {}) == 1
    state = json.loads((args.out / "follow.json").read_text())
    assert {tuple(place) for place in state["lost"]} == log.expected["lost"]
    assert sum(count for _, _, count in state["repeats"]) == verdict.reports - (6000 - 5)


@pytest.mark.parametrize("lost", ["reports", "input", "sessions", "had", "keys", "findings"])
def test_rows_that_do_not_come_back_are_no_clean_verdict(
    lost: str,
    spark: SparkSession,
    kafka: str,
    faulty_topics: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Findings that workers wrote to their own disks are missed: exit code 2 and one line."""
    monkeypatch.setattr(cli, "start_session", lambda *_, **__: nullcontext(spark))
    monkeypatch.setattr(job.CountedFolder, "read", read_of_another_disk(lost))
    orders, audit_topic = faulty_topics
    (tmp_path / "verdict.json").write_text('{"status": "clean"}')
    command = ["spark", "audit", "--bootstrap", kafka, "--audit", audit_topic, "--input", orders]

    code = main([*command, "--out", str(tmp_path)])

    assert code == 2
    reported = capsys.readouterr()
    assert "clean" not in reported.out
    (line,) = [line for line in reported.err.splitlines() if "spark audit:" in line]
    assert f"spark audit: {lost}: " in line
    assert "rows were written" in line
    assert "and 0 are there" in line
    assert line.endswith("with --out" if lost == "findings" else "with --land")
    assert not (tmp_path / "verdict.json").exists()


def read_of_another_disk(lost: str) -> Callable[[job.CountedFolder], DataFrame]:
    """`CountedFolder.read` on a machine that has the folder of `lost`, and none of its files."""
    read = job.CountedFolder.read

    def read_elsewhere(folder: job.CountedFolder) -> DataFrame:
        if folder.path.name == lost:
            for path in folder.path.glob("part-*"):
                path.unlink()
        return read(folder)

    return read_elsewhere


def test_a_partition_of_which_nothing_was_seen_is_looked_up(
    spark: SparkSession,
    kafka: str,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A read that gives no record of partition 1 is no proof that there is none to be lost."""
    log = make_log(400, seed=8, keys=20, faulty=False)
    orders, audit_topic = topic("orders", partitions=2), topic("audit", partitions=AUDIT_PARTITIONS)
    log.messages = [message for message in log.messages if b'"p":1' not in message.value]
    write_log(kafka, log, orders, audit_topic)
    read = read_range

    def read_half(spark: SparkSession, chosen: TopicRange, **options: int) -> DataFrame:
        rows = read(spark, chosen, **options)
        return rows.where("partition = 0") if chosen.topic == orders else rows

    monkeypatch.setattr(job, "read_range", read_half)
    request = AuditRequest(
        bootstrap=kafka, input_topic=orders, audit_topic=audit_topic, out=tmp_path / "out"
    )

    verdict = run_audit(spark, request)

    assert (verdict.status, verdict.exit_code) == ("inconclusive", 2)
    (reason,) = verdict.reasons
    assert reason.startswith(f"no record of {orders} partition 1 was seen")
    assert reason.endswith("the brokers have some from offset 0 to 200")


def test_offsets_without_a_record_are_no_reason_for_doubt(
    spark: SparkSession, kafka: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """An aborted transaction leaves offsets and no record: nothing could be lost, it is clean."""
    orders, audit_topic = topic("orders", partitions=1), topic("audit", partitions=AUDIT_PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": orders})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(100):
        producer.produce(orders, value=b"x")
    producer.flush(30)
    producer.abort_transaction(30)
    wait_for_end(kafka, orders, 101)
    log = make_log(0, seed=8, faulty=False)
    write_log(kafka, AuditLog(ends={}, messages=log.messages), orders, audit_topic)
    request = AuditRequest(
        bootstrap=kafka,
        input_topic=orders,
        audit_topic=audit_topic,
        out=tmp_path / "out",
        options={"kafka.isolation.level": "read_committed"},
    )

    verdict = run_audit(spark, request)

    assert verdict.judged == {0: (0, 101)}
    assert (verdict.status, verdict.records, verdict.reasons) == ("clean", 0, [])


def wait_for_end(kafka: str, topic: str, end: int) -> None:
    """Wait for the end of a transaction: its marker is written after the answer to the client."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "ends"})
    place = TopicPartition(topic, 0)
    while consumer.get_watermark_offsets(place, timeout=30)[1] < end:
        pass
    consumer.close()


def test_reports_that_cannot_be_judged_are_counted(
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
    with SparkGroupOffsets(spark, kafka, "judged") as offsets:
        offsets.set(orders, {0: 150})
    # The command ends its session; this one is for all tests.
    monkeypatch.setattr(cli, "start_session", lambda *_, **__: nullcontext(spark))
    command = ["spark", "audit", "--bootstrap", kafka, "--audit", audit_topic]
    command += ["--out", str(tmp_path / "out"), "--land", str(tmp_path / "land")]

    code = main([*command, "--input", orders, "--to", "group:judged"])
    reported = capsys.readouterr().out.splitlines()
    unknown = [
        main([*command, "--input", "no-such-topic"]),
        main([*command, "--input", orders, "--to", "group:no-such-group"]),
        main([*command, "--input", orders, "--option", "isolation"]),
    ]

    assert code == 2
    again = len(log.messages) - sum(message.key in {b"a", b"c"} for message in log.messages) - 400
    assert reported[0] == (
        f"inconclusive: 150 records, {400 + again} reports, {again} delivered again uncommitted"
    )
    assert [line.split(" of ")[0] for line in reported[2:]] == [
        "inconclusive: 1 records",
        "inconclusive: 200 reports",
    ]
    assert unknown == [2, 2, 2]
    errors = [line for line in capsys.readouterr().err.splitlines() if "spark audit:" in line]
    assert [line.split(": ")[-1] for line in errors] == [
        f"{kafka} has no such topic",
        f"group no-such-group has committed nothing of {orders}",
        "expected NAME=VALUE",
    ]
