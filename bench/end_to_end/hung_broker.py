"""One broker of three hangs (SIGSTOP) for a while: its effect on lanes and groups of the others.

In:    nothing; three real brokers, keylane, a steady load, clients with a socket each.
Out:   a table and `results/hung-broker.json`.
The clients ask one thing at a time and note each wait.

A topic with one replica shows partitions that only the hung broker can lead; one with three shows
the change of leaders. Both ways have the same clients: direct they read partitions, behind keylane
all lanes of a partition. The paces are of what the two other brokers lead from the start; a wait is
from a request to its answer, connection and all. Direct stands beside it in the same run.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.end_to_end.hung_clients import (
    PARTITIONS,
    PATIENCE_S,
    Book,
    Committer,
    Load,
    Newcomer,
    Reader,
    Way,
)
from bench.end_to_end.stage import Spread, describe_run, read_metrics, save
from keylane.config.node import split_address
from keylane.embedded import EmbeddedKafka
from tests.integration.keylane_process import KeylaneProcess

LANES: Final = 4
REPLICAS: Final = {"single": 1, "triple": 3}
GROUPS: Final = 6
SETTLE_S: Final = 2.0
"""Around the stop and its end, in which nothing counts for a pace."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times of a run, by time.monotonic."""

    begin_s: float
    stop_s: float
    resume_s: float
    end_s: float

    def phase(self, at_s: float) -> str:
        """Before, during, after; "" around their limits."""
        for name, low, high in (
            ("before", self.begin_s, self.stop_s),
            ("during", self.stop_s + SETTLE_S, self.resume_s),
            ("after", self.resume_s + SETTLE_S, self.end_s),
        ):
            if low <= at_s < high:
                return name
        return ""


def main() -> int:
    """Measure and report."""
    options = parse_options()
    about = describe_run() | {"options": vars(options)}
    print(f"machine: {about}")
    rounds = [run_once(options) for _ in range(options.rounds)]
    table = report(rounds)
    print(save(options.name, about | {"table": table}))
    return 0


def parse_options() -> argparse.Namespace:
    """Read argv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=30, help="records per second and partition")
    parser.add_argument("--before", type=float, default=15, help="seconds of load before the stop")
    parser.add_argument("--stopped", type=float, default=45, help="seconds")
    parser.add_argument("--after", type=float, default=30, help="seconds of load after it")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--heap-mb", type=int, default=384, help="of each broker")
    parser.add_argument("--name", default="hung-broker", help="of the result file")
    return parser.parse_args()


Row = dict[str, Any]


def run_once(options: argparse.Namespace) -> dict[str, Row]:
    """Both ways at once, on a cluster of their own."""
    with tempfile.TemporaryDirectory(prefix="keylane-bench-") as name:
        folder = Path(name)
        # As a broker has it, not the embedded one: how long a hung broker keeps what it leads.
        session = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
        with EmbeddedKafka(
            folder / "kafka", node_count=3, heap_mb=options.heap_mb, properties=session
        ) as kafka:
            keylane = KeylaneProcess(
                kafka.bootstrap, [], log_path=folder / "keylane.log",
                environment={"KEYLANE_LOG": "warning"},
            ).start()  # fmt: skip
            try:
                return measure(kafka, keylane, options)
            finally:
                keylane.stop()


def measure(
    kafka: EmbeddedKafka, keylane: KeylaneProcess, options: argparse.Namespace
) -> dict[str, Row]:
    """Load, stop the first broker of the list, let it go on."""
    leaders = make_topics(kafka)
    brokers = [split_address(part) for part in kafka.bootstrap.split(",")]
    ways = [Way("direct", brokers, 0), Way("keylane", [split_address(keylane.bootstrap)], LANES)]
    over = threading.Event()
    victim = kafka.nodes[0]
    hung = victim.settings.node_id
    threads: list[threading.Thread] = []
    by_leader: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for place, leader in leaders.items():
        by_leader[leader].append(place)
    threads += [Load(kafka.bootstrap, at, options.rate, over) for at in by_leader.values()]
    alive = [part for (topic, part), at in leaders.items() if topic == "single" and at != hung]
    for way in ways:
        threads += [Reader(way, over, *place) for place in leaders]
        threads += [
            Committer(way, over, f"{way.name}-{n}", alive[n % len(alive)]) for n in range(GROUPS)
        ]
        threads.append(Newcomer(way, over, alive[0]))
    for thread in threads:
        thread.start()
    time.sleep(15)  # until all read at the log end
    begin_s = time.monotonic()
    time.sleep(options.before)
    assert victim.pid is not None, "the broker runs"
    os.kill(victim.pid, signal.SIGSTOP)
    stop_s = time.monotonic()
    try:
        time.sleep(options.stopped)
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    resume_s = time.monotonic()
    time.sleep(options.after)
    times = Times(begin_s, stop_s, resume_s, time.monotonic())
    over.set()
    for thread in threads:
        thread.join(PATIENCE_S + 15)
    metrics = read_metrics(f"http://{keylane.control}/metrics")
    rows = {way.name: evaluate(way.book, times, leaders, hung) for way in ways}
    rows["keylane"]["metrics"] = {
        name: metrics[name]
        for name in (
            "keylane_hedged_requests_total",
            "keylane_upstream_retries_total",
            "keylane_upstream_errors_total",
            "keylane_group_waits_refused_total",
        )
    }
    return rows


def make_topics(kafka: EmbeddedKafka) -> dict[tuple[str, int], int]:
    """Leader by topic and partition."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topics = [NewTopic(name, PARTITIONS, count) for name, count in REPLICAS.items()]
    for future in admin.create_topics(topics).values():
        future.result(30)
    while True:
        described = admin.list_topics(timeout=30).topics
        leaders = {
            (name, number): partition.leader
            for name in REPLICAS
            if name in described
            for number, partition in described[name].partitions.items()
        }
        if len(leaders) == len(REPLICAS) * PARTITIONS and min(leaders.values()) > 0:
            return leaders
        time.sleep(0.2)


def evaluate(book: Book, times: Times, leaders: dict[tuple[str, int], int], hung: int) -> Row:
    """Paces and waits of one way."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    first_again: dict[str, float] = {}
    for topic, partition, at_s, count in book.records:
        side = "hung" if leaders[topic, partition] == hung else "others"
        counts[f"{topic} {side}", times.phase(at_s)] += count
        is_new_leader = topic == "triple" and side == "hung" and at_s > times.stop_s + SETTLE_S
        if is_new_leader and count:
            first_again.setdefault("at the new leaders", at_s - times.stop_s)
        if topic == "single" and side == "hung" and at_s > times.resume_s and count:
            first_again.setdefault("at the broker itself", at_s - times.resume_s)
    seconds = {
        "before": times.stop_s - times.begin_s,
        "during": times.resume_s - times.stop_s - SETTLE_S,
        "after": times.end_s - times.resume_s - SETTLE_S,
    }
    paces = {
        f"{what} {phase}": round(counts[what, phase] / seconds[phase], 1)
        for what in sorted({what for what, _ in counts})
        for phase in seconds
    }
    return {
        "records_per_s": paces,
        "ratio_of_others": {
            topic: round(paces[f"{topic} others during"] / paces[f"{topic} others before"], 3)
            for topic in REPLICAS
        },
        "reads_again_s": {what: round(value, 1) for what, value in first_again.items()},
        "waits": describe_waits(book, times, leaders, hung),
    }


def describe_waits(
    book: Book, times: Times, leaders: dict[tuple[str, int], int], hung: int
) -> dict[str, dict[str, Any]]:
    """Return the longest wait of requests under way while the broker hung, by kind."""
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for kind, began_s, wait_s, reason in book.waits:
        if began_s + wait_s < times.stop_s or began_s > times.resume_s:
            continue
        what, _, which = kind.partition(" ")
        if which:
            topic, _, number = which.partition("-")
            at = leaders[topic, int(number)] if number else int(which)
            what = f"{what} {topic if number else ''} {'hung' if at == hung else 'others'}"
        found[" ".join(what.split())].append((wait_s, reason))
    return {
        what: {
            "requests": len(waits),
            "longest_s": round(max(wait_s for wait_s, _ in waits), 2),
            "failed": sum(bool(reason) for _, reason in waits),
            "reasons": dict(Counter(reason for _, reason in waits if reason)),
        }
        for what, waits in sorted(found.items())
    }


def report(rounds: list[dict[str, Row]]) -> dict[str, Any]:
    """Print the table; return it for the result file."""
    table: dict[str, Any] = {}
    for way in rounds[0]:
        rows = [each[way] for each in rounds]
        print(f"\n{way}")
        ratios = {
            topic: Spread(tuple(row["ratio_of_others"][topic] for row in rows))
            for topic in REPLICAS
        }
        for topic, ratio in ratios.items():
            print(f"  pace of what others lead, during to before, {topic}: {ratio.text(3)}")
        for what in sorted({what for row in rows for what in row["reads_again_s"]}):
            again = [row["reads_again_s"].get(what) for row in rows]
            print(f"  read again {what} after s: {again}")
        for what in sorted({what for row in rows for what in row["waits"]}):
            waits = [row["waits"][what] for row in rows if what in row["waits"]]
            longest, failed = [w["longest_s"] for w in waits], [w["failed"] for w in waits]
            count = [w["requests"] for w in waits]
            reasons = sorted({reason for w in waits for reason in w["reasons"]})
            print(f"  {what:24} requests {count} failed {failed} longest s {longest} {reasons}")
        table[way] = {
            "ratio_of_others": {topic: ratio.as_json() for topic, ratio in ratios.items()},
            "rounds": rows,
        }
    return table


if __name__ == "__main__":
    started_s = time.monotonic()
    code = main()
    print(f"took {time.monotonic() - started_s:.0f} s")
    sys.exit(code)
