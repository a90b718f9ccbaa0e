"""kill -9 of a worker in the middle of jobs whose answers are known."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from keylane.assignor.profile import read_profile
from keylane.keyrange.hash import key_hash
from tests.integration.byte_tap import ByteTap, tapped_broker
from tests.integration.conftest import TopicFactory, make_topic_factory
from tests.spark import test_profile, test_simulate, test_waits_job
from tests.spark.cluster import BOTH, WORKERS, Done, SparkCluster
from tests.spark.gate import Gate
from tests.spark.test_waits_job import Groups, groups

__all__ = ("groups",)

Check = Callable[[Done, Path], None]
"""Asserts that a job in this folder has ended with the right answer."""
Prepared = tuple[list[str], Check]
"""Arguments of a command, and its answer."""
RECORDS, KEYS = 300, 25
START_MS = 1_700_000_400_000
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def tap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ByteTap]:
    """A broker, at which executors can be made to wait."""
    with tapped_broker(tmp_path_factory.mktemp("tapped") / "kafka") as found:
        yield found


def two_topics(bootstrap: str, make: TopicFactory) -> Prepared:
    """A topic, and a copy over other partitions that lacks a record, and has one twice."""
    before, after = make(partitions=2), make(partitions=3)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    lost, twice = 101, 202
    for number in range(RECORDS):
        key = b"key-%d" % (number % KEYS)
        times = {lost: 0, twice: 2}.get(number, 1)
        for name, partitions, count in ((before, 2, 1), (after, 3, times)):
            for _ in range(count):
                producer.produce(name, b"%d" % number, key, partition=key_hash(key) % partitions)
    assert producer.flush(60) == 0

    def check(done: Done, out: Path) -> None:
        assert done.code == 1, done
        verdict = json.loads((out / "verdict.json").read_text())
        assert verdict["counts"] == {"missing": 1, "extra": 0, "duplicated": 1, "reordered": 0}
        assert verdict["records"] == {"before": RECORDS, "after": RECORDS}
        assert (verdict["keys"], verdict["keys_different"], verdict["reasons"]) == (KEYS, 2, [])
        rows = pq.read_table(out / "differences.parquet").to_pylist()
        found = {(row["kind"], row["key_hash"]) for row in rows}
        hashes = (key_hash(b"key-%d" % (number % KEYS)) for number in (lost, twice))
        assert found == set(zip(("missing", "duplicated"), hashes, strict=True))

    return ["--bootstrap", bootstrap, "--before", before, "--after", after], check


def reported_work(bootstrap: str, make: TopicFactory) -> Prepared:
    """A topic that a group has processed, with the reports of it."""
    orders = make(partitions=test_waits_job.PARTITIONS)
    work = Groups(bootstrap, orders, f"{orders}-group", make("audit", partitions=3), "")
    test_waits_job.produce_orders(work)
    test_waits_job.process(bootstrap, work, work.lanes_audit, group=work.group, lanes=1)

    def check(done: Done, out: Path) -> None:
        assert done.code == 0, done
        report = json.loads((out / "lag.json").read_text())
        for figure, waits in test_waits_job.expected_waits(work).items():
            found = report["totals"][figure]
            assert (found["records"], found["known"], found["open"]) == (len(waits), len(waits), 0)
            assert (found["min_ms"], found["max_ms"]) == (min(waits), max(waits))
            assert found["mean_ms"] == pytest.approx(sum(waits) / len(waits))

    return ["--bootstrap", bootstrap, "--topic", orders, "--audit", work.lanes_audit], check


def two_hours(bootstrap: str, make: TopicFactory) -> Prepared:
    """Records of two hours."""
    name = make(partitions=test_profile.PARTITIONS, config=test_profile.KEEP)
    times = (START_MS, START_MS + HOUR_MS)
    hours = [test_profile.fill(bootstrap, name, RECORDS, time_ms=time_ms) for time_ms in times]

    def check(done: Done, out: Path) -> None:
        assert done.code == 0, done
        expected = hours[0] + hours[1]
        test_profile.expect(read_profile((out / "profile.json").read_bytes()), expected)
        for number in range(test_profile.PARTITIONS):
            rows = pq.read_table(out / "hours" / f"partition-{number}.parquet").to_pylist()
            for time_ms, records in zip(times, hours, strict=True):
                start = time_ms // HOUR_MS * 3600
                own = [row for row in rows if row["start"].timestamp() == start]
                sizes = [test_profile.size_of(each) for each in records if each[0] == number]
                assert sum(row["records"] for row in own) == len(sizes)
                assert sum(row["bytes"] for row in own) == sum(sizes)

    return ["--bootstrap", bootstrap, "--topic", name, "--by-hour"], check


def queues(bootstrap: str, make: TopicFactory) -> Prepared:
    """Records whose waits an event simulation has."""
    name = make(partitions=4, config=test_simulate.KEEP)
    records = test_simulate.fill(bootstrap, name, RECORDS)

    def check(done: Done, out: Path) -> None:
        assert done.code == 0, done
        works = [5000] * len(records)
        *_, two = json.loads((out / "simulation.json").read_text())["scenarios"]
        owners = test_simulate.owners_of(records, 2, 4, partitions=4)
        expected = test_simulate.expect_waits(records, owners, works)
        test_simulate.check_scenario(two, expected, works)

    arguments = ["--bootstrap", bootstrap, "--topic", name, "--lanes", "4", "--members", "2"]
    return [*arguments, "--work-ms", "5"], check


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "prepare", "gate"),
    [
        # Both workers hold a part of what the first read has brought, and are in the second.
        ("verify-migration", two_topics, {"reads": 1}),
        ("lag", reported_work, {"reads": 1}),
        ("profile", two_hours, {"reads": 1}),
        # There is one read: each worker has done a task of it, and is in its second.
        ("simulate", queues, {"consumers": 1}),
    ],
)
def test_a_worker_killed_in_a_task_changes_no_answer(
    breakable_cluster: SparkCluster,
    tap: ByteTap,
    tmp_path: Path,
    name: str,
    prepare: Callable[[str, TopicFactory], Prepared],
    gate: dict[str, int],
) -> None:
    """kill -9 in a read, of a worker that holds a part of what was read: the known answer."""
    make = make_topic_factory(AdminClient({"bootstrap.servers": tap.bootstrap}), name)
    arguments, check = prepare(tap.bootstrap, make)
    held = tap.sent = Gate(**gate)
    job = breakable_cluster.start_keylane(name, *arguments, *BOTH, "--out", tmp_path / "out")
    try:
        held.await_executors(WORKERS)

        breakable_cluster.kill_worker(0)
    finally:
        held.open.set()

    check(job.wait(), tmp_path / "out")


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["lag", "verify-migration"])
def test_a_worker_killed_late_changes_no_answer(
    breakable_cluster: SparkCluster, groups: Groups, tmp_path: Path, name: str
) -> None:
    """kill -9 when all was read, and half of what is kept is lost: the answer of a whole run."""
    arguments, line, answer = {
        "lag": (
            ["--topic", groups.orders, "--audit", groups.lanes_audit, "--group", groups.group],
            "summing up",
            "lag.json",
        ),
        "verify-migration": (
            [
                *("--input", groups.orders),
                *("--before", groups.direct_audit),
                *("--after", groups.lanes_audit),
            ],
            "comparing keys",
            "verdict.json",
        ),
    }[name]
    arguments += ["--bootstrap", groups.kafka, *BOTH]
    whole = breakable_cluster.keylane(name, *arguments, "--out", tmp_path / "whole")
    job = breakable_cluster.start_keylane(name, *arguments, "--out", tmp_path / "out")
    job.await_line(line)

    breakable_cluster.kill_worker(0)
    done = job.wait()

    assert (whole.code, done.code, done.out) == (0, 0, whole.out), (whole, done)
    answers = [json.loads((tmp_path / run / answer).read_text()) for run in ("whole", "out")]
    assert answers[0] == answers[1]
