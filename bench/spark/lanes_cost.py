"""What a task costs: plain Kafka, Spark's own source over lanes, `format("keylane")`.

    python -m bench.spark.lanes_cost [--records 1000000] [--rounds 3]

- *many*: a million records of 200 B, lz4, 4 partitions, 16 tasks (4 lanes, or minPartitions=16).
- *few*: 90 records of 3 partitions in 24 tasks, which is what a small micro-batch costs. They are
  the whole topic (*few, to the end*) or 90 offsets in the middle of a log (*few, inside*).

All ways run in turns, after a round that does not count, and come to the count of records and the
bytes of their values. At the end of a log Spark's source asks for the log's end behind a fetch that
waits there for `fetch.max.wait.ms`; a broker answers in order, keylane does not hold it up. So the
plain source waits in *to the end*, and in *inside* no source does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any, Final

import psutil
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.end_to_end.stage import Stage, create_topic, describe_run, make_value, open_stage, save
from keylane.pipeline.job import SOURCE_OPTIONS
from keylane.pipeline.read import read_lanes
from keylane.pipeline.source import KeylaneSource
from keylane.pipeline.start import open_session

WAYS: Final = ("plain", "lanes", "keylane")
VALUE_POOL: Final = 4_000
RECORD_BYTES: Final = 200
FEW_PER_PARTITION: Final = 30
INSIDE_FROM: Final = 1_000
"""First offset of *inside*."""
LOG_RECORDS: Final = 100_000
"""Of a partition of *inside*: the one fetch that Spark makes ahead does not come to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A topic, and the offsets of it that are read."""

    name: str
    topic: str
    partitions: int
    lanes: int
    start: int
    end: int | None
    """None: the log's end."""
    records: int

    @property
    def places(self) -> tuple[str, str]:
        """Starting and ending offsets as JSON of partitions; empty for the log's own."""
        if self.end is None:
            return "", ""
        offsets = (dict.fromkeys(map(str, range(self.partitions)), at) for at in self.bounds)
        first, last = (json.dumps(each) for each in offsets)
        return first, last

    @property
    def bounds(self) -> tuple[int, int]:
        """Start and end in each partition."""
        return self.start, self.end or 0


def fill(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    """Write keyed records, in turns to each partition."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": "lz4",
            "linger.ms": 50,
            "batch.size": 1_000_000,
        }
    )
    rng = random.Random(7)
    values = [make_value(rng, RECORD_BYTES) for _ in range(VALUE_POOL)]
    for number in range(count):
        key, value = b"order-%06d" % rng.randrange(200_000), values[rng.randrange(VALUE_POOL)]
        while True:
            try:
                producer.produce(topic, value, key, partition=number % partitions)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    assert producer.flush(300) == 0


def frame_of(spark: SparkSession, stage: Stage, way: str, case: Case) -> DataFrame:
    """Return the records of a case, as a way reads them."""
    first, last = case.places
    if way == "plain":
        options = {**SOURCE_OPTIONS, "minPartitions": str(case.partitions * case.lanes)}
        if first:
            options["startingOffsets"] = f'{{"{case.topic}": {first}}}'
            options["endingOffsets"] = f'{{"{case.topic}": {last}}}'
        reader = spark.read.format("kafka").options(**options)
        reader = reader.option("kafka.bootstrap.servers", stage.kafka.bootstrap)
        return reader.option("subscribe", case.topic).load()
    if way == "lanes":
        start, end = "earliest", "latest"
        if first:
            indexes = range(case.partitions * case.lanes)
            start, end = (",".join(f"{index}:{at}" for index in indexes) for at in case.bounds)
        proxy = stage.keylane.bootstrap
        return read_lanes(spark, proxy, case.topic, case.lanes, start=start, end=end)
    own = spark.read.format("keylane").option("bootstrap", stage.keylane.bootstrap)
    own = own.option("topic", case.topic).option("lanes", case.lanes)
    if first:
        own = own.option("startingOffsets", first).option("endingOffsets", last)
    return own.load()


def cpu_s() -> dict[str, float]:
    """CPU seconds so far of the JVMs, of Python workers, and of the proxy, below this process."""
    found = {"java": 0.0, "python": 0.0}
    for process in psutil.Process().children(recursive=True):
        try:
            name, times = process.name(), process.cpu_times()
        except psutil.Error:
            continue
        found["java" if "java" in name else "python"] += times.user + times.system
    return found


def run_once(spark: SparkSession, stage: Stage, way: str, case: Case) -> dict[str, Any]:
    """Read a case in one way."""
    before, began_s = cpu_s(), time.monotonic()
    frame = frame_of(spark, stage, way, case)
    count, _ = frame.agg(F.count("*"), F.sum(F.length("value"))).collect()[0]
    took_s = time.monotonic() - began_s
    after = cpu_s()
    assert count == case.records, f"{way} {case.name}: {count} records of {case.records}"
    return {
        "case": case.name,
        "way": way,
        "tasks": frame.rdd.getNumPartitions(),
        "seconds": round(took_s, 2),
        "cpu_s": {name: round(after[name] - before[name], 2) for name in after},
        "load": round(os.getloadavg()[0], 1),
    }


def summary(runs: list[dict[str, Any]], cases: list[Case]) -> list[dict[str, Any]]:
    """Medians and ratios of each case and way; a ratio is the plain rate's part that it reaches."""
    lines = []
    for case in cases:
        medians = {
            way: statistics.median(
                run["seconds"] for run in runs if (run["case"], run["way"]) == (case.name, way)
            )
            for way in WAYS
        }
        lines += [
            {
                "case": case.name,
                "way": way,
                "seconds": medians[way],
                "records_per_s": round(case.records / medians[way]),
                "of_plain": round(medians["plain"] / medians[way], 2),
                "of_lanes": round(medians["lanes"] / medians[way], 2),
            }
            for way in WAYS
        ]
    return lines


def main() -> int:
    """Run all; prints a line per run and per median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    few = 3 * FEW_PER_PARTITION
    inside_to = INSIDE_FROM + FEW_PER_PARTITION
    cases = [
        Case(name="many", topic="many", partitions=4, lanes=4, start=0, end=None,
             records=args.records),
        Case(name="few, to the end", topic="few", partitions=3, lanes=8, start=0, end=None,
             records=few),
        Case(name="few, inside", topic="log", partitions=3, lanes=8, start=INSIDE_FROM,
             end=inside_to, records=few),
    ]  # fmt: skip
    runs: list[dict[str, Any]] = []
    with open_stage() as stage:
        for case in cases:
            create_topic(stage, case.topic, case.partitions)
            count = case.records if case.end is None else LOG_RECORDS * case.partitions
            fill(stage.kafka.bootstrap, case.topic, case.partitions, count)
        with open_session("bench", master="local[2]") as spark:
            spark.dataSource.register(KeylaneSource)
            for number in range(args.rounds + 1):
                for case in cases:
                    for way in WAYS:
                        found = run_once(spark, stage, way, case)
                        print({"round": number, **found}, flush=True)
                        runs += [{"round": number, **found}] if number else []
    lines = summary(runs, cases)
    for line in lines:
        print(line)
    save("spark_lanes", {"run": describe_run(), "medians": lines, "runs": runs})
    return 0


if __name__ == "__main__":
    sys.exit(main())
