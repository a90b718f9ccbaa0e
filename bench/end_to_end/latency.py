"""Time of a record from producer to consumer, and of an offset commit to its answer.

    python -m bench.end_to_end.latency [--seconds 10] [--every-ms 5] [--rounds 3] [--commits 200]

A producer that knows nothing of keylane writes one record every few milliseconds; a consumer
(librdkafka) reads them direct, through keylane as plain topic, or as lanes. Both stand in one
process, so one clock measures. The consumer holds all lanes, as the only member would.

In:    nothing; an embedded Kafka with a topic of 2 partitions.
Out:   a table and bench/results/<name>.json: p50 and p99 of each run, and of commits.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.end_to_end.stage import (
    PARTITIONS,
    Spread,
    Stage,
    create_topic,
    describe_run,
    open_stage,
    save,
)

TOPIC: Final = "orders"
WAYS: Final = ("direct", "passthrough", "lanes-1", "lanes-4", "lanes-16")
RECORD_BYTES: Final = 1000
STAMP_BYTES: Final = 8
FIGURES: Final = ("p50", "p99", "commit p50", "commit p99")
WARM_RECORDS: Final = 100


def main() -> int:
    """Measure and report."""
    options = parse_options()
    about = describe_run() | {"options": vars(options)}
    print(f"machine: {about}")
    figures: dict[str, dict[str, list[float]]] = {way: defaultdict(list) for way in WAYS}
    with open_stage() as stage:
        create_topic(stage, TOPIC)
        for number in range(options.rounds + 1):
            for way in WAYS:
                found = measure(stage, way, f"bench-{way}-{number}", options)
                if number > 0:  # the first warms
                    for name, value in zip(FIGURES, found, strict=True):
                        figures[way][name].append(value)
                print(f"  round {number} {way}: {found}", file=sys.stderr)
    print(save(options.name, about | {"milliseconds": report(figures)}))
    return 0


def parse_options() -> argparse.Namespace:
    """Read argv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=10, help="of each run")
    parser.add_argument("--every-ms", type=float, default=5, help="one record each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--commits", type=int, default=200, help="one after another, per run")
    parser.add_argument("--name", default="latency", help="of the result file")
    return parser.parse_args()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Addresses of one run: the producer's and the consumer's."""

    produce_to: str
    produce_topic: str
    bootstrap: str
    topic: str
    group: str
    seconds: float
    every_ms: float


def measure(
    stage: Stage, way: str, group: str, options: argparse.Namespace
) -> tuple[float, float, float, float]:
    """One run: `FIGURES` in milliseconds."""
    lanes = int(way.removeprefix("lanes-")) if way.startswith("lanes-") else 1
    setting = Setting(
        produce_to=stage.kafka.bootstrap,
        produce_topic=TOPIC,
        bootstrap=(stage.kafka if way == "direct" else stage.keylane).bootstrap,
        topic=f"{TOPIC}.{way}" if way.startswith("lanes-") else TOPIC,
        group=group,
        seconds=options.seconds,
        every_ms=options.every_ms,
    )
    commits_ms: list[float] = []

    def commit(consumer: Consumer) -> None:
        indexes = lanes * PARTITIONS
        commits_ms.extend(commit_often(consumer, setting.topic, indexes, options.commits))

    delays_ms = measure_delays(setting, then=commit)
    return (*quantiles(delays_ms), *quantiles(commits_ms))


def measure_delays(
    setting: Setting, *, then: Callable[[Consumer], None] = lambda _: None
) -> list[float]:
    """Milliseconds of each record; `then` is called with the consumer that has read them."""
    consumer = Consumer(
        {
            "bootstrap.servers": setting.bootstrap,
            "group.id": setting.group,
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
        }
    )
    assigned = threading.Event()
    consumer.subscribe([setting.topic], on_assign=lambda *_: assigned.set())
    count = WARM_RECORDS + int(setting.seconds * 1000 / setting.every_ms)
    writer = threading.Thread(target=write_records, args=(setting, count, assigned))
    writer.start()
    try:
        delays_ms = read_delays(consumer, count)
        then(consumer)
    finally:
        assigned.set()
        writer.join()
        consumer.close()
    return delays_ms[WARM_RECORDS:]


def write_records(setting: Setting, count: int, assigned: threading.Event) -> None:
    """Records with the time of their making, at even intervals, each sent at once."""
    producer = Producer({"bootstrap.servers": setting.produce_to, "linger.ms": 0, "acks": "all"})
    assigned.wait(60)
    due_s = time.monotonic() + 1  # the consumer looks up where the log ends
    for number in range(count):
        time.sleep(max(0.0, due_s - time.monotonic()))
        due_s += setting.every_ms / 1000
        stamp = time.monotonic_ns().to_bytes(STAMP_BYTES, "big")
        value = stamp + bytes(RECORD_BYTES - STAMP_BYTES)
        producer.produce(setting.produce_topic, value, f"order-{number}")
        producer.poll(0)
    producer.flush(30)


def read_delays(consumer: Consumer, count: int) -> list[float]:
    """Milliseconds from making to reading, in the order of reading."""
    delays_ms: list[float] = []
    deadline_s = time.monotonic() + 120
    while len(delays_ms) < count and time.monotonic() < deadline_s:
        message = consumer.poll(5)
        if message is None:
            continue
        assert message.error() is None, message.error()
        now_ns = time.monotonic_ns()
        made_ns = int.from_bytes((message.value() or b"")[:STAMP_BYTES], "big")
        delays_ms.append((now_ns - made_ns) / 1e6)
    assert len(delays_ms) == count, f"{len(delays_ms)} of {count} records came"
    return delays_ms


def commit_often(consumer: Consumer, topic: str, indexes: int, count: int) -> list[float]:
    """Milliseconds of each commit of all partitions or lanes, by the member that holds them."""
    positions = consumer.position([TopicPartition(topic, index) for index in range(indexes)])
    offsets = [
        TopicPartition(topic, entry.partition, entry.offset)
        for entry in positions
        if entry.offset >= 0
    ]
    times_ms = []
    for _ in range(count):
        started_s = time.perf_counter()
        consumer.commit(offsets=offsets, asynchronous=False)
        times_ms.append(1000 * (time.perf_counter() - started_s))
    return times_ms


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    return statistics.median(values), statistics.quantiles(values, n=100)[98]


def report(figures: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Print the table; return it for the result file."""
    print("\nmilliseconds, median (lowest-highest) of the runs; a commit names all lanes")
    print(f"  {'way':12}" + "".join(f" {name:>18}" for name in FIGURES))
    table: dict[str, Any] = {}
    for way, found in figures.items():
        spreads = {name: Spread(tuple(found[name])) for name in FIGURES}
        print(f"  {way:12}" + "".join(f" {spread.text(1):>18}" for spread in spreads.values()))
        table[way] = {name: spread.as_json() for name, spread in spreads.items()}
    return table


if __name__ == "__main__":
    sys.exit(main())
