"""Base of every end-to-end benchmark: a real Kafka, keylane in front, a topic, a report."""

from __future__ import annotations

import json
import platform
import random
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import confluent_kafka
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import KAFKA_VERSION, EmbeddedKafka
from tests.integration.keylane_process import KeylaneProcess

RESULTS: Final = Path(__file__).resolve().parent.parent / "results"
PARTITIONS: Final = 2
KEY_COUNT: Final = 200_000
VALUE_POOL: Final = 4_000
"""Distinct values: more than what a compressor's window sees at once, so none repeats in it."""
POLL_S: Final = 0.05
MB: Final = 1e6


@dataclass(frozen=True, slots=True)
class Stage:
    """Kafka and keylane, running."""

    kafka: EmbeddedKafka
    keylane: KeylaneProcess
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that was filled."""

    name: str
    ends: tuple[int, ...]
    """End offset of each partition."""
    record_count: int
    plain_bytes: int
    """Keys and values, before compression: what a consumer gets, on whatever way."""


@contextmanager
def open_stage(
    keylane_args: Sequence[str] = (), *, properties: Mapping[str, str] | None = None
) -> Iterator[Stage]:
    """Start Kafka, with these properties, and keylane; stop both and remove their files."""
    with tempfile.TemporaryDirectory(prefix="keylane-bench-") as name:
        folder = Path(name)
        with EmbeddedKafka(folder / "kafka", properties=properties, heap_mb=1024) as kafka:
            keylane = KeylaneProcess(
                kafka.bootstrap,
                [],
                log_path=folder / "keylane.log",
                args=keylane_args,
                environment={"KEYLANE_LOG": "warning"},
            ).start()
            try:
                yield Stage(kafka, keylane, folder)
            finally:
                keylane.stop()


def fill_topic(
    stage: Stage,
    name: str,
    *,
    codec: str,
    record_bytes: int,
    megabytes: float,
    batch_bytes: int,
    partitions: int = PARTITIONS,
    batch_records: int = 10_000,
) -> Topic:
    """Create a topic and produce `megabytes` of keyed records into it, directly."""
    create_topic(stage, name, partitions)
    producer = Producer(
        {
            "bootstrap.servers": stage.kafka.bootstrap,
            "compression.type": codec,
            "batch.size": batch_bytes,
            "batch.num.messages": batch_records,
            "linger.ms": 100,
            "acks": "1",
            "queue.buffering.max.kbytes": 262_144,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    rng = random.Random(7)
    values = [make_value(rng, record_bytes) for _ in range(VALUE_POOL)]
    count = plain_bytes = 0
    while plain_bytes < megabytes * MB:
        key = b"order-%06d" % rng.randrange(KEY_COUNT)
        value = values[rng.randrange(VALUE_POOL)]
        try:
            producer.produce(name, value, key)
        except BufferError:
            producer.poll(0.1)
            continue
        count += 1
        plain_bytes += len(key) + len(value)
        if count % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0, "all records are acknowledged"
    ends = read_ends(stage, name, partitions)
    assert sum(ends) == count, "every record is in the log once"
    return Topic(name=name, ends=ends, record_count=count, plain_bytes=plain_bytes)


def create_topic(stage: Stage, name: str, partitions: int = PARTITIONS) -> None:
    """Create a topic."""
    admin = AdminClient({"bootstrap.servers": stage.kafka.bootstrap})
    for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
        future.result(30)


def make_value(rng: random.Random, record_bytes: int) -> bytes:
    """JSON-like, of about `record_bytes` with its key; compresses as orders do, by two to four."""
    value = b'{"customer":%d,"amount":%d,"currency":"EUR"' % (
        rng.randrange(10**6),
        rng.randrange(10**5),
    )
    while len(value) < record_bytes:
        value += b',"item":"%s","state":"shipped","country":"DE"' % rng.randbytes(8).hex().encode()
    return value[: max(1, record_bytes - 12)]


def read_ends(stage: Stage, topic: str, partitions: int = PARTITIONS) -> tuple[int, ...]:
    """End offset of each partition, as Kafka says."""
    consumer = Consumer({"bootstrap.servers": stage.kafka.bootstrap, "group.id": "bench-ends"})
    try:
        return tuple(
            consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1]
            for partition in range(partitions)
        )
    finally:
        consumer.close()


class Watch:
    """Resources of the proxy while the `with` block ran: CPU, memory, its own statistics."""

    def __init__(self, keylane: KeylaneProcess, *, with_metrics: bool = False) -> None:
        self._process = psutil.Process(keylane.pid)
        self._url = f"http://{keylane.control}/metrics" if with_metrics else None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.cpu_s = 0.0
        self.rss_bytes_max = 0
        self.sample_count = 0
        self.last: dict[str, float] = {}
        self.maxima: dict[str, float] = {}

    def __enter__(self) -> Self:
        self._cpu_before_s = self._cpu()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu_s = self._cpu() - self._cpu_before_s
        self._done.set()
        self._thread.join(10)

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system

    def _sample(self) -> None:
        while True:
            self.rss_bytes_max = max(self.rss_bytes_max, self._process.memory_info().rss)
            self.sample_count += 1
            if self._url is not None:
                self.last = read_metrics(self._url)
                for name, value in self.last.items():
                    self.maxima[name] = max(value, self.maxima.get(name, value))
            if self._done.wait(POLL_S):
                return


def read_metrics(url: str) -> dict[str, float]:
    """Numbers of a control port by name; labelled ones are left out."""
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 (our own address)
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line and line[0] != "#" and "{" not in line)
    return {name: float(value) for name, value in pairs}


@dataclass(frozen=True, slots=True)
class Spread:
    """Some runs of one figure."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The figure to quote."""
        return statistics.median(self.values)

    def text(self, digits: int = 0) -> str:
        """`median (lowest - highest)`."""
        low, high = min(self.values), max(self.values)
        return f"{self.median:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"

    def as_json(self) -> dict[str, Any]:
        """Every run, so that a reader can judge for himself."""
        rounded = [round(value, 4) for value in self.values]
        return {
            "median": round(self.median, 4),
            "min": min(rounded),
            "max": max(rounded),
            "runs": rounded,
        }


def describe_run() -> dict[str, Any]:
    """Return what figures depend on."""
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1024**3),
        "load_before": [round(value, 2) for value in psutil.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "kafka": KAFKA_VERSION,
        "librdkafka": confluent_kafka.libversion()[0],
    }


def save(name: str, content: Mapping[str, Any]) -> Path:
    """Write a result beside the others."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(content, indent=2) + "\n")
    return path
