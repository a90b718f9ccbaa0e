"""keylane/pipeline/profile and its command, against sums made record by record."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import Counter, defaultdict
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from keylane.assignor.profile import LoadProfile, read_profile
from keylane.assignor.range_plan import RangePlan, write_plan
from keylane.cli.main import main
from keylane.keyrange.hash import key_hash, offset_hash
from keylane.pipeline import brokers
from keylane.pipeline.profile import cli
from keylane.pipeline.profile.loads import run_profile
from keylane.pipeline.topic_range import find_range
from tests.integration.conftest import TopicFactory

PARTITIONS = 3
KEEP = {"retention.ms": "-1"}
"""Records of years ago would be deleted half a minute after the broker's start."""
Record = tuple[int, int, bytes | None, bytes | None, int]
"""partition, offset, key, value, bytes of headers"""


def fill(
    bootstrap: str, topic: str, count: int, *, seed: int = 1, time_ms: int = 0
) -> list[Record]:
    """Produce records of few heavy and many light keys, some without key or value."""
    chance = random.Random(seed)
    found: list[Record] = []

    def reported(headers_size: int):
        def note(error, message) -> None:
            assert error is None, error
            place = (message.partition(), message.offset())
            found.append((*place, message.key(), message.value(), headers_size))

        return note

    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for _ in range(count):
        number = min(int(chance.paretovariate(0.6)), 4_000)
        key = chance.choices([b"key-%d" % number, None, b""], [90, 8, 2])[0]
        value = None if chance.random() < 0.05 else chance.randbytes(chance.randint(0, 60))
        headers: dict[str, str | bytes | None] = {}
        if chance.random() < 0.3:
            headers["trace"] = chance.randbytes(4)
        size = 9 * len(headers)
        producer.produce(
            topic, value, key, headers=headers, timestamp=time_ms, on_delivery=reported(size)
        )
        producer.poll(0)
    assert producer.flush(60) == 0
    return found


def place_of(record: Record) -> int:
    """The hash of a record."""
    _, offset, key, _, _ = record
    return offset_hash(offset) if key is None else key_hash(key)


def size_of(record: Record) -> int:
    """Bytes of key and value."""
    return len(record[2] or b"") + len(record[3] or b"")


def expect(profile: LoadProfile, records: list[Record], *, headers: bool = False) -> None:
    """The profile is that of `records`."""
    counts: Counter[tuple[int, int]] = Counter()
    sizes: Counter[tuple[int, int]] = Counter()
    keys: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for record in records:
        bucket = place_of(record) >> 51
        counts[record[0], bucket] += 1
        size = size_of(record) + (record[4] if headers else 0)
        sizes[record[0], bucket] += size
        if record[2] is not None:
            keys[record[0]][place_of(record)] += size
    for number, load in enumerate(profile.partitions):
        assert load.records == tuple(counts[number, bucket] for bucket in range(4096))
        assert load.size_bytes == tuple(sizes[number, bucket] for bucket in range(4096))
        own = [record for record in records if record[0] == number]
        keyless = [record for record in own if record[2] is None]
        assert load.keyless_records == len(keyless)
        assert load.distinct_keys == len({record[2] for record in own} - {None})
    weights = sorted((weight for row in keys.values() for weight in row.values()), reverse=True)
    assert [key.size_bytes for key in profile.heavy] == weights[: len(profile.heavy)]
    assert all(keys[key.partition][key.key_hash] == key.size_bytes for key in profile.heavy)


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    """`keylane spark profile` in the session of the tests, which it must not end."""
    monkeypatch.setattr(cli, "start_session", lambda *_, **__: contextlib.nullcontext(spark))
    return lambda *arguments: main(["spark", "profile", *map(str, arguments)])


def test_the_command_profiles_a_topic(
    command, kafka: str, topic: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Summary, Parquet and pictures are those of the records; keys stay out unless asked for."""
    name = topic(partitions=PARTITIONS)
    records = fill(kafka, name, 5_000)
    where = ["--bootstrap", kafka, "--topic", name]

    assert command(*where, "--out", tmp_path / "a") == 0
    hidden = capsys.readouterr().out
    plan = tmp_path / "plan.json"
    assert main(["plan", str(tmp_path / "a"), "--lanes", "4", "-o", str(plan)]) == 0
    everything = ["--show-keys", "--headers", "--plan", plan]
    assert command(*where, "--out", tmp_path / "b", *everything) == 0
    shown = capsys.readouterr().out

    profile = read_profile((tmp_path / "a" / "profile.json").read_bytes())
    with_headers = read_profile((tmp_path / "b" / "profile.json").read_bytes())
    expect(profile, records)
    expect(with_headers, records, headers=True)
    assert "key-1" not in hidden + (tmp_path / "a" / "profile.json").read_text()
    assert '"key-1"' in shown
    assert all(key_hash(key.key) == key.key_hash for key in with_headers.heavy if key.key)
    assert len([key for key in with_headers.heavy if key.key is not None]) == 20
    buckets = pq.read_table(tmp_path / "a" / "buckets.parquet")
    assert sum(buckets["bytes"].to_pylist()) == profile.size_bytes == sum(map(size_of, records))
    assert pq.read_table(tmp_path / "a" / "heavy.parquet").num_rows == 20
    assert (tmp_path / "a" / "load.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "a" / "load.svg").read_text()


def test_a_profile_is_of_its_range_alone(
    spark: SparkSession, kafka: str, topic: TopicFactory
) -> None:
    """Offsets and times, both ends: records outside are not counted, and tasks are reported."""
    name = topic(partitions=PARTITIONS, config=KEEP)
    early = fill(kafka, name, 600, time_ms=1_700_000_000_000)
    late = fill(kafka, name, 600, seed=2, time_ms=1_700_000_600_000)
    middle = "2023-11-14T22:18:20Z"  # between the two
    reported: list[str] = []

    before = find_range(spark, kafka, name, end=middle)
    after = find_range(spark, kafka, name, start=middle)
    some = find_range(spark, kafka, name, start="0:10,2:5", end="0:20,1:0,2:100")
    found = run_profile(spark, some, progress=reported.append)

    counts = Counter(record[0] for record in early)
    assert before.starts == (0,) * PARTITIONS
    assert before.ends == after.starts == tuple(counts[p] for p in range(PARTITIONS))
    assert before.offset_count == len(early)
    assert after.offset_count == len(late)
    bounds = {0: (10, 20), 1: (0, 0), 2: (5, 100)}
    inside = [r for r in early + late if bounds[r[0]][0] <= r[1] < bounds[r[0]][1]]
    expect(found, inside)
    assert reported[-1] == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--to", "2001-01-01"], "no records from earliest to 2001-01-01"),
        (["--from", "latest"], "no records from latest to latest"),
        (["--from", "0:7", "--to", "0:7,1:0"], "no records from 0:7 to 0:7,1:0"),
        (["--from", "soon"], "start soon: expected earliest, latest, a time"),
        (["--to", "7:1"], "end 7:1: partition 7: the topic has 2"),
        (["--to", "1:1,1:2"], "end 1:1,1:2: partition 1: named twice"),
        (["--topic", "no-such-topic"], "topic no-such-topic: "),
        (["--option", "kafka.security.protocol"], "--option kafka.security.protocol: expected"),
        (["--option", "kafka.security.protocol=NONE"], "security.protocol"),
        (["--plan", "nowhere.json"], "--plan nowhere.json: No such file"),
        (["--follow"], "--follow: needs --checkpoint"),
        (["--follow", "--checkpoint", "x", "--by-hour"], "--follow: counts buckets of all records"),
        (["--by-hour", "--zone", "Middle/Earth"], "--zone Middle/Earth: no such time zone"),
        (["--zone", "UTC"], "--zone: is for --by-hour"),
        (["--slices", "0"], "--slices: expected 1 or more"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    command, kafka: str, topic: TopicFactory, tmp_path, capsys, arguments: list[str], text: str
) -> None:
    """The place is named, there is no stack trace, and nothing is written."""
    name = topic(partitions=2)
    fill(kafka, name, 20)
    where = ["--bootstrap", kafka, "--topic", name, "--out", tmp_path / "out"]

    assert command(*where, *arguments) == 2

    reported = capsys.readouterr().err
    assert reported.startswith("keylane spark profile: ")
    assert text in reported
    assert reported.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_plan_of_another_topic_is_refused(
    command, kafka: str, topic: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cuts of one topic say nothing about another; nor do those of fewer partitions."""
    name = topic(partitions=2)
    fill(kafka, name, 20)
    other, small = tmp_path / "other.json", tmp_path / "small.json"
    cut = RangePlan(topic="payments", lane_count=2, cuts=((7,), (9,)), epoch=0)
    other.write_bytes(write_plan(cut))
    small.write_bytes(write_plan(dataclasses.replace(cut, topic=name, cuts=((7,),))))
    where = ["--bootstrap", kafka, "--topic", name, "--out", tmp_path / "out"]

    codes = [command(*where, "--plan", other), command(*where, "--plan", small)]

    reported = capsys.readouterr().err
    assert codes == [2, 2]
    assert f"is of topic payments, not {name}" in reported
    assert "has 1 partitions" in reported
    assert not (tmp_path / "out").exists()


def test_a_broker_that_does_not_answer_is_named(
    command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An address at which no broker listens: one line, in the time that was set."""
    monkeypatch.setattr(brokers, "ASK_TIMEOUT_MS", 2_000)

    assert command("--bootstrap", "127.0.0.1:1", "--topic", "x", "--out", tmp_path) == 2

    reported = capsys.readouterr().err
    assert "127.0.0.1:1: no broker answers" in reported
    assert reported.count("\n") == 1
