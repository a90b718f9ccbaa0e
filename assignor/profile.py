"""A profile of key load: what each part of the hash space weighs, per partition of a topic.

The hash space is seen as 2^bits equal buckets. Hashes are decimal strings, as in a plan.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from keylane.assignor.range_plan import (
    HASH_FORM,
    PARTITIONS_MAX,
    read_cut,
    read_integer,
    read_text,
)
from keylane.errors import ConfigInvalid
from keylane.keyrange.space import HASH_MAX

PROFILE_FORMAT: Final = "keylane-profile"
PROFILE_VERSION: Final = 1
PROFILE_BYTES_MAX: Final = 512 << 20
SUMMARY_NAME: Final = "profile.json"
"""Name of the summary in the folder of `keylane spark profile`."""
BITS_MAX: Final = 16
HASH_BITS: Final = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyKey:
    """A key that weighs much in its partition."""

    partition: int
    key_hash: int
    records: int
    size_bytes: int
    key: bytes | None = None
    """The key itself, where it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoad:
    """One partition between two offsets."""

    start: int
    end: int
    """The offset behind the last that was looked at."""
    records: tuple[int, ...]
    """By bucket."""
    size_bytes: tuple[int, ...]
    """By bucket: bytes of keys and values."""
    keyless_records: int = 0
    keyless_bytes: int = 0
    distinct_keys: int | None = None
    """None: not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadProfile:
    """A topic's load over the hash space."""

    topic: str
    bits: int
    partitions: tuple[PartitionLoad, ...]
    heavy: tuple[HeavyKey, ...] = ()
    """Heaviest first by bytes."""
    knows_heavy: bool = True
    """False: keys were not counted one by one, so `heavy` says nothing."""

    @property
    def bucket_count(self) -> int:
        """Buckets of each partition."""
        return 1 << self.bits

    @property
    def records(self) -> int:
        """Records of all partitions."""
        return sum(sum(load.records) for load in self.partitions)

    @property
    def size_bytes(self) -> int:
        """Bytes of all partitions."""
        return sum(sum(load.size_bytes) for load in self.partitions)

    def bucket_start(self, bucket: int) -> int:
        """First hash of a bucket."""
        return bucket << (HASH_BITS - self.bits)


def write_profile(profile: LoadProfile) -> bytes:
    """The summary file: totals for people, buckets for `keylane plan`."""
    records, size = profile.records, profile.size_bytes
    keyless = sum(load.keyless_records for load in profile.partitions)
    distinct = [load.distinct_keys for load in profile.partitions]
    document = {
        "format": PROFILE_FORMAT,
        "version": PROFILE_VERSION,
        "topic": profile.topic,
        "bits": profile.bits,
        "hash": HASH_FORM,
        "records": records,
        "bytes": size,
        "keyless_share": round(keyless / records, 6) if records else 0.0,
        "distinct_keys": None if None in distinct else sum(filter(None, distinct)),
        "heavy": [_heavy_row(key, size) for key in profile.heavy] if profile.knows_heavy else None,
        "partitions": [
            {
                "offsets": [load.start, load.end],
                "keyless_records": load.keyless_records,
                "keyless_bytes": load.keyless_bytes,
                "distinct_keys": load.distinct_keys,
                "records": list(load.records),
                "bytes": list(load.size_bytes),
            }
            for load in profile.partitions
        ],
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def read_profile(data: bytes) -> LoadProfile:
    """Read and check a summary file.

    Raises:
        ConfigInvalid: no profile, or a field is wrong; the text names the place.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigInvalid(f"profile: no JSON: {str(error)[:200]}") from None
    if not isinstance(document, dict) or document.get("format") != PROFILE_FORMAT:
        raise ConfigInvalid(f"profile.format: expected {PROFILE_FORMAT}")
    if document.get("version") != PROFILE_VERSION:
        raise ConfigInvalid(f"profile.version: expected {PROFILE_VERSION}")
    if document.get("hash") != HASH_FORM:
        raise ConfigInvalid(f"profile.hash: expected {json.dumps(HASH_FORM)}")
    bits = read_integer(document.get("bits"), "profile.bits", 1, BITS_MAX)
    rows = _list(document, "partitions", "profile")
    if not 1 <= len(rows) <= PARTITIONS_MAX:
        raise ConfigInvalid(f"profile.partitions: expected 1 to {PARTITIONS_MAX}")
    topic = read_text(document.get("topic"), "profile.topic")
    knows_heavy = document.get("heavy") is not None
    heavy = _list(document, "heavy", "profile") if knows_heavy else []
    return LoadProfile(
        topic=topic,
        bits=bits,
        partitions=tuple(
            _read_partition(row, f"profile.partitions.{place}", bits)
            for place, row in enumerate(rows)
        ),
        heavy=tuple(
            _read_heavy(row, f"profile.heavy.{place}", len(rows)) for place, row in enumerate(heavy)
        ),
        knows_heavy=knows_heavy,
    )


def _heavy_row(key: HeavyKey, size: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "partition": key.partition,
        "key_hash": str(key.key_hash),
        "records": key.records,
        "bytes": key.size_bytes,
        "share": round(key.size_bytes / size, 6) if size else 0.0,
    }
    if key.key is not None:
        row["key_base64"] = base64.b64encode(key.key).decode()
        row["key"] = key.key.decode(errors="backslashreplace")
    return row


def _read_partition(row: Any, place: str, bits: int) -> PartitionLoad:
    if not isinstance(row, dict):
        raise ConfigInvalid(f"{place}: expected an object")
    offsets = _list(row, "offsets", place)
    sized = len(offsets) == 2 and all(type(item) is int and item >= 0 for item in offsets)
    if not sized or offsets[0] > offsets[1]:
        raise ConfigInvalid(f"{place}.offsets: expected two offsets, ascending")
    distinct = row.get("distinct_keys")
    return PartitionLoad(
        start=offsets[0],
        end=offsets[1],
        records=_counts(row, "records", place, bits),
        size_bytes=_counts(row, "bytes", place, bits),
        keyless_records=read_integer(row.get("keyless_records"), f"{place}.keyless_records"),
        keyless_bytes=read_integer(row.get("keyless_bytes"), f"{place}.keyless_bytes"),
        distinct_keys=None
        if distinct is None
        else read_integer(distinct, f"{place}.distinct_keys"),
    )


def _read_heavy(row: Any, place: str, partition_count: int) -> HeavyKey:
    if not isinstance(row, dict):
        raise ConfigInvalid(f"{place}: expected an object")
    key = row.get("key_base64")
    key_hash = read_cut(row.get("key_hash"), f"{place}.key_hash", 0)
    try:
        decoded = None if key is None else base64.b64decode(key, validate=True)
    except (TypeError, ValueError, binascii.Error):
        raise ConfigInvalid(f"{place}.key_base64: expected base64") from None
    return HeavyKey(
        partition=read_integer(row.get("partition"), f"{place}.partition", 0, partition_count - 1),
        key_hash=key_hash,
        records=read_integer(row.get("records"), f"{place}.records"),
        size_bytes=read_integer(row.get("bytes"), f"{place}.bytes"),
        key=decoded,
    )


def _counts(row: Mapping[str, Any], name: str, place: str, bits: int) -> tuple[int, ...]:
    values = _list(row, name, place)
    if len(values) != 1 << bits:
        raise ConfigInvalid(f"{place}.{name}: expected a list of {1 << bits}")
    if not all(type(value) is int and 0 <= value <= HASH_MAX for value in values):
        raise ConfigInvalid(f"{place}.{name}: expected integers, 0 or more")
    return tuple(values)


def _list(row: Mapping[str, Any], name: str, place: str) -> list[Any]:
    value = row.get(name)
    if not isinstance(value, list):
        raise ConfigInvalid(f"{place}.{name}: expected a list")
    return value
