"""Ten milliseconds of work per record, 1,000 keys, one partition: each way's share of the ideal.

The ideal is what workers and keys allow: K workers that never wait, and one record of a key at a
time. Keys are even, or by Zipf's law with the exponent 1, where the first has an eighth of all.

Everybody has read a first burst before, which is long enough that Kafka's and the members'
compilers have done most of their work; then a member more joins keylane's group and leaves, so
that its lanes are dealt out again by the load that was measured: the second generation and later.

The clock of a burst runs from the start of the first work to the end of the last, so a worker
that is given more than its share costs what it costs.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import Consumer, Producer

from bench.end_to_end.stage import create_topic
from bench.peers.java_program import PARALLEL_CONSUMER, JavaMissing, start_java, stop_java
from bench.side_by_side.lineup import (
    EARLY_PREFIX,
    ORDERED_PREFIX,
    SEVERAL_PREFIX,
    Lineup,
    progress,
)
from bench.side_by_side.outcome import Outcome, median, spread
from bench.side_by_side.usage import Meter
from keylane.embedded.jar_lock import LockedJar

KEYS: Final = 1000
WORK_MS: Final = 10
WORKERS: Final = (8, 32)
LANES: Final = 256
IDEAL_S: Final = 5.0
WARM_S: Final = 10.0
PATIENCE: Final = 3.0
"""A burst that takes so many times its ideal is counted as far as it got."""
PER_PROCESS: Final = 8
READY_TIMEOUT_S: Final = 90.0
REPETITIONS_MAX: Final = 3
"""A repetition takes half a minute."""

KEYLANE: Final = "keylane"
SEVERAL: Final = "keylane, share group in key order, several per key"
ORDERED: Final = "keylane, share group in key order"
EARLY: Final = "keylane, share group in key order, confirm: received"
PARALLEL: Final = "parallel-consumer, KEY"
PLAIN_SHARE: Final = "share group, record limit 10"
DEFAULT_SHARE: Final = "share group, defaults"


@dataclass(slots=True)
class Done:
    """Work that was done in one burst."""

    spans: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(key, sequence, start ns, end ns)."""


class Crew:
    """The workers of one way: some processes that write lines."""

    def __init__(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        self.processes = processes
        self.bursts: dict[int, Done] = defaultdict(Done)
        self.lanes: dict[tuple[int, int], int] = {}
        """Partitions that each member was assigned last."""
        self.ready_count = 0
        self.changed = threading.Condition()
        for index, process in enumerate(processes):
            threading.Thread(target=self._listen, args=(index, process), daemon=True).start()

    def _listen(self, index: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            words = line.split()
            with self.changed:
                if words[0] == "w":
                    burst, key, sequence, start_ns, end_ns = map(int, words[1:])
                    self.bursts[burst].spans.append((key, sequence, start_ns, end_ns))
                elif words[0] == "a":
                    self.lanes[index, int(words[1])] = int(words[2])
                else:
                    self.ready_count += 1
                self.changed.notify_all()

    def await_that(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `condition` holds; whether it does."""
        with self.changed:
            return self.changed.wait_for(condition, timeout_s)

    def await_burst(self, burst: int, count: int, timeout_s: float) -> bool:
        """Wait until `count` records of a burst are worked on."""
        return self.await_that(lambda: len(self.bursts[burst].spans) >= count, timeout_s)


@dataclass(frozen=True, slots=True)
class Load:
    """Keys of a topic, and what they allow."""

    workers: int
    is_even: bool

    def counts(self, seconds: float) -> list[int]:
        """Return the records of each key of a burst that takes these seconds at best."""
        work_s = WORK_MS / 1000
        if self.is_even:
            return [max(1, round(self.workers * seconds / work_s / KEYS))] * KEYS
        parts = [1 / (key + 1) for key in range(KEYS)]
        total = min(self.workers * seconds / work_s, seconds / work_s * sum(parts))
        return [max(1, round(total * part / sum(parts))) for part in parts]

    def ideal_s(self, counts: Sequence[int]) -> float:
        """Return the least time of a burst."""
        hottest = max(counts)
        return WORK_MS / 1000 * max(sum(counts) / self.workers, hottest)

    @property
    def title(self) -> str:
        """Return the name of the load, for rows."""
        return f"K={self.workers}" if self.is_even else f"K={self.workers}, zipf"


@dataclass(frozen=True, slots=True)
class Way:
    """One of those that stand side by side."""

    name: str
    load: Load
    topic: str
    crew: Crew


def run(lineup: Lineup) -> Outcome:
    """Measure each K in turn."""
    outcome = Outcome(
        "slow_work",
        f"{WORK_MS} ms of work per record, {KEYS:,} keys, 1 partition",
        (
            "workers",
            "way",
            "share of ideal %",
            "records out of key order",
            "proxy CPU us per record",
        ),
    )
    for workers in WORKERS:
        for is_even in (True, False):
            load = Load(workers, is_even)
            with open_ways(lineup, load, outcome) as ways:
                measure(lineup, load, ways, outcome)
    outcome.notes.append(
        f"keylane: {LANES} lanes per partition, stock confluent-kafka "
        "members. Plain group, K partitions: the same members on a topic of K partitions. "
        "A plain group on 1 partition gets 1/K by construction."
    )
    return outcome


@contextmanager
def open_ways(lineup: Lineup, load: Load, outcome: Outcome) -> Iterator[list[Way]]:
    """Start everybody, have a first burst read, and settle keylane's second generation."""
    kafka, through = lineup.kafka.bootstrap, lineup.keylane.bootstrap
    ways: list[Way] = []
    workers, warm = load.workers, load.counts(WARM_S)
    with ExitStack() as stack:

        def add(name: str, partitions: int, start: Callable[[str, str], Crew]) -> None:
            topic = f"slow-{workers}-{'even' if load.is_even else 'zipf'}-{len(ways)}"
            create_topic(lineup.stage, topic, partitions)
            produce_burst(kafka, topic, 0, warm)
            try:
                crew = start(topic, f"group-{topic}")
            except JavaMissing as error:
                outcome.notes.append(f"{name} is left out: {error}")
                return
            ways.append(Way(name, load, topic, crew))

        def members(bootstrap: str, suffix: str) -> Callable[[str, str], Crew]:
            return lambda topic, group: stack.enter_context(
                confluent_crew(bootstrap, topic + suffix, group, workers)
            )

        def java(
            source: str,
            *extra: str,
            needs: Sequence[LockedJar] = (),
            bootstrap: str = kafka,
            prefix: str = "",
        ) -> Callable[[str, str], Crew]:
            return lambda topic, group: stack.enter_context(
                java_crew(source, bootstrap, topic, prefix + group, str(workers), str(WORK_MS),
                          *extra, needs=needs)
            )  # fmt: skip

        def ordered(prefix: str) -> Callable[[str, str], Crew]:
            return java("ShareWork.java", "10", "batch_optimized", bootstrap=through, prefix=prefix)

        add(KEYLANE, 1, members(through, f".lanes-{LANES}"))
        add(ORDERED, 1, ordered(ORDERED_PREFIX))
        add(EARLY, 1, ordered(EARLY_PREFIX))
        if not load.is_even:
            add(SEVERAL, 1, ordered(SEVERAL_PREFIX))
        add(PARALLEL, 1, java("ParallelWork.java", needs=PARALLEL_CONSUMER))
        add(PLAIN_SHARE, 1, java("ShareWork.java", "10", "record_limit"))
        # With more, or other keys, it takes minutes: its workers wait for one another.
        if workers == WORKERS[0] and load.is_even:
            add(DEFAULT_SHARE, 1, java("ShareWork.java", "default"))
        add(f"plain group, {workers} partitions", workers, members(kafka, ""))
        for way in ways:
            progress(f"slow_work {load.title}: {way.name} gets ready")
            done = way.crew.await_burst(0, sum(warm), READY_TIMEOUT_S)
            assert done, f"{way.name} read its first burst"
        settle(through, ways[0], workers)
        yield ways


def measure(lineup: Lineup, load: Load, ways: Sequence[Way], outcome: Outcome) -> None:
    """Bursts in turn."""
    counts = load.counts(max(1.0, IDEAL_S * lineup.scale))
    size, ideal_s = sum(counts), load.ideal_s(counts)
    shares: dict[str, list[float]] = {way.name: [] for way in ways}
    wrongs: dict[str, int] = dict.fromkeys(shares, 0)
    totals: dict[str, int] = dict.fromkeys(shares, 0)
    cpus: dict[str, list[float]] = {KEYLANE: [], ORDERED: [], EARLY: [], SEVERAL: []}
    for burst in range(1, min(lineup.repetitions, REPETITIONS_MAX) + 1):
        for way in ways:
            if way.name == DEFAULT_SHARE and burst > 1:
                continue  # it takes long, and one is enough to see it
            progress(f"slow_work {load.title} burst {burst}: {way.name}")
            with Meter(lineup.pids) as meter:
                produce_burst(lineup.kafka.bootstrap, way.topic, burst, counts)
                way.crew.await_burst(burst, size, PATIENCE * ideal_s)
            with way.crew.changed:
                spans = list(way.crew.bursts[burst].spans)
            shares[way.name].append(share_of_ideal(spans, ideal_s, size))
            wrongs[way.name] += count_out_of_order(spans)
            totals[way.name] += len(spans)
            if way.name in cpus:
                cpu_s = meter.usage["keylane"].cpu_s
                cpus[way.name].append(1e6 * cpu_s / max(1, len(spans)))
            way.crew.await_burst(burst, size, READY_TIMEOUT_S)
    report(outcome, load, shares, wrongs, totals, cpus)


def report(
    outcome: Outcome,
    load: Load,
    shares: dict[str, list[float]],
    wrongs: dict[str, int],
    totals: dict[str, int],
    cpus: dict[str, list[float]],
) -> None:
    """Rows and targets of one load."""
    title = load.title
    for name, values in shares.items():
        if not totals[name]:
            outcome.notes.append(f"{title}: {name} is left out: its first burst was not over")
            continue
        outcome.keep(f"{title}, {name}", share_percent=values, out_of_order=[wrongs[name]])
        wrong = f"{wrongs[name]} of {totals[name]}"
        cpu = spread(cpus[name], 1) if cpus.get(name) else "-"
        outcome.rows.append((title, name, spread(values, 1), wrong, cpu))
    bound = 97.0 if load.workers == WORKERS[0] else 95.0
    if load.is_even:  # lanes hold several keys, so that a hot one holds up others
        ours = median(shares[KEYLANE])
        outcome.target(f"{title}: share of ideal %", ours, at_least=bound)
        for name, values in shares.items():
            if name not in (KEYLANE, ORDERED, EARLY) and totals[name]:
                ratio = ours / max(1.0, median(values))
                outcome.target(f"{title}: to {name}", ratio, at_least=0.995)
    outcome.target(f"{title}: records out of key order", wrongs[KEYLANE], at_most=0)
    for name in (ORDERED, EARLY, SEVERAL):
        if name in shares:
            report_ordered(outcome, f"{title}, {name}", shares, name, bound, is_even=load.is_even)
            outcome.target(f"{title}, {name}: out of key order", wrongs[name], at_most=0)
            cpu_us = median(cpus[name])
            outcome.target(f"{title}, {name}: proxy CPU us per record", cpu_us, at_most=25.0)


def report_ordered(
    outcome: Outcome,
    title: str,
    shares: dict[str, list[float]],
    name: str,
    bound: float,
    *,
    is_even: bool,
) -> None:
    """Targets of an ordered share group: of the ideal, and of others that stand beside it."""
    ours = median(shares[name])
    outcome.target(f"{title}: share of ideal %", ours, at_least=bound)
    # Where a key is the bound, a group without an order is none: it works on a key at many members.
    others = ((PARALLEL, 0.98), (PLAIN_SHARE, 1.0)) if is_even else ((PARALLEL, 0.98),)
    for other, least in others:
        if other in shares:
            ratio = ours / max(1.0, median(shares[other]))
            outcome.target(f"{title}: to {other}", ratio, at_least=least)


def share_of_ideal(spans: Sequence[tuple[int, int, int, int]], ideal_s: float, size: int) -> float:
    """Per cent of what could have been done between the first start and the last end."""
    if not spans:
        return 0.0
    seconds = (max(span[3] for span in spans) - min(span[2] for span in spans)) / 1e9
    return 100 * len(spans) / size * ideal_s / seconds


def produce_burst(bootstrap: str, topic: str, burst: int, counts: Sequence[int]) -> None:
    """Produce so many records of each key, in random order; values say burst, key and sequence."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    keys = [key for key, count in enumerate(counts) for _ in range(count)]
    random.Random(burst).shuffle(keys)
    sequences = [0] * KEYS
    for key in keys:
        value = f"{burst} {key} {sequences[key]}"
        sequences[key] += 1
        producer.produce(topic, value, f"customer-{key}")
    assert producer.flush(30) == 0, f"all of {topic} are acknowledged"


def settle(bootstrap: str, way: Way, workers: int) -> None:
    """A member more joins and leaves; wait until all lanes are dealt to the others again."""
    crew = way.crew
    visitor = Consumer({"bootstrap.servers": bootstrap, "group.id": f"group-{way.topic}"})
    assigned = threading.Event()
    visitor.subscribe([f"{way.topic}.lanes-{LANES}"], on_assign=lambda *_: assigned.set())
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not assigned.is_set() and time.monotonic() < deadline_s:
        visitor.poll(0.1)
    with crew.changed:
        crew.lanes.clear()
    visitor.close()

    def is_settled() -> bool:
        return len(crew.lanes) == workers and sum(crew.lanes.values()) == LANES

    assert crew.await_that(is_settled, READY_TIMEOUT_S), f"all lanes are dealt out: {crew.lanes}"


def count_out_of_order(spans: Sequence[tuple[int, int, int, int]]) -> int:
    """Records whose work began before that on the record before of the same key had ended."""
    ends: dict[int, tuple[int, int]] = {}
    wrong = 0
    for key, sequence, start_ns, end_ns in sorted(spans, key=lambda span: span[2]):
        last, last_end_ns = ends.get(key, (-1, 0))
        wrong += sequence != last + 1 or start_ns < last_end_ns
        ends[key] = (max(sequence, last), max(end_ns, last_end_ns))
    return wrong


@contextmanager
def confluent_crew(bootstrap: str, topic: str, group: str, workers: int) -> Iterator[Crew]:
    """Stock members in a few light processes."""
    module = "bench.side_by_side.slow_work_member"
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, bootstrap, topic, group, str(PER_PROCESS), str(WORK_MS)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(workers // PER_PROCESS)
    ]
    try:
        yield Crew(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait(10)


@contextmanager
def java_crew(source: str, *args: str, needs: Sequence[LockedJar] = ()) -> Iterator[Crew]:
    """Workers of one JVM. Raises: JavaMissing."""
    process = start_java(source, *args, needs=needs)
    try:
        yield Crew([process])
    finally:
        stop_java(process)
