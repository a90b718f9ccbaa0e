"""One member stuck for good while seven read 2 GB: what it costs them, and what memory it takes.

    python -m bench.end_to_end.stuck_member [--megabytes 2300] [--rounds 3] [--lanes 8]

Eight members share a topic of 2 partitions by lane index, as a consumer group would. In every
second run member 0 is:
- "silent": takes part for a few fetches, then never asks again, with its connection open;
- "slow": the same, but asks for one batch every 5 seconds;
- "healthy": reads its lanes as the others do.
In the runs between it is absent and its lanes are not read. The topic is larger than the cache
(200 MiB) many times over, and what member 0 leaves would fill it too. keylane starts anew for
each run, so that none finds a cache or a reader's place that another one left.

In:    nothing; fills a topic in an embedded Kafka.
Out:   a table and bench/results/<name>.json: rate of the seven with and without, the largest
       `keylane_cache_bytes` against its bound, the proxy's RSS.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
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
    read_metrics,
    save,
)

MEMBERS: Final = 8
VARIANTS: Final = ("silent", "slow", "healthy")
ABSENT: Final = "absent"
FETCHES_BEFORE: Final = 3
SLOW_EVERY_S: Final = 5.0
RUN_TIMEOUT_S: Final = 180.0
COUNTERS: Final = (
    "keylane_upstream_fetches_total",
    "keylane_upstream_tail_fetches_total",
    "keylane_upstream_bytes_total",
    "keylane_decompressed_bytes_total",
    "keylane_cache_misses_total",
    "keylane_cache_evictions_total",
    "keylane_lane_bytes_total",
)


@dataclass(frozen=True, slots=True)
class Run:
    """The seven members, once over their lanes."""

    seconds: float
    slowest_share: float
    """Seconds of the fastest of the seven by those of the slowest."""
    plain_bytes: int
    cpu_s: float
    rss_bytes_max: int
    cache_bytes_max: float
    cache_bytes_bound: float
    samples: int
    deltas: dict[str, float]


def main() -> int:
    """Measure and report."""
    options = parse_options()
    about = describe_run() | {"options": vars(options)}
    print(f"machine: {about}")
    with open_stage() as stage:
        topic = fill_topic(
            stage,
            "orders",
            codec=options.codec,
            record_bytes=options.record_bytes,
            megabytes=options.megabytes,
            batch_bytes=options.batch_bytes,
        )
        pairs: dict[str, list[tuple[Run, Run]]] = defaultdict(list)
        for number in range(options.rounds + 1):
            for variant in options.variant:
                pair = run_pair(stage, topic, options.lanes, variant)
                if number > 0:  # the first warms the page cache
                    pairs[variant].append(pair)
        table = report(pairs)
    print(save(options.name, about | {"table": table}))
    return 0


def parse_options() -> argparse.Namespace:
    """Read argv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=2300, help="plain MB of the topic")
    parser.add_argument("--codec", default="lz4")
    parser.add_argument("--record-bytes", type=int, default=1000)
    parser.add_argument("--batch-bytes", type=int, default=131_072, help="of the producer")
    parser.add_argument("--lanes", type=int, default=8, help="per partition, a multiple of 8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--name", default="stuck-member", help="of the result file")
    return parser.parse_args()


def run_pair(stage: Stage, topic: Topic, lanes: int, variant: str) -> tuple[Run, Run]:
    """A run without member 0, then one with it."""
    runs = []
    for name in (ABSENT, variant):
        stage.keylane.restart()
        runs.append(run_once(stage, topic, lanes, name))
        rate = runs[-1].plain_bytes / runs[-1].seconds / MB
        print(f"  {name}: {rate:.0f} MB/s, CPU {runs[-1].cpu_s:.2f} s", file=sys.stderr)
    return runs[0], runs[1]


def run_once(stage: Stage, topic: Topic, lanes: int, variant: str) -> Run:
    """Seven members read their lanes to the end; member 0 does as `variant` says."""
    name = f"{topic.name}.lanes-{lanes}"
    address = find_leader(stage.keylane.bootstrap, name)
    drains = [Drain(address, name, *lanes_of(member, lanes, topic)) for member in range(MEMBERS)]
    reading, finished = drains[1:], [0.0] * MEMBERS
    over = threading.Event()
    before = read_metrics(f"http://{stage.keylane.control}/metrics")
    gate = threading.Barrier(MEMBERS)  # seven members and this thread

    def read_all(member: int) -> None:
        gate.wait(30)
        finished[member] = drains[member].drain(RUN_TIMEOUT_S)

    threads = [threading.Thread(target=read_all, args=(index,)) for index in range(1, MEMBERS)]
    stuck = threading.Thread(target=be_stuck, args=(drains[0], variant, over))
    try:
        for thread in (*threads, stuck):
            thread.start()
        with Watch(stage.keylane, with_metrics=True) as watch:
            gate.wait(30)
            for thread in threads:
                thread.join(RUN_TIMEOUT_S + 10)
        assert all(drain.is_done for drain in reading), "the seven read all of their lanes"
    finally:
        over.set()
        stuck.join(30)
        for drain in drains:
            drain.close()
    records = sum(drain.counts.records for drain in reading)
    return Run(
        seconds=max(finished[1:]),
        slowest_share=min(finished[1:]) / max(finished[1:]),
        plain_bytes=records * topic.plain_bytes // topic.record_count,
        cpu_s=watch.cpu_s,
        rss_bytes_max=watch.rss_bytes_max,
        cache_bytes_max=watch.maxima["keylane_cache_bytes"],
        cache_bytes_bound=watch.maxima["keylane_cache_bytes_max"],
        samples=watch.sample_count,
        deltas={name: watch.last[name] - before[name] for name in COUNTERS},
    )


def lanes_of(member: int, lanes: int, topic: Topic) -> tuple[dict[int, int], dict[int, int]]:
    """The lane indexes of a member, a run of lanes of both partitions: where they begin and end."""
    each = lanes // MEMBERS
    indexes = range(member * each * PARTITIONS, (member + 1) * each * PARTITIONS)
    return dict.fromkeys(indexes, 0), {index: topic.ends[index % PARTITIONS] for index in indexes}


def be_stuck(drain: Drain, variant: str, over: threading.Event) -> None:
    """Take part as member 0 for a moment, so that its lanes have a reader."""
    if variant == ABSENT:
        return
    if variant == "healthy":
        drain.drain(RUN_TIMEOUT_S)
        return
    for _ in range(FETCHES_BEFORE):
        drain.fetch()
    while variant == "slow" and not over.wait(SLOW_EVERY_S) and not drain.is_done:
        drain.fetch(max_bytes=1, partition_max_bytes=1)


def report(pairs: dict[str, list[tuple[Run, Run]]]) -> dict[str, Any]:
    """Print the table; return it for the result file."""
    absent = [pair[0] for row in pairs.values() for pair in row]
    # What two runs differ by when nothing differs: a loss below that is not seen here.
    rows = {ABSENT: list(pairwise(absent)), **pairs}
    print(f"\n7 members read {absent[0].plain_bytes / 1e9:.2f} GB plain, median (lowest-highest); "
          "lost: against the run just before, without member 0")  # fmt: skip
    print(f"  {'member 0':8} {'runs':>4} {'MB/s of the 7':>18} {'lost %':>20} {'CPU s':>16} "
          f"{'gauge max / bound MB':>20} {'RSS MB':>6} {'reads again':>11}")  # fmt: skip
    table: dict[str, Any] = {}
    for variant, row in rows.items():
        done = absent if variant == ABSENT else [pair[1] for pair in row]
        rate = Spread(tuple(rate_of(run) / MB for run in done))
        lost = Spread(tuple(100 * (1 - rate_of(run) / rate_of(base)) for base, run in row))
        cpu = Spread(tuple(run.cpu_s for run in done))
        gauge_mb = max(run.cache_bytes_max for run in done) / MB
        bound_mb = done[0].cache_bytes_bound / MB
        rss_mb = max(run.rss_bytes_max for run in done) / MB
        again = Spread(tuple(run.deltas["keylane_upstream_tail_fetches_total"] for run in done))
        print(f"  {variant:8} {len(done):>4} {rate.text():>18} {lost.text(1):>20} "
              f"{cpu.text(2):>16} {gauge_mb:>12.1f} / {bound_mb:.1f} {rss_mb:>6.0f} "
              f"{again.median:>11.0f}")  # fmt: skip
        table[variant] = {
            "mb_per_s": rate.as_json(),
            "lost_percent": lost.as_json(),
            "proxy_cpu_s": cpu.as_json(),
            "cache_mb_max": round(gauge_mb, 1),
            "cache_mb_bound": round(bound_mb, 1),
            "proxy_rss_mb_max": round(rss_mb),
            "fastest_to_slowest": [round(run.slowest_share, 3) for run in done],
            "gauge_samples": [run.samples for run in done],
            "counters": [run.deltas for run in done],
        }
    return table


def rate_of(run: Run) -> float:
    """Plain bytes per second of the seven."""
    return run.plain_bytes / run.seconds


if __name__ == "__main__":
    started_s = time.monotonic()
    code = main()
    print(f"took {time.monotonic() - started_s:.0f} s")
    sys.exit(code)
