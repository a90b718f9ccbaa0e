"""Records that a job looks at: explicit offsets of every partition, from words or times.

With `latest`, Spark binds the end of each partition when its task starts, so that no two are of one
moment. Here ends are offsets before anything is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal

from keylane.errors import ConfigInvalid
from keylane.pipeline.brokers import SparkAdmin
from keylane.pipeline.checkpoint import split_lane_name
from keylane.pipeline.job import source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_OPTIONS: Final[Mapping[str, str]] = {"kafka.fetch.max.wait.ms": "10"}
"""At the log's end Spark asks for that end behind a fetch that waits there for new records: by
default half a second of each task that ends there."""
RECORDS_PER_TASK: Final = 1_000_000
"""A second or two of work: the steps of progress. A profile's tasks each send a row per key that
they met: 500,000 records cost a fifth more CPU."""
TASKS_MAX: Final = 20_000
"""The driver keeps each task's place and where its shuffle lies: more records make longer tasks,
not more of them. At 10^12 records a task has 50,000,000."""

Unusual = Literal["empty", "lanes"]
"""A range that most jobs refuse: without offsets; with keylane's lanes in place of partitions."""
_OFFSETS: Final = re.compile(r"\d+:\d+(,\d+:\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRange:
    """Offsets of each partition of a topic: from `starts` to before `ends`."""

    bootstrap: str
    topic: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    options: Mapping[str, str]
    """Further options of Spark's Kafka source, `kafka.*` among them."""
    topic_id: str
    """Of the topic that the offsets belong to; another one of its name has another (KIP-516)."""

    @property
    def partition_count(self) -> int:
        """Partitions of the topic."""
        return len(self.starts)

    @property
    def offset_count(self) -> int:
        """Offsets inside; what was compacted or aborted has no record."""
        return sum(end - start for start, end in zip(self.starts, self.ends, strict=True))


def find_range(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    *,
    start: str = "earliest",
    end: str = "latest",
    options: Mapping[str, str] | None = None,
    may_be: Unusual | None = None,
) -> TopicRange:
    """Turn two places into offsets of every partition.

    A place is `earliest`, `latest`, a time such as `2026-11-21T08:00:00Z` (UTC where it names no
    zone; the first record of that time or later), or offsets such as `0:100,1:250`; partitions
    that are not named start at the earliest and end at the latest.

    Raises:
        ConfigInvalid: a place cannot be read, the topic does not exist, no broker answers, or
            nothing lies between the two, or keylane shows lanes as its partitions, and that may not
            be; the text names the place.
    """
    options = dict(options or {})
    with SparkAdmin(spark, bootstrap, options) as admin:
        facts = admin.describe(topic)
        count = facts.partition_count
        if may_be != "lanes":
            refuse_lanes(admin, topic, count)
        first = admin.list_offsets(topic, count, "earliest")
        last = admin.list_offsets(topic, count, "latest")
        starts = _place(admin, topic, "start", start, first, last, first)
        ends = _place(admin, topic, "end", end, first, last, last)
    # A topic is cut at its start while this asks; an end before the start holds nothing.
    starts = [min(max(at, low), high) for at, low, high in zip(starts, first, last, strict=True)]
    ends = [max(min(at, high), low) for at, low, high in zip(ends, starts, last, strict=True)]
    found = TopicRange(
        bootstrap=bootstrap,
        topic=topic,
        starts=tuple(starts),
        ends=tuple(ends),
        options=options,
        topic_id=facts.topic_id,
    )
    if found.offset_count == 0 and may_be != "empty":
        raise ConfigInvalid(
            f"topic {topic}: no records from {start} to {end}"
            f" (it holds offsets {_show(first)} to {_show(last)})"
        )
    return found


def refuse_lanes(admin: SparkAdmin, topic: str, partition_count: int) -> None:
    """Refuse a topic that keylane shows with lanes as partitions: a lane topic, or one with a rule.

    keylane answers to `TOPIC.lanes-1` with the partitions of any topic that may have one lane each:
    not of one with murmur2 and a count that is no power of two, nor under another pattern of names.

    Raises:
        ConfigInvalid: names the topic to take, or no broker answers.
    """
    whole, _ = split_lane_name(topic)
    found = admin.find(f"{whole}.lanes-1")  # at Kafka there is none
    if found is not None and found.partition_count < partition_count:
        raise ConfigInvalid(
            f"topic {topic} at {admin.bootstrap}: its {partition_count} partitions are lanes;"
            f" name {whole} and the brokers' address"
        )


def count_partitions(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    options: Mapping[str, str] | None = None,
) -> int:
    """Return the number of partitions of a topic; of a lane topic, the number of lanes.

    Raises:
        ConfigInvalid: the topic does not exist, or no broker answers.
    """
    with SparkAdmin(spark, bootstrap, options) as admin:
        return admin.describe(topic).partition_count


def changes_since(spark: SparkSession, chosen: TopicRange) -> list[str]:
    """Changes of the topic since `find_range` that unsettle what was read.

    Retention is not among it: Spark's source fails where an offset of the range is gone. Another
    topic of the same name, and a log that was cut back and written again (an unclean election),
    can hold other records at the same offsets.
    """
    with SparkAdmin(spark, chosen.bootstrap, chosen.options) as admin:
        facts = admin.describe(chosen.topic)
        if facts.topic_id != chosen.topic_id:
            return [f"{chosen.topic} was deleted and made anew while it was read"]
        last = admin.list_offsets(chosen.topic, chosen.partition_count, "latest")
    changes = []
    if facts.partition_count != chosen.partition_count:
        changes.append(
            f"{chosen.topic} has {facts.partition_count} partitions now, and"
            f" {chosen.partition_count} were read"
        )
    changes += [
        f"{chosen.topic} partition {partition} ends at {at} now, before {end} which was read"
        for partition, (at, end) in enumerate(zip(last, chosen.ends, strict=True))
        if at < end
    ]
    return changes


def count_tasks(chosen: TopicRange) -> int:
    """Tasks for a job that needs no order: a million records each, more beyond `TASKS_MAX`."""
    wanted = -(-chosen.offset_count // RECORDS_PER_TASK)
    return max(chosen.partition_count, min(wanted, TASKS_MAX))


def read_range(
    spark: SparkSession, chosen: TopicRange, *, min_partitions: int | None = None
) -> DataFrame:
    """The records of a range, as Spark's Kafka source has them.

    `min_partitions` cuts partitions into more tasks; records of a key are then in several.
    """
    starting, ending = (
        json.dumps({chosen.topic: dict(enumerate(offsets))})
        for offsets in (chosen.starts, chosen.ends)
    )
    options = {**BATCH_OPTIONS, **chosen.options}
    options = source_options(chosen.bootstrap, chosen.topic, options, starting=starting)
    reader = spark.read.format("kafka").options(**options).option("endingOffsets", ending)
    if min_partitions is not None:
        reader = reader.option("minPartitions", str(min_partitions))
    return reader.load()


def read_time(text: str) -> int | None:
    """Milliseconds since 1970 of a time in ISO 8601; None when it is none."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _place(
    admin: SparkAdmin,
    topic: str,
    name: str,
    text: str,
    first: list[int],
    last: list[int],
    default: list[int],
) -> list[int]:
    if text == "earliest":
        return first
    if text == "latest":
        return last
    if _OFFSETS.fullmatch(text):
        return _named_offsets(name, text, default)
    time_ms = read_time(text)
    if time_ms is None:
        raise ConfigInvalid(
            f"{name} {text}: expected earliest, latest, a time (2026-11-21T08:00:00Z) or"
            " offsets (0:100,1:250)"
        )
    found = admin.list_offsets(topic, len(first), time_ms)
    # Behind the newest record there is no offset of a later time.
    return [end if at < 0 else at for at, end in zip(found, last, strict=True)]


def _named_offsets(name: str, text: str, default: list[int]) -> list[int]:
    places = list(default)
    seen = set()
    for part in text.split(","):
        partition, _, offset = part.partition(":")
        number = int(partition)
        if number >= len(places) or number in seen:
            fault = "named twice" if number in seen else f"the topic has {len(places)}"
            raise ConfigInvalid(f"{name} {text[:80]}: partition {number}: {fault}")
        seen.add(number)
        places[number] = int(offset)
    return places


def _show(offsets: list[int]) -> str:
    shown = ",".join(f"{number}:{at}" for number, at in enumerate(offsets[:8]))
    return shown + ("..." if len(offsets) > 8 else "")
