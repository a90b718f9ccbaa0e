"""The output topic of an application, as a read_committed consumer of Kafka itself sees it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Self

from confluent_kafka import Consumer, TopicPartition

from tests.integration.keylane_process import PATIENCE

Values = dict[str, list[str]]
"""Values of each key, in order."""


class StreamsOutput:
    """Values of the topic by key."""

    def __init__(self, kafka: str, topic: str, *, partitions: int) -> None:
        """Read from the log start."""
        self.values: Values = defaultdict(list)
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": f"reader-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])

    @property
    def count(self) -> int:
        """Return the number of records so far."""
        return sum(map(len, self.values.values()))

    def take(self, *, seconds: float) -> None:
        """Take what comes in this time."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0:
            for message in self._consumer.consume(1000, left_s):
                assert message.error() is None, message.error()
                key, value = message.key() or b"", message.value() or b""
                self.values[key.decode()].append(value.decode())

    def wait(self, is_done: Callable[[], bool], *, timeout_s: float, what: str) -> Self:
        """Read until `is_done`."""
        timeout_s *= PATIENCE
        until_s = time.monotonic() + timeout_s
        while not is_done():
            left_s = until_s - time.monotonic()
            assert left_s > 0, f"not within {timeout_s:g} s: {what}; {self.count} records"
            self.take(seconds=min(0.2, left_s))
        return self

    def wait_for(self, count: int, *, timeout_s: float = 90.0) -> Self:
        """Read until there are so many records."""
        return self.wait(lambda: self.count >= count, timeout_s=timeout_s, what=f"{count} records")

    def close(self) -> None:
        """Leave."""
        self._consumer.close()
