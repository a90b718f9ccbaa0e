"""Cost of jobs per million records with 1 and 2 cores, and memory of the driver, without Kafka.

`python -m bench.spark.scale --records 10000000` makes records in Spark and gives them to the same
functions as Kafka's. Each run is a process with a separate Spark, so that its peak memory is known.
With a local master the driver's JVM is also the executor: the figures bound both. A job is a
function of `JOBS`: (spark, records, folder), which returns figures to print beside the costs.

The topic: 16 partitions, 1,000,000 keys by the law of Zipf and Mandelbrot with the exponent 1,
values of 20 to 180 bytes, one week with busy days and quiet nights; every six hours other keys are
the heavy ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.end_to_end.stage import describe_run, save
from bench.spark.profile import find_jvm
from keylane.assignor.cut_planner import plan_ranges
from keylane.assignor.hourly import ALL_HOURS, WHOLE_RANGE
from keylane.pipeline.profile.files import save_profile
from keylane.pipeline.profile.hours import hour_loads, judge_hours, kept_hours
from keylane.pipeline.profile.loads import build_profile, loads_of
from keylane.pipeline.profile.worth import describe_hours
from keylane.pipeline.start import open_session
from keylane.pipeline.storage import LocalFolder

PARTITIONS: Final = 16
KEYS: Final = 1_000_000
FLAT: Final = 50
"""Keys at the top that weigh much alike: the heaviest has half the bytes of a mean lane."""
HOURS: Final = 7 * 24
VALUE_BYTES: Final = (20, 181)
LANES: Final = 16
MEMORY: Final = "1g"
START_S: Final = 1_790_812_800
"""2026-10-01T00:00:00Z."""

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Records:
    """Records as Spark's Kafka source has them, and their number."""

    frame: DataFrame
    count: int
    partition_count: int = PARTITIONS


def make_records(spark: SparkSession, count: int) -> Records:
    """The topic; the same records at each use, and in any number of tasks."""
    each = spark.range(count)
    place = F.col("id") / count * HOURS
    hour = place + 2.5 * F.sin(place * (2 * math.pi / 24))  # ascends; most records come about noon
    rank = F.floor((F.exp(_chance(1) * math.log(KEYS / FLAT + 1)) - 1) * FLAT)
    turn = F.floor(hour / 6) % 4
    number = (rank + turn * 7_919) % KEYS
    size = F.floor(_chance(2) * (VALUE_BYTES[1] - VALUE_BYTES[0])) + VALUE_BYTES[0]
    frame = each.select(
        (number % PARTITIONS).cast("int").alias("partition"),
        F.col("id").alias("offset"),
        F.concat(F.lit("user-"), number.cast("string")).cast("binary").alias("key"),
        F.lit(b"v" * VALUE_BYTES[1]).substr(F.lit(1), size.cast("int")).alias("value"),
        F.timestamp_seconds(F.lit(START_S) + hour * 3_600).alias("timestamp"),
    )
    return Records(frame, count)


def profile(_spark: SparkSession, records: Records, folder: LocalFolder) -> Figures:
    """`keylane spark profile`."""
    with loads_of(records.frame) as keys:
        found = build_profile(keys, "orders", [(0, records.count)] * records.partition_count)
    save_profile(found, folder)
    assert found.records == records.count
    _, report = plan_ranges(found, LANES)
    return {"busiest_to_mean": report.busiest / report.mean}


def profile_by_hour(_spark: SparkSession, records: Records, folder: LocalFolder) -> Figures:
    """`keylane spark profile --by-hour`, which reads the records twice."""
    with loads_of(records.frame) as keys:
        found = build_profile(keys, "orders", [(0, records.count)] * records.partition_count)
    with kept_hours(hour_loads(records.frame, zone="UTC"), "UTC") as (index, sums):
        report = judge_hours(sums, index, found, folder, lane_count=LANES, others={})
    sys.stderr.write(describe_hours(report, index) + "\n")
    least = report.worst(ALL_HOURS)[1]
    return {"hours": len(index.starts), "range_to_all_hours": report.worst(WHOLE_RANGE)[1] / least}


JOBS: Final[Mapping[str, Callable[[SparkSession, Records, LocalFolder], Figures]]] = {
    "profile": profile,
    "profile-by-hour": profile_by_hour,
}


def main() -> None:
    """Run each job with each number of cores, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--job", action="append", choices=sorted(JOBS), help="all when left out")
    parser.add_argument("--cores", type=int, action="append", help="1 and 2 when left out")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the jobs' files there")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run(args.job[0], args.records, args.cores[0], args.keep)))
        return
    rows = []
    for name in args.job or JOBS:
        for cores in args.cores or (1, 2):
            rows.append(run_apart(name, args.records, cores, args.keep))
            print(json.dumps(rows[-1]), flush=True)
    print(table(rows))
    print(save("spark_scale", {"records": args.records, "runs": rows, **describe_run()}))


def run_apart(name: str, count: int, cores: int, keep: Path | None) -> dict[str, Any]:
    """One run, in a separate process."""
    command = [sys.executable, "-m", "bench.spark.scale", "--one", "--job", name]
    command += ["--records", str(count), "--cores", str(cores)]
    command += [] if keep is None else ["--keep", str(keep / name)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(name: str, count: int, cores: int, keep: Path | None) -> dict[str, Any]:
    """One run: seconds, CPU seconds of Spark, peak memory of its JVM and of this process."""
    settings = {"spark.driver.memory": MEMORY}
    with (
        tempfile.TemporaryDirectory(prefix="keylane-bench-") as scratch,
        open_session(f"bench {name}", master=f"local[{cores}]", config=settings) as spark,
    ):
        jvm = find_jvm(spark)
        folder = LocalFolder(keep or Path(scratch))
        JOBS[name](spark, make_records(spark, 10_000), folder)  # compiles and warms
        load, before_s, started_s = os.getloadavg()[0], sum(jvm.cpu_times()[:2]), time.monotonic()
        figures = JOBS[name](spark, make_records(spark, count), folder)
        spent_s = time.monotonic() - started_s
        cpu_s = sum(jvm.cpu_times()[:2]) - before_s
        peak = jvm_peak_bytes(jvm.pid)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    millions = count / 1e6
    return {
        "job": name,
        "cores": cores,
        "records": count,
        "s": round(spent_s, 2),
        "s_per_million": round(spent_s / millions, 3),
        "cpu_s_per_million": round(cpu_s / millions, 3),
        "jvm_peak_mb": round(peak / 1e6),
        "python_peak_mb": round(own / 1e6),
        "load": round(load, 1),
        **{figure: round(value, 3) for figure, value in figures.items()},
    }


def jvm_peak_bytes(pid: int) -> int:
    """The most memory that a process has had, by Linux (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def table(rows: list[dict[str, Any]]) -> str:
    """The runs as a table of Markdown."""
    names = ["job", "cores", "records", "s_per_million", "cpu_s_per_million"]
    names += ["jvm_peak_mb", "python_peak_mb"]
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    lines += [" | ".join(str(row[name]) for name in names) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _chance(salt: int) -> Column:
    """A number from 0 to below 1 for each record, the same at each use."""
    bits = F.shiftrightunsigned(F.xxhash64(F.col("id"), F.lit(salt)), 11)
    return bits / float(1 << 53)


if __name__ == "__main__":
    main()
