"""The same story of a share group twice, direct and through keylane, at the same time.

Each side has a topic and a group to itself; the topic has no rule, so that all requests pass.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from uuid import UUID

from keylane.wire.header import ApiKey
from tests.integration.conftest import TopicFactory
from tests.integration.share_wire import (
    PlainWire,
    ShareClient,
    alter_group,
    call,
    share_offsets,
    wait_until,
)
from tests.reference.batches import Batch, Record, write_batch

T = TypeVar("T")
_numbers = itertools.count(1)
TIMESTAMP_MS: Final = 1_700_000_000_000
LOCK_MS: Final = 30_000
"""Kafka's default duration of an acquisition lock."""
SHORT_LOCK_MS: Final = 1000
"""The shortest one that a group may have."""


@dataclass(frozen=True, slots=True)
class Side:
    """The address of a side, its topic and its group."""

    bootstrap: str
    topic: str
    group: str

    def join(self, group: str = "") -> tuple[ShareClient, UUID]:
        """Return a new member that has partitions, and the topic's id."""
        client = ShareClient(self.bootstrap, group or self.group)
        client.join([self.topic])
        return client, client.topic_id(self.topic)

    def write(self, count: int, *, partition: int = 0, timestamp_ms: int = TIMESTAMP_MS) -> int:
        """Append one batch of `count` records, keys of ascending numbers; its first offset."""
        return write_records(
            self.bootstrap, self.topic, count, partition=partition, timestamp_ms=timestamp_ms
        )

    def configure(self, **configs: str | int) -> None:
        """Set configs of the group."""
        alter_group(self.bootstrap, self.group, **configs)

    def offsets(self) -> tuple[int, int]:
        """Return the start offset and the lag of partition 0, as persisted; -1 before they are."""
        return share_offsets(self.bootstrap, self.group).get((self.topic, 0), (-1, -1))

    def neutral(self, text: str | None) -> str | None:
        """Return a message without the names of this side."""
        for number, name in enumerate((self.group, self.topic)):
            text = text and text.replace(name, f"<{number}>")
        return text


class Sides:
    """The broker, and keylane in front of it."""

    def __init__(self, direct: str, proxied: str, topic: TopicFactory) -> None:
        self.direct, self.proxied, self._topic = direct, proxied, topic

    def make(self, *, partitions: int = 1, **configs: str | int) -> tuple[Side, Side]:
        """Make a topic and a group with these configs for each side."""
        direct, proxied = [
            Side(bootstrap, topic, f"share-{next(_numbers)}-{topic}")
            for bootstrap in (self.direct, self.proxied)
            for topic in [self._topic("plain", partitions=partitions)]
        ]
        for side in (direct, proxied):
            if configs:
                side.configure(**configs)
        return direct, proxied

    def run(self, story: Callable[[Side], T], **options: Any) -> tuple[T, T]:
        """Run the story at both sides at the same time: its outcome direct, and through keylane.

        options: those of `make`.
        """
        sides = self.make(**options)
        with ThreadPoolExecutor(len(sides)) as pool:
            direct, proxied = pool.map(story, sides)
        return direct, proxied


def write_records(
    bootstrap: str,
    topic: str,
    count: int,
    *,
    partition: int = 0,
    timestamp_ms: int = TIMESTAMP_MS,
) -> int:
    """Append one record batch, with acks=all; return its first offset."""
    records = tuple(
        Record(number, key=b"key-%d" % number, value=b"value-%d" % number)
        for number in range(count)
    )
    batch = Batch(0, records, base_timestamp=timestamp_ms, max_timestamp=timestamp_ms)
    return append(bootstrap, topic, batch, partition=partition)


def append(bootstrap: str, topic: str, batch: Batch, *, partition: int = 0) -> int:
    """Append a batch with acks=all; return its first offset."""
    part = {"index": partition, "records": write_batch(batch)}
    asked = {
        "acks": -1,
        "timeout": 30_000,
        "topic_data": [{"name": topic, "partition_data": [part]}],
    }

    def write() -> Any:
        with PlainWire(bootstrap) as wire:
            (found,) = call(wire, ApiKey.PRODUCE, 12, **asked).responses[0].partition_responses
        return found if found.error_code == 0 else None

    return int(wait_until(write, "a leader that takes the batch").base_offset)


def let_locks_expire(ms: int) -> None:
    """Wait as long as locks of `ms` last, and half as much; a broker reports no such event."""
    time.sleep(ms * 1.5 / 1000)
