"""Throughput of one consumer: direct, through keylane as plain topic, and as lanes.

    python -m bench.end_to_end.consume [--megabytes 500] [--codec lz4 none zstd] [--rounds 3]

In:    nothing; fills a topic of 2 partitions in an embedded Kafka.
Out:   a table, and bench/results/<name>.json. MB/s count keys and values before compression,
       so that all ways are measured with the same stick.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Final

from bench.end_to_end.drain import Drain, find_leader
from bench.end_to_end.stage import (
    MB,
    PARTITIONS,
    Spread,
    Stage,
    Topic,
    Watch,
    describe_run,
    fill_topic,
    open_stage,
    save,
)
from keylane.embedded import run_java_tool

LANE_COUNTS: Final = (1, 4, 16)
WAYS: Final = ("direct", "passthrough", *(f"lanes-{count}" for count in LANE_COUNTS))
CLIENTS: Final = ("drain", "java")
RUN_TIMEOUT_S: Final = 120.0
JAVA_ARGS: Final = ("-Xmx512m", "-XX:+UseParallelGC", "-Xshare:auto")


@dataclass(frozen=True, slots=True)
class Run:
    """One consumer, once over the whole topic."""

    seconds: float
    cpu_s: float
    """CPU time of the proxy."""
    rss_bytes_max: int
    fetches: int


def main() -> int:
    """Measure and report."""
    options = parse_options()
    about = describe_run() | {"options": vars(options)}
    print(f"machine: {about}")
    tables: dict[str, Any] = {}
    with open_stage() as stage:
        for codec in options.codec:
            topic = fill_topic(
                stage,
                f"orders-{codec}",
                codec=codec,
                record_bytes=options.record_bytes,
                megabytes=options.megabytes,
                batch_bytes=options.batch_bytes,
            )
            runs = measure(stage, topic, options)
            for client in options.client:
                title = f"{codec}, {options.record_bytes} B records, {client}"
                tables[title] = report(title, topic, {way: runs[client, way] for way in WAYS})
    print(save(options.name, about | {"tables": tables}))
    return 0


def parse_options() -> argparse.Namespace:
    """Read argv."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=RAW)
    parser.add_argument("--megabytes", type=float, default=500, help="plain MB per topic")
    parser.add_argument("--codec", nargs="+", default=["lz4", "none", "zstd"])
    parser.add_argument("--record-bytes", type=int, default=1000)
    parser.add_argument("--batch-bytes", type=int, default=131_072, help="of the producer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--client", nargs="+", default=list(CLIENTS), choices=CLIENTS)
    parser.add_argument("--name", default="consume", help="of the result file")
    return parser.parse_args()


RAW: Final = argparse.RawDescriptionHelpFormatter


def measure(
    stage: Stage, topic: Topic, options: argparse.Namespace
) -> dict[tuple[str, str], list[Run]]:
    """Every way in every round; what disturbs a round disturbs all ways alike."""
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for number in range(options.rounds + 1):
        for client in options.client:
            for way in WAYS:
                run = run_once(stage, topic, way, client, f"{topic.name}-{way}-{number}")
                if number > 0:  # the first warms caches, lane layouts and compiled code
                    runs[client, way].append(run)
                rate = topic.plain_bytes / run.seconds / MB
                print(f"  round {number} {client} {way}: {rate:.0f} MB/s", file=sys.stderr)
    return runs


def run_once(stage: Stage, topic: Topic, way: str, client: str, group: str) -> Run:
    """One consumer over the whole topic."""
    name = f"{topic.name}.{way}" if way.startswith("lanes-") else topic.name
    bootstrap = stage.kafka.bootstrap if way == "direct" else stage.keylane.bootstrap
    if client == "java":
        with Watch(stage.keylane) as watch:
            seconds = run_java(bootstrap, name, topic.record_count, group)
        return Run(seconds, watch.cpu_s, watch.rss_bytes_max, 0)
    lanes = int(way.removeprefix("lanes-")) if way.startswith("lanes-") else 1
    ends = {index: topic.ends[index % PARTITIONS] for index in range(lanes * PARTITIONS)}
    drain = Drain(find_leader(bootstrap, name), name, dict.fromkeys(ends, 0), ends)
    try:
        with Watch(stage.keylane) as watch:
            seconds = drain.drain(RUN_TIMEOUT_S)
    finally:
        drain.close()
    assert drain.counts.records >= topic.record_count, "every record came"
    return Run(seconds, watch.cpu_s, watch.rss_bytes_max, drain.counts.fetches)


def run_java(bootstrap: str, topic: str, record_count: int, group: str) -> float:
    """Kafka's own perf consumer; seconds from its first assignment to the last record."""
    done = run_java_tool(
        "kafka-consumer-perf-test",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
        *("--num-records", str(record_count), "--timeout", "60000", "--hide-header"),
        timeout_s=RUN_TIMEOUT_S,
        jvm_args=JAVA_ARGS,
    )
    lines = [line.split(",") for line in done.stdout.splitlines() if line.count(",") >= 9]
    fields = [field.strip() for field in lines[-1]]
    assert int(fields[4]) >= record_count, f"every record came: {done.stdout}{done.stderr}"
    return int(fields[7]) / 1000  # fetch.time.ms


def report(title: str, topic: Topic, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Print one table; return it for the result file."""
    gigabytes = topic.plain_bytes / 1e9
    direct = [run.seconds for run in runs["direct"]]
    print(f"\n{title}: {gigabytes:.2f} GB plain, median (lowest-highest) of {len(direct)} runs")
    print(f"  {'way':12} {'MB/s':>18} {'1000 rec/s':>11} {'to direct':>18} "
          f"{'proxy CPU s/GB':>18} {'peak RSS MB':>11}")  # fmt: skip
    table = {}
    for way, done in runs.items():
        rate = Spread(tuple(topic.plain_bytes / run.seconds / MB for run in done))
        ratio = Spread(tuple(a / run.seconds for a, run in zip(direct, done, strict=True)))
        cpu = Spread(tuple(run.cpu_s / gigabytes for run in done))
        rss_mb = max(run.rss_bytes_max for run in done) / MB
        records = rate.median * MB * topic.record_count / topic.plain_bytes
        print(f"  {way:12} {rate.text():>18} {records / 1000:>11.0f} {ratio.text(2):>18} "
              f"{cpu.text(2):>18} {rss_mb:>11.0f}")  # fmt: skip
        table[way] = {
            "mb_per_s": rate.as_json(),
            "records_per_s": round(records),
            "ratio_to_direct": ratio.as_json(),
            "proxy_cpu_s_per_gb": cpu.as_json(),
            "proxy_rss_mb_max": round(rss_mb),
            "fetches": [run.fetches for run in done],
        }
    return table


if __name__ == "__main__":
    sys.exit(main())
