"""Rate of a profile beside a bare count of the same topic, and how good its plans are.

`python -m bench.spark.profile` takes some minutes, most of them to fill the topic. Count and
profile take turns; a ratio is of one round. CPU time is Spark's: it is steady where others
work on the machine. The best cut is that of single keys, at any hash.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
from pyspark.sql import SparkSession

from bench.end_to_end.stage import describe_run, save
from bench.spark.make_topic import make_topic
from keylane.assignor.cut_planner import least_maximum, plan_ranges
from keylane.assignor.profile import LoadProfile
from keylane.embedded import EmbeddedKafka
from keylane.pipeline.profile.loads import key_loads, run_profile
from keylane.pipeline.start import open_session
from keylane.pipeline.topic_range import TopicRange, find_range, read_range

Result = TypeVar("Result")
LANES = (2, 4, 8, 16, 64)


def main() -> None:
    """Fill a topic, time both, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="keylane-bench-") as folder,
        EmbeddedKafka(Path(folder)) as kafka,
    ):
        make_topic(kafka.bootstrap, "orders", partitions=args.partitions, records=args.records)
        settings = {"spark.driver.memory": "2g"}
        with open_session("bench profile", master="local[2]", config=settings) as spark:
            run(spark, find_range(spark, kafka.bootstrap, "orders"), args.rounds)


def run(spark: SparkSession, chosen: TopicRange, rounds: int) -> None:
    """Rounds of count and profile; the first warms and is not counted."""
    jvm = find_jvm(spark)
    taken: list[dict[str, float]] = []
    profile: LoadProfile | None = None
    for number in range(rounds + 1):
        load = os.getloadavg()[0]
        count_s, count_cpu_s, count = timed(jvm, read_range(spark, chosen).count)
        profile_s, profile_cpu_s, profile = timed(
            jvm, lambda: run_profile(spark, chosen, progress=say_nothing)
        )
        assert profile is not None
        assert count == profile.records == chosen.offset_count
        row = {
            "count_s": count_s,
            "count_cpu_s": count_cpu_s,
            "profile_s": profile_s,
            "profile_cpu_s": profile_cpu_s,
            "ratio": count_s / profile_s,
            "cpu_ratio": count_cpu_s / profile_cpu_s,
            "load": load,
        }
        row = {name: round(value, 3) for name, value in row.items()}
        print(f"round {number}: {row}", flush=True)
        if number:
            taken.append(row)
    assert profile is not None
    print_shares(chosen.offset_count, taken)
    plans = judge_plans(spark, chosen, profile)
    for plan in plans:
        print(plan)
    content = {"records": chosen.offset_count, "rounds": taken, "plans": plans}
    print(save("spark_profile", {**content, **describe_run()}))


def print_shares(records: int, taken: list[dict[str, float]]) -> None:
    """Medians, and the spread of ratios."""
    for name in ("count", "profile"):
        spent_s = statistics.median(row[f"{name}_s"] for row in taken)
        cpu_s = statistics.median(row[f"{name}_cpu_s"] for row in taken)
        print(f"{name:8} {records / spent_s:,.0f} records/s, {cpu_s:.1f} s of CPU")
    for name in ("ratio", "cpu_ratio"):
        values = [row[name] for row in taken]
        print(f"{name:9} {statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})")


def judge_plans(
    spark: SparkSession, chosen: TopicRange, profile: LoadProfile
) -> list[dict[str, Any]]:
    """The busiest lane of plans, beside the best that cuts at any hash could do, and the floor."""
    keys = key_loads(read_range(spark, chosen)).orderBy("partition", "key_hash").toArrow()
    loads: dict[int, list[int]] = {}
    for number, size in zip(keys["partition"].to_pylist(), keys["bytes"].to_pylist(), strict=True):
        loads.setdefault(number, []).append(size)
    found = []
    for lane_count in LANES:
        started_s = time.monotonic()
        _, report = plan_ranges(profile, lane_count)
        planned_s = time.monotonic() - started_s
        best = max(least_maximum([row], lane_count) for row in loads.values())
        floor = 0 if report.floor is None else report.floor.size_bytes
        found.append(
            {
                "lanes": lane_count,
                "busiest": report.busiest,
                "to_best": round(report.busiest / best, 4),
                "to_mean": round(report.busiest / report.mean, 2),
                "even_to_mean": round(report.even / report.mean, 2),
                "floor_to_mean": round(floor / report.mean, 2),
                "plan_s": round(planned_s, 3),
            }
        )
    return found


def say_nothing(_text: str) -> None:
    """Progress is for people."""


def find_jvm(spark: SparkSession) -> psutil.Process:
    """Spark's own process; at local[2] driver and executor are one."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001  # all of Spark's Python does so
    return psutil.Process(jvm.java.lang.ProcessHandle.current().pid())


def timed(jvm: psutil.Process, work: Callable[[], Result]) -> tuple[float, float, Result]:
    """Seconds that `work` took, CPU seconds of Spark, and the result."""
    before_s = sum(jvm.cpu_times()[:2])
    started_s = time.monotonic()
    result = work()
    return time.monotonic() - started_s, sum(jvm.cpu_times()[:2]) - before_s, result


if __name__ == "__main__":
    main()
