"""`format("keylane")`: lanes as a Spark data source with the offsets of physical partitions.

Spark's own source sees lanes as partitions, and so counts each offset once per lane and ties a
checkpoint to their number. Here Spark's offset is that of the physical partition: limits and lag
are exact, and each batch may have another lane count. Not for real-time mode, which takes no Python
source.

    spark.dataSource.register(KeylaneSource)
    spark.readStream.format("keylane").option("bootstrap", "proxy:19092")
        .option("topic", "orders").option("lanes", 16).load()

| option | means |
|---|---|
| bootstrap | a proxy's address |
| topic | the topic's own name |
| lanes | lanes per partition, 1 to 1,024; a topic is read whole with 1, without a proxy too |
| lanesFile | a file with that number, read for each batch, in place of `lanes` |
| startingOffsets | earliest (default), latest, or JSON {"0": 100} |
| endingOffsets | latest (default) or JSON; of batches only |
| maxRecordsPerTrigger | bound of a micro-batch in records, over all partitions |
| kafka.NAME | a setting of librdkafka, for TLS, SASL or kafka.isolation.level |
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from keylane.errors import ConfigInvalid
from keylane.garbage import leave_out_modules
from keylane.keyrange.space import LANE_COUNT_MAX
from keylane.pipeline.source_lanes import LaneTask, TopicBounds, find_bounds, read_lane, view_name

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT: Final = "keylane"
SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, lane int, offset bigint,"
    " timestamp timestamp, timestampType int"
)
"""Schema of Spark's own source, with the physical partition, and the lane beside it."""
LANES_FILE_BYTES_MAX: Final = 64

Offsets = dict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of a reader, checked."""

    bootstrap: str
    topic: str
    lanes: int
    lanes_file: str | None
    starting: str
    ending: str
    records_max: int | None
    settings: Mapping[str, str]

    @classmethod
    def read(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check the options of a reader, whose names have lost their case.

        Raises:
            ConfigInvalid: one is missing or cannot be used.
        """
        given = {name.lower(): value for name, value in options.items()}
        for name in ("bootstrap", "topic"):
            if not given.get(name):
                raise ConfigInvalid(f"format keylane: option {name} is missing")
        most = given.get("maxrecordspertrigger")
        return cls(
            bootstrap=given["bootstrap"],
            topic=given["topic"],
            lanes=_number("lanes", given.get("lanes", "1"), LANE_COUNT_MAX),
            lanes_file=given.get("lanesfile"),
            starting=given.get("startingoffsets", "earliest"),
            ending=given.get("endingoffsets", "latest"),
            records_max=None if most is None else _number("maxRecordsPerTrigger", most, 2**62),
            settings={
                name.removeprefix("kafka."): value
                for name, value in given.items()
                if name.startswith("kafka.")
            },
        )

    def lane_count(self) -> int:
        """Lanes of the next batch."""
        if self.lanes_file is None:
            return self.lanes
        try:
            with Path(self.lanes_file).open(encoding="utf-8") as file:
                text = file.read(LANES_FILE_BYTES_MAX)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigInvalid(f"lanesFile {self.lanes_file}: {error}") from None
        return _number(f"lanesFile {self.lanes_file}", text.strip(), LANE_COUNT_MAX)

    def bounds(self) -> TopicBounds:
        """Log start and end of each partition, now."""
        return find_bounds(self.bootstrap, self.topic, self.lane_count(), self.settings)

    def place(self, name: str, text: str, bounds: TopicBounds) -> Offsets:
        """`earliest`, `latest` or JSON as offsets; partitions left out start at the earliest."""
        if text in {"earliest", "latest"}:
            return dict(bounds.starts if text == "earliest" else bounds.ends)
        try:
            reported = {int(key): int(value) for key, value in json.loads(text).items()}
        except (AttributeError, TypeError, ValueError):
            raise ConfigInvalid(f"{name}: expected earliest, latest or JSON") from None
        unknown = reported.keys() - bounds.starts.keys()
        if unknown:
            raise ConfigInvalid(f"{name}: {self.topic} has no partition {min(unknown)}")
        if name == "startingOffsets":
            return dict(bounds.starts) | reported
        for partition, offset in sorted(reported.items()):
            if offset > bounds.ends[partition]:
                raise ConfigInvalid(
                    f"{name}: partition {partition} of {self.topic} ends at"
                    f" {bounds.ends[partition]}, before {offset}"
                )
        return dict(bounds.ends) | reported

    def tasks(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """A task per lane of each partition that has something new."""
        lanes = self.lane_count()
        count = max(end, default=-1) + 1
        return [
            InputPartition(
                LaneTask(
                    bootstrap=self.bootstrap,
                    topic=self.topic,
                    view=view_name(self.topic, lanes),
                    partition=partition,
                    lane=lane,
                    index=lane * count + partition,
                    view_partitions=lanes * count,
                    start=start.get(partition, 0),
                    end=end[partition],
                    settings=dict(self.settings),
                )
            )
            for lane in range(lanes)
            for partition in sorted(end)
            if end[partition] > start.get(partition, 0)
        ]


class KeylaneSource(DataSource):
    """The data source; `spark.dataSource.register(KeylaneSource)` makes it known."""

    @classmethod
    def name(cls) -> str:
        """The word for `format`."""
        return FORMAT

    def schema(self) -> str:
        """Return the schema of Spark's Kafka source, and `lane`."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return the reader of a batch."""
        return BatchReader(SourceOptions.read(self.options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return the reader of a stream."""
        return StreamReader(SourceOptions.read(self.options))


class _LaneReader:
    """Reader whose tasks have a lane each."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Records of one lane."""
        yield from read_lane(partition.value)
        # A worker of Spark collects garbage after each task. To look through pandas and pyarrow
        # took it 30 ms, more than a small lane takes to read. By now it has imported them.
        leave_out_modules()


class BatchReader(_LaneReader, DataSourceReader):
    """Reader of batches: tasks end at offsets that are found before the first one starts."""

    def partitions(self) -> Sequence[InputPartition]:
        """A task per lane."""
        bounds = self._options.bounds()
        start = self._options.place("startingOffsets", self._options.starting, bounds)
        end = self._options.place("endingOffsets", self._options.ending, bounds)
        return self._options.tasks(start, end)


class StreamReader(_LaneReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets are `{topic: {partition: next offset}}`, the form of Spark's own Kafka source."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options)
        self._target: Offsets | None = None
        """Offsets at which `availableNow` ends."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return where a query without a checkpoint starts."""
        bounds = self._options.bounds()
        return self._offsets(self._options.place("startingOffsets", self._options.starting, bounds))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit of a batch, from `maxRecordsPerTrigger`."""
        most = self._options.records_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return where the next batch ends: the log's end, or a fair share of the limit each."""
        bounds = self._options.bounds()
        begun = self._numbers(start)
        ends = bounds.ends if self._target is None else self._target
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self._offsets(limit_offsets(begun, bounds.starts, ends, most))

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """The log's end, for Spark's progress: minus the batch's end it is the exact lag."""
        return self._offsets(self._options.bounds().ends)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note where the log ends now."""
        self._target = dict(self._options.bounds().ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """A task per lane; the lane count is that of this moment."""
        return self._options.tasks(self._numbers(start), self._numbers(end))

    def _offsets(self, offsets: Mapping[int, int]) -> dict[str, Any]:
        return {self._options.topic: {str(place): at for place, at in sorted(offsets.items())}}

    def _numbers(self, offsets: Mapping[str, Any]) -> Offsets:
        topic = self._options.topic
        if topic not in offsets:
            raise ConfigInvalid(f"the checkpoint is of {', '.join(offsets)}, not of {topic}")
        return {int(place): int(at) for place, at in offsets[topic].items()}


def limit_offsets(
    begun: Mapping[int, int],
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    most: int | None,
) -> Offsets:
    """Ends of a batch of at most `most` offsets; each partition has a share by its lag.

    A partition that is new starts at its log start. Nothing goes back: an end below what was
    read (the topic was made anew) stays, and reading it fails with the place.
    """
    found = {place: begun.get(place, starts[place]) for place in ends}
    lags = {place: max(0, ends[place] - at) for place, at in found.items()}
    total = sum(lags.values())
    if most is None or total <= most:
        return {place: at + lags[place] for place, at in found.items()}
    taken = {place: lag * most // total for place, lag in lags.items()}
    left = most - sum(taken.values())
    for place in sorted(lags, key=lambda place: taken[place] - lags[place])[:left]:
        taken[place] += 1
    return {place: at + taken[place] for place, at in found.items()}


def _number(name: str, text: str, most: int) -> int:
    if not str(text).isdecimal() or not 1 <= int(text) <= most:
        raise ConfigInvalid(f"{name}: expected a number from 1 to {most}, got {str(text)[:20]!r}")
    return int(text)
