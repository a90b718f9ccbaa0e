"""keylane/pipeline/simulate and its command, against numbers by hand and an event simulation."""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from keylane.advise.keys import SampledLanes
from keylane.cli.main import main
from keylane.keyrange.hash import key_hash, offset_hash
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.simulate import cli, queueing
from keylane.pipeline.simulate.deals import Owners, deal, deal_whole
from keylane.pipeline.simulate.model import WorkModel
from tests.integration.conftest import TopicFactory
from tests.spark.s3 import S3Server

COLUMNS = (
    "scenario int, member int, place int, partition int, offset bigint, key_hash bigint,"
    " keyless boolean, time_us bigint, arrival_us bigint, work_us bigint"
)
PARTITIONS = 2
KEEP = {"retention.ms": "-1"}
"""Records of years ago would be deleted half a minute after the broker's start."""
FIRST_MS = 1_700_000_000_000


@dataclass(frozen=True, slots=True)
class Served:
    """A record at the member that has it."""

    place: int
    partition: int
    offset: int
    arrival_us: int
    work_us: int
    hash: int = 0
    keyless: bool = False

    def row(self, scenario: int) -> tuple[object, ...]:
        """As Spark has it."""
        place = (scenario, self.place, self.place, self.partition, self.offset)
        times = (1000 + self.arrival_us, self.arrival_us, self.work_us)
        return (*place, self.hash, self.keyless, *times)


def play(records: Sequence[Served]) -> dict[tuple[int, int], tuple[int, int]]:
    """Wait and end of each (partition, offset), event by event, in the order of a clock."""
    events = [
        (one.arrival_us, 0, one.partition, one.offset, place) for place, one in enumerate(records)
    ]
    heapq.heapify(events)
    queues: defaultdict[int, deque[Served]] = defaultdict(deque)
    busy: set[int] = set()
    found = {}
    while events:
        now_us, is_end, partition, offset, place = heapq.heappop(events)
        member = records[place].place
        if is_end:
            busy.discard(member)
        else:
            queues[member].append(records[place])
        if member not in busy and queues[member]:
            one = queues[member].popleft()
            busy.add(member)
            end_us = now_us + one.work_us
            found[one.partition, one.offset] = (now_us - one.arrival_us, end_us)
            heapq.heappush(events, (end_us, 1, partition, offset, records.index(one)))
    return found


def serve(placed: DataFrame, lengths_us: Sequence[int]) -> DataFrame:
    """Times of records in queues that are cut into blocks of these lengths, by scenario."""
    blocks = queueing.queue_blocks(placed, lengths_us)
    return queueing.serve(blocks, queueing.ends_before(blocks))


def served_rows(frame: DataFrame) -> dict[int, dict[tuple[int, int], tuple[int, int]]]:
    """Wait and end by scenario; rows lack the offset, so that tests put it into the hash."""
    found: defaultdict[int, dict[tuple[int, int], tuple[int, int]]] = defaultdict(dict)
    for row in frame.collect():
        found[row["scenario"]][row["partition"], row["key_hash"]] = (
            row["wait_us"],
            row["finish_us"],
        )
    return found


def test_two_members_and_three_keys_by_hand(spark: SparkSession) -> None:
    """A has two records of 5, B one of 3 behind them at the same member; C is alone.

    Member 0: A at 0 to 5, A of 1 waits 4 and ends at 10, B of 2 waits 8 and ends at 13, and B of
    20 finds it idle. Member 1: C of 1 to 8, C of 4 waits 4 and ends at 15.
    """
    a, b, c = 0, 1, 2
    records = [
        Served(0, a, 0, 0, 5), Served(0, a, 1, 1, 5), Served(0, b, 2, 2, 3), Served(0, b, 3, 20, 3),
        Served(1, c, 4, 1, 7), Served(1, c, 5, 4, 7),
    ]  # fmt: skip
    rows = [(*one.row(0)[:5], one.offset, *one.row(0)[6:]) for one in records]

    served = serve(spark.createDataFrame(rows, COLUMNS), [4])

    figures = served.groupBy("member").agg(*queueing.wait_figures()).orderBy("member").collect()
    assert served_rows(served)[0] == {
        (a, 0): (0, 5), (a, 1): (4, 10), (b, 2): (8, 13), (b, 3): (0, 23),
        (c, 4): (0, 8), (c, 5): (4, 15),
    }  # fmt: skip
    assert [(row["records"], row["wait_us"], row["wait_max_us"]) for row in figures] == [
        (4, 12, 8),
        (2, 4, 4),
    ]
    assert figures[0]["wait_percentiles_us"][0] == 2.0  # between 0 and 4


def random_cases(seed: int) -> Iterator[list[Served]]:
    """Groups of up to four members: bursts, idle times, equal times, no work at all."""
    chance = random.Random(seed)
    for _ in range(40):
        clocks = [0, 0, 0]
        records = []
        pace, work = chance.choice([0, 3, 40]), chance.choice([1, 10, 60])
        for offset in range(chance.randint(1, 40)):
            partition = chance.randrange(3)
            clocks[partition] += chance.randint(0, pace)
            place, took = chance.randrange(chance.randint(1, 4)), chance.randint(0, work)
            records.append(Served(place, partition, offset, clocks[partition], took))
        yield records


@pytest.mark.parametrize("length_us", [1, 25, 10**6])
def test_times_are_those_of_an_event_simulation(spark: SparkSession, length_us: int) -> None:
    """Every wait and every end of forty random groups, exactly, however queues are cut."""
    cases = list(random_cases(11))
    rows = [
        (*one.row(number)[:5], one.offset, *one.row(number)[6:])
        for number, case in enumerate(cases)
        for one in case
    ]

    frame = spark.createDataFrame(rows, COLUMNS).repartition(3)
    found = served_rows(serve(frame, [length_us] * len(cases)))

    for number, case in enumerate(cases):
        assert found[number] == play(case), f"case {number}"


def test_times_have_three_digits(spark: SparkSession) -> None:
    """To the nearest; powers of ten stay, and small numbers are exact."""
    given = [0, 1, 999, 1000, 1004, 1005, 9994, 9995, 10**6, 123_456, 10**15 + 10**13 // 2]

    rows = spark.createDataFrame([(one,) for one in given], "n bigint")
    found = [row[0] for row in rows.select(queueing.three_digits("n")).collect()]

    assert found == [
        0, 1, 999, 1000, 1000, 1010, 9990, 10_000, 10**6, 123_000, 10**15 + 10**13,
    ]  # fmt: skip


def test_random_work_is_of_the_record(spark: SparkSession) -> None:
    """The same however rows are divided, another with another seed; the mean is what was asked."""
    rows = spark.range(20_000).select(
        (F.col("id") % 3).cast("int").alias("partition"),
        F.col("id").alias("offset"),
        F.lit(1000).cast("bigint").alias("bytes"),
    )
    work = WorkModel(base_ms=4, per_kb_ms=1, spread="lognormal", sigma=0.5, seed=1)

    def times(frame: DataFrame, chosen: WorkModel) -> dict[int, int]:
        found = queueing.with_work(frame, chosen).select("offset", "work_us").collect()
        return {row["offset"]: row["work_us"] for row in found}

    one = times(rows, work)
    again = times(rows.repartition(5), work)
    other = times(rows, WorkModel(base_ms=5, spread="exponential", seed=2))

    assert one == again
    logs = [math.log(value / 1000) for value in one.values()]
    assert np.mean(list(one.values())) == pytest.approx(5000, rel=0.03)
    assert np.std(logs) == pytest.approx(0.5, rel=0.03)
    assert np.mean(logs) == pytest.approx(math.log(5) - 0.125, abs=0.02)
    assert np.percentile(list(other.values()), 50) == pytest.approx(5000 * math.log(2), rel=0.05)


def test_a_member_with_places_has_a_key_in_one(spark: SparkSession) -> None:
    """Each key is in one place of its member, places of a member have about as many keys."""
    rows = spark.range(2_000).select(
        F.lit(0).alias("partition"), F.shiftrightunsigned(F.xxhash64("id"), 1).alias("key_hash")
    )
    layouts = [LaneLayout(1, 2)]
    columns = "layout int, partition int, lane int, scenario int, member int"
    owners = spark.createDataFrame([(0, 0, 0, 0, 1), (0, 0, 1, 0, 0)], columns)

    placed = queueing.place(rows.union(rows), layouts, owners, 4).collect()

    places: defaultdict[int, set[int]] = defaultdict(set)
    for row in placed:
        places[row["key_hash"]].add(row["place"])
        assert row["place"] // 4 == row["member"] == (row["key_hash"] < 2**62)
    counts = np.bincount([place for (place,) in places.values()], minlength=8)
    assert len(placed) == 4_000
    assert counts.min() > 150


Record = tuple[int, int, bytes | None, int, int]
"""partition, offset, key, time in ms, bytes"""


def fill(bootstrap: str, topic: str, count: int) -> list[Record]:
    """Produce records of few heavy and many light keys; some times go back."""
    chance = random.Random(3)
    found: list[Record] = []
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    time_ms = FIRST_MS
    for _ in range(count):
        key = chance.choices([b"key-%d" % int(chance.paretovariate(0.8)), None], [95, 5])[0]
        value = chance.randbytes(chance.randint(0, 400))
        time_ms += chance.randint(0, 6)
        stamp_ms = max(FIRST_MS, time_ms - chance.choice([0, 0, 9]))

        def note(error, message, stamp_ms=stamp_ms, key=key, value=value) -> None:
            assert error is None, error
            size = len(key or b"") + len(value)
            found.append((message.partition(), message.offset(), key, stamp_ms, size))

        producer.produce(topic, value, key, timestamp=stamp_ms, on_delivery=note)
        producer.poll(0)
    assert producer.flush(60) == 0
    return sorted(found)


def hash_of(record: Record) -> int:
    """The hash of a record."""
    return offset_hash(record[1]) if record[2] is None else key_hash(record[2])


def lane_of(record: Record, partition_count: int, lane_count: int) -> int:
    """The lane of a record, by even cuts."""
    return LaneLayout(partition_count, lane_count).key_split(record[0]).output_at(hash_of(record))


def owners_of(
    records: Sequence[Record], members: int, lane_count: int, *, partitions: int = PARTITIONS
) -> Owners:
    """Lanes as keylane deals them out by their load."""
    counts, sizes = np.zeros((2, partitions, lane_count))
    for record in records:
        lane = lane_of(record, partitions, lane_count)
        counts[record[0], lane] += 1
        sizes[record[0], lane] += record[4]
    return deal("key-range", SampledLanes(counts, sizes, np.zeros_like(counts)), members)


def expect_waits(
    records: Sequence[Record], owners: Owners, works_us: Sequence[int], *, is_real: bool = True
) -> dict[tuple[int, int], tuple[int, int]]:
    """Waits and ends of the event simulation."""
    latest = [0] * len(owners)
    served = []
    for record, work_us in zip(records, works_us, strict=True):
        latest[record[0]] = max(latest[record[0]], 1000 * (record[3] - FIRST_MS))
        owner = int(owners[record[0], lane_of(record, *owners.shape)])
        served.append(Served(owner, *record[:2], latest[record[0]], work_us))
    first_us = min(one.arrival_us for one in served)
    moved = [
        Served(one.place, one.partition, one.offset, (one.arrival_us - first_us) * is_real,
               one.work_us)
        for one in served
    ]  # fmt: skip
    return play(moved)


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch):
    """`keylane spark simulate` in the session of the tests, which it must not end.

    Partitions and queues are in blocks of about a hundred records.
    """
    monkeypatch.setattr(queueing, "BLOCK_RECORDS", 100)
    monkeypatch.setattr(cli, "start_session", lambda *_, **__: contextlib.nullcontext(spark))
    return lambda *arguments: main(["spark", "simulate", *map(str, arguments)])


def check_scenario(
    row: dict[str, Any], expected: dict[tuple[int, int], tuple[int, int]], works_us: Sequence[int]
) -> None:
    """One scenario of the JSON file is what the event simulation has."""
    waits = [wait_us for wait_us, _ in expected.values()]
    span_us = max(end_us for _, end_us in expected.values())
    rounded = []
    for wait_us in waits:
        step = 10 ** max(len(str(wait_us)) - 3, 0)
        rounded.append((wait_us + step // 2) // step * step)
    assert row["records"] == len(waits)
    assert row["wait"]["mean_ms"] == pytest.approx(sum(waits) / len(waits) / 1000)
    assert row["wait"]["max_ms"] == max(waits) / 1000
    for name, percent in (("p50_ms", 50), ("p95_ms", 95), ("p99_ms", 99)):
        assert row["wait"][name] == pytest.approx(np.percentile(rounded, percent) / 1000)
    assert row["span_ms"] == span_us / 1000
    assert row["records_per_s"] == pytest.approx(1e6 * len(waits) / span_us)
    assert row["utilisation"] == pytest.approx(sum(works_us) / span_us / row["members"])


def test_the_command_simulates_a_topic(
    command, kafka: str, topic: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys and times of a topic: table, JSON, Parquet and pictures are the event simulation's."""
    name = topic(partitions=PARTITIONS, config=KEEP)
    records = fill(kafka, name, 400)
    where = ["--bootstrap", kafka, "--topic", name, "--lanes", 4]
    out = tmp_path / "out"

    real = ["--members", "2,3", "--work-ms", 5, "--work-per-kb", 2, "--price", 0.5]
    code = command(*where, *real, "--wait-ms", 100_000, "--out", out)
    shown = capsys.readouterr().out

    works = [5000 + 2 * record[4] for record in records]
    today, two, three = json.loads((out / "simulation.json").read_text())["scenarios"]
    assert code == 0
    check_scenario(today, expect_waits(records, deal_whole(PARTITIONS, PARTITIONS), works), works)
    for row, members in ((two, 2), (three, 3)):
        check_scenario(row, expect_waits(records, owners_of(records, members, 4), works), works)
        assert row["price"] == pytest.approx(0.5 * members * row["span_ms"] / 3_600_000)
    heaviest = three["heavy"][0]
    counts: defaultdict[str, int] = defaultdict(int)
    for record, work_us in zip(records, works, strict=True):
        if record[2] is not None:
            counts[str(hash_of(record))] += work_us
    assert heaviest["key_hash"] == max(counts, key=counts.__getitem__)
    assert heaviest["work_share"] == pytest.approx(max(counts.values()) / sum(works))
    assert three["key_mean_wait"]["keys"] == len(counts)
    assert "records stand behind later ones, by 0.0" in shown
    assert shown.splitlines()[-1].startswith("enough: 2 members on 4 lanes per partition")
    assert pq.read_table(out / "members.parquet").num_rows == PARTITIONS + 2 + 3
    assert pq.read_table(out / "keys.parquet").num_rows == 3 * 20
    assert (out / "simulation.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (out / "simulation.svg").read_text()


@pytest.mark.long
def test_a_simulation_goes_to_a_bucket(
    command,
    kafka: str,
    topic: TopicFactory,
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All files stand in the bucket, and no folder of that name on this machine."""
    monkeypatch.chdir(tmp_path)
    name, uri = topic(partitions=PARTITIONS, config=KEEP), f"{s3.bucket()}/out"
    fill(kafka, name, 50)
    where = ["--bootstrap", kafka, "--topic", name, "--lanes", 4, "--members", 2, "--work-ms", 1]

    assert command(*where, "--out", uri) == 0

    pictures = {f"simulation.{kind}" for kind in ("png", "svg")}
    assert s3.keys(uri) == {"simulation.json", "members.parquet", "keys.parquet", *pictures}
    assert list(tmp_path.iterdir()) == []


def test_a_backlog_has_measured_times(
    command, kafka: str, topic: TopicFactory, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Times by partition and offset; a record without one takes --work-ms, or is counted."""
    name = topic(partitions=PARTITIONS, config=KEEP)
    records = fill(kafka, name, 100)
    chance = random.Random(5)
    works_ms = [float(chance.randint(1, 30)) for _ in records[:-1]]
    partitions, offsets = zip(*[record[:2] for record in records[:-1]], strict=True)
    measured, out = tmp_path / "times", tmp_path / "out"
    measured.mkdir()
    table = pa.table({"partition": partitions, "offset": offsets, "work_ms": works_ms})
    table = pa.concat_tables([table, table.slice(0, 5)])  # some came again
    pq.write_table(table, measured / "part-0.parquet")
    where = ["--bootstrap", kafka, "--topic", name, "--lanes", 4, "--members", 2]
    backlog = [*where, "--arrivals", "backlog", "--work-from", measured, "--wait-ms", 1]

    refused = command(*backlog)
    reason = capsys.readouterr().err.splitlines()[-1]
    code = command(*backlog, "--work-ms", 7, "--out", out)

    works_us = [1000 * int(work_ms) for work_ms in works_ms] + [7000]
    two = json.loads((out / "simulation.json").read_text())["scenarios"][-1]
    owners = owners_of(records, 2, 4)
    expected = expect_waits(records, owners, works_us, is_real=False)
    assert (refused, code) == (2, 1)
    assert "of 100 records, 1 have no measured work" in reason
    assert two["span_ms"] == max(end_us for _, end_us in expected.values()) / 1000
    assert "no scenario on lanes has a p99 within 1.00 ms" in capsys.readouterr().out
