"""Compare the rows of two sides, wherever they were read: a migration without Kafka.

Counts and bounded tables reach this process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F

from keylane.embedded.resolve import Progress
from keylane.pipeline.job import hold
from keylane.pipeline.migration import sides
from keylane.pipeline.migration.sides import NAMES

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

LISTED_MAX: Final = 100_000
"""Differences, and keys, in the Parquet files: 10 MB; counts are of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideComparison:
    """Differences of two sides."""

    records: Mapping[str, int]
    """Records of each side, by its name."""
    counts: Mapping[str, int]
    """Differences by kind, all kinds."""
    keys: int
    keys_different: int
    keys_unordered: int
    """Keys whose order could not be judged."""
    difference_table: pa.Table
    """The first `LISTED_MAX` differences."""
    key_table: pa.Table
    """The first `LISTED_MAX` keys that differ."""
    doubts: Sequence[str]
    """Signs that not all steps have seen the same records."""


def compare_sides(
    rows: DataFrame, *, any_order: bool, is_work: bool, stack: ExitStack, progress: Progress
) -> SideComparison:
    """Compare `rows`, those of `sides.topic_side` or `sides.group_side` of both sides.

    `any_order`: without the order of records. `is_work`: they are of groups. `stack` releases at
    its end what is held.
    """
    progress("comparing keys")
    rows = hold(sides.numbered(rows, any_order=any_order), stack)
    marks = hold(sides.key_marks(rows), stack)
    totals = marks.agg(
        _distinct_keys().alias("keys"),
        F.coalesce(F.sum("records_before"), F.lit(0)).alias("before"),
        F.coalesce(F.sum("records_after"), F.lit(0)).alias("after"),
        F.count_if("unordered").alias("unordered"),
        F.count_if("differs").alias("differs"),
    ).collect()[0]
    differing = hold(sides.differing(rows, marks), stack)
    found = hold(sides.differences(differing), stack)
    counts, different = dict.fromkeys(sides.KINDS, 0), 0
    if totals["differs"]:
        progress("comparing records of keys that differ")
        kinds = (F.count_if(F.col("kind") == kind).alias(kind) for kind in sides.KINDS)
        counted = found.agg(_distinct_keys(), *kinds).collect()[0]
        counts, different = {kind: counted[kind] for kind in sides.KINDS}, counted[0]
    listed_max = LISTED_MAX if totals["differs"] else 0  # without, nothing has to be run
    listed = found.orderBy("kind", "p_before", "o_before", "p_after", "o_after")
    table = listed.limit(listed_max).select(*_shown_columns(is_work=is_work)).toArrow()
    keys = _keys(found, sides.first_differences(differing), is_work=is_work)
    keys = keys.orderBy("before_partition", "before_offset", "key_hash")
    key_table = keys.limit(listed_max).toArrow()
    progress("")
    return SideComparison(
        records={name: totals[name] for name in NAMES.values()},
        counts=counts,
        keys=totals["keys"],
        keys_different=different,
        keys_unordered=totals["unordered"],
        difference_table=table,
        key_table=key_table,
        doubts=_doubts(totals, counts),
    )


def _doubts(totals: Row, counts: Mapping[str, int]) -> list[str]:
    is_found = any(counts.values()) or totals["unordered"] or not totals["differs"]
    of_before = totals["before"] - counts[sides.MISSING]
    of_after = totals["after"] - counts[sides.EXTRA] - counts[sides.DUPLICATED]
    if is_found and of_before == of_after:  # what both sides have
        return []
    return ["records were read again after a worker was lost, and are others"]


def _keys(found: DataFrame, first: DataFrame, *, is_work: bool) -> DataFrame:
    """A row per key with differences: how many of each kind, and where its sequences part."""
    counts = found.groupBy(*sides.KEY).agg(
        *(F.count_if(F.col("kind") == kind).alias(kind) for kind in sides.KINDS)
    )
    joined = counts.join(first, [*sides.KEY], "left")
    partition = [F.col("k2").cast("int").alias("partition")] if is_work else []
    return joined.select(
        _key_hash(),
        *partition,
        *sides.KINDS,
        F.col("seq").alias("first_number"),
        *_places(""),
    )


def _shown_columns(*, is_work: bool) -> list[Column]:
    value = (
        [F.col("k2").cast("int").alias("partition"), F.col("d").alias("offset")]
        if is_work
        else [
            F.col("d").alias("value_hash"),
            F.when(F.col("size") >= 0, F.col("size")).alias("value_bytes"),
        ]
    )
    return [F.col("kind"), _key_hash(), *value, *_places(""), *_places("previous_")]


def _distinct_keys() -> Column:
    """Number of keys; records without a key have none."""
    return F.count_distinct(F.when(~F.col("keyless"), F.struct("k", "k2")))


def _key_hash() -> Column:
    return F.when(~F.col("keyless"), F.col("k")).alias("key_hash")


def _places(prefix: str) -> list[Column]:
    return [
        F.col(f"{prefix}{short}_{side}").alias(f"{prefix}{side}_{name}")
        for side in NAMES.values()
        for short, name in (("p", "partition"), ("o", "offset"))
    ]
