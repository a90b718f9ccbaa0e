"""Chaos for ordered share groups: members, nodes and the broker are killed and hung in turn.

    python -m tests.long.share_chaos [--rounds 200] [--seed 0] [--only KIND ...]
        [--confirm received]

A real Kafka, two nodes of keylane, stock members in several processes that keep ledgers of their
own. Each round records are produced, and one process is hit while they are worked on. Every few
rounds all records have to be finished. At the end the ledgers are judged: order by key, one member
at a time, nothing lost.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.integration.nodes import Brokers, Nodes
from tests.integration.share_wire import alter_group, share_offsets, wait_until
from tests.share.ledger import Judgement, judge
from tests.share.member import LineProgram, Workers, parse_event

GROUP, TOPIC = "chaos", "work"
PARTITIONS, KEYS, PER_ROUND = 2, 60, 300
CODECS: Final = ("none", "lz4", "zstd", "gzip")
LOCK_MS: Final = 8000
NODE_SESSION_S: Final = 6.0
DELIVERIES: Final = 10
SETTLED_EVERY: Final = 5
"""Rounds after which all records have to be finished."""
SETTLE_S: Final = 900.0
"""A broker that was killed may come back with an old state of the group, and deliver all since then
again (seen with Kafka 4.3.1 on a loaded machine)."""
PROPERTIES: Final = {
    "log.retention.ms": "-1",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
    "group.share.min.session.timeout.ms": "6000",
    "group.share.session.timeout.ms": "6000",
    "group.share.min.record.lock.duration.ms": "1000",
}
JAVA: Final = (
    {"work_ms": 4, "max_poll": 10, "mode": "batch_optimized", "ack": "implicit"},
    {"work_ms": 4, "max_poll": 10, "mode": "record_limit", "ack": "explicit", "release": 0.03,
     "reject": 0.01},
    {"work_ms": 8, "max_poll": 5, "mode": "record_limit", "ack": "renew"},
)  # fmt: skip


class Crew:
    """Processes of members. One that is gone is followed by another one of its kind."""

    def __init__(self, bootstrap: str, stack: ExitStack) -> None:
        self._bootstrap, self._stack = bootstrap, stack
        self._all: list[LineProgram] = []
        self.working: list[LineProgram] = [self._start(kind) for kind in range(len(JAVA) + 1)]

    def _start(self, kind: int) -> LineProgram:
        name = f"p{len(self._all)}-"  # a member's name is that of its process and a number
        if kind < len(JAVA):
            options = {**JAVA[kind], "name": name, "seed": len(self._all)}
            program: LineProgram = Workers(
                self._bootstrap, GROUP, TOPIC, members=2, options=options
            )
        else:
            words = (self._bootstrap, GROUP, TOPIC, name, "4")
            command = [sys.executable, "-m", "tests.share.librdkafka_member", *words]
            program = LineProgram(command)
        self._stack.callback(program.stop)
        self._all.append(program)
        return program

    def replace(self, kind: int) -> None:
        """Start the next process of a kind."""
        self.working[kind] = self._start(kind)

    def stop(self) -> None:
        """Have all members leave."""
        for program in self._all:
            program.stop()

    def lines(self) -> list[str]:
        """Return all ledgers."""
        return list(chain.from_iterable(program.lines for program in self._all))

    def judge(self, lost_nodes: list[tuple[float, float]]) -> tuple[Judgement, Counter[str]]:
        """Return what the ledgers say, and errors by their text."""
        events = [parse_event(line) for line in self.lines()]
        errors = Counter(event.text.split(":")[0][:60] for event in events if event.kind == "X")
        return judge(events, delivery_limit=DELIVERIES, lost_nodes=lost_nodes), errors


class Hits:
    """What happens to one process of each kind. All waits are bounded."""

    def __init__(self, kafka: EmbeddedKafka, nodes: Nodes, crew: Crew, chance: random.Random):
        self._kafka, self._nodes, self._crew, self._chance = kafka, nodes, crew, chance
        self._brokers = Brokers(kafka)
        self._pause = threading.Event()
        self.lost_nodes: list[tuple[float, float]] = []
        """Times in which members may be at work behind a node that others have taken over."""
        self.kinds: dict[str, Callable[[], None]] = {
            "member kill": self.member_kill,
            "member stop": self.member_stop,
            "member hangs": self.member_hang,
            "member hangs for good": self.member_hang_for_good,
            "node kill": self.node_kill,
            "node stop": self.node_stop,
            "node hangs": lambda: self._node_hang(0.5, 3.0),
            "node hangs beyond its lease": lambda: self._node_hang(8.0, 10.0),
            "broker kill": self.broker_kill,
            "broker hangs": self.broker_hang,
        }

    def wait(self, low_s: float, high_s: float) -> None:
        """Let time pass."""
        self._pause.wait(self._chance.uniform(low_s, high_s))

    def member_kill(self) -> None:
        kind = self._chance.randrange(len(self._crew.working))
        self._crew.working[kind].kill()
        self._crew.replace(kind)

    def member_stop(self) -> None:
        kind = self._chance.randrange(len(self._crew.working))
        self._crew.working[kind].stop()
        self._crew.replace(kind)

    def member_hang(self) -> None:
        program = self._chance.choice(self._crew.working)
        os.kill(program.pid, signal.SIGSTOP)
        self.wait(0.5, 3.0)  # less than a lock
        os.kill(program.pid, signal.SIGCONT)

    def member_hang_for_good(self) -> None:
        """Others get its records when the locks have ended; it does not come back."""
        kind = self._chance.randrange(len(self._crew.working))
        os.kill(self._crew.working[kind].pid, signal.SIGSTOP)
        self.wait(LOCK_MS / 1000 + 1, LOCK_MS / 1000 + 2)
        self._crew.working[kind].kill()
        self._crew.replace(kind)

    def node_kill(self) -> None:
        node = self._chance.choice(self._nodes.processes)
        self.lost_nodes.append((time.monotonic(), time.monotonic() + LOCK_MS / 1000))
        node.kill()
        self.wait(0.0, 2.0)
        node.start()

    def node_stop(self) -> None:
        node = self._chance.choice(self._nodes.processes)
        node.stop()
        self.wait(0.0, 2.0)
        node.start()

    def _node_hang(self, low_s: float, high_s: float) -> None:
        node = self._chance.choice(self._nodes.processes)
        began_s = time.monotonic()
        node.pause()
        self.wait(low_s, high_s)
        node.resume()
        if high_s > NODE_SESSION_S:
            self.lost_nodes.append((began_s, time.monotonic() + LOCK_MS / 1000))

    def broker_kill(self) -> None:
        self._kafka.kill()
        self.wait(0.0, 1.0)
        self._kafka.start()

    def broker_hang(self) -> None:
        self._brokers.pause(0)
        self.wait(0.5, 6.0)
        self._brokers.resume(0)


class Log:
    """The topic, and the places of all records of it."""

    def __init__(self, bootstrap: str, chance: random.Random) -> None:
        self._bootstrap, self._chance = bootstrap, chance
        self.places: set[tuple[int, int]] = set()

    def produce(self, number: int) -> None:
        """Produce a round's records, idempotent, so that none is there twice."""
        producer = Producer({
            "bootstrap.servers": self._bootstrap, "linger.ms": self._chance.choice((0, 5, 50)),
            "compression.type": self._chance.choice(CODECS), "enable.idempotence": True,
        })  # fmt: skip
        for at in range(PER_ROUND):
            key = int(KEYS * self._chance.random() ** 2)  # the first one: an eighth of all
            producer.produce(
                TOPIC, f"{number}:{at}", f"k{key}", partition=key % PARTITIONS,
                on_delivery=self._note,
            )  # fmt: skip
        assert producer.flush(60) == 0

    def _note(self, _error: object, message: Any) -> None:
        self.places.add((message.partition(), message.offset()))

    def is_finished(self) -> bool:
        """Return whether the broker has all records as finished."""
        found = share_offsets(self._bootstrap, GROUP)
        return all(found.get((TOPIC, each), (-1, -1))[1] == 0 for each in range(PARTITIONS))


def run(rounds: int, seed: int, only: list[str], folder: Path, confirm: str) -> bool:
    """Play, judge, print; return whether all promises were kept."""
    chance = random.Random(seed)
    counts: Counter[str] = Counter()
    with ExitStack() as stack:
        kafka = stack.enter_context(
            EmbeddedKafka(folder / "kafka", properties=PROPERTIES, heap_mb=512)
        )
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(30)
        alter_group(
            kafka.bootstrap, GROUP, share_auto_offset_reset="earliest",
            share_record_lock_duration_ms=LOCK_MS, share_delivery_count_limit=DELIVERIES,
        )  # fmt: skip
        args = (
            "--set", f"share_groups={json.dumps([{'group': GROUP, 'confirm': confirm}])}",
            "--set", f"node_session_timeout_ms={int(NODE_SESSION_S * 1000)}",
        )  # fmt: skip
        nodes = stack.enter_context(Nodes(kafka.bootstrap, (), folder=folder, count=2, args=args))
        crew = Crew(nodes.bootstrap, stack)
        hits, log = Hits(kafka, nodes, crew, chance), Log(kafka.bootstrap, chance)
        try:
            _play(rounds, only or list(hits.kinds), hits, log, chance, counts)
        finally:
            crew.stop()
            (folder / "ledger.txt").write_text("\n".join(crew.lines()))
            found, errors = crew.judge(hits.lost_nodes)
            print(dict(counts))
            print(found)
            print("errors of members:", dict(errors.most_common(8)))
            lost = log.places - found.finished.keys()
            print(f"not finished: {len(lost)} {sorted(lost)[:5]}")
    return not (found.breaks or found.unfinished or lost)


def _play(
    rounds: int, kinds: list[str], hits: Hits, log: Log, chance: random.Random, counts: Counter[str]
) -> None:
    began_s = time.monotonic()
    for number in range(rounds):
        kind = chance.choice(kinds)
        log.produce(number)
        hits.wait(0.1, 1.0)
        hit_s = time.monotonic()
        hits.kinds[kind]()
        print(f"hit {number} {kind}: {hit_s:.3f} to {time.monotonic():.3f}", flush=True)
        counts[kind] += 1
        if number % SETTLED_EVERY == SETTLED_EVERY - 1 or number == rounds - 1:
            wait_until(log.is_finished, f"the end after round {number}", timeout_s=SETTLE_S)
            passed_s = time.monotonic() - began_s
            print(f"{passed_s:6.0f} s: {number + 1} rounds, {len(log.places)} records", flush=True)


def main() -> int:
    """Exit code 1: a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.long.share_chaos")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="kinds of hits")
    parser.add_argument("--confirm", choices=("written", "received"), default="written")
    parser.add_argument("--folder", type=Path, help="keeps logs there")
    args = parser.parse_args()
    if args.folder is not None:
        args.folder.mkdir(parents=True)
        return 0 if run(args.rounds, args.seed, args.only, args.folder, args.confirm) else 1
    with tempfile.TemporaryDirectory(prefix="share-chaos-") as folder:
        is_kept = run(args.rounds, args.seed, args.only, Path(folder), args.confirm)
        return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
