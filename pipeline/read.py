"""Read lanes with Spark's own Kafka source: options, a consistent end, a guard for real time.

Each lane is a partition to Spark, so each is a task: its records in order of offset, with no
shuffle between Kafka and the job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from keylane.errors import ConfigInvalid
from keylane.keyrange.space import LANE_COUNT_MAX
from keylane.pipeline.job import jvm_of, source_options
from keylane.pipeline.topic_range import count_partitions, find_range, read_range

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

SPLITTING_OPTIONS: Final = ("minpartitions", "maxrecordsperpartition")
"""Options of the source that cut a partition by offset, and so a key's records into tasks."""


def lane_topic(topic: str, lanes: int) -> str:
    """The name under which a proxy shows `topic` as so many lanes per partition.

    A count is part of the name for good: another count is another name, so that a checkpoint
    never goes on with lanes that mean other keys.
    """
    if not 1 <= lanes <= LANE_COUNT_MAX:
        raise ConfigInvalid(f"{topic}: lanes must be 1 to {LANE_COUNT_MAX}, got {lanes}")
    return f"{topic}.lanes-{lanes}"


def lane_options(
    bootstrap: str,
    topic: str,
    lanes: int,
    *,
    starting: str = "earliest",
    records_per_trigger: int | None = None,
    options: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Options for `spark.readStream.format("kafka")` that read `topic` as lanes.

    `bootstrap` is a proxy's address. `records_per_trigger` bounds a batch in records: lanes keep
    the offsets of their partition, so Spark counts each record once per lane, and the source's
    own `maxOffsetsPerTrigger` is this times `lanes`. Leave it out in real-time mode.

    Raises:
        ConfigInvalid: an option would cut lanes into pieces, and keys out of their order.
    """
    found = source_options(bootstrap, lane_topic(topic, lanes), {}, starting=starting)
    if records_per_trigger is not None:
        found["maxOffsetsPerTrigger"] = str(records_per_trigger * lanes)
    for name, value in (options or {}).items():
        if name.lower() in SPLITTING_OPTIONS:
            raise ConfigInvalid(f"{name}: it cuts by offset; a key would be in several tasks")
        found[name] = value
    return found


def read_lanes(
    spark: SparkSession,
    bootstrap: str,
    topic: str,
    lanes: int,
    *,
    start: str = "earliest",
    end: str = "latest",
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """A batch of `topic`, a task per lane. Places are those of `topic_range.find_range`.

    All lanes of a partition end at one offset, found before anything is read; by itself Spark
    binds the end of each when its task starts, and lanes of a partition differ.

    Raises:
        ConfigInvalid: as `find_range`; places name lane indexes.
    """
    chosen = find_range(
        spark,
        bootstrap,
        lane_topic(topic, lanes),
        start=start,
        end=end,
        options=options,
        may_be="lanes",
    )
    partitions = chosen.partition_count // lanes
    # The log grows while the lanes are asked for: the lowest answer is true for all.
    low = [min(chosen.ends[number::partitions]) for number in range(partitions)]
    ends = tuple(low[index % partitions] for index in range(chosen.partition_count))
    ends = tuple(max(pair) for pair in zip(ends, chosen.starts, strict=True))
    return read_range(spark, replace(chosen, ends=ends))


def count_slots(spark: SparkSession) -> int:
    """Tasks that can run at the same time, as Spark's own scheduler counts them."""
    jvm_of(spark)
    scheduler: Any = spark.sparkContext._jsc.sc()  # noqa: SLF001  # PySpark has no other way
    profile = scheduler.resourceProfileManager().defaultResourceProfile()
    return int(scheduler.maxNumConcurrentTasks(profile))


def require_slots(spark: SparkSession, lane_count: int, *, topic: str) -> None:
    """Refuse what real-time mode does not check: lanes without a slot stand still without end.

    Raises:
        ConfigInvalid: fewer slots than lanes.
    """
    slots = count_slots(spark)
    if slots < lane_count:
        raise ConfigInvalid(
            f"{topic}: {lane_count} lanes need {lane_count} slots in real-time mode, Spark has"
            f" {slots}: lanes without a slot would stand still without an error. Add cores, or"
            " read fewer lanes"
        )


def start_real_time(
    writer: DataStreamWriter,
    *,
    bootstrap: str,
    topic: str,
    lanes: int,
    batch: str = "5 minutes",
    options: Mapping[str, str] | None = None,
) -> StreamingQuery:
    """Start a query of `lane_options` in real-time mode, when each lane has a slot.

    `batch` is how often it notes its progress, Spark's least is 5 seconds. The output mode is
    `update`, the only one that the mode has.

    Raises:
        ConfigInvalid: fewer slots than lanes, or the lane topic cannot be asked for.
    """
    spark = writer._spark  # noqa: SLF001  # the session of the query, whatever thread we are in
    name = lane_topic(topic, lanes)
    require_slots(spark, count_partitions(spark, bootstrap, name, options), topic=name)
    # The method has it from PySpark 4.2 on, its overloads for type checkers do not.
    trigger: Any = writer.outputMode("update").trigger
    query: StreamingQuery = trigger(realTime=batch).start()
    return query
