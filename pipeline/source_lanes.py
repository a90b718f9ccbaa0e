"""One lane of one batch, by librdkafka, as Arrow batches; and where partitions begin and end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from keylane.errors import ConfigInvalid, UpstreamLost

ROWS_MAX: Final = 10_000
"""Of an Arrow batch, Spark's own default (spark.sql.execution.arrow.maxRecordsPerBatch)."""
POLL_S: Final = 1.0
STALL_S: Final = 120.0
"""Without a record or the end: Spark's own network time-out, after which its source fails too."""
ASK_S: Final = 20.0
ARROW_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("lane", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
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
    consumer = _make_consumer(bootstrap, settings)
    try:
        reported = consumer.list_topics(view, timeout=ASK_S).topics[view]
        if reported.error is not None:
            hint = "" if lanes == 1 else f"; is {bootstrap} a keylane proxy?"
            raise ConfigInvalid(f"topic {view} at {bootstrap}: {reported.error.str()}{hint}")
        count = len(reported.partitions) // lanes
        pairs = [
            consumer.get_watermark_offsets(TopicPartition(view, partition), timeout=ASK_S)
            for partition in range(count)
        ]
    except KafkaException as error:
        raise ConfigInvalid(f"topic {view} at {bootstrap}: {error.args[0].str()}") from None
    finally:
        consumer.close()
    return TopicBounds(
        starts={place: start for place, (start, _) in enumerate(pairs)},
        ends={place: end for place, (_, end) in enumerate(pairs)},
    )


def read_lane(task: LaneTask) -> Iterator[pa.RecordBatch]:
    """Records of a lane; ends with the first one at or behind `end`, or at the log's end.

    Raises:
        UpstreamLost: the records are not there any more, or nothing comes for `STALL_S`.
    """
    place = f"{task.view} lane {task.index} (partition {task.partition})"
    consumer = _make_consumer(task.bootstrap, task.settings)
    try:
        consumer.assign([TopicPartition(task.view, task.index, task.start)])
        received_s = time.monotonic()
        done = False
        while not done:
            messages = consumer.consume(ROWS_MAX, timeout=POLL_S)
            if messages:
                received_s = time.monotonic()
            elif time.monotonic() - received_s > STALL_S:
                raise UpstreamLost(f"{place}: nothing in {STALL_S:g} s before offset {task.end}")
            rows, done = _take(messages, task.end, place)
            if rows:
                yield _to_arrow(rows, task)
    finally:
        consumer.close()


def _take(messages: Sequence[Message], end: int, place: str) -> tuple[list[Message], bool]:
    """The records before `end`, and whether there will be no more."""
    rows: list[Message] = []
    for message in messages:
        error = message.error()
        if error is None:
            offset = message.offset()
            assert offset is not None  # a record has one
            if offset >= end:
                return rows, True
            rows.append(message)
            if offset == end - 1:
                return rows, True
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  # librdkafka's name
            # The log was read to an end that is not before ours.
            return rows, True
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            raise UpstreamLost(f"{place}: the records are gone: {error.str()}")
        elif not error.retriable():
            raise UpstreamLost(f"{place}: {error.str()}")
    return rows, False


def _to_arrow(rows: Sequence[Message], task: LaneTask) -> pa.RecordBatch:
    times = [message.timestamp() for message in rows]
    count = len(rows)
    columns: dict[str, Sequence[Any]] = {
        "key": [message.key() for message in rows],
        "value": [message.value() for message in rows],
        "topic": [task.topic] * count,
        "partition": [task.partition] * count,
        "lane": [task.lane] * count,
        "offset": [message.offset() for message in rows],
        "timestamp": [at_ms * 1000 for _, at_ms in times],
        "timestampType": [kind - TIMESTAMP_TYPE_OFFSET for kind, _ in times],
    }
    return pa.RecordBatch.from_pydict(columns, schema=ARROW_SCHEMA)


def _make_consumer(bootstrap: str, settings: Mapping[str, str]) -> Consumer:
    return Consumer(
        {
            "queued.max.messages.kbytes": 16_384,
            "log_level": 0,
            **settings,
            "bootstrap.servers": bootstrap,
            "group.id": "keylane-spark",  # librdkafka asks for one; nothing is committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
    )
