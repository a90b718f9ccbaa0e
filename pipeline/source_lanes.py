"""One lane of one batch, by librdkafka, as Arrow batches; and where partitions begin and end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)
from numpy.typing import NDArray

from keylane.errors import ConfigInvalid, UpstreamLost
from keylane.garbage import collector_paused
from keylane.pipeline.source_consumer import open_consumer

ROWS_MAX: Final = 10_000
"""Of an Arrow batch, Spark's own default (spark.sql.execution.arrow.maxRecordsPerBatch)."""
FEW_OFFSETS: Final = 1_000
FEW_FETCH_BYTES: Final = 100_000
"""`fetch.message.max.bytes` of a task with `FEW_OFFSETS` at most; librdkafka's default is 1 MiB."""
STALL_S: Final = 120.0
"""Without a record or the end: Spark's own network time-out, after which its source fails too."""
ASK_S: Final = 20.0
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("lane", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
TIMESTAMP_TYPE_OFFSET: Final = 1
"""librdkafka counts 0 not available, 1 create, 2 append; Spark -1, 0, 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneTask:
    """Share of one task: offsets [start, end) of one lane."""

    bootstrap: str
    topic: str
    view: str
    """The topic as the proxy shows it."""
    partition: int
    lane: int
    index: int
    """The lane's partition number in the view."""
    view_partitions: int
    """Lanes of all partitions, by which `index` counts."""
    start: int
    end: int
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """Log start and log end by physical partition."""

    starts: dict[int, int]
    ends: dict[int, int]


def view_name(topic: str, lanes: int) -> str:
    """The lane topic; the topic itself for one lane, which needs no proxy."""
    return topic if lanes == 1 else f"{topic}.lanes-{lanes}"


def find_bounds(bootstrap: str, topic: str, lanes: int, settings: Mapping[str, str]) -> TopicBounds:
    """Return where the partitions of a topic begin and end now; a lane's answer is its partition's.

    Raises:
        ConfigInvalid: there is no such topic, or no broker answers.
    """
    view = view_name(topic, lanes)
    try:
        with open_consumer(bootstrap, (view, 0), settings) as consumer:
            reported = consumer.list_topics(view, timeout=ASK_S).topics[view]
            if reported.error is not None:
                hint = "" if lanes == 1 else f"; is {bootstrap} a keylane proxy?"
                raise ConfigInvalid(f"topic {view} at {bootstrap}: {reported.error.str()}{hint}")
            count = len(reported.partitions) // lanes
            starts, ends = (
                _list_offsets(consumer, view, count, which)
                for which in (OFFSET_BEGINNING, OFFSET_END)
            )
    except KafkaException as error:
        raise ConfigInvalid(f"topic {view} at {bootstrap}: {error.args[0].str()}") from None
    return TopicBounds(starts=starts, ends=ends)


def _list_offsets(consumer: Consumer, view: str, count: int, which: int) -> dict[int, int]:
    """Return where each partition begins or ends; in ListOffsets either is a time, too."""
    asked = [TopicPartition(view, partition, which) for partition in range(count)]
    found = consumer.offsets_for_times(asked, timeout=ASK_S)
    for each in found:
        if each.error is not None:
            raise KafkaException(each.error)
    return {each.partition: each.offset for each in found}


def read_lane(task: LaneTask) -> Iterator[pa.RecordBatch]:
    """Records of a lane, a batch for what librdkafka has at hand; ends when `end` is reached.

    That is a record at or behind it, or the log's end there: a lane has no record at most offsets.
    Memory: the records that librdkafka fetches ahead, and `ROWS_MAX` of them as messages.

    Raises:
        UpstreamLost: the records are not there any more, or nothing comes for `STALL_S`.
    """
    place = f"{task.view} lane {task.index} (partition {task.partition})"
    fetch_bytes = FEW_FETCH_BYTES if task.end - task.start <= FEW_OFFSETS else None
    topic = task.view, task.view_partitions
    with open_consumer(task.bootstrap, topic, task.settings, fetch_bytes=fetch_bytes) as consumer:
        consumer.assign([TopicPartition(task.view, task.index, task.start)])
        deadline_s = time.monotonic() + STALL_S
        log_end: int | None = None
        while True:
            first = consumer.poll(max(0.0, deadline_s - time.monotonic()))
            if first is None:
                reached = "" if log_end is None else f"; the log ends at {log_end}"
                raise UpstreamLost(
                    f"{place}: no record in {STALL_S:g} s before offset {task.end}{reached}"
                )
            with collector_paused():
                # `consume` alone would wait for so many records, also if the end is among them.
                taken = take([first, *consumer.consume(ROWS_MAX - 1, timeout=0)], task.end, place)
                columns = to_arrow(taken.rows, task) if taken.rows else None
            if columns is not None:
                yield columns
                deadline_s = time.monotonic() + STALL_S
            if taken.is_done:
                return
            log_end = log_end if taken.log_end is None else taken.log_end


class TakenRecords(NamedTuple):
    """Records of a lane, in order."""

    rows: list[Message]
    is_done: bool
    """There will be none before the end of the task any more."""
    log_end: int | None = None
    """The end of the log, where it was met before the end of the task."""


def take(messages: list[Message], end: int, place: str) -> TakenRecords:
    """Take the records before `end`.

    Raises:
        UpstreamLost: the log has no such records any more, or they may not be read.
    """
    last = messages[-1].offset()
    if last is not None and last < end - 1 and not any(map(Message.error, messages)):
        return TakenRecords(messages, is_done=False)  # nearly always
    rows: list[Message] = []
    log_end: int | None = None
    for message in messages:
        error, offset = message.error(), message.offset()
        if error is None:
            assert offset is not None  # a record has one
            if offset < end:
                rows.append(message)
            if offset >= end - 1:
                return TakenRecords(rows, is_done=True)
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's name
            # A new leader may have less for a moment than the one that was asked for the end.
            if offset is None or offset >= end:
                return TakenRecords(rows, is_done=True)
            log_end = offset
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            raise UpstreamLost(f"{place}: the records are gone: {error.str()}")
        elif not error.retriable():
            raise UpstreamLost(f"{place}: {error.str()}")
    return TakenRecords(rows, is_done=False, log_end=log_end)


def to_arrow(rows: Sequence[Message], task: LaneTask) -> pa.RecordBatch:
    """Return records as columns of `ARROW_SCHEMA`."""
    count = len(rows)
    # Kind and ms; `map` over the methods: nothing else of Python is run for a record.
    pairs = chain.from_iterable(map(Message.timestamp, rows))
    times: NDArray[np.int64] = np.fromiter(pairs, np.int64, 2 * count).reshape(count, 2)
    columns = [
        pa.array(list(map(Message.key, rows)), pa.binary()),
        pa.array(list(map(Message.value, rows)), pa.binary()),
        pa.repeat(pa.scalar(task.topic), count),
        pa.repeat(pa.scalar(task.partition, pa.int32()), count),
        pa.repeat(pa.scalar(task.lane, pa.int32()), count),
        pa.array(list(map(Message.offset, rows)), pa.int64()),
        pa.array(times[:, 1] * 1000).cast(TIMESTAMP),
        pa.array((times[:, 0] - TIMESTAMP_TYPE_OFFSET).astype(np.int32)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)
