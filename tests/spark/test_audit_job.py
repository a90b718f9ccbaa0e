"""pipeline/audit/job.py on real topics: what a real group did, and a log with faults in it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewPartitions
from pyspark.sql import DataFrame, SparkSession

from keylane.cli.main import main
from keylane.embedded import EmbeddedKafka
from keylane.pipeline.audit import cli, job
from keylane.pipeline.audit.cli import follow, render
from keylane.pipeline.audit.job import AuditRequest, run_audit
from keylane.pipeline.audit.stream import Follower, coverage_stream
from keylane.pipeline.brokers import SparkAdmin
from keylane.pipeline.storage import open_folder
from keylane.pipeline.topic_range import TopicRange, changes_since, find_range, read_range
from tests.integration.conftest import TopicFactory, make_topic_factory
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.share_wire import wait_until
from tests.integration.test_acls import AUTHORIZER
from tests.spark.audit_log import AUDIT_PARTITIONS, PARTITIONS, AuditLog, make_log
from tests.spark.audited_group import AuditedGroup, GroupRun
from tests.spark.s3 import S3Server


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
        bootstrap=kafka, input_topic=orders, audit_topic=audit_topic, out=str(tmp_path / "out")
    )

    verdict = run_audit(spark, request)

    assert verdict.status == "clean", render(verdict)
    assert verdict.exit_code == 0
    assert verdict.records >= run.orders
    # The demo's own ledger counts the same: each delivery is a report.
    assert verdict.reports >= ledger.counts.deliveries
    assert verdict.redelivered >= ledger.counts.after_kill
    with SparkAdmin(spark, kafka) as admin:
        committed = admin.committed(f"{orders}-group", orders)
    assert committed == {partition: end for partition, (_, end) in verdict.judged.items()}


def test_seeded_faults_are_found_through_kafka(
    spark: SparkSession, kafka: str, topic: TopicFactory, s3: S3Server
) -> None:
    """Exact offsets in the findings, counts and exit code in the verdict; all of it in S3."""
    log = make_log(6000, seed=5, keys=150)
    orders = topic("orders", partitions=PARTITIONS)
    audit_topic = topic("audit", partitions=AUDIT_PARTITIONS)
    write_log(kafka, log, orders, audit_topic)
    bucket = s3.bucket()
    folder = open_folder(bucket, spark)
    request = AuditRequest(
        bootstrap=kafka,
        input_topic=orders,
        audit_topic=audit_topic,
        out=f"{bucket}/out",
        land=f"{bucket}/land",
    )

    verdict = run_audit(spark, request)

    rows = spark.read.parquet(f"{bucket}/out/findings").collect()
    assert spark.read.parquet(f"{bucket}/land/reports").count() == len(log.messages)
    found = {(row["kind"], row["partition"], row["offset"]) for row in rows}
    assert found == {(kind, *place) for kind, places in log.expected.items() for place in places}
    assert len(rows) == len(found)
    written = json.loads(folder.child("out").read("verdict.json", 1 << 20) or b"")
    assert written["counts"] == {kind: len(places) for kind, places in log.expected.items()}
    assert (verdict.status, verdict.exit_code, verdict.reasons) == ("findings", 1, [])
    assert "lost: partition 1 offset" in render(verdict)
    # The same as a stream: records that the group has committed and no member reported.
    with SparkAdmin(spark, kafka) as admin:
        admin.commit("followed", orders, log.ends)
    args = SimpleNamespace(bootstrap=kafka, input=orders, audit=audit_topic)
    args.out, args.follow, args.once = f"{bucket}/follow", "followed", True
    assert follow(spark, args, {}) == 1
    follower = Follower(dict, print, folder.child("follow"))
    follower.load()
    assert follower.lost == {(1, 1): sum(1 << offset for _, offset in log.expected["lost"])}
    assert follower.repeat_count == verdict.reports - (6000 - 5)


def extended_mode(spark: SparkSession) -> Any:
    """The mode of `explain` that shows the optimized plan."""
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")


def test_a_stream_parses_each_report_once(spark: SparkSession) -> None:
    """A filter that is pushed through a projection would parse again for each field it names."""
    frame = coverage_stream(spark, "kafka:9092", "orders", "audit", {})

    plan = str(frame._jdf.queryExecution().explainString(extended_mode(spark)))

    optimized = plan[plan.index("== Optimized Logical Plan ==") :]
    assert optimized[: optimized.index("== Physical Plan ==")].count("from_json(") == 1


@pytest.mark.parametrize(
    ("lost", "condition", "reason"),
    [
        ("input", "partition = 0", "partition 1: the record at offset 0 was not seen"),
        ("input", "offset not between 70 and 75", "partition 0: the record at offset 70"),
        ("audit", "offset not between 70 and 75", "partition 2: the record at offset 70"),
        ("audit", "partition != 3", "partition 3: the record at offset 0 was not seen"),
    ],
)
def test_a_read_that_loses_records_is_no_clean_verdict(
    lost: str,
    condition: str,
    reason: str,
    spark: SparkSession,
    kafka: str,
    topics: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A hole that the brokers have a record in is noted, whatever else was found."""
    read = read_range

    def read_less(spark: SparkSession, chosen: TopicRange, **options: int) -> DataFrame:
        rows = read(spark, chosen, **options)
        return rows.where(condition) if chosen.topic == topics[lost] else rows

    monkeypatch.setattr(job, "read_range", read_less)
    request = AuditRequest(
        bootstrap=kafka,
        input_topic=topics["input"],
        audit_topic=topics["audit"],
        out=str(tmp_path / "out"),
    )

    verdict = run_audit(spark, request)

    assert verdict.status != "clean"
    assert [f"{topics[lost]} {reason}" in text for text in verdict.reasons].count(True) == 1


@pytest.fixture(scope="module")
def topics(kafka: str) -> dict[str, str]:
    """Names of an input topic and its audit topic, which are clean."""
    make = make_topic_factory(AdminClient({"bootstrap.servers": kafka}), "seen")
    names = {"input": make(partitions=PARTITIONS), "audit": make(partitions=AUDIT_PARTITIONS)}
    log = make_log(1200, seed=7, keys=100, faulty=False)
    write_log(kafka, log, names["input"], names["audit"])
    return names


def test_offsets_without_a_record_are_no_reason_for_doubt(
    spark: SparkSession, kafka: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """An aborted transaction leaves offsets and no record: nothing could be lost, it is clean."""
    orders, audit_topic = topic("orders", partitions=1), topic("audit", partitions=AUDIT_PARTITIONS)
    abort_records(kafka, orders)
    log = make_log(0, seed=8, faulty=False)
    write_log(kafka, AuditLog(ends={}, messages=log.messages), orders, audit_topic)
    request = AuditRequest(
        bootstrap=kafka,
        input_topic=orders,
        audit_topic=audit_topic,
        out=str(tmp_path / "out"),
        options={"kafka.isolation.level": "read_committed"},
    )

    verdict = run_audit(spark, request)

    assert verdict.judged == {0: (0, 101)}
    assert (verdict.status, verdict.records, verdict.reasons) == ("clean", 0, [])
    assert verdict.holes == {0: 101}


def test_a_topic_that_changes_under_an_audit_is_noted(
    spark: SparkSession, kafka: str, admin: AdminClient, topic: TopicFactory
) -> None:
    """More partitions, and another topic of the same name: what was read is not all there is."""
    orders = topic("orders", partitions=2)
    write_log(kafka, AuditLog(ends={0: 3, 1: 3}), orders, "")
    chosen = find_range(spark, kafka, orders)
    unchanged = changes_since(spark, chosen)

    admin.create_partitions([NewPartitions(orders, 3)])[orders].result(30)
    wait_until(
        lambda: len(admin.list_topics(orders, timeout=30).topics[orders].partitions) == 3,
        "three partitions",
    )
    grown = changes_since(spark, chosen)
    cut = changes_since(spark, replace(chosen, ends=(3, 4)))
    other = changes_since(spark, replace(chosen, topic_id="another"))

    assert unchanged == []
    assert grown == [f"{orders} has 3 partitions now, and 2 were read"]
    assert cut[1:] == [f"{orders} partition 1 ends at 3 now, before 4 which was read"]
    assert other == [f"{orders} was deleted and made anew while it was read"]


def abort_records(kafka: str, topic: str) -> None:
    """Give a topic of one partition 100 records of an aborted transaction, and its marker."""
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(100):
        producer.produce(topic, value=b"x")
    producer.flush(30)
    producer.abort_transaction(30)
    wait_for_end(kafka, topic, 101)


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
    with SparkAdmin(spark, kafka) as admin:
        admin.commit("judged", orders, {0: 150})
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


@pytest.mark.long
def test_a_topic_that_may_not_be_read_is_named(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without READ, and without DESCRIBE: one line with the topic, exit code 2."""
    monkeypatch.setattr(cli, "start_session", lambda *_, **__: nullcontext(spark))
    properties = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    with EmbeddedKafka(tmp_path / "kafka", properties=properties) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        make = make_topic_factory(admin, "secret")
        orders, audit_topic = make(partitions=PARTITIONS), make(partitions=AUDIT_PARTITIONS)
        log = make_log(40, seed=6, keys=20, faulty=False)
        write_log(broker.bootstrap, log, orders, audit_topic)
        command = ["spark", "audit", "--bootstrap", broker.bootstrap, "--audit", audit_topic]
        command += ["--input", orders, "--out", str(tmp_path / "out")]

        # What has a rule is closed to all that no rule lets in.
        allow(admin, audit_topic, AclOperation.DESCRIBE)
        unread = main(command)
        allow(admin, orders, AclOperation.ALTER_CONFIGS)
        hidden = main(command)

    lines = [line for line in capsys.readouterr().err.splitlines() if "spark audit:" in line]
    assert (unread, hidden) == (2, 2)
    assert [line.split(":")[1].strip() for line in lines] == [
        f"topic {audit_topic}",
        f"topic {orders} at 127.0.0.1",
    ]
    assert all("AuthorizationException" in line for line in lines)


def allow(admin: AdminClient, topic: str, operation: AclOperation) -> None:
    """Let all users do one thing with a topic."""
    pattern, allowed = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    rule = AclBinding(ResourceType.TOPIC, topic, pattern, "User:*", "*", operation, allowed)
    for done in admin.create_acls([rule]).values():
        done.result(30)
