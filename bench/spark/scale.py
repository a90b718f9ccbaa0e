"""Cost of jobs per million records with 1 and 2 cores, and memory of the driver, without Kafka.

`python -m bench.spark.scale --records 10000000` makes records in Spark (`bench.spark.made`) and
gives them to the same functions as Kafka's. What is left out is what asks Kafka: reading, and
looking up holes. Each run is a process with a separate Spark, so that its peak memory is known.
With a local master the driver's JVM is also the executor: the figures bound both. A job is a
function of `JOBS`: (spark, records, folder), which asserts what is known of its answer, and returns
figures to print beside the costs.

Costs include making the records; `make-records` and `make-log` do that alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import psutil
from pyspark.sql import SparkSession

from bench.end_to_end.stage import RESULTS, describe_run, save
from bench.spark.made import (
    COMMIT_EVERY,
    COMMIT_US,
    FAULTS,
    LANES,
    MEMBERS,
    PARTITIONS,
    STEP_US,
    WEEK_US,
    WORK_US,
    MadeLog,
    make_records,
)
from bench.spark.profile import find_jvm, say_nothing
from keylane.assignor.cut_planner import plan_ranges
from keylane.assignor.hourly import ALL_HOURS, WHOLE_RANGE
from keylane.pipeline.audit import rules, seen
from keylane.pipeline.audit.findings import write_findings
from keylane.pipeline.audit.judge import Judge
from keylane.pipeline.job import hold, jvm_of
from keylane.pipeline.migration import sides
from keylane.pipeline.migration.comparison import compare_sides
from keylane.pipeline.profile.files import save_profile
from keylane.pipeline.profile.hours import hour_loads, judge_hours, kept_hours
from keylane.pipeline.profile.loads import build_profile, loads_of
from keylane.pipeline.profile.worth import describe_hours
from keylane.pipeline.simulate.job import run_simulation
from keylane.pipeline.simulate.model import SimulationRequest, WorkModel
from keylane.pipeline.simulate.queueing import plain_records
from keylane.pipeline.start import open_session
from keylane.pipeline.storage import LocalFolder
from keylane.pipeline.topic_range import TASKS_MAX
from keylane.pipeline.waits import lag
from keylane.pipeline.waits.measure import find_waits, rows_of, sum_waits

MEMORY: Final = "1g"
RESULT: Final = "spark_scale"
WARM_RECORDS: Final = 16_000

Figures = Mapping[str, float]


def make_only(spark: SparkSession, count: int, _folder: LocalFolder) -> Figures:
    """The records of `profile` and `simulate`, and nothing else."""
    make_records(spark, count).write.format("noop").mode("overwrite").save()
    return {}


def make_log_only(spark: SparkSession, count: int, _folder: LocalFolder) -> Figures:
    """The reports of `audit` and `lag`, and nothing else."""
    MadeLog(spark, count).reports().write.format("noop").mode("overwrite").save()
    return {}


def profile(spark: SparkSession, count: int, folder: LocalFolder) -> Figures:
    """`keylane spark profile`, and `keylane plan`."""
    with loads_of(make_records(spark, count)) as keys:
        found = build_profile(keys, "orders", [(0, count)] * PARTITIONS)
    save_profile(found, folder)
    assert found.records == count
    _, report = plan_ranges(found, LANES)
    return {"busiest_to_mean": report.busiest / report.mean}


def profile_in_many_tasks(spark: SparkSession, count: int, folder: LocalFolder) -> Figures:
    """`profile` in as many tasks and pieces of a shuffle as 10^12 records have: the driver's part.

    Each task has few records here.
    """
    spark.conf.set("spark.sql.shuffle.partitions", "2000")
    with loads_of(make_records(spark, count, TASKS_MAX)) as keys:
        found = build_profile(keys, "orders", [(0, count)] * PARTITIONS)
    save_profile(found, folder)
    assert found.records == count
    return {"tasks": TASKS_MAX}


def profile_by_hour(spark: SparkSession, count: int, folder: LocalFolder) -> Figures:
    """`keylane spark profile --by-hour`, which reads the records twice."""
    records = make_records(spark, count)
    with loads_of(records) as keys:
        found = build_profile(keys, "orders", [(0, count)] * PARTITIONS)
    assert found.records == count
    with kept_hours(hour_loads(records, zone="UTC"), "UTC") as (index, sums):
        report = judge_hours(sums, index, found, folder, lane_count=LANES, others={})
    sys.stderr.write(describe_hours(report, index) + "\n")
    least = report.worst(ALL_HOURS)[1]
    return {"hours": len(index.starts), "range_to_all_hours": report.worst(WHOLE_RANGE)[1] / least}


def simulate(spark: SparkSession, count: int, _folder: LocalFolder) -> Figures:
    """`keylane spark simulate` of two scenarios: eight members today, and on 16 lanes each."""
    work = WorkModel(base_ms=WEEK_US // 1000 * MEMBERS * 0.5 / count)  # they work half of the time
    request = SimulationRequest(members=(MEMBERS,), lanes=(LANES,), work=work)
    found = run_simulation(
        spark,
        plain_records(make_records(spark, count)),
        request,
        topic="orders",
        partition_count=PARTITIONS,
        progress=say_nothing,
    )
    today, lanes = found.results
    assert found.facts.records == today.records == lanes.records == count
    assert found.facts.raised == 0
    assert all(sum(one.records for one in each.members) == count for each in found.results)
    assert today.work_ms == lanes.work_ms == found.facts.work_us / 1000
    assert found.facts.work_us == count * round(1000 * work.base_ms)
    return {"today_p99_s": today.waits.p99_ms / 1000, "lanes_p99_s": lanes.waits.p99_ms / 1000}


def audit(spark: SparkSession, count: int, folder: LocalFolder) -> Figures:
    """`keylane spark audit`; what Kafka is asked for is left out."""
    log = MadeLog(spark, count)
    with ExitStack() as stack:
        parsed = hold(rules.parse_values(log.reports()).drop("v", "t"), stack)
        offsets = log.records().select("partition", "offset")
        bitmaps = hold(rules.offset_bitmaps(offsets, "partition", "offset"), stack)
        whole = seen.compare(spark, log.wanted, bitmaps)
        judge = Judge(wanted=log.wanted, reported=log.reported, stack=stack, progress=say_nothing)
        found = judge.judge(parsed, bitmaps)
        write_findings(found.findings, folder, sum(found.counts.values()))
    assert (whole.records, whole.holes, whole.doubts, judge.reasons) == (count, {}, [], [])
    assert found.reports["records"] == count  # as many came twice as were lost
    assert {kind: found.counts.get(kind, 0) for kind in rules.KINDS} == log.faults
    return {"findings": sum(found.counts.values())}


def lags(spark: SparkSession, count: int, _folder: LocalFolder) -> Figures:
    """`keylane spark lag --audit`."""
    log = MadeLog(spark, count)
    with ExitStack() as stack:
        parsed = hold(rules.parse_values(log.reports()), stack)
        assert not parsed.where("bad").count()
        waits = find_waits(log.records(), log.wanted, parsed=parsed, journal=None, stack=stack)
        bitmaps = hold(rules.offset_bitmaps(waits, "p", "o"), stack)
        assert seen.compare(spark, log.wanted, bitmaps).records == count
        sums = sum_waits(hold(lag.wait_counts(waits, slice_s=3600, has_reports=True), stack))
        keys = rows_of(lag.slow_keys(waits, 20))
    committed, processed = sums.totals[lag.COMMIT], sums.totals[lag.PROCESS]
    longest_us = min(COMMIT_EVERY, count) * STEP_US + COMMIT_US
    assert (committed["known"], committed["max_ms"]) == (count, longest_us // 1000)
    assert (processed["known"], processed["open"]) == (count - FAULTS, FAULTS)
    assert processed["min_ms"] == processed["max_ms"] == WORK_US // 1000
    assert len(keys) == 20
    return {"groups": len(sums.groups)}


def verify_migration(spark: SparkSession, count: int, _folder: LocalFolder) -> Figures:
    """`keylane spark verify-migration` of two topics: twice as many rows as `records` says."""
    log = MadeLog(spark, count)
    with ExitStack() as stack:
        before = sides.topic_side(log.records(), sides.BEFORE)
        rows = hold(before.unionAll(sides.topic_side(log.copies(), sides.AFTER)), stack)
        found = compare_sides(
            rows, any_order=False, is_work=False, stack=stack, progress=say_nothing
        )
    assert found.records == {"before": count, "after": count}
    alike = dict.fromkeys((sides.MISSING, sides.DUPLICATED, sides.REORDERED), FAULTS)
    assert found.counts == {**alike, sides.EXTRA: 0}
    assert found.difference_table.num_rows == 3 * FAULTS
    return {"keys": found.keys, "keys_different": found.keys_different}


JOBS: Final[Mapping[str, Callable[[SparkSession, int, LocalFolder], Figures]]] = {
    "make-records": make_only,
    "make-log": make_log_only,
    "profile": profile,
    "profile-by-hour": profile_by_hour,
    "profile-in-many-tasks": profile_in_many_tasks,
    "simulate": simulate,
    "audit": audit,
    "lag": lags,
    "verify-migration": verify_migration,
}


def main() -> None:
    """Run each job with each number of cores, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--job", action="append", choices=sorted(JOBS), help="all when left out")
    parser.add_argument("--cores", type=int, action="append", help="1 and 2 when left out")
    parser.add_argument("--memory", default=MEMORY, help="heap of the JVM")
    parser.add_argument("--pieces", default="4", help="of a shuffle; 4 are those of a command")
    parser.add_argument("--disk", type=Path, metavar="DIR", help="for Spark's local files")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the jobs' files there")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(run(args)))
        return
    for name in args.job or JOBS:
        for cores in args.cores or (1, 2):
            row = run_apart(name, cores, args)
            print(json.dumps(row), flush=True)
            keep_row(row)
    print(table(kept_rows()))


def run_apart(name: str, cores: int, args: argparse.Namespace) -> dict[str, Any]:
    """One run, in a separate process."""
    command = [sys.executable, "-m", "bench.spark.scale", "--one", "--job", name]
    command += ["--records", str(args.records), "--cores", str(cores), "--memory", args.memory]
    command += ["--pieces", args.pieces]
    command += [] if args.disk is None else ["--disk", str(args.disk)]
    command += [] if args.keep is None else ["--keep", str(args.keep / name)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(args: argparse.Namespace) -> dict[str, Any]:
    """One run: seconds, CPU seconds of Spark, peak memory of its JVM and of this process."""
    (name,), (cores,), count = args.job, args.cores, args.records
    settings = {"spark.driver.memory": args.memory, "spark.sql.shuffle.partitions": args.pieces}
    with (
        tempfile.TemporaryDirectory(prefix="keylane-bench-", dir=args.disk) as scratch,
        open_session(
            f"bench {name}",
            master=f"local[{cores}]",
            config={**settings, "spark.local.dir": scratch},
        ) as spark,
    ):
        jvm = find_jvm(spark)
        folder = LocalFolder(args.keep or Path(scratch))
        JOBS[name](spark, WARM_RECORDS, folder)  # compiles and warms
        load, cpu_before_s, started_s = os.getloadavg()[0], cpu_s(jvm), time.monotonic()
        shuffled_before = shuffled_bytes(spark)
        figures = JOBS[name](spark, count, folder)
        spent_s = time.monotonic() - started_s
        spent_cpu_s = cpu_s(jvm) - cpu_before_s
        shuffled = shuffled_bytes(spark) - shuffled_before
        peak = jvm_peak_bytes(jvm.pid)
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    millions = count / 1e6
    return {
        "job": name,
        "cores": cores,
        "records": count,
        "s": round(spent_s, 2),
        "s_per_million": round(spent_s / millions, 3),
        "cpu_s_per_million": round(spent_cpu_s / millions, 3),
        "shuffle_bytes_per_record": round(shuffled / count, 1),
        "heap": args.memory,
        "pieces": int(args.pieces),
        "jvm_peak_mb": round(peak / 1e6),
        "python_peak_mb": round(own / 1e6),
        "load": round(load, 1),
        **{figure: round(value, 3) for figure, value in figures.items()},
    }


def cpu_s(jvm: psutil.Process) -> float:
    """CPU seconds of a process so far."""
    return sum(jvm.cpu_times()[:2])


def shuffled_bytes(spark: SparkSession) -> int:
    """Bytes that all tasks have written for a shuffle, compressed."""
    executors = jvm_of(spark).org.apache.spark.SparkContext.getOrCreate().statusStore()
    listed = executors.executorList(False)
    return sum(int(listed.apply(at).totalShuffleWrite()) for at in range(listed.size()))


def kept_rows() -> list[dict[str, Any]]:
    """Rows of earlier runs, which stay until their job is run again."""
    path = RESULTS / f"{RESULT}.json"
    if not path.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
    return rows


def keep_row(row: dict[str, Any]) -> None:
    """Put a row among those of other runs, in a fixed order, with the machine it ran on."""

    def place(one: Mapping[str, Any]) -> tuple[int, int, int]:
        return list(JOBS).index(one["job"]), one["records"], one["cores"]

    machine = describe_run()
    machine["machine_cores"] = machine.pop("cores")  # `cores` are those that a run was given
    others = [one for one in kept_rows() if place(one) != place(row)]
    rows = sorted([*others, {**row, **machine}], key=place)
    save(RESULT, {"runs": rows})


def jvm_peak_bytes(pid: int) -> int:
    """The most memory that a process has had, by Linux (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def table(rows: list[dict[str, Any]]) -> str:
    """The runs as a table of Markdown."""
    names = ["job", "cores", "records", "s_per_million", "cpu_s_per_million"]
    names += ["shuffle_bytes_per_record", "jvm_peak_mb", "python_peak_mb"]
    lines = [" | ".join(names), " | ".join("---" for _ in names)]
    lines += [" | ".join(str(row.get(name, "")) for name in names) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


if __name__ == "__main__":
    main()
