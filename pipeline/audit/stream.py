"""Coverage as a stream: what a running group has lost, reported while it runs.

Members flush their reports before they commit. So once the group has committed an offset, its
report is in the audit topic, and a batch that Spark plans after that sees it: what is missing
then is lost. Spark holds two bitmaps per 32,768 offsets (8 KiB); this process holds those buckets
alone in which something is missing, which are as many as the group lags behind.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from keylane.files import replacing
from keylane.pipeline.audit import rules
from keylane.pipeline.job import source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGGED_MAX: Final = 20
"""Offsets that one line lists."""


def coverage_stream(
    spark: SparkSession,
    bootstrap: str,
    input_topic: str,
    audit_topic: str,
    options: Mapping[str, str],
) -> DataFrame:
    """`p`, `bucket`, `wanted`, `had` (bitmaps) and `reports`, for output mode `update`.

    Without a limit per batch: a batch has all that was there when it was planned.
    """

    def read(topic: str) -> DataFrame:
        source = source_options(bootstrap, topic, options)
        return spark.readStream.format("kafka").options(**source).load()

    reports = rules.split_reports(rules.parse_values(read(audit_topic))).records
    rows = (
        read(input_topic)
        .select(F.col("partition").alias("p"), F.col("offset").alias("o"), F.lit(True).alias("is"))
        .unionAll(reports.select("p", "o", F.lit(False).alias("is")))
    )
    place = F.col("o") + 1  # Spark counts positions from 1
    bit = F.bitmap_bit_position(place)
    is_input = F.col("is")
    return rows.groupBy("p", F.bitmap_bucket_number(place).alias("bucket")).agg(
        F.bitmap_construct_agg(F.when(is_input, bit)).alias("wanted"),
        F.bitmap_construct_agg(F.when(~is_input, bit)).alias("had"),
        F.count_if(~is_input).alias("reports"),
    )


@dataclass(slots=True)
class Follower:
    """A function for `foreachBatch` over `coverage_stream`.

    Invariant: `open` holds, for each bucket with something missing, exactly the bits of that.
    """

    read_committed: Callable[[], Mapping[int, int]]
    """Returns the group's commits of now: the next offset by partition."""
    report: Callable[[str], None]
    state_path: Path
    """File that open buckets are kept in, for the next start from the same checkpoint."""
    open: dict[tuple[int, int], int] = field(default_factory=dict)
    floor: dict[int, int] = field(default_factory=dict)
    """Committed before the batch that is being looked at was planned."""
    lost: set[tuple[int, int]] = field(default_factory=set)
    repeats: dict[tuple[int, int], int] = field(default_factory=dict)
    """Reports beyond the first of an offset, by bucket; redelivered ones are among them."""

    def load(self) -> None:
        """Go on where an earlier run of the same checkpoint ended."""
        if self.state_path.exists():
            reported = json.loads(self.state_path.read_text(encoding="utf-8"))
            self.open = {(p, bucket): int(bits, 16) for p, bucket, bits in reported["open"]}
            self.lost = {(p, offset) for p, offset in reported["lost"]}
            self.repeats = {(p, bucket): count for p, bucket, count in reported["repeats"]}
        self.floor = dict(self.read_committed())

    def __call__(self, updated: DataFrame, batch_id: int) -> None:
        """Take in the buckets that changed, judge, and ask how far the group is now."""
        for row in updated.collect():  # bitmaps of the buckets that changed, not records
            self.take(row["p"], row["bucket"], row["wanted"], row["had"], row["reports"])
        new = self.judge()
        self.lost |= new
        listed = ", ".join(f"{p}:{offset}" for p, offset in sorted(new)[:LOGGED_MAX])
        self.report(
            f"batch {batch_id}: {len(self.open)} buckets open, {self.repeat_count} reports again,"
            f" {len(self.lost)} lost" + (f", new {listed}" if new else "")
        )
        self._save()
        self.floor = dict(self.read_committed())

    def take(self, p: int, bucket: int, wanted: bytes, had: bytes, reports: int) -> None:
        """One bucket as it is now."""
        # Bit k of a bitmap is bit k % 8 of byte k // 8: a little-endian number.
        reported = int.from_bytes(had, "little")
        missing = int.from_bytes(wanted, "little") & ~reported
        self.open[p, bucket] = missing
        if not missing:
            del self.open[p, bucket]
        again = reports - reported.bit_count()
        if again:
            self.repeats[p, bucket] = again

    def judge(self) -> set[tuple[int, int]]:
        """Offsets below what was committed, without a report, that were not listed yet."""
        found = set()
        for (p, bucket), missing in self.open.items():
            first = (bucket - 1) * rules.BITMAP_BITS
            count = min(self.floor.get(p, 0) - first, rules.BITMAP_BITS)
            below = missing & ((1 << max(count, 0)) - 1)
            while below:
                position = (below & -below).bit_length() - 1
                found.add((p, first + position))
                below &= below - 1
        return found - self.lost

    @property
    def repeat_count(self) -> int:
        """Reports beyond the first of their offset."""
        return sum(self.repeats.values())

    def _save(self) -> None:
        reported = {
            "open": [(p, bucket, hex(bits)) for (p, bucket), bits in self.open.items()],
            "lost": sorted(self.lost),
            "repeats": [(p, bucket, count) for (p, bucket), count in self.repeats.items()],
        }
        self.state_path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.state_path) as partial:
            partial.write_text(json.dumps(reported), encoding="utf-8")
