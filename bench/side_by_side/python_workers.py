"""Ten milliseconds of asyncio work, 1,000 keys, one partition: Python workers, and their peers.

The ideal is that of `slow_work`: so many workers that never wait, one record of a key at a time.
Members run on uvloop, whose timers are less late than asyncio's: bare tasks that only sleep stand
beside, on the same loop, and show what is there to be had.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop

from bench.end_to_end.stage import create_topic
from bench.peers.java_program import PARALLEL_CONSUMER, JavaMissing
from bench.side_by_side.lineup import Lineup, progress
from bench.side_by_side.outcome import Outcome, median, spread
from bench.side_by_side.slow_work import (
    PARALLEL,
    PATIENCE,
    READY_TIMEOUT_S,
    REPETITIONS_MAX,
    WORK_MS,
    Crew,
    Load,
    Way,
    count_out_of_order,
    java_crew,
    produce_burst,
    share_of_ideal,
)
from bench.side_by_side.usage import Meter
from tests.integration.keylane_process import KeylaneProcess

WORKERS: Final = 64
PROCESSES: Final = 4
LANES: Final = 256
IDEAL_S: Final = 10.0
WARM_S: Final = 5.0
WARM_BURST, WARM_BURSTS = 1000, 4
"""Number of the first burst in which keylane measures lanes, and how many there are."""
LOAD_INTERVAL_S: Final = 20
"""Members of the consumer protocol are looked at ten times as often."""
SHARE_LEAST: Final = 97.0
ONE: Final = "Workers, 1 process of 64"
FOUR: Final = "Workers, 4 processes of 16 on lanes"
DIRECT: Final = "Workers on plain Kafka, 1 process of 64"
BARE: Final = "bare tasks on uvloop, no Kafka"
COLUMNS: Final = (
    "way",
    "share of ideal %",
    "at work",
    "records out of key order",
    "own CPU us per record",
)
Start = Callable[[str, str], AbstractContextManager[Crew]]
"""Starts a crew on a topic, in a group."""


def run(lineup: Lineup) -> Outcome:
    """Measure all in turn."""
    outcome = Outcome(
        "python_workers",
        f"{WORK_MS} ms of asyncio work per record, 1,000 keys, 1 partition, {WORKERS} at work",
        COLUMNS,
    )
    with own_keylane(lineup) as through:
        plan = {
            ONE: python(through, WORKERS),
            FOUR: python(through, WORKERS // PROCESSES, PROCESSES, f".lanes-{LANES}"),
            DIRECT: python(lineup.kafka.bootstrap, WORKERS),
            PARALLEL: parallel(lineup.kafka.bootstrap, WORKERS),
        }
        figures = measure(lineup, Load(WORKERS, is_even=True), plan, FOUR, outcome)
    bare = report(figures, outcome)
    for name in (ONE, FOUR):
        ours = median(figures[name].shares)
        outcome.target(f"{name}: share of ideal %", ours, at_least=SHARE_LEAST)
        outcome.target(f"{name}: of bare tasks %", 100 * ours / bare, at_least=SHARE_LEAST)
        outcome.target(f"{name}: out of key order", figures[name].wrong_count, at_most=0)
    return outcome


async def bare_share(load: Load) -> float:
    """Per cent of the ideal that tasks reach which only sleep."""
    count = sum(load.counts(IDEAL_S)) // load.workers

    async def work() -> None:
        for _ in range(count):
            await asyncio.sleep(WORK_MS / 1000)  # the work itself

    started_s = time.monotonic()
    await asyncio.gather(*(work() for _ in range(load.workers)))
    return 100 * count * WORK_MS / 1000 / (time.monotonic() - started_s)


@contextmanager
def own_keylane(lineup: Lineup) -> Iterator[str]:
    """A keylane in place of the line-up's, since one node serves a cluster: its address."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keylane-bench-")))
        lineup.keylane.stop()
        stack.callback(lineup.keylane.start)
        keylane = KeylaneProcess(
            lineup.kafka.bootstrap,
            [],
            log_path=folder / "keylane.log",
            args=["--set", f"load_rebalance_interval_s={LOAD_INTERVAL_S}"],
            environment={"KEYLANE_LOG": "warning"},
        ).start()
        stack.callback(keylane.stop)
        yield keylane.bootstrap


def python(bootstrap: str, concurrency: int, processes: int = 1, suffix: str = "") -> Start:
    """Processes of Python workers."""
    return lambda topic, group: python_crew(
        bootstrap, topic + suffix, group, concurrency, processes
    )


def parallel(bootstrap: str, workers: int) -> Start:
    """A JVM of parallel-consumer, with order by key."""
    return lambda topic, group: java_crew(
        "ParallelWork.java", bootstrap, topic, group, str(workers), str(WORK_MS),
        needs=PARALLEL_CONSUMER,
    )  # fmt: skip


def open_ways(
    lineup: Lineup, stack: ExitStack, load: Load, plan: Mapping[str, Start], outcome: Outcome
) -> list[Way]:
    """Start a crew of each on a separate topic, and have it read a first burst."""
    ways, warm = list[Way](), load.counts(WARM_S)
    for name, start in plan.items():
        topic = f"{outcome.name}-{len(ways)}"
        progress(f"{outcome.name}: {name} gets ready")
        create_topic(lineup.stage, topic, 1)
        produce_burst(lineup.kafka.bootstrap, topic, 0, warm)
        try:
            crew = stack.enter_context(start(topic, f"group-{topic}"))
        except JavaMissing as error:
            outcome.notes.append(f"{name} is left out: {error}")
            continue
        assert crew.await_burst(0, sum(warm), READY_TIMEOUT_S), f"{name} read its first burst"
        ways.append(Way(name, load, topic, crew))
    return ways


def let_lanes_settle(lineup: Lineup, way: Way) -> None:
    """Have bursts read until lanes are where their load wants them."""
    counts = way.load.counts(IDEAL_S)
    for burst in range(WARM_BURST, WARM_BURST + WARM_BURSTS):
        progress(f"{way.name} is measured by keylane")
        produce_burst(lineup.kafka.bootstrap, way.topic, burst, counts)
        way.crew.await_burst(burst, sum(counts), READY_TIMEOUT_S)


@dataclass(slots=True)
class Figures:
    """Bursts of one way."""

    shares: list[float] = field(default_factory=list)
    """Per cent of the ideal."""
    at_work: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    """Of a record."""
    wrong_count: int = 0
    record_count: int = 0


def measure(
    lineup: Lineup, load: Load, plan: Mapping[str, Start], on_lanes: str, outcome: Outcome
) -> dict[str, Figures]:
    """Start all of a plan, and let the lanes of `on_lanes` settle; then bursts in turn."""
    with ExitStack() as stack:
        ways = open_ways(lineup, stack, load, plan, outcome)
        let_lanes_settle(lineup, next(way for way in ways if way.name == on_lanes))
        return measure_bursts(lineup, ways)


def measure_bursts(lineup: Lineup, ways: Sequence[Way]) -> dict[str, Figures]:
    """Bursts in turn, with bare tasks before each round of them."""
    found = {name: Figures() for name in (BARE, *(way.name for way in ways))}
    bare = Load(ways[0].load.workers, is_even=True)
    for burst in range(1, min(lineup.repetitions, REPETITIONS_MAX) + 1):
        progress(f"burst {burst}: {BARE}")
        found[BARE].shares.append(uvloop.run(bare_share(bare)))
        for way in ways:
            progress(f"burst {burst}: {way.name}")
            counts = way.load.counts(max(1.0, IDEAL_S * lineup.scale))
            size, ideal_s = sum(counts), way.load.ideal_s(counts)
            pids = {str(process.pid): process.pid for process in way.crew.processes}
            with Meter(pids) as meter:
                produce_burst(lineup.kafka.bootstrap, way.topic, burst, counts)
                way.crew.await_burst(burst, size, PATIENCE * ideal_s)
            with way.crew.changed:
                spans = list(way.crew.bursts[burst].spans)
            cpu_s = sum(usage.cpu_s for usage in meter.usage.values())
            figures = found[way.name]
            figures.shares.append(share_of_ideal(spans, ideal_s, size))
            figures.at_work.append(mean_at_work(spans))
            figures.cpu_us.append(1e6 * cpu_s / max(1, len(spans)))
            figures.wrong_count += count_out_of_order(spans)
            figures.record_count += len(spans)
            way.crew.await_burst(burst, size, READY_TIMEOUT_S)
    return found


def report(found: Mapping[str, Figures], outcome: Outcome) -> float:
    """Write rows; return what bare tasks reach."""
    for name, figures in found.items():
        wrong = f"{figures.wrong_count} of {figures.record_count}" if figures.record_count else "-"
        outcome.rows.append(
            (name, spread(figures.shares, 1), spread(figures.at_work, 1), wrong,
             spread(figures.cpu_us, 0))
        )  # fmt: skip
        outcome.keep(name, share_percent=figures.shares, out_of_order=[figures.wrong_count])
    return median(found[BARE].shares)


def mean_at_work(spans: Sequence[tuple[int, int, int, int]]) -> float:
    """Return how many records were worked on at a time, between the first start and the last end.

    Work that takes longer than it was asked to counts as work here, and not in the share.
    """
    if not spans:
        return 0.0
    work_ns = sum(end - start for _, _, start, end in spans)
    return work_ns / (max(span[3] for span in spans) - min(span[2] for span in spans))


@contextmanager
def python_crew(
    bootstrap: str, topic: str, group: str, concurrency: int, processes: int
) -> Iterator[Crew]:
    """Processes with so many workers each."""
    module = "bench.side_by_side.python_workers_member"
    args = [bootstrap, topic, group, str(concurrency), str(WORK_MS)]
    started = [
        subprocess.Popen([sys.executable, "-m", module, *args], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    try:
        yield Crew(started)
    finally:
        for process in started:
            process.kill()
            process.wait(10)
