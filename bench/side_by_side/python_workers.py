"""Ten milliseconds of asyncio work, 1,000 keys, one partition: Python workers, and their peers.

The ideal is that of `slow_work`: so many workers that never wait, one record of a key at a time.
Members run on uvloop, whose timers are less late than asyncio's: bare tasks that only sleep stand
beside, on the same loop, and show what is there to be had.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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


def run(lineup: Lineup) -> Outcome:
    """Measure all in turn."""
    outcome = Outcome(
        "python_workers",
        f"{WORK_MS} ms of asyncio work per record, 1,000 keys, 1 partition, 64 at work",
        (
            "way",
            "share of ideal %",
            f"at work, of {WORKERS}",
            "records out of key order",
            "own CPU us per record",
        ),
    )
    load = Load(WORKERS, is_even=True)
    bare = [uvloop.run(bare_share(load)) for _ in range(3)]
    outcome.rows.append((BARE, spread(bare, 1), "-", "-", "-"))
    with open_ways(lineup, load, outcome) as ways:
        measure(lineup, load, ways, outcome, statistics.median(bare))
    return outcome


async def bare_share(load: Load) -> float:
    """Per cent of the ideal that tasks reach which only sleep."""
    count = sum(load.counts(IDEAL_S)) // load.workers

    async def work() -> None:
        for _ in range(count):
            await asyncio.sleep(WORK_MS / 1000)

    started_s = time.monotonic()
    await asyncio.gather(*(work() for _ in range(load.workers)))
    return 100 * count * WORK_MS / 1000 / (time.monotonic() - started_s)


@contextmanager
def open_ways(lineup: Lineup, load: Load, outcome: Outcome) -> Iterator[list[Way]]:
    """Start everybody, and have bursts read until lanes are where their load wants them."""
    kafka = lineup.kafka.bootstrap
    ways: list[Way] = []
    warm = load.counts(WARM_S)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keylane-bench-")))
        lineup.keylane.stop()  # one node serves a cluster
        stack.callback(lineup.keylane.start)
        keylane = KeylaneProcess(
            kafka,
            [],
            log_path=folder / "keylane.log",
            args=["--set", f"load_rebalance_interval_s={LOAD_INTERVAL_S}"],
            environment={"KEYLANE_LOG": "warning"},
        ).start()
        stack.callback(keylane.stop)
        through = keylane.bootstrap

        def add(name: str, start: Callable[[str, str], Crew]) -> None:
            topic = f"python-{len(ways)}"
            create_topic(lineup.stage, topic, 1)
            produce_burst(kafka, topic, 0, warm)
            try:
                crew = start(topic, f"group-{topic}")
            except JavaMissing as error:
                outcome.notes.append(f"{name} is left out: {error}")
                return
            ways.append(Way(name, load, topic, crew))

        def python(bootstrap: str, suffix: str, processes: int) -> Callable[[str, str], Crew]:
            return lambda topic, group: stack.enter_context(
                python_crew(bootstrap, topic + suffix, group, processes)
            )

        add(ONE, python(through, "", 1))
        add(FOUR, python(through, f".lanes-{LANES}", PROCESSES))
        add(DIRECT, python(kafka, "", 1))
        add(
            PARALLEL,
            lambda topic, group: stack.enter_context(
                java_crew("ParallelWork.java", kafka, topic, group, str(WORKERS), str(WORK_MS),
                          needs=PARALLEL_CONSUMER)
            ),
        )  # fmt: skip
        for way in ways:
            progress(f"python_workers: {way.name} gets ready")
            done = way.crew.await_burst(0, sum(warm), READY_TIMEOUT_S)
            assert done, f"{way.name} read its first burst"
        for burst in range(WARM_BURST, WARM_BURST + WARM_BURSTS):
            (lanes,) = (way for way in ways if way.name == FOUR)
            progress(f"python_workers: {FOUR} is measured by keylane")
            counts = load.counts(IDEAL_S)
            produce_burst(kafka, lanes.topic, burst, counts)
            lanes.crew.await_burst(burst, sum(counts), READY_TIMEOUT_S)
        yield ways


def measure(lineup: Lineup, load: Load, ways: Sequence[Way], outcome: Outcome, bare: float) -> None:
    """Bursts in turn, and rows of them."""
    counts = load.counts(max(1.0, IDEAL_S * lineup.scale))
    size, ideal_s = sum(counts), load.ideal_s(counts)
    shares: dict[str, list[float]] = {way.name: [] for way in ways}
    cpus: dict[str, list[float]] = {way.name: [] for way in ways}
    at_work: dict[str, list[float]] = {way.name: [] for way in ways}
    wrongs, totals = dict.fromkeys(shares, 0), dict.fromkeys(shares, 0)
    for burst in range(1, min(lineup.repetitions, 3) + 1):
        for way in ways:
            progress(f"python_workers burst {burst}: {way.name}")
            pids = {str(process.pid): process.pid for process in way.crew.processes}
            with Meter(pids) as meter:
                produce_burst(lineup.kafka.bootstrap, way.topic, burst, counts)
                way.crew.await_burst(burst, size, PATIENCE * ideal_s)
            with way.crew.changed:
                spans = list(way.crew.bursts[burst].spans)
            shares[way.name].append(share_of_ideal(spans, ideal_s, size))
            at_work[way.name].append(mean_at_work(spans))
            wrongs[way.name] += count_out_of_order(spans)
            totals[way.name] += len(spans)
            cpu_s = sum(usage.cpu_s for usage in meter.usage.values())
            cpus[way.name].append(1e6 * cpu_s / max(1, len(spans)))
            way.crew.await_burst(burst, size, READY_TIMEOUT_S)
    for name, values in shares.items():
        wrong = f"{wrongs[name]} of {totals[name]}"
        busy = spread(at_work[name], 1)
        outcome.rows.append((name, spread(values, 1), busy, wrong, spread(cpus[name], 0)))
        outcome.keep(name, share_percent=values, out_of_order=[wrongs[name]])
    for name in (ONE, FOUR):
        ours = median(shares[name])
        outcome.target(f"{name}: share of ideal %", ours, at_least=SHARE_LEAST)
        outcome.target(f"{name}: of bare tasks %", 100 * ours / bare, at_least=SHARE_LEAST)
        outcome.target(f"{name}: out of key order", wrongs[name], at_most=0)


def mean_at_work(spans: Sequence[tuple[int, int, int, int]]) -> float:
    """Return how many records were worked on at a time, between the first start and the last end.

    Work that takes longer than it was asked to counts as work here, and not in the share.
    """
    if not spans:
        return 0.0
    work_ns = sum(end - start for _, _, start, end in spans)
    return work_ns / (max(span[3] for span in spans) - min(span[2] for span in spans))


@contextmanager
def python_crew(bootstrap: str, topic: str, group: str, processes: int) -> Iterator[Crew]:
    """Processes of workers, 64 records at work in all."""
    module = "bench.side_by_side.python_workers_member"
    concurrency, work_ms = str(WORKERS // processes), str(WORK_MS)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", module, bootstrap, topic, group, concurrency, work_ms],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    try:
        yield Crew(started)
    finally:
        for process in started:
            process.kill()
            process.wait(10)
