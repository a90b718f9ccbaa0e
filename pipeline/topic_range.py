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
from typing import TYPE_CHECKING, Final, Self

from py4j.protocol import Py4JError

from keylane.errors import ConfigInvalid
from keylane.pipeline.job import SOURCE_OPTIONS, client_settings, first_line, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
) -> TopicRange:
    """Turn two places into offsets of every partition.

    A place is `earliest`, `latest`, a time such as `2026-11-21T08:00:00Z` (UTC where it names no
    zone; the first record of that time or later), or offsets such as `0:100,1:250`; partitions
    that are not named start at the earliest and end at the latest.

    Raises:
        ConfigInvalid: a place cannot be read, the topic does not exist, no broker answers, or
            nothing lies between the two; the text names the place.
    """
    options = dict(options or {})
    with _Admin(spark, bootstrap, options) as admin:
        count = admin.count_partitions(topic)
        first = admin.list_offsets(topic, ["earliest"] * count)
        last = admin.list_offsets(topic, ["latest"] * count)
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
    )
    if found.offset_count == 0:
        raise ConfigInvalid(
            f"topic {topic}: no records from {start} to {end}"
            f" (it holds offsets {_show(first)} to {_show(last)})"
        )
    return found


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
    with _Admin(spark, bootstrap, dict(options or {})) as admin:
        return admin.count_partitions(topic)


def read_range(
    spark: SparkSession, chosen: TopicRange, *, min_partitions: int | None = None
) -> DataFrame:
    """The records of a range, as Spark's Kafka source has them.

    `min_partitions` cuts partitions into more tasks; records of a key are then in several.
    """
    columns = {str(number): at for number, at in enumerate(chosen.starts)}
    ends = {str(number): at for number, at in enumerate(chosen.ends)}
    reader = spark.read.format("kafka").options(**SOURCE_OPTIONS).options(**chosen.options)
    reader = reader.option("kafka.bootstrap.servers", chosen.bootstrap)
    reader = reader.option("subscribe", chosen.topic)
    reader = reader.option("startingOffsets", json.dumps({chosen.topic: columns}))
    reader = reader.option("endingOffsets", json.dumps({chosen.topic: ends}))
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
    admin: _Admin,
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
    found = admin.list_offsets(topic, [time_ms] * len(first))
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


class _Admin:
    """Kafka's admin client inside Spark's JVM: it takes the `kafka.*` options as they are."""

    def __init__(self, spark: SparkSession, bootstrap: str, options: Mapping[str, str]) -> None:
        self._bootstrap = bootstrap
        self._jvm = jvm_of(spark)
        self._settings = client_settings(self._jvm, bootstrap, options)

    def __enter__(self) -> Self:
        try:
            self._admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(self._settings)
        except Py4JError as error:
            raise ConfigInvalid(f"{self._bootstrap}: {first_line(error)}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()

    def count_partitions(self, topic: str) -> int:
        """Return the number of partitions of the topic."""
        names = self._jvm.java.util.ArrayList()
        names.add(topic)
        try:
            described = self._admin.describeTopics(names).allTopicNames().get()
        except Py4JError as error:
            cause = first_line(error)
            if "UnknownTopicOrPartition" in cause or "InvalidTopic" in cause:
                raise ConfigInvalid(f"topic {topic}: {self._bootstrap} has no such topic") from None
            raise self._unreachable(cause) from None
        return int(described.get(topic).partitions().size())

    def list_offsets(self, topic: str, wanted: list[str] | list[int]) -> list[int]:
        """Offsets of partitions 0, 1, ...: earliest, latest, or by time in ms (-1: none)."""
        jvm = self._jvm
        spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
        asked = jvm.java.util.HashMap()
        places = [
            jvm.org.apache.kafka.common.TopicPartition(topic, number)
            for number in range(len(wanted))
        ]
        for place, what in zip(places, wanted, strict=True):
            match what:
                case "earliest":
                    asked.put(place, spec.earliest())
                case "latest":
                    asked.put(place, spec.latest())
                case _:
                    asked.put(place, spec.forTimestamp(what))
        try:
            found = self._admin.listOffsets(asked).all().get()
        except Py4JError as error:
            raise self._unreachable(first_line(error)) from None
        return [int(found.get(place).offset()) for place in places]

    def _unreachable(self, cause: str) -> ConfigInvalid:
        if "TimeoutException" in cause:
            return ConfigInvalid(f"{self._bootstrap}: no broker answers ({cause})")
        return ConfigInvalid(f"{self._bootstrap}: {cause}")


def _show(offsets: list[int]) -> str:
    shown = ",".join(f"{number}:{at}" for number, at in enumerate(offsets[:8]))
    return shown + ("..." if len(offsets) > 8 else "")
