"""Coverage as a stream: what a running group has lost, reported while it runs.

Members flush their reports before they commit. So once the group has committed an offset, its
report is in the audit topic, and a batch that Spark plans after that sees it: what is missing
then is lost. Spark holds two bitmaps per 32,768 offsets (8 KiB). This process gets the bitmaps of
those buckets that lack something, a partition of the shuffle at a time, and holds what they lack:
4 KiB for a bucket that is half done, and nothing but its number for one that was not begun. So a
group that is a billion records behind costs a few MB.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from keylane.errors import ConfigInvalid
from keylane.pipeline.audit import rules
from keylane.pipeline.job import source_options
from keylane.pipeline.storage import Folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOGGED_MAX: Final = 20
"""Offsets that one line lists."""
STATE: Final = "follow.json"
CHECKPOINT: Final = "checkpoint"
STATE_VERSION: Final = 2
STATE_BYTES_MAX: Final = 1 << 28
"""Of `follow.json`: 6 KiB at most for a bucket of which something is missing."""
WHOLE: Final = (1 << rules.BITMAP_BITS) - 1
"""All bits of a bucket. One number for all buckets that have them: a reference each."""


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


def changed_buckets(updated: DataFrame) -> DataFrame:
    """A batch of `coverage_stream` as `p`, `bucket`, `wanted`, `had`, `again`.

    `wanted` and `had` are null where they are equal; `again` are the reports beyond the
    first of an offset.
    """
    differs = F.col("wanted") != F.col("had")
    return updated.select(
        "p",
        "bucket",
        F.when(differs, F.col("wanted")).alias("wanted"),
        F.when(differs, F.col("had")).alias("had"),
        (F.col("reports") - F.bitmap_count("had")).alias("again"),
    )


@dataclass(slots=True)
class Follower:
    """A function for `foreachBatch` over `coverage_stream`.

    Invariants: `open` holds, for each bucket with something missing, exactly the bits of that;
    `lost` the bits of them that were reported as lost.
    """

    read_committed: Callable[[], Mapping[int, int]]
    """Returns the group's commits of now: the next offset by partition."""
    report: Callable[[str], None]
    folder: Folder
    """Holds `checkpoint`, and `follow.json` with the open buckets of that checkpoint."""
    open: dict[tuple[int, int], int] = field(default_factory=dict)
    floor: dict[int, int] = field(default_factory=dict)
    """Committed before the batch that is being looked at was planned."""
    lost: dict[tuple[int, int], int] = field(default_factory=dict)
    repeats: dict[tuple[int, int], int] = field(default_factory=dict)
    """Reports beyond the first of an offset, by bucket; redelivered ones are among them."""

    def load(self) -> None:
        """Go on where an earlier run of the same checkpoint ended.

        Raises:
            ConfigInvalid: the checkpoint has batches of which `follow.json` knows nothing: it
                was removed, or is of another checkpoint.
        """
        has_batches = bool(self.folder.child(CHECKPOINT).child("commits").names())
        if has_batches:
            data = self.folder.read(STATE, STATE_BYTES_MAX)
            state = json.loads(data) if data is not None else {}
            if state.get("version") != STATE_VERSION or state.get("query") != self._query_id():
                raise ConfigInvalid(
                    f"{self.folder}: {STATE} is not that of {CHECKPOINT}, whose lost records it"
                    f" lists: restore it, or remove {CHECKPOINT} to begin at the earliest record"
                )
            self.open = {(p, bucket): _unpack(bits) for p, bucket, bits in state["open"]}
            self.lost = {(p, bucket): _unpack(bits) for p, bucket, bits in state["lost"]}
            self.repeats = {(p, bucket): count for p, bucket, count in state["repeats"]}
        self.floor = dict(self.read_committed())

    def __call__(self, updated: DataFrame, batch_id: int) -> None:
        """Take in the buckets that changed, judge, and ask how far the group is now."""
        # Held, so that all partitions are computed at once, and come here one by one.
        changed = changed_buckets(updated).persist(StorageLevel.DISK_ONLY)
        try:
            changed.count()
            for row in changed.toLocalIterator():
                self.take(row["p"], row["bucket"], row["wanted"], row["had"], row["again"])
        finally:
            changed.unpersist()
        new = self.judge()
        listed = ", ".join(f"{p}:{offset}" for p, offset in new[:LOGGED_MAX])
        self.report(
            f"batch {batch_id}: {len(self.open)} buckets open, {self.repeat_count} reports again,"
            f" {self.lost_count} lost" + (f", new {listed}" if new else "")
        )
        self._save()
        self.floor = dict(self.read_committed())

    def take(
        self, p: int, bucket: int, wanted: bytes | None, had: bytes | None, again: int
    ) -> None:
        """One bucket as it is now; without bitmaps when nothing is missing."""
        # Bit k of a bitmap is bit k % 8 of byte k // 8: a little-endian number.
        missing = int.from_bytes(wanted or b"", "little") & ~int.from_bytes(had or b"", "little")
        self.open[p, bucket] = WHOLE if missing == WHOLE else missing
        if not missing:
            del self.open[p, bucket]
        if again:
            self.repeats[p, bucket] = again

    def judge(self) -> list[tuple[int, int]]:
        """Take what is missing below what was committed as lost.

        Returns the first `LOGGED_MAX` offsets that were not lost before, in order.
        """
        found: list[tuple[int, int]] = []
        for (p, bucket), missing in sorted(self.open.items()):
            first = (bucket - 1) * rules.BITMAP_BITS
            count = min(self.floor.get(p, 0) - first, rules.BITMAP_BITS)
            if count <= 0:
                continue
            before = self.lost.get((p, bucket), 0)
            new = missing & ((1 << count) - 1) & ~before
            if new:
                self.lost[p, bucket] = WHOLE if before | new == WHOLE else before | new
            while new and len(found) < LOGGED_MAX:
                position = (new & -new).bit_length() - 1
                found.append((p, first + position))
                new &= new - 1
        return found

    @property
    def lost_count(self) -> int:
        """Offsets that were reported as lost."""
        return sum(bits.bit_count() for bits in self.lost.values())

    @property
    def repeat_count(self) -> int:
        """Reports beyond the first of their offset."""
        return sum(self.repeats.values())

    def _query_id(self) -> str:
        """The id that Spark gave the query of the checkpoint when it was made."""
        data = self.folder.child(CHECKPOINT).read("metadata", 1 << 16)
        if data is None:
            raise ConfigInvalid(f"{self.folder.child(CHECKPOINT)}: has batches and no metadata")
        return str(json.loads(data)["id"])

    def _save(self) -> None:
        state = {
            "version": STATE_VERSION,
            "query": self._query_id(),
            "open": [(p, bucket, _pack(bits)) for (p, bucket), bits in self.open.items()],
            "lost": [(p, bucket, _pack(bits)) for (p, bucket), bits in self.lost.items()],
            "repeats": [(p, bucket, count) for (p, bucket), count in self.repeats.items()],
        }
        self.folder.write(STATE, json.dumps(state).encode())


def _pack(bits: int) -> str:
    """Bits of a bucket as text: a bucket that lacks all takes some ten characters."""
    data = bits.to_bytes(rules.BITMAP_BITS // 8, "little")
    return base64.b64encode(zlib.compress(data, 1)).decode()


def _unpack(text: str) -> int:
    bits = int.from_bytes(zlib.decompress(base64.b64decode(text)), "little")
    return WHOLE if bits == WHOLE else bits
