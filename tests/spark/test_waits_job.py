"""`keylane spark lag` and `verify-migration` through Kafka: a group on lanes and a direct one."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import Message as Delivered
from pyspark.sql import DataFrame, SparkSession

from keylane.audit import AuditReporter, generation_of, lane_places
from keylane.cli.main import main
from keylane.keyrange.hash import key_hash
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.migration import cli as migration_cli
from keylane.pipeline.migration import job as migration_job
from keylane.pipeline.migration import sides
from keylane.pipeline.topic_range import TopicRange, read_range
from keylane.pipeline.waits import cli as waits_cli
from keylane.pipeline.waits import job as waits_job
from tests.integration.conftest import TopicFactory, make_topic_factory
from tests.integration.keylane_process import KeylaneProcess
from tests.spark.s3 import S3Server
from tests.spark.test_audit_job import abort_records

PARTITIONS, LANES, RECORDS, KEYS = 2, 4, 400, 25
Message = tuple[int, int, bytes | None, bytes | None, int]
"""partition, offset, key, value, timestamp in ms"""


@dataclass(frozen=True, slots=True)
class Groups:
    """A topic that two groups have processed: one on lanes, one direct."""

    kafka: str
    orders: str
    group: str
    lanes_audit: str
    direct_audit: str


def read_all(bootstrap: str, topic: str, partitions: int) -> list[Message]:
    """All records, in the order of each partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    places = [TopicPartition(topic, number, 0) for number in range(partitions)]
    ends = [consumer.get_watermark_offsets(place, timeout=30)[1] for place in places]
    consumer.assign(places)
    found: list[Message] = []
    while len(found) < sum(ends):
        for message in consumer.consume(500, timeout=1):
            assert message.error() is None, message.error()
            partition, offset = place_of(message)
            key, value = message.key(), message.value()
            found.append((partition, offset, key, value, message.timestamp()[1]))
    consumer.close()
    return sorted(found, key=lambda each: each[:2])


def place_of(message: Delivered) -> tuple[int, int]:
    """Partition and offset of a record that was read."""
    partition, offset = message.partition(), message.offset()
    assert partition is not None and offset is not None
    return partition, offset


def process(bootstrap: str, groups: Groups, audit_topic: str, *, group: str, lanes: int) -> None:
    """One member that reports and commits every 60 records, until all is done."""
    places = lane_places(LaneLayout(partition_count=PARTITIONS, lane_count=lanes))
    settings = {"bootstrap.servers": groups.kafka}
    reporter = AuditReporter(settings, audit_topic, member=group, place_of=places)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )

    def on_assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        lanes = [place.partition for place in partitions]
        reporter.assigned(lanes, generation=generation_of(consumer))

    consumer.subscribe([groups.orders], on_assign=on_assign)
    done, positions = 0, dict[int, int]()
    while done < RECORDS:
        for message in consumer.consume(60, timeout=0.5):
            assert message.error() is None, message.error()
            partition, offset = place_of(message)
            reporter.processed(partition, offset, message.key())
            positions[partition] = offset + 1
            done += 1
        if positions:
            reporter.flush()
            offsets = [TopicPartition(groups.orders, at, end) for at, end in positions.items()]
            consumer.commit(offsets=offsets, asynchronous=False)
            reporter.committed(positions)
            positions.clear()
    reporter.close()
    consumer.close()


def produce_orders(groups: Groups) -> None:
    """All records that are to be processed."""
    producer = Producer({"bootstrap.servers": groups.kafka, "enable.idempotence": True})
    for number in range(RECORDS):
        key = None if number % 40 == 0 else b"key-%d" % (number % KEYS)
        partition = number % PARTITIONS if key is None else key_hash(key) % PARTITIONS
        producer.produce(groups.orders, b"order %d" % number, key, partition=partition)
    assert producer.flush(30) == 0


@pytest.fixture(scope="module")
def groups(kafka: str, shared_keylane: KeylaneProcess) -> Groups:
    """Both groups have processed all of a topic."""
    make = make_topic_factory(AdminClient({"bootstrap.servers": kafka}), "waits")
    orders = make("lanes4", partitions=PARTITIONS)
    found = Groups(kafka, orders, f"{orders}-lanes", make("audit", partitions=3),
                   make("audit", partitions=2))  # fmt: skip
    produce_orders(found)
    process(shared_keylane.bootstrap, found, found.lanes_audit, group=found.group, lanes=LANES)
    process(kafka, found, found.direct_audit, group=f"{orders}-direct", lanes=1)
    return found


Command = Callable[..., int]


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`keylane spark ...` in the session of the tests, which it must not end."""
    for cli in (waits_cli, migration_cli):
        monkeypatch.setattr(cli, "start_session", lambda *_, **__: contextlib.nullcontext(spark))
    return lambda *arguments: main(["spark", *map(str, arguments)])


def expected_waits(groups: Groups) -> dict[str, list[int]]:
    """Waits of all records by the audit topic of the group on lanes, record by record."""
    reports = [json.loads(each[3] or b"") for each in read_all(groups.kafka, groups.lanes_audit, 3)]
    commits = [
        (*map(int, row), report["t"] // 1000)
        for report in reports
        if report["k"] == "c"
        for row in report["l"]
    ]
    processed = {(r["p"], r["o"]): (int(r["h"]), r["t"] // 1000) for r in reports if r["k"] == "r"}
    found: dict[str, list[int]] = {"commit": [], "process": []}
    for p, o, _, _, produced_ms in read_all(groups.kafka, groups.orders, PARTITIONS):
        h, processed_ms = processed[p, o]
        found["process"].append(processed_ms - produced_ms)
        covering = [t for at, lo, hi, end, t in commits if at == p and lo <= h <= hi and end > o]
        found["commit"].append(min(covering) - produced_ms)
    return found


def test_waits_of_a_real_group(
    groups: Groups, command: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By reports, to the millisecond; by the journal, which has each commit before its report."""
    where = ["lag", "--bootstrap", groups.kafka, "--topic", groups.orders, "--slice", "60"]
    by_reports = ["--audit", groups.lanes_audit, "--show-keys", "--keys", "3"]

    assert command(*where, *by_reports, "--out", tmp_path / "reports") == 0
    text = capsys.readouterr().out
    assert command(*where, "--group", groups.group, "--out", f"file://{tmp_path}/journal") == 0
    assert "key-" not in capsys.readouterr().out

    reports, journal = (
        json.loads((tmp_path / name / "lag.json").read_text()) for name in ("reports", "journal")
    )
    for figure, waits in expected_waits(groups).items():
        found = reports["totals"][figure]
        assert (found["records"], found["known"], found["open"]) == (RECORDS, RECORDS, 0)
        assert (found["min_ms"], found["max_ms"]) == (min(waits), max(waits))
        assert found["mean_ms"] == pytest.approx(sum(waits) / RECORDS)
    commit = journal["totals"]["commit"]
    assert (commit["records"], commit["known"], list(journal["totals"])) == (
        RECORDS,
        RECORDS,
        ["commit"],
    )
    assert commit["mean_ms"] <= reports["totals"]["commit"]["mean_ms"]
    assert commit["mean_ms"] > 0
    assert reports["timestamps"] == {"CreateTime": RECORDS}
    lanes = [row for row in reports["groups"] if (row["by"], row["figure"]) == ("lane", "commit")]
    assert len(lanes) == PARTITIONS * LANES
    assert sum(row["known"] for row in lanes) == RECORDS
    keys = pq.read_table(tmp_path / "reports" / "keys.parquet").to_pylist()
    assert len(keys) == 3
    assert all(key_hash(row["key"]) == row["key_hash"] for row in keys)
    assert keys[0]["key"].decode() in text
    assert pq.read_table(tmp_path / "journal" / "groups.parquet").num_rows > 0
    assert (tmp_path / "journal" / "lag.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_read_that_loses_reports_has_a_reason(
    groups: Groups,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Reports that are there and were not seen: the waits are not those of all records."""

    def read_most(spark: SparkSession, chosen: TopicRange, **options: Any) -> DataFrame:
        found = read_range(spark, chosen, **options)
        return found.where("offset < 10") if chosen.topic == groups.lanes_audit else found

    monkeypatch.setattr(waits_job, "read_range", read_most)
    where = ["--bootstrap", groups.kafka, "--topic", groups.orders, "--audit", groups.lanes_audit]

    code = command("lag", *where, "--out", tmp_path)

    assert code == 2
    assert (
        f"{groups.lanes_audit} partition 0: the record at offset 10 was not seen, though it is"
        " there"
    ) in capsys.readouterr().out


@pytest.mark.long
def test_offsets_without_a_record_have_no_wait(
    groups: Groups,
    command: Command,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An aborted transaction: reports of its offsets are not taken for waits of records."""
    orders = topic(partitions=1)
    abort_records(groups.kafka, orders)
    where = ["--bootstrap", groups.kafka, "--option", "kafka.isolation.level=read_committed"]

    code = command("lag", *where, "--topic", orders, "--audit", groups.lanes_audit,
                   "--out", tmp_path)  # fmt: skip

    lines = capsys.readouterr().out.splitlines()
    assert code == 2
    assert lines[0].startswith(f"{orders}: 0 records")
    reason = "no record has a known time of its commit or its processing"
    assert lines[1:] == [f"inconclusive: {reason}"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("lag", {"lag.json", "groups.parquet", "keys.parquet", "lag.png", "lag.svg"}),
        ("verify-migration", {"verdict.json", "differences.parquet", "keys.parquet"}),
    ],
)
def test_answers_go_to_a_bucket(
    groups: Groups,
    command: Command,
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    files: set[str],
) -> None:
    """All files stand in the bucket, and no folder of that name on this machine."""
    monkeypatch.chdir(tmp_path)
    uri = f"{s3.bucket()}/out"
    sides_of = ["--before", groups.direct_audit, "--after", groups.lanes_audit]
    topics = {
        "lag": ["--topic", groups.orders, "--audit", groups.lanes_audit],
        "verify-migration": ["--input", groups.orders, *sides_of],
    }

    assert command(name, "--bootstrap", groups.kafka, *topics[name], "--out", uri) == 0

    assert s3.keys(uri) == files
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_work_of_two_groups_is_the_same_until_a_report_is_missing(
    groups: Groups,
    command: Command,
    admin: AdminClient,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Lanes against direct; one report lost, two swapped; a partition with no report left."""
    where = ["verify-migration", "--bootstrap", groups.kafka, "--input", groups.orders]
    where += ["--before", groups.direct_audit]
    reports = read_all(groups.kafka, groups.direct_audit, 2)
    of_key = next(key for _, _, key, _, _ in reports if key is not None and b":" in key)
    first, second, third = [each for each in reports if each[2] == of_key][:3]
    swap = {first[:2]: second[3], second[:2]: first[3]}
    faulty = topic("audit", partitions=2)
    producer = Producer({"bootstrap.servers": groups.kafka, "enable.idempotence": True})
    for report in reports:
        if report[:2] != third[:2]:
            value = swap.get(report[:2], report[3])
            producer.produce(faulty, value, report[2], partition=report[0])
    assert producer.flush(30) == 0

    same = command(*where, "--after", groups.lanes_audit, "--out", tmp_path / "same")
    text = capsys.readouterr().out
    differs = command(*where, "--after", faulty, "--out", tmp_path / "differs")
    capsys.readouterr()
    mixed = command(*where, "--after", groups.orders, "--out", tmp_path / "mixed")
    no_reports = capsys.readouterr().out
    emptied = TopicPartition(faulty, 0, OFFSET_END)
    admin.delete_records([emptied])[emptied].result(30)
    gone = command(*where, "--after", faulty, "--out", tmp_path / "gone")

    assert same == 0, text
    assert text.splitlines()[0].startswith(f"same: {RECORDS} before, {RECORDS} after, ")
    assert text.splitlines()[2] == (
        "reported again: 0 before, 0 after; offsets without a report on either side: 0"
    )
    assert differs == 1
    verdict = json.loads((tmp_path / "differs" / "verdict.json").read_text())
    assert verdict["counts"] == {"missing": 1, "extra": 0, "duplicated": 0, "reordered": 1}
    offsets = [json.loads(each[3] or b"")["o"] for each in (first, second, third)]
    rows = pq.read_table(tmp_path / "differs" / "differences.parquet").to_pylist()
    assert {(row["kind"], row["offset"]) for row in rows} == {
        ("missing", offsets[2]),
        ("reordered", offsets[1]),
    }
    assert mixed == 2
    assert f"inconclusive: {RECORDS} records of {groups.orders} are no reports" in no_reports
    assert gone == 2
    ends = Counter(each[0] for each in read_all(groups.kafka, groups.orders, PARTITIONS))
    place = ",".join(f"{number}:{ends[number]}" for number in range(PARTITIONS))
    assert f"inconclusive: {faulty} has lost its oldest reports: begin with --from {place}" in (
        capsys.readouterr().out
    )


@pytest.mark.long
def test_topics_with_other_partitions_are_compared_by_key(
    groups: Groups,
    command: Command,
    topic: TopicFactory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A copy over three partitions is the same; one more record is found at its offset."""
    copy = topic(partitions=3)
    producer = Producer({"bootstrap.servers": groups.kafka, "enable.idempotence": True})
    for _, offset, key, value, _ in read_all(groups.kafka, groups.orders, PARTITIONS):
        partition = offset % 3 if key is None else key_hash(key) % 3
        producer.produce(copy, value, key, partition=partition)
    assert producer.flush(30) == 0
    where = ["verify-migration", "--bootstrap", groups.kafka, "--before", groups.orders]
    where += ["--after", copy]

    same = command(*where, "--out", tmp_path / "same")
    text = capsys.readouterr().out
    producer.produce(copy, b"order 41", b"key-16", partition=key_hash(b"key-16") % 3)
    assert producer.flush(30) == 0
    again = command(*where, "--out", tmp_path / "again")
    capsys.readouterr()

    # Of what a lost worker had, less may be there when it is read again.
    number = sides.numbered
    with monkeypatch.context() as patch:
        patch.setattr(sides, "numbered", lambda *a, **b: number(*a, **b).where("seq < 3"))
        fewer = command(*where, "--out", tmp_path / "fewer")
    recounted = capsys.readouterr().out

    # A read that ends early is no topic with fewer records.
    def read_most(*arguments: Any, **options: Any) -> DataFrame:
        return read_range(*arguments, **options).where("offset < 10")

    monkeypatch.setattr(migration_job, "read_range", read_most)
    early = command(*where, "--out", tmp_path / "early")

    assert same == 0, text
    head = f"same: {RECORDS} before, {RECORDS} after, {KEYS} keys, 0 of them different"
    assert text.splitlines()[0] == head
    assert again == 1
    (row,) = pq.read_table(tmp_path / "again" / "differences.parquet").to_pylist()
    assert (row["kind"], row["key_hash"]) == ("duplicated", key_hash(b"key-16"))
    assert (row["before_offset"], row["after_partition"]) == (None, key_hash(b"key-16") % 3)
    assert (row["value_bytes"], row["after_offset"] > 0) == (len("order 41"), True)
    assert fewer == 2
    assert f"inconclusive: {copy} was read again after a worker was lost, and had " in recounted
    assert early == 2
    reported = capsys.readouterr().out
    assert reported.startswith("inconclusive: ")
    assert (
        f"{copy} partition 0: the record at offset 10 was not seen, though it is there" in reported
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["lag", "--topic", "{orders}"], "--group or --audit is needed"),
        (["lag", "--topic", "no-such", "--group", "g"], "has no such topic"),
        (["lag", "--topic", "{orders}", "--group", "g", "--slice", "0"], "--slice: expected 1"),
        (["verify-migration", "--before", "{orders}", "--after", "{orders}"], "are both"),
        (["verify-migration", "--before", "{orders}", "--after", "no-such"], "no such topic"),
        (["verify-migration", "--before", "{orders}", "--after", "{empty}"], "no records from"),
        (
            ["verify-migration", "--input", "a", "--before", "b", "--after", "c", "--headers"],
            "--headers: has no meaning beside --input",
        ),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    reason: str,
    groups: Groups,
    command: Command,
    topic: TopicFactory,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, the reason on stderr, and nothing on stdout."""
    empty = topic() if "{empty}" in arguments else ""
    filled = [each.format(orders=groups.orders, empty=empty) for each in arguments]

    code = command(*filled, "--bootstrap", groups.kafka, "--out", tmp_path)

    reported = capsys.readouterr()
    assert (code, reported.out) == (2, "")
    (line,) = [line for line in reported.err.splitlines() if f"spark {arguments[0]}: " in line]
    assert reason in line
