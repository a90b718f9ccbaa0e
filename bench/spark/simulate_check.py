"""`keylane spark simulate` beside the clock: what it says of bursts that real members then drain.

    python -m bench.spark.simulate_check [--rounds 3] [--only 0 1 2]

A run has stock members that sleep some milliseconds for each record, on lanes of a real keylane.
They read a first burst, by which keylane learns the load of its lanes and this program the time of
a record; where it is worth a rebalance, lanes are dealt out again by that load. Then come bursts
that are measured: from the time of the first record to the end of the last work, and for each
record from its time to the begin of its work. The simulation gets the same records from the topic,
and no number of the burst: its time per record is the mean of the first burst. On a busy machine a
sleep takes longer in one burst than in another, so a second simulation replays the burst with the
measured time of each record: what is left is the error of the queues and of the lanes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from bench.end_to_end.stage import Stage, create_topic, describe_run, open_stage, read_ends, save
from bench.side_by_side.slow_work import (
    KEYS,
    READY_TIMEOUT_S,
    WORK_MS,
    Crew,
    confluent_crew,
    produce_burst,
)
from keylane.assignor.level import COARSE
from keylane.pipeline.simulate.job import run_simulation
from keylane.pipeline.simulate.model import ScenarioResult, SimulationRequest, WorkModel
from keylane.pipeline.simulate.queueing import plain_records, with_measured_work
from keylane.pipeline.start import open_session
from keylane.pipeline.topic_range import find_range, read_range

WORK_COLUMNS: Final = "partition int, offset long, work_ms double"
WARM_S: Final = 10.0
BURST_S: Final = 6.0
FIRST_BURST: Final = 2
"""That is measured. Burst 0 has the load, and 1 is short: with it members begin to read lanes that
they were just assigned, which takes them up to half a second."""
ONE_GENERATION: Final = {"group.initial.rebalance.delay.ms": "3000"}
"""Kafka's default, by which all members are in the first generation. The embedded Kafka has 0."""
PATIENCE: Final = 10.0
"""A burst that takes so many times its ideal is given up."""
Places = dict[tuple[int, int, int], tuple[int, int, int]]
"""Partition, offset, and time in ms since 1970 of each record, by burst, key and sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One group and its keys."""

    members: int
    lanes: int | None
    """Per partition; None: no lanes, at Kafka itself."""
    partitions: int
    exponent: float
    """Of Zipf's law."""

    @property
    def working(self) -> int:
        """Members that get something."""
        return self.members if self.lanes is not None else min(self.members, self.partitions)

    @property
    def assigned(self) -> int:
        """Partitions that all members get together, as they see them."""
        return self.partitions * (self.lanes or 1)

    def counts(self, seconds: float) -> list[int]:
        """Records of each key of a burst that takes this time at best."""
        parts = [(key + 1) ** -self.exponent for key in range(KEYS)]
        slots = seconds * 1000 / WORK_MS
        total = slots * min(self.working, sum(parts))
        return [max(1, round(total * part / sum(parts))) for part in parts]


RUNS: Final = (
    Run(members=8, lanes=256, partitions=1, exponent=1.0),
    Run(members=32, lanes=256, partitions=1, exponent=1.0),
    Run(members=8, lanes=8, partitions=2, exponent=0.8),
    Run(members=8, lanes=None, partitions=2, exponent=0.8),
)


def main() -> None:
    """Measure, simulate, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=int, nargs="+", choices=range(len(RUNS)))
    args = parser.parse_args()
    chosen = [RUNS[place] for place in args.only or range(len(RUNS))]
    found = []
    with ExitStack() as stack:
        stage = stack.enter_context(open_stage(properties=ONE_GENERATION))
        measured = [measure(stage, f"check-{place}", run, args.rounds)
                    for place, run in enumerate(chosen)]  # fmt: skip
        spark = stack.enter_context(open_session("check", config={"spark.driver.memory": "1g"}))
        for place, (run, bursts) in enumerate(zip(chosen, measured, strict=True)):
            for burst in bursts:
                records = read_burst(spark, stage.kafka.bootstrap, f"check-{place}", burst)
                said = simulate(spark, records, run, WorkModel(base_ms=burst.warm_work_ms))
                times = spark.createDataFrame(burst.works, WORK_COLUMNS)
                replayed = simulate(spark, with_measured_work(records, times, None), run, None)
                row = compare(said, replayed, burst)
                print(f"{asdict(run)}\n  {row}", flush=True)
                found.append({"run": asdict(run), **row})
    print_errors(chosen, found)
    print(save("spark_simulate", {"run": describe_run(), "bursts": found}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What was measured of one burst."""

    start: tuple[int, ...]
    end: tuple[int, ...]
    """Offsets of its records."""
    warm_work_ms: float
    """Of the first burst: from the begin of a record's work to its end."""
    work_ms: float
    span_ms: float
    waits_ms: Sequence[float]
    works: Sequence[tuple[int, int, float]]
    """Partition, offset, and time of work in ms of each record."""


def measure(stage: Stage, topic: str, run: Run, rounds: int) -> list[Burst]:
    """Play one run."""
    create_topic(stage, topic, run.partitions)
    kafka, through = stage.kafka.bootstrap, stage.keylane.bootstrap
    places, found = [], []
    name = topic if run.lanes is None else f"{topic}.lanes-{run.lanes}"
    bootstrap = kafka if run.lanes is None else through
    with confluent_crew(bootstrap, name, f"group-{topic}", run.members) as crew:
        joined = crew.await_that(lambda: sum(crew.lanes.values()) == run.assigned, READY_TIMEOUT_S)
        assert joined, f"members of {topic} have {crew.lanes}"
        drain(kafka, topic, crew, 0, run.counts(WARM_S), WARM_S)
        if run.lanes is not None:
            rebalance(stage, f"group-{topic}", crew, run)
        drain(kafka, topic, crew, 1, run.counts(1.0), WARM_S)
        places.append(read_ends(stage, topic, run.partitions))
        for burst in range(FIRST_BURST, FIRST_BURST + rounds):
            drain(kafka, topic, crew, burst, run.counts(BURST_S), BURST_S)
            places.append(read_ends(stage, topic, run.partitions))
            print(f"{topic}: burst {burst - FIRST_BURST + 1} of {rounds}", flush=True)
    # Records have times of the wall's clock, members those of the monotonic one.
    wall_ns = time.time_ns() - time.monotonic_ns()
    records = read_places(kafka, topic, places[-1])
    warm_ms = mean_work_ms(crew, 0)
    for burst, (start, end) in enumerate(pairwise(places), start=FIRST_BURST):
        spans = crew.bursts[burst].spans
        first_ms = min(at for (number, _, _), (_, _, at) in records.items() if number == burst)
        last_ms = (max(span[3] for span in spans) + wall_ns) / 1e6
        waits = [
            (start_ns + wall_ns) / 1e6 - records[burst, key, sequence][2]
            for key, sequence, start_ns, _ in spans
        ]
        found.append(
            Burst(
                start=start,
                end=end,
                warm_work_ms=warm_ms,
                work_ms=mean_work_ms(crew, burst),
                span_ms=last_ms - first_ms,
                waits_ms=waits,
                works=[
                    (*records[burst, key, sequence][:2], (end_ns - start_ns) / 1e6)
                    for key, sequence, start_ns, end_ns in spans
                ],
            )
        )
    return found


def rebalance(stage: Stage, group: str, crew: Crew, run: Run) -> None:
    """Deal out lanes by load, if keylane would ask for that after a while, and wait for it."""
    report = ask_rebalance(stage, group, is_dry=True)
    print(f"{group}: busiest {report['balance']}, at best {report['balance_after']}", flush=True)
    if not report["moves"] or report["balance"] < COARSE.busy_max * report["balance_after"]:
        return
    with crew.changed:
        crew.lanes.clear()
    asked = ask_rebalance(stage, group, is_dry=False)
    assert asked["is_asked"], asked["reason"]

    def is_settled() -> bool:
        return len(crew.lanes) == run.members and sum(crew.lanes.values()) == run.assigned

    assert crew.await_that(is_settled, READY_TIMEOUT_S), f"all lanes are dealt out: {crew.lanes}"


def ask_rebalance(stage: Stage, group: str, *, is_dry: bool) -> dict[str, Any]:
    """Ask keylane for the moves of a rebalance, and for these moves."""
    query = "?dry_run=true" if is_dry else ""
    address = f"http://{stage.keylane.control}/groups/{group}/rebalance{query}"
    request = urllib.request.Request(address, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - of our own process
        report: dict[str, Any] = json.load(answer)
    return report


def drain(
    kafka: str, topic: str, crew: Crew, burst: int, counts: Sequence[int], ideal_s: float
) -> None:
    """Produce a burst and wait until all of it is worked on."""
    produce_burst(kafka, topic, burst, counts)
    done = crew.await_burst(burst, sum(counts), PATIENCE * ideal_s)
    assert done, f"burst {burst} of {topic} is done"


def mean_work_ms(crew: Crew, burst: int) -> float:
    """Mean time from the begin of a record's work to its end."""
    return statistics.fmean((end - start) / 1e6 for _, _, start, end in crew.bursts[burst].spans)


def read_places(kafka: str, topic: str, ends: Sequence[int]) -> Places:
    """Read the place and the time of each record."""
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "times"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(len(ends))])
    found: Places = {}
    while len(found) < sum(ends):
        for message in consumer.consume(10_000, 1.0):
            burst, key, sequence = map(int, (message.value() or b"").split())
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None, "a record that was read"
            found[burst, key, sequence] = (partition, offset, message.timestamp()[1])
    consumer.close()
    return found


def read_burst(spark: SparkSession, bootstrap: str, topic: str, burst: Burst) -> DataFrame:
    """Return the records of a burst."""
    start, end = (
        ",".join(f"{number}:{at}" for number, at in enumerate(offsets))
        for offsets in (burst.start, burst.end)
    )
    chosen = find_range(spark, bootstrap, topic, start=start, end=end)
    return plain_records(read_range(spark, chosen))


def simulate(
    spark: SparkSession, records: DataFrame, run: Run, work: WorkModel | None
) -> ScenarioResult:
    """Return the answer for a burst; work: None where each record has its measured time."""
    request = SimulationRequest(members=(run.members,), lanes=(run.lanes or 1,), work=work)
    simulation = run_simulation(
        spark,
        records,
        request,
        topic="burst",
        partition_count=run.partitions,
        progress=lambda _: None,
    )
    today, lanes = simulation.results
    return today if run.lanes is None else lanes


def compare(said: ScenarioResult, replayed: ScenarioResult, burst: Burst) -> dict[str, Any]:
    """Said, replayed and measured, side by side."""
    count = len(burst.waits_ms)
    assert said.records == replayed.records == count, "the simulation is of the same records"
    p50, p95, p99 = np.percentile(burst.waits_ms, [50, 95, 99])
    measured = {
        "records_per_s": 1000 * count / burst.span_ms,
        "wait_mean_ms": statistics.fmean(burst.waits_ms),
        "wait_p50_ms": float(p50),
        "wait_p95_ms": float(p95),
        "wait_p99_ms": float(p99),
        "wait_max_ms": max(burst.waits_ms),
    }
    rows: dict[str, Any] = {"records": count}
    rows["work_ms"] = {"first_burst": round(burst.warm_work_ms, 3), "here": round(burst.work_ms, 3)}
    rows["busiest"] = round(said.imbalance, 3)
    for name, value in measured.items():
        rows[name] = {"measured": round(value, 1)}
        for way, result in (("said", said), ("replayed", replayed)):
            answer = figure_of(result, name)
            rows[name][way] = round(answer, 1)
            rows[name][f"{way}_error"] = round(answer / value - 1, 4)
    return rows


def figure_of(result: ScenarioResult, name: str) -> float:
    """Return one figure of an answer."""
    if name == "records_per_s":
        return result.rate
    return float(getattr(result.waits, name.removeprefix("wait_")))


def print_errors(chosen: Sequence[Run], found: Sequence[dict[str, Any]]) -> None:
    """The median error of each run."""
    for run in chosen:
        own = [row for row in found if row["run"] == asdict(run)]
        lanes = "no lanes" if run.lanes is None else f"{run.lanes} lanes"
        for way in ("said", "replayed"):
            errors = [
                f"{name} {statistics.median(row[name][f'{way}_error'] for row in own):+.1%}"
                for name in ("records_per_s", "wait_mean_ms", "wait_p50_ms", "wait_p99_ms")
            ]
            texts = ", ".join(errors)
            print(f"K={run.members}, {lanes}, zipf {run.exponent}, {way}: {texts}")


if __name__ == "__main__":
    main()
