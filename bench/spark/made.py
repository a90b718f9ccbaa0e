"""Topics that Spark makes, for measurements without Kafka: the same rows at each use.

Each row follows from its number (`id`) by a few hashes, so that any number of tasks can make it,
and making it costs little beside a job.

Keys: 1,000,000 by the law of Zipf and Mandelbrot with the exponent 1.

*Records* (`make_records`) are 16 partitions of a week with busy days and quiet nights, values of 20
to 180 bytes; every six hours other keys are the heavy ones. Offsets ascend, with gaps.

*A log* (`MadeLog`) has 16 partitions without gaps, at 10,000 records per second, and the reports of
a group on 16 lanes each: eight members, one rebalance half-way after which all lanes are at another
member, and a commit of each member every 6.4 s. Every tenth of the log has a record that was lost,
one that was reported twice, one after a later one of its key, and, after the rebalance, one of its
former owner.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.audit import rules
from keylane.pipeline.expressions import key_hash, lane_of
from keylane.pipeline.topic_range import RECORDS_PER_TASK, TASKS_MAX, TopicRange

PARTITIONS: Final = 16
KEYS: Final = 1_000_000
FLAT: Final = 50
"""Keys at the top that weigh much alike: the heaviest has half the bytes of a mean lane."""
HOURS: Final = 7 * 24
WEEK_US: Final = HOURS * 3_600_000_000
VALUE_BYTES: Final = (20, 181)
START_S: Final = 1_790_812_800
"""2026-10-01T00:00:00Z."""

LANES: Final = 16
MEMBERS: Final = 8
AUDIT_PARTITIONS: Final = 16
STEP_US: Final = 100
"""From record to record: 10,000 per second."""
COMMIT_EVERY: Final = 64_000
"""Records of all between two commits of a member: 6.4 s."""
FAULTS: Final = 10
"""Of each kind; of fenced records half as many."""
LOST, DUPLICATED, FENCED, LATE = 2, 4, 6, 100
"""Places of the faults in each tenth of the log."""
WORK_US: Final = 5_000
"""From the produce time of a record to its report."""
COMMIT_US: Final = 1_000_000
"""From the produce time of the first record that a commit does not cover."""
SLOTS: Final = 32
"""Offsets of the audit topic per record: 0 to 7 commits, 8 to 15 assignments, then the record."""
ASSIGNED_SLOT: Final = 8
REPORT_SLOT: Final = 16


def make_records(spark: SparkSession, count: int, tasks: int | None = None) -> DataFrame:
    """Records as Spark's Kafka source has them: partition, offset, key, value, timestamp.

    `tasks` make them; None: as many as `topic_range.count_tasks` gives.
    """
    each = _numbers(spark, count) if tasks is None else spark.range(0, count, 1, tasks)
    place = F.col("id") / count * HOURS
    hour = place + 2.5 * F.sin(place * (2 * math.pi / 24))  # ascends; most records come about noon
    turn = F.floor(hour / 6) % 4
    number = (_rank(KEYS) + turn * 7_919) % KEYS
    return each.select(
        (number % PARTITIONS).cast("int").alias("partition"),
        F.col("id").alias("offset"),
        F.concat(F.lit("user-"), number.cast("string")).cast("binary").alias("key"),
        F.lit(b"v" * VALUE_BYTES[1]).substr(F.lit(1), _size().cast("int")).alias("value"),
        F.timestamp_seconds(F.lit(START_S) + hour * 3_600).alias("timestamp"),
    )


@dataclass(frozen=True, slots=True)
class MadeLog:
    """A topic, and reports of a group that has processed it; `count` is a multiple of 160."""

    spark: SparkSession
    count: int

    @property
    def wanted(self) -> TopicRange:
        """All of the topic; nothing of it is at a broker."""
        return _range_of("orders", (self.count // PARTITIONS,) * PARTITIONS)

    @property
    def reported(self) -> TopicRange:
        """All of the audit topic."""
        return _range_of("audit", ((self.count + 1) * SLOTS,) * AUDIT_PARTITIONS)

    @property
    def faults(self) -> Mapping[str, int]:
        """Findings of an audit by kind."""
        alike = dict.fromkeys((rules.LOST, rules.DUPLICATED, rules.OUT_OF_ORDER), FAULTS)
        return {**alike, rules.FENCED: FAULTS // 2, rules.OVERLAP: 0}

    @property
    def tenth(self) -> int:
        """Records of a tenth."""
        return self.count // FAULTS

    def records(self) -> DataFrame:
        """Spark's Kafka source: partition, offset, key, value, timestamp, timestampType; id.

        A value begins with the number of its record, so that no two are equal.
        """
        return self._keyed(_numbers(self.spark, self.count)).select(
            "id",
            "partition",
            "offset",
            "key",
            F.rpad(F.col("id").cast("string"), _size().cast("int"), "v")
            .cast("binary")
            .alias("value"),
            F.timestamp_micros(self._time_us(F.col("id"))).alias("timestamp"),
            F.lit(0).alias("timestampType"),
        )

    def reports(self) -> DataFrame:
        """The audit topic: partition, offset, value. Offsets ascend as records were processed."""
        # Ranges of the few faults, not a filter of all records.
        again = self.spark.range(DUPLICATED, self.count, self.tenth)
        late_slot = F.when(self._phase() == LATE, LATE_BY * SLOTS + 1).otherwise(0)
        first = self._reports_of(
            _numbers(self.spark, self.count).where(self._phase() != LOST), late_slot
        )
        marks = self._commits().unionAll(self._assignments())
        return first.unionAll(self._reports_of(again, F.lit(1))).unionAll(marks)

    def copies(self) -> DataFrame:
        """The topic after a migration to 24 partitions: partition, offset, key, value.

        Every tenth lacks a record, has one twice, and two in each other's place.
        """
        late_slot = F.when(self._phase() == LATE, LATE_BY * SLOTS + 1).otherwise(0)
        again = F.when(self._phase() == DUPLICATED, F.array(F.lit(0), F.lit(1)))
        slots = F.when(again.isNotNull(), again).otherwise(F.array(late_slot))
        number = F.substring("key", 6, 7).cast("string").cast("int")
        return (
            self.records()
            .where(self._phase() != LOST)
            .select(
                (number % 24).alias("partition"),
                F.explode(slots).alias("slot"),
                "id",
                "key",
                "value",
            )
            .select(
                "partition", (F.col("id") * SLOTS + F.col("slot")).alias("offset"), "key", "value"
            )
        )

    def _keyed(self, ids: DataFrame) -> DataFrame:
        """Add partition, offset and key; the record after a late one has the same key."""
        is_late = self._phase().isin(LATE, LATE + LATE_BY)
        rank = F.when(is_late, 0).otherwise(_rank(KEYS // PARTITIONS))
        number = rank * PARTITIONS + F.col("id") % PARTITIONS
        return ids.select(
            "id",
            (F.col("id") % PARTITIONS).cast("int").alias("partition"),
            F.shiftright("id", 4).alias("offset"),
            F.concat(F.lit("user-"), number.cast("string")).cast("binary").alias("key"),
        )

    def _reports_of(self, ids: DataFrame, slot: Column) -> DataFrame:
        """A report per row of `ids`, `slot` offsets behind the place of its record."""
        is_second = (F.col("id") >= self.count // 2) & (self._phase() != FENCED)
        turn = is_second.cast("int")
        hashed = self._keyed(ids).select(
            "id",
            F.col("partition").alias("p"),
            F.col("offset").alias("o"),
            key_hash().alias("h"),
            turn.alias("turn"),
        )
        cuts = [LAYOUT.key_split(0).cuts] * PARTITIONS
        rows = hashed.select("*", lane_of(cuts, "h", "p"))
        number = F.col("turn") + 1
        texts = (
            '{"v":1,"k":"r","p":', F.col("p"),
            ',"o":', F.col("o"),
            ',"h":"', F.col("h"),
            '","m":"member-', (F.col("lane") + F.col("turn")) % MEMBERS,
            '","g":', number,
            ',"s":', number,
            ',"lo":"', _of_lane(LOWS, F.col("lane")),
            '","hi":"', _of_lane(HIGHS, F.col("lane")),
            '","t":', self._time_us(F.col("id")) + WORK_US,
            "}",
        )  # fmt: skip
        return rows.select(
            rules.audit_partition_of(AUDIT_PARTITIONS).alias("partition"),
            (F.col("id") * SLOTS + REPORT_SLOT + slot).alias("offset"),
            _concat(*texts).cast("binary").alias("value"),
        )

    def _assignments(self) -> DataFrame:
        rows = []
        for turn, first in enumerate((0, self.count // 2)):
            for member in range(MEMBERS):
                lanes = [lane for lane in range(LANES) if (lane + turn) % MEMBERS == member]
                value = {
                    "v": 1,
                    "k": "a",
                    "m": f"member-{member}",
                    "g": turn + 1,
                    "s": turn + 1,
                    "t": START_S * 1_000_000 + first * STEP_US,
                    "l": [
                        [p, LOWS[lane], HIGHS[lane]] for p in range(PARTITIONS) for lane in lanes
                    ],
                }
                place = first * SLOTS + ASSIGNED_SLOT + member
                rows += [(p, place, json.dumps(value).encode()) for p in range(AUDIT_PARTITIONS)]
        return self.spark.createDataFrame(rows, "partition int, offset bigint, value binary")

    def _commits(self) -> DataFrame:
        """Commits of all lanes by their members: all records before a number, in each partition."""
        rounds = -(-self.count // COMMIT_EVERY)
        at = F.least(F.col("id") * COMMIT_EVERY, F.lit(self.count))
        turn = (F.col("at") > self.count // 2).cast("int")
        each = self.spark.range(1, rounds + 1, 1, PARTITIONS).select(at.alias("at"))
        each = each.select(
            "at", turn.alias("turn"), F.explode(_numbers_to(MEMBERS)).alias("member")
        )

        def row(place: Column) -> Column:
            p = F.shiftright(place, 1)
            own = F.pmod(F.col("member") - F.col("turn"), F.lit(MEMBERS))
            lane = own + MEMBERS * (place % 2)
            offset = F.floor((F.col("at") - p + PARTITIONS - 1) / PARTITIONS)
            parts = ("[", p, ',"', _of_lane(LOWS, lane), '","', _of_lane(HIGHS, lane), '",', offset)
            return _concat(*parts, "]")

        rows = F.transform(_numbers_to(PARTITIONS * LANES // MEMBERS), row)
        texts = (
            '{"v":1,"k":"c","m":"member-', F.col("member"),
            '","g":', F.col("turn") + 1,
            ',"t":', self._time_us(F.col("at")) + COMMIT_US,
            ',"l":[', F.array_join(rows, ","), "]}",
        )  # fmt: skip
        return each.select(
            F.explode(_numbers_to(AUDIT_PARTITIONS)).alias("partition"),
            (F.col("at") * SLOTS + F.col("member")).alias("offset"),
            _concat(*texts).cast("binary").alias("value"),
        )

    def _phase(self) -> Column:
        return F.col("id") % self.tenth

    def _time_us(self, number: Column) -> Column:
        return F.lit(START_S * 1_000_000) + number * STEP_US


LATE_BY: Final = PARTITIONS
"""The next record of the same partition."""
LAYOUT: Final = LaneLayout(PARTITIONS, LANES)
LOWS: Final = tuple(str(LAYOUT.key_range(0, lane).lo) for lane in range(LANES))
HIGHS: Final = tuple(str(LAYOUT.key_range(0, lane).hi) for lane in range(LANES))


def _range_of(topic: str, ends: tuple[int, ...]) -> TopicRange:
    starts = (0,) * len(ends)
    return TopicRange(
        bootstrap="", topic=topic, starts=starts, ends=ends, options={}, topic_id=topic
    )


def _numbers(spark: SparkSession, count: int) -> DataFrame:
    """`count` numbers, in as many tasks as `topic_range.count_tasks` gives."""
    tasks = max(PARTITIONS, min(-(-count // RECORDS_PER_TASK), TASKS_MAX))
    return spark.range(0, count, 1, tasks)


def _numbers_to(count: int) -> Column:
    """0 to before `count`; ints."""
    return F.sequence(F.lit(0), F.lit(count - 1))


def _rank(keys: int) -> Column:
    """Place of a record's key among `keys`, the heaviest first."""
    return F.floor((F.exp(_chance(1) * math.log(keys / FLAT + 1)) - 1) * FLAT)


def _size() -> Column:
    return F.floor(_chance(2) * (VALUE_BYTES[1] - VALUE_BYTES[0])) + VALUE_BYTES[0]


def _chance(salt: int) -> Column:
    """A number from 0 to below 1 for each record, the same at each use."""
    bits = F.shiftrightunsigned(F.xxhash64(F.col("id"), F.lit(salt)), 11)
    return bits / float(1 << 53)


def _of_lane(texts: tuple[str, ...], lane: Column) -> Column:
    return F.element_at(F.array(*map(F.lit, texts)), (lane + 1).cast("int"))


def _concat(*parts: str | Column) -> Column:
    """Texts and columns, one behind the other."""
    return F.concat(
        *(F.lit(part) if isinstance(part, str) else part.cast("string") for part in parts)
    )
