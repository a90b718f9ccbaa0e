"""Compare two sides: the same records, and those of each key in the same order. DataFrames only.

A side is a topic, or what a group has reported. Keys and values are hashes (XXH64, and the length
of a value), so that neither their size nor their contents matter. A key is two hashes, so that two
keys of one hash are not taken for one.

One sort numbers the records of each key on each side. Of the numbered records each side gives one
hash per key (an exclusive or, which needs no order of rows); only keys that differ in it are looked
at record by record. A key whose records lie in several partitions of a side has no order there; if
it is not the same in each partition, its order cannot be judged, and its records are compared as a
set with counts. So are records without a key.

Equal records of a key are matched in their order: the first with the first.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from keylane.pipeline import expressions

MISSING, EXTRA, DUPLICATED, REORDERED = "missing", "extra", "duplicated", "reordered"
KINDS: Final = (MISSING, EXTRA, DUPLICATED, REORDERED)
"""Only before; only after; after more often than before; after in another place of its key."""
BEFORE, AFTER = 0, 1
NAMES: Final = {BEFORE: "before", AFTER: "after"}
KEY: Final = ("keyless", "k", "k2")
"""Columns that name a key."""
VALUE: Final = ("d", "size")
"""Columns that name a value."""
SECOND_SALT: Final = 1
"""Makes the second hash of a key another one."""


def topic_side(raw: DataFrame, side: int, *, headers: bool = False) -> DataFrame:
    """Records of Spark's Kafka source as a side: side, keyless, k, k2, d, size, p, o.

    `k` is the key hash that lanes use. `headers`: they are part of the value.
    """
    key, value = F.col("key"), F.col("value")
    parts = [value] if not headers else [value, F.to_json("headers")]
    return raw.select(
        F.lit(side).alias("side"),
        key.isNull().alias("keyless"),
        F.when(key.isNull(), F.lit(0)).otherwise(expressions.key_hash()).alias("k"),
        F.when(key.isNull(), F.lit(0)).otherwise(F.xxhash64(F.lit(SECOND_SALT), key)).alias("k2"),
        F.xxhash64(*parts).alias("d"),
        F.coalesce(F.octet_length(value), F.lit(-1)).alias("size"),  # null is not empty
        F.col("partition").alias("p"),
        F.col("offset").alias("o"),
    )


def first_reports(records: DataFrame) -> DataFrame:
    """The first of `rules.Reports.records` of each record, and how many there are: `reports`.

    What comes again is no difference between two groups: it is counted.
    """
    return records.groupBy("p", "o").agg(
        F.max("h").alias("h"),
        F.min(F.struct("ap", "ao")).alias("first"),
        F.count(F.lit(1)).alias("reports"),
    )


def group_side(first: DataFrame, side: int) -> DataFrame:
    """`first_reports` as a side: `d` is the offset of the input, p and o the report's place."""
    return first.select(
        F.lit(side).alias("side"),
        F.lit(False).alias("keyless"),
        F.col("h").alias("k"),
        F.col("p").cast("bigint").alias("k2"),
        F.col("o").alias("d"),
        F.lit(0).alias("size"),
        F.col("first.ap").alias("p"),
        F.col("first.ao").alias("o"),
    )


def numbered(rows: DataFrame, *, any_order: bool = False) -> DataFrame:
    """Rows of both sides with `seq`: the number of a record among those of its key, from 1.

    Without an order (records without a key, or all with `any_order`) each value counts as a key.
    """
    is_set = F.lit(True) if any_order else F.col("keyless")
    rows = rows.withColumn("is_set", is_set)
    own = Window.partitionBy("side", *KEY, *(F.when(F.col("is_set"), F.col(x)) for x in VALUE))
    return rows.withColumn("seq", F.row_number().over(own.orderBy("p", "o")))


def key_marks(rows: DataFrame) -> DataFrame:
    """Per key of `numbered`: records of each side, `differs`, `unordered`.

    `unordered`: its order cannot be judged, as its records are in several partitions of a side and
    not alike in each.
    """
    place = F.xxhash64("seq", *VALUE, "p")
    content = F.xxhash64("seq", *VALUE)
    found = rows.groupBy(*KEY, *_set_value()).agg(
        *(
            made.alias(f"{name}_{NAMES[side]}")
            for side in NAMES
            for name, made in (
                ("records", F.count_if(_is(side))),
                ("content", F.bit_xor(F.when(_is(side), content))),
                ("place", F.bit_xor(F.when(_is(side), place))),
                ("low", F.min(F.when(_is(side), F.col("p")))),
                ("high", F.max(F.when(_is(side), F.col("p")))),
            )
        ),
        F.bool_or("is_set").alias("is_set"),
    )
    differs = ~_same("records") | ~_same("content")
    scattered = (F.col("low_before") != F.col("high_before")) | (
        F.col("low_after") != F.col("high_after")
    )
    unordered = ~F.col("is_set") & F.coalesce(scattered, F.lit(False)) & ~_same("place")
    return found.select(
        *KEY,
        "set_d",
        "set_size",
        "records_before",
        "records_after",
        differs.alias("differs"),
        unordered.alias("unordered"),
    )


def differing(rows: DataFrame, marks: DataFrame) -> DataFrame:
    """Rows of `numbered` of the keys that differ, with `unordered`."""
    keys = marks.where("differs").select(*KEY, "set_d", "set_size", "unordered")
    own = rows.select("*", *_set_value())
    same = [F.col(f"r.{x}").eqNullSafe(F.col(f"k.{x}")) for x in (*KEY, "set_d", "set_size")]
    joined = own.alias("r").join(keys.alias("k"), same)
    return joined.select("r.*", (F.col("k.unordered") | F.col("r.is_set")).alias("unordered"))


def differences(rows: DataFrame) -> DataFrame:
    """Differences among the rows of `differing`, one per record.

    kind, keyless, k, k2, d, size, then p_before, o_before, p_after, o_after of the record (null on
    the side that lacks it), and of a reordered one the same of the record that came before it.
    """
    same_value = (*KEY, *VALUE)
    nth = Window.partitionBy("side", *same_value).orderBy("seq")
    at = F.struct("seq", "p", "o")
    pairs = (
        rows.withColumn("nth", F.row_number().over(nth))
        .groupBy(*same_value, "nth")
        .agg(
            F.max(F.when(_is(BEFORE), at)).alias("before"),
            F.max(F.when(_is(AFTER), at)).alias("after"),
            F.bool_or("unordered").alias("unordered"),
        )
    )
    had = F.max(F.col("before").isNotNull()).over(Window.partitionBy(*same_value))
    spread = F.when(F.col("unordered"), F.col("d"))  # no order is asked for: no key is too large
    own = (*KEY, spread, F.col("before").isNull(), F.col("after").isNull())
    earlier = Window.partitionBy(*own).orderBy("before.seq")
    earlier = earlier.rowsBetween(Window.unboundedPreceding, -1)
    latest = F.max(F.struct(F.col("after.seq").alias("seq"), "before", "after")).over(earlier)
    pairs = pairs.select("*", had.alias("had"), latest.alias("latest"))
    went_back = ~F.col("unordered") & (F.col("after.seq") < F.col("latest.seq"))
    kind = (
        F.when(F.col("after").isNull(), MISSING)
        .when(F.col("before").isNull() & F.col("had"), DUPLICATED)
        .when(F.col("before").isNull(), EXTRA)
        .when(went_back, REORDERED)
    )
    found = pairs.withColumn("kind", kind).where(F.col("kind").isNotNull())
    is_reordered = F.col("kind") == REORDERED
    return found.select(
        "kind",
        *same_value,
        *(F.col(f"{s}.{x}").alias(f"{x}_{s}") for s in NAMES.values() for x in ("p", "o")),
        *(
            F.when(is_reordered, F.col(f"latest.{s}.{x}")).alias(f"previous_{x}_{s}")
            for s in NAMES.values()
            for x in ("p", "o")
        ),
    )


def first_differences(rows: DataFrame) -> DataFrame:
    """The first record of each key of `differing` at which its sequences part.

    keyless, k, k2, seq, p_before, o_before, p_after, o_after; null on a side that has ended. Keys
    without an order have none.
    """
    what = F.struct(*VALUE)
    at = F.struct("p", "o")
    steps = (
        rows.where(~F.col("unordered"))
        .groupBy(*KEY, "seq")
        .agg(
            *(
                F.max(F.when(_is(side), F.struct(what.alias("what"), at.alias("at")))).alias(name)
                for side, name in NAMES.items()
            )
        )
        .where(~F.col("before.what").eqNullSafe(F.col("after.what")))
    )
    least = F.min_by(F.struct("before", "after"), "seq").alias("at")
    return (
        steps.groupBy(*KEY)
        .agg(F.min("seq").alias("seq"), least)
        .select(
            *KEY,
            "seq",
            *(
                F.col(f"at.{s}.at.{x}").alias(f"{x}_{s}")
                for s in NAMES.values()
                for x in ("p", "o")
            ),
        )
    )


def _set_value() -> list[Column]:
    """The value where it is part of what a key is."""
    return [F.when(F.col("is_set"), F.col(name)).alias(f"set_{name}") for name in VALUE]


def _is(side: int) -> Column:
    return F.col("side") == side


def _same(name: str) -> Column:
    return F.col(f"{name}_before").eqNullSafe(F.col(f"{name}_after"))
