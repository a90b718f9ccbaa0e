"""Balance of a skewed topic among a real group's members: keylane's assignor beside Kafka's own.

    python -m bench.end_to_end.balance [--seeds 5] [--lanes 16 64]

A run: eight members join; records of Zipf(1.1) keys are produced and read; one member subscribes
anew, which makes the second generation; as many again are produced and read, and each member's
bytes counted. Then members leave one by one. Kafka's assignors deal out the same lanes as plain
partitions. Hash-even deals members to partitions and cuts the hash space of each evenly: as many
lanes per partition as it has members, a lane for each.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, Producer

from bench.end_to_end.stage import PARTITIONS, Spread, Stage, create_topic, describe_run, open_stage
from bench.end_to_end.stage import save as save_result

MEMBERS: Final = 8
KEY_COUNT: Final = 100_000
EXPONENT: Final = 1.1
COUNTS_LEFT: Final = range(MEMBERS - 1, 1, -1)
RECORDS: Final = 60_000
"""Records of each half: some 7 MB."""
VALUE_BYTES: Final = 100
WAIT_S: Final = 120.0
POLL_S: Final = 0.2
KEY_RANGE: Final = "key-range"


@dataclass(frozen=True, slots=True)
class Way:
    """A way to deal out lanes."""

    name: str
    protocol: str
    """`partition.assignment.strategy` of the members."""
    is_hash_even: bool = False

    def lane_count(self, lanes: int) -> int:
        """Lanes per partition, where `lanes` are wanted over all."""
        return (MEMBERS if self.is_hash_even else lanes) // PARTITIONS


WAYS: Final = (
    Way("Kafka range", "range"),
    Way("Kafka cooperative-sticky", "cooperative-sticky"),
    Way("hash-even", "range", is_hash_even=True),
    Way(KEY_RANGE, "cooperative-sticky"),
)


class Member:
    """A stock consumer in a thread: counts the bytes of each lane until `leave`."""

    def __init__(self, number: int, bootstrap: str, group: str, topic: str, way: Way) -> None:
        self.topic, self.lock = topic, threading.Lock()
        self.lanes: frozenset[int] = frozenset()
        self.generation = 0
        self.bytes: Counter[int] = Counter()
        self.records = 0
        self.error: str | None = None
        self._leaving, self._renewing = threading.Event(), threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": f"member-{number}",
                "partition.assignment.strategy": way.protocol,
                "auto.offset.reset": "earliest",
                "heartbeat.interval.ms": 300,
                "session.timeout.ms": 20_000,
                "auto.commit.interval.ms": 500,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Leave and join again, under another member id."""
        self._renewing.set()

    def leave(self) -> None:
        """End for good."""
        self._leaving.set()
        self._thread.join(WAIT_S)

    def clear(self) -> None:
        """Count anew."""
        with self.lock:
            self.bytes.clear()
            self.records = 0

    def _subscribe(self) -> None:
        self._consumer.subscribe(
            [self.topic], on_assign=self._changed, on_revoke=self._changed, on_lost=self._changed
        )

    def _changed(self, _consumer: Any, _lanes: Any) -> None:
        self.generation += 1

    def _run(self) -> None:
        self._subscribe()
        while not self._leaving.is_set():
            if self._renewing.is_set():
                self._renewing.clear()
                self._consumer.unsubscribe()
                self._subscribe()
            messages = self._consumer.consume(500, timeout=POLL_S)
            self.lanes = frozenset(place.partition for place in self._consumer.assignment())
            with self.lock:
                for message in messages:
                    error = message.error()
                    if error is not None:
                        self.error = str(error)
                        self._leaving.set()
                        break
                    size_bytes = len(message.key() or b"") + len(message.value() or b"")
                    self.bytes[message.partition() or 0] += size_bytes
                    self.records += 1
        self.lanes = frozenset()
        self._consumer.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Result of one group, in shares of all bytes of the second generation."""

    busiest: float
    """Share of the busiest member."""
    heaviest: float
    """Share of the heaviest lane."""
    leaving: tuple[float, ...]
    """Shares of the busiest member when there are 7 left, 6, down to 2."""


def main() -> int:
    """Run, print, save."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lanes", type=int, nargs="+", default=[16, 64])
    options = parser.parse_args()
    table: dict[str, Any] = {}
    rules = [f"{KEY_RANGE}-*={KEY_RANGE}", "*=client"]
    with open_stage([part for rule in rules for part in ("--assignor", rule)]) as stage:
        for lanes in options.lanes:
            runs = {way.name: [measure(stage, way, lanes, s) for s in range(options.seeds)]
                    for way in WAYS}  # fmt: skip
            table[f"{lanes} lanes"] = report(lanes, runs)
    path = save_result("balance", {"run": describe_run(), "tables": table})
    print(f"wrote {path}")
    return 0


def measure(stage: Stage, way: Way, lanes: int, seed: int) -> Run:
    """One group from its first member to its last."""
    label = f"{way.name.split()[-1]}-{lanes}-{seed}"
    create_topic(stage, f"zipf-{label}")
    lane_count = way.lane_count(lanes)
    name = f"zipf-{label}.lanes-{lane_count}"
    members = [
        Member(number, stage.keylane.bootstrap, label, name, way) for number in range(MEMBERS)
    ]
    try:
        settle(members, lane_count * PARTITIONS)
        produce(stage, f"zipf-{label}", seed, half=0)
        await_records(members)
        before = members[0].generation
        members[0].renew()
        await_that(lambda: members[0].generation > before + 1, "the second generation")
        settle(members, lane_count * PARTITIONS)
        for member in members:
            member.clear()
        produce(stage, f"zipf-{label}", seed, half=1)
        await_records(members)
        loads: Counter[int] = Counter()
        for member in members:
            loads.update(member.bytes)
        total, heaviest = sum(loads.values()), max(loads.values())
        busiest = max(sum(member.bytes.values()) for member in members)
        leaving = []
        while len(members) > 2:
            members.pop().leave()
            settle(members, lane_count * PARTITIONS)
            left = (sum(loads[lane] for lane in member.lanes) for member in members)
            leaving.append(max(left) / total)
    finally:
        for member in members:
            member.leave()
    return Run(busiest=busiest / total, heaviest=heaviest / total, leaving=tuple(leaving))


def produce(stage: Stage, topic: str, seed: int, *, half: int) -> None:
    """Write Zipf keys directly into Kafka, under names of the random seed."""
    rng = random.Random(seed * 2 + half)
    weights = [1 / (rank + 1) ** EXPONENT for rank in range(KEY_COUNT)]
    value = b"x" * VALUE_BYTES
    producer = Producer(
        {
            "bootstrap.servers": stage.kafka.bootstrap,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 2 * RECORDS,
        }
    )
    for number in rng.choices(range(KEY_COUNT), weights, k=RECORDS):
        producer.produce(topic, value, b"customer-%d-%d" % (seed, number))
    assert producer.flush(60) == 0, "all records are acknowledged"


def await_records(members: Sequence[Member]) -> None:
    """Wait until the members have read all of what was produced."""

    def are_read() -> bool:
        check_errors(members)
        return sum(member.records for member in members) >= RECORDS

    await_that(are_read, "all records read")


def check_errors(members: Sequence[Member]) -> None:
    """Check for errors. Raises: RuntimeError, a member got one."""
    for member in members:
        if member.error is not None:
            raise RuntimeError(f"{member.topic}: {member.error}")


def settle(members: Sequence[Member], lanes: int) -> None:
    """Wait until every lane is at one member, and has stayed there for some polls."""
    seen: list[list[frozenset[int]]] = []

    def is_settled() -> bool:
        check_errors(members)
        seen.append([member.lanes for member in members])
        flat = [lane for held in seen[-1] for lane in held]
        is_whole = len(flat) == lanes == len(set(flat))
        return is_whole and len(seen) > 10 and all(held == seen[-1] for held in seen[-10:])

    await_that(is_settled, f"{lanes} lanes at {len(members)} members")


def await_that(condition: Callable[[], bool], what: str) -> None:
    """Look every now and then. Raises: TimeoutError."""
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not within {WAIT_S:g} s: {what}")
        time.sleep(POLL_S)


def report(lanes: int, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Print one table; return it for the result file.

    The ideal is the mean, or the heaviest lane if that is more: of the lanes that are wanted, which
    hash-even has fewer of.
    """
    seeds = range(len(runs[KEY_RANGE]))
    heaviest = [runs[KEY_RANGE][seed].heaviest for seed in seeds]
    print(f"\nZipf({EXPONENT}), {KEY_COUNT} keys, {lanes} lanes, {MEMBERS} members, {len(seeds)} "
          f"runs: median (lowest-highest); heaviest lane {100 * max(heaviest):.1f}% "
          "at most")  # fmt: skip
    print(f"  {'':26} {'busiest %':>18} {'x ideal':>18} {'leaving: worst x ideal':>23} "
          f"{'worst x mean':>13}")  # fmt: skip
    table: dict[str, Any] = {}
    for name, row in runs.items():
        share = Spread(tuple(100 * run.busiest for run in row))
        ratio = Spread(tuple(
            run.busiest / max(1 / MEMBERS, top) for run, top in zip(row, heaviest, strict=True)
        ))  # fmt: skip
        ideals = [[max(1 / count, top) for count in COUNTS_LEFT] for top in heaviest]
        over_ideal = [
            [one / ideal for one, ideal in zip(run.leaving, per_count, strict=True)]
            for run, per_count in zip(row, ideals, strict=True)
        ]
        over_mean = [
            [one * count for one, count in zip(run.leaving, COUNTS_LEFT, strict=True)]
            for run in row
        ]
        print(f"  {name:26} {share.text(1):>18} {ratio.text(2):>18} "
              f"{max(map(max, over_ideal)):>23.2f} {max(map(max, over_mean)):>13.2f}",
              flush=True)  # fmt: skip
        table[name] = {
            "busiest_percent": share.as_json(),
            "times_ideal": ratio.as_json(),
            "leaving_times_ideal": [[round(one, 3) for one in run] for run in over_ideal],
            "leaving_times_mean": [[round(one, 3) for one in run] for run in over_mean],
        }
    return table


if __name__ == "__main__":
    started_s = time.monotonic()
    code = main()
    print(f"took {time.monotonic() - started_s:.0f} s")
    sys.exit(code)
