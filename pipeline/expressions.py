"""The expressions that every job shares: key hash, null rule, bucket, lane, bytes of a record.

`keylane.keyrange.hash` is the same in Python. Spark has no murmur2: its `hash` is murmur3.
Spark's `xxhash64` is XXH64 with seed 42, and a bigint hashes as its 8 little-endian bytes. Of null
it returns the seed, so that all records without a key would share a lane: those hash their offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from keylane.keyrange.hash import KEY_HASH_SEED
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import HASH_MAX
from keylane.pipeline.murmur2 import hash_keys

HASH_BITS: Final = 63
BUCKET_BITS: Final = 12
"""4,096 buckets: finer cuts gained nothing on measured topics, a JSON of them is 100 kB."""

assert KEY_HASH_SEED == 42  # the seed of Spark's xxhash64, which cannot be set


def key_hash(key: Column | str = "key", offset: Column | str = "offset") -> Column:
    """The point of the hash space that a record belongs to: a bigint in [0, 2**63 - 1].

    `key` is hashed as bytes (a text as its UTF-8, whatever its collation); a record whose key is
    null hashes `offset`. An empty key is a key.
    """
    key_column = _column(key)
    digest = F.when(key_column.isNull(), F.xxhash64(_column(offset).cast("bigint"))).otherwise(
        F.xxhash64(key_column.cast("binary"))
    )
    return F.shiftrightunsigned(digest, 1).alias("key_hash")


def murmur2(key: Column | str = "key") -> Column:
    """The hash of which Kafka's default partitioner takes the remainder: a bigint below 2**31.

    `key` is hashed as bytes; null gives null. One partition of N is `murmur2(key) % N`. Workers
    hash columns as Arrow arrays (`keylane.pipeline.murmur2`), no key becomes an object of Python.
    """
    make: Any = arrow_udf  # its overloads have no plain function
    hashed: Column = make(hash_keys, "bigint")(_column(key).cast("binary"))
    return hashed.alias("murmur2")


def murmur2_lane(
    layout: LaneLayout, key: Column | str = "key", offset: Column | str = "offset"
) -> Column:
    """The lane (an int from 0) of a record in a topic whose lane rule has `hash: murmur2`.

    Inside its partition: that is `murmur2(key) % partitions` if producers use Kafka's default
    partitioner. A record whose key is null is spread by its offset.

    Raises:
        ValueError: the layout has another hash.
    """
    order = layout.key_hash.lane_order(layout.lane_count)
    if order is None:
        raise ValueError(f"lanes by {layout.hash}, see lane_of")
    by_key = F.floor(murmur2(key) / layout.partition_count) % layout.lane_count
    point = F.shiftrightunsigned(F.xxhash64(_column(offset).cast("bigint")), 1)
    interval = F.lit(0)
    for cut in layout.key_split(0).cuts:
        interval = interval + (point >= F.lit(cut)).cast("int")
    by_offset = F.element_at(F.array(*map(F.lit, order)), interval + 1)
    return F.when(_column(key).isNull(), by_offset).otherwise(by_key).cast("int").alias("lane")


def bucket(key_hash: Column | str = "key_hash", bits: int = BUCKET_BITS) -> Column:
    """Return which of 2**bits equal parts of the hash space a hash lies in: an int from 0."""
    if not 0 < bits <= 30:
        raise ValueError(f"bits must be 1 to 30, got {bits}")
    return F.shiftright(_column(key_hash), HASH_BITS - bits).cast("int").alias("bucket")


def record_bytes(
    key: Column | str = "key",
    value: Column | str = "value",
    headers: Column | str | None = None,
) -> Column:
    """Bytes of key and value, and of headers where that column is given; null counts as none.

    `headers` is the column of the source's option `includeHeaders`.
    """
    size = _size(_column(key)) + _size(_column(value))
    if headers is None:
        return size.alias("bytes")
    each = F.aggregate(
        _column(headers),
        F.lit(0).cast("bigint"),
        lambda total, header: total + _size(header["key"]) + _size(header["value"]),
    )
    return (size + F.coalesce(each, F.lit(0).cast("bigint"))).alias("bytes")


def lane_of(
    cuts: Sequence[Sequence[int]],
    key_hash: str = "key_hash",
    partition: str = "partition",
) -> Column:
    """The lane (an int from 0) of a hash by the cuts of its partition, `RangePlan.cuts`.

    `cuts[p]` are the first hashes of lanes 1, 2, ... of partition p, ascending. The columns are
    names, since each is looked at once per step of a binary search; a partition without cuts is
    null. Partitions that are cut alike share a search.

    Raises:
        ValueError: cuts do not ascend within the hash space.
    """
    for number, row in enumerate(cuts):
        if list(row) != sorted(set(row)) or (row and not 0 < row[0] <= row[-1] <= HASH_MAX):
            raise ValueError(f"cuts of partition {number} must ascend from 1 to 2**63-1")
    hash_name, partition_name = _quoted(key_hash), _quoted(partition)
    text = _search_text(hash_name, cuts[0], 0) if cuts else "null"
    if len(set(map(tuple, cuts))) > 1:
        text = _partitions_text(hash_name, partition_name, cuts, 0, len(cuts))
    inside = f"{partition_name} >= 0 AND {partition_name} < {len(cuts)}"
    return F.expr(f"CAST(IF({inside}, {text}, null) AS INT)").alias("lane")


def _partitions_text(
    hash_name: str, partition_name: str, cuts: Sequence[Sequence[int]], first: int, end: int
) -> str:
    """A binary search over the partitions, with that of each one's cuts at its leaves."""
    if end - first == 1:
        return _search_text(hash_name, cuts[first], 0)
    middle = (first + end) // 2
    lower = _partitions_text(hash_name, partition_name, cuts, first, middle)
    upper = _partitions_text(hash_name, partition_name, cuts, middle, end)
    return f"IF({partition_name} < {middle}, {lower}, {upper})"


def _search_text(hash_name: str, cuts: Sequence[int], first_lane: int) -> str:
    """A binary search as nested IFs: log2(lanes) comparisons per record."""
    if not cuts:
        return str(first_lane)
    middle = len(cuts) // 2
    lower = _search_text(hash_name, cuts[:middle], first_lane)
    upper = _search_text(hash_name, cuts[middle + 1 :], first_lane + middle + 1)
    return f"IF({hash_name} < {cuts[middle]}L, {lower}, {upper})"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _size(column: Column) -> Column:
    return F.coalesce(F.octet_length(column), F.lit(0)).cast("bigint")


def _column(column: Column | str) -> Column:
    return F.col(column) if isinstance(column, str) else column
