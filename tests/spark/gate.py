"""Executors that wait in the middle of their reads, so that a test can kill one in a task.

    with tapped_broker(folder) as tap:
        gate = tap.sent = Gate(reads=1)  # the second read of a topic waits
        ...                              # a job starts
        gate.await_executors(2)          # both have a task that waits
        gate.open.set()

Source: Spark, `KafkaSourceProvider.batchUniqueGroupId`: each read has another group, and
executors add a suffix. Kafka, `ConsumerConfig.maybeOverrideClientId`: a client id is
`consumer-GROUP-NUMBER`, where the number counts the consumers of a JVM.
"""

from __future__ import annotations

import re
import threading
from typing import Final

from tests.spark.cluster import RUN_S

CONSUMER: Final = re.compile(rb"spark-kafka-relation-([0-9a-f-]{36})-executor-(\d+)")
"""Client id, which is in every request."""


class Gate(list[bytes]):
    """In the place of a tap's pieces: those of chosen consumers of executors wait until `open`."""

    def __init__(self, *, reads: int = 0, consumers: int = 0) -> None:
        """Let pass the first `reads` reads of a topic, or the first `consumers` of a JVM.

        A consumer reads one partition in one read.
        """
        super().__init__()
        self.open = threading.Event()
        self._reads, self._consumers = reads, consumers
        self._waiting = threading.Semaphore(0)
        self._groups: dict[bytes, int] = {}
        self._lock = threading.Lock()

    def append(self, data: bytes) -> None:
        """Let a piece pass."""
        found = CONSUMER.search(data)
        if found is None or self.open.is_set():
            return
        with self._lock:
            read = self._groups.setdefault(found[1], len(self._groups))
        if read >= self._reads and int(found[2]) > self._consumers:
            self._waiting.release()
            self.open.wait()

    def await_executors(self, count: int) -> None:
        """Return when so many wait."""
        for _ in range(count):
            assert self._waiting.acquire(timeout=RUN_S), "an executor does not read"
