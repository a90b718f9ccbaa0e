"""A librdkafka consumer for the tasks of `format("keylane")`, kept from one task to the next.

To start one, connect, ask for the topic and end again takes 20 ms, ten times what a small lane
takes to read. Spark's worker runs one task after the other, so one consumer waits for the next.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer

FETCH_WAIT_MS: Final = 1
"""`fetch.wait.max.ms`. A task reads what the log has. Only the answer that says that the log ends
has no record, and a broker keeps that one back for this time; librdkafka's default is 500."""
QUEUE_KIB: Final = 16_384
KEPT_S: Final = 60.0
"""Age at which a consumer serves no further task: files of certificates may have changed."""

_Settings = dict[str, str | int | bool]
_Topic = tuple[str, int]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A consumer, and what it was made for."""

    consumer: Consumer
    topic: _Topic
    settings: _Settings
    made_s: float
    """By the monotonic clock."""

    def serves(self, topic: _Topic, settings: _Settings) -> bool:
        """Return whether a task can have it."""
        is_young = time.monotonic() - self.made_s < KEPT_S
        return is_young and (self.topic, self.settings) == (topic, settings)


_idle: list[_Kept] = []
"""At most one. It has no assignment."""


@contextmanager
def open_consumer(
    bootstrap: str, topic: _Topic, settings: Mapping[str, str], *, fetch_bytes: int | None = None
) -> Iterator[Consumer]:
    """A consumer without an assignment, in no group, for one topic.

    topic: name and number of partitions. Another name or number gets another consumer: to learn
    of a topic beside those that it knows, or of new partitions, takes librdkafka a second and more.

    fetch_bytes: of one answer, None: librdkafka's own. A task of few offsets would throw away most
    of a large one.
    After an error it is closed: what it has learned of the cluster may be the cause.
    """
    kept = _take(topic, _settings(bootstrap, settings, fetch_bytes))
    try:
        yield kept.consumer
        kept.consumer.unassign()
    except BaseException:
        kept.consumer.close()
        raise
    close_idle()
    _idle.append(kept)


def close_idle() -> None:
    """Close the consumer that waits for a task."""
    while _idle:
        _idle.pop().consumer.close()


def _take(topic: _Topic, settings: _Settings) -> _Kept:
    if _idle and _idle[0].serves(topic, settings):
        return _idle.pop()
    close_idle()
    return _Kept(Consumer(settings), topic, settings, time.monotonic())


def _settings(bootstrap: str, settings: Mapping[str, str], fetch_bytes: int | None) -> _Settings:
    chosen: _Settings = {
        "queued.max.messages.kbytes": QUEUE_KIB,
        "fetch.wait.max.ms": FETCH_WAIT_MS,
        "enable.metrics.push": False,  # KIP-714: a task ends before it has pushed any
        "log_level": 0,
    }
    if fetch_bytes is not None:
        chosen["fetch.message.max.bytes"] = fetch_bytes
    chosen |= settings
    return chosen | {
        "bootstrap.servers": bootstrap,
        "group.id": "keylane-spark",  # librdkafka asks for one; nothing is committed to it
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
    }
