"""History in the brokers' files after a run: the journal's producers, and offsets over time.

Source: Kafka's record batch v2 (KIP-98); `OffsetCommitKey` and `OffsetCommitValue` messages.
"""

from __future__ import annotations

import struct
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from keylane.keyrange.space import HASH_MAX
from keylane.offsets.positions import PositionMap
from keylane.offsets.records.journal import (
    TOPIC_NAME,
    PositionsValue,
    StateKey,
    StepKey,
    read_key,
    read_positions,
)
from keylane.offsets.steps import read_step

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
"""A batch up to its record count: base offset, length, leader epoch, magic, CRC, attributes,
last offset delta, first and last time, producer id, producer epoch, first sequence, count."""
LENGTH_END: Final = 12
"""The length counts from here."""
NO_PRODUCER: Final = -1
HASH_POINTS: Final = 96
"""Hashes at which positions are compared; the lanes of the tests are fewer."""
READ_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Writer:
    """The producer of a batch, and the batch's place."""

    offset: int
    producer_id: int
    epoch: int


def read_writers(folder: Path) -> Iterator[Writer]:
    """Yield the batches with a producer in the segments of one partition, by offset."""
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        place = 0
        while place + HEADER.size <= len(data):
            fields = HEADER.unpack_from(data, place)
            offset, length, producer_id, epoch = fields[0], fields[1], fields[9], fields[10]
            if length <= 0:  # a segment's file may be longer than what was written
                break
            if producer_id != NO_PRODUCER:
                yield Writer(offset, producer_id, epoch)
            place += LENGTH_END + length


def judge_writers(writers: Iterable[Writer], where: str) -> list[str]:
    """Once another producer, or a later epoch, has written, the one before writes no more."""
    breaches = []
    epochs: dict[int, int] = {}
    last = NO_PRODUCER
    for each in writers:
        if each.producer_id != last and each.producer_id in epochs:
            breaches.append(f"{where}: {each} after producer {last}")
        if epochs.get(each.producer_id, -1) > each.epoch:
            breaches.append(f"{where}: {each} after epoch {epochs[each.producer_id]}")
        epochs[each.producer_id] = max(each.epoch, epochs.get(each.producer_id, -1))
        last = each.producer_id
    return breaches


def judge_journal_files(data_folders: Iterable[Path]) -> tuple[list[str], dict[str, list[str]]]:
    """Breaches over all replicas; and by partition which (producer, epoch) wrote, in order."""
    breaches: list[str] = []
    reported: dict[str, list[str]] = {}
    for data in data_folders:
        for folder in sorted(data.glob(f"{TOPIC_NAME}-*")):
            writers = list(read_writers(folder))
            breaches += judge_writers(writers, f"{folder.parent.parent.name}/{folder.name}")
            said = [f"{each.producer_id}/{each.epoch}" for each in writers]
            reported[folder.name] = max(
                reported.get(folder.name, []), list(dict.fromkeys(said)), key=len
            )
    return breaches, reported


def read_topic(bootstrap: str, topic: str, *, timeout_s: float = READ_TIMEOUT_S) -> list[Message]:
    """All committed records of a topic, each partition's in order. Raises: AssertionError."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "history",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
        found, left = [], set(partitions)
        deadline_s = time.monotonic() + timeout_s
        while left:
            assert time.monotonic() < deadline_s, f"{topic}: no end of partitions {left}"
            for message in consumer.consume(1000, timeout=1):
                if message.error() is None:
                    found.append(message)
                else:
                    left.discard(message.partition())
    finally:
        consumer.close()
    return found


@dataclass(slots=True)
class OffsetHistory:
    """Offsets of one group in Kafka's own topic, over time."""

    count: int = 0
    unconfirmed: list[str] = field(default_factory=list)
    """Steps back from what no answer had confirmed: a broker died, or the commit did not end."""
    breaches: list[str] = field(default_factory=list)
    """Steps back from what the journal says members had committed of all lanes."""


def judge_group_offsets(
    offsets: Iterable[Message], journal: Iterable[Message], group: str
) -> OffsetHistory:
    """Once the journal says what members committed of all lanes, Kafka's own is never below it.

    It may go back from what was pushed: what a scan had concluded counts no more when the log may
    have been cut, and a push that came late stands for commits that were not acknowledged.
    """
    confirmed = _committed_over_time(journal, group)
    history = OffsetHistory()
    last: dict[tuple[str, int], int] = {}
    for message in offsets:
        place = read_commit_key(message.key() or b"", group)
        value = message.value()
        if place is None or value is None:
            continue
        history.count += 1
        (offset,) = struct.unpack_from(">q", value, 2)
        at_ms = message.timestamp()[1]
        reported = confirmed.get(place, [])
        before = bisect_left(reported, (at_ms, -1))
        floor = reported[before - 1][1] if before else -1
        where = f"{place} at {message.partition()}/{message.offset()}, {at_ms} ms"
        if offset < floor:
            history.breaches.append(
                f"group offset {offset} of {where}: all were committed to {floor}"
            )
        elif offset < last.get(place, -1):
            history.unconfirmed.append(f"{last[place]} to {offset} of {where}")
        last[place] = offset
    return history


def _committed_over_time(
    journal: Iterable[Message], group: str
) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Return (ms, lowest commit of all lanes until then), ascending, by topic and partition."""
    found: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for message, key, value in states_over_time(journal):
        if key.group != group:
            continue
        reported = found[value.topic_name, key.partition]
        lowest = min(place.offset for _, place in value.positions)
        highest = max(reported[-1][1] if reported else -1, lowest)
        reported.append((max(message.timestamp()[1], reported[-1][0] if reported else 0), highest))
    return found


def read_commit_key(key: bytes, group: str) -> tuple[str, int] | None:
    """Topic and partition of a committed offset of `group`; None: another kind, another group."""
    (version,) = struct.unpack_from(">h", key)
    if version not in {0, 1}:
        return None
    place, names = 2, []
    for _ in range(2):
        (length,) = struct.unpack_from(">h", key, place)
        names.append(key[place + 2 : place + 2 + length].decode())
        place += 2 + length
    (partition,) = struct.unpack_from(">i", key, place)
    return (names[1], partition) if names[0] == group else None


def states_over_time(
    journal: Iterable[Message],
) -> Iterator[tuple[Message, StateKey, PositionsValue]]:
    """Each record of positions, and the whole state that it makes, of a log not compacted."""
    held: dict[StateKey, tuple[PositionsValue, PositionMap]] = {}
    for message in journal:
        where = f"journal {message.partition()}/{message.offset()}"
        key = read_key(message.key() or b"")
        data = message.value()
        if data is None:
            continue
        if isinstance(key, StateKey):
            value = read_positions(data)
            held[key] = value, PositionMap.from_ends(value.positions)
            yield message, key, value
        elif isinstance(key, StepKey):
            step = read_step(data)
            whole, positions = held[key.state]
            assert step.base == whole.base, f"{where}: a step of {step.base} behind {whole.base}"
            positions.apply_step(step.step)
            value = replace(whole, pushed=step.pushed, positions=positions.ends())
            yield message, key.state, value


def judge_positions(messages: Iterable[Message]) -> tuple[list[str], int]:
    """Breaches: states in the journal whose positions went back; how many states were written."""
    breaches, count = [], 0
    last: dict[StateKey, PositionsValue] = defaultdict(
        lambda: PositionsValue(timestamp_ms=0, pushed=None, topic_name="", positions=())
    )
    for message, key, value in states_over_time(messages):
        where = f"journal {message.partition()}/{message.offset()}"
        count += 1
        before = last[key]
        if (value.pushed or 0) < (before.pushed or 0):
            breaches.append(f"{where}: pushed went back, {before.pushed} to {value.pushed}")
        pairs = zip(_at_points(before), _at_points(value), strict=True)
        gone_back = [(old, new) for old, new in pairs if new < old]
        if gone_back:
            breaches.append(f"{where}: {key} positions went back: {gone_back[:4]}")
        last[key] = value
    return breaches, count


def _at_points(value: PositionsValue) -> list[int]:
    """Return the committed offset at hash points spread over the hash space."""
    found = []
    for number in range(HASH_POINTS):
        point = HASH_MAX // HASH_POINTS * number + 1
        covering = next((p for last, p in value.positions if point <= last), None)
        found.append(-1 if covering is None else covering.counted)
    return found
