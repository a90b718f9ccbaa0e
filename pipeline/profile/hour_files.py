"""Files of a profile by hour: for each partition what each bucket weighs in each hour, as Parquet.

A file is read by itself, so memory is that of one partition: at most 744 hours x 4,096 buckets,
which take 0.5 GB while they are looked at. Needs pyarrow, but not Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from keylane.assignor.hourly import HourLoads
from keylane.assignor.profile import LoadProfile
from keylane.errors import ConfigInvalid
from keylane.pipeline.profile.files import parquet_bytes
from keylane.pipeline.profile.hour_index import HourIndex
from keylane.pipeline.storage import Folder

HOURS_FOLDER: Final = "hours"
FILE_BYTES_MAX: Final = 256 << 20
"""Beyond 744 hours of 4,096 buckets, at 28 bytes a row."""
FACTS: Final = b"keylane.hours"
HOURS_SCHEMA: Final = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "start": pa.timestamp("s", tz="UTC"),
        "bucket": pa.int32(),
        "records": pa.int64(),
        "bytes": pa.int64(),
    }
)


def save_hours(
    folder: Folder, profile: LoadProfile, number: int, index: HourIndex, rows: pa.Table
) -> HourLoads:
    """Write the sums of one partition: (start in seconds, bucket, records, bytes), and return them.

    Raises: StorageFailed.
    """
    rows = rows.sort_by([("start", "ascending"), ("bucket", "ascending")])
    columns = {
        "topic": pa.repeat(profile.topic, rows.num_rows),
        "partition": pa.repeat(pa.scalar(number, pa.int32()), rows.num_rows),
        **{name: rows[name] for name in HOURS_SCHEMA.names[2:]},
    }
    facts = {"of": _of(profile, number), "zone": index.zone, "starts": index.starts}
    schema = HOURS_SCHEMA.with_metadata({FACTS: json.dumps(facts)})
    table = pa.table(columns).cast(schema).combine_chunks()
    folder.write(_name(number), parquet_bytes(table.to_batches(), schema))
    return dense_hours(index.starts, profile.bucket_count, rows)


def load_hours(folder: Folder, profile: LoadProfile) -> Iterator[HourLoads]:
    """The hours of each partition of `profile`, one after the other.

    Raises:
        ConfigInvalid: a file is missing, cannot be read, or is not of this profile.
    """
    for number, load in enumerate(profile.partitions):
        place = f"{folder}/{_name(number)}"
        rows, facts = _read(folder, number)
        if facts["of"] != _of(profile, number):
            raise ConfigInvalid(
                f"{place}: is not of the offsets {load.start} to {load.end} that the profile is of"
            )
        try:
            seconds = rows["start"].cast(pa.timestamp("s", tz="UTC")).cast(pa.int64())
            rows = rows.set_column(0, "start", seconds)
            found = dense_hours(facts["starts"], profile.bucket_count, rows)
        except (pa.ArrowException, TypeError, ValueError, IndexError):
            raise ConfigInvalid(f"{place}: is no file of hours") from None
        yield found


def load_index(folder: Folder) -> HourIndex:
    """The hours that the files of a folder have. Raises: ConfigInvalid, as `load_hours`."""
    _, facts = _read(folder, 0)
    if not facts["starts"]:
        raise ConfigInvalid(f"{folder}: has no hours")
    return HourIndex(tuple(facts["starts"]), facts["zone"])


def dense_hours(starts: Sequence[int], bucket_count: int, rows: pa.Table) -> HourLoads:
    """Bytes by bucket for every hour; hours without records share a list of zeros."""
    rows = rows.sort_by("start")
    found, buckets, sizes = (rows[name].to_numpy() for name in ("start", "bucket", "bytes"))
    hours = np.array(starts, np.int64)
    firsts = np.searchsorted(found, hours).tolist()
    ends = np.searchsorted(found, hours, side="right").tolist()
    nothing = [0] * bucket_count
    dense: list[Sequence[int]] = []
    for first, end in zip(firsts, ends, strict=True):
        row = np.zeros(bucket_count, np.int64)
        row[buckets[first:end]] = sizes[first:end]
        dense.append(row.tolist() if first < end else nothing)
    return HourLoads(tuple(starts), tuple(dense))


def _read(folder: Folder, number: int) -> tuple[pa.Table, dict[str, Any]]:
    place = f"{folder}/{_name(number)}"
    data = folder.read(_name(number), FILE_BYTES_MAX)
    if data is None:
        raise ConfigInvalid(f"{place}: no such file; `keylane spark profile --by-hour` makes it")
    try:
        rows = pq.read_table(pa.BufferReader(data), columns=["start", "bucket", "bytes"])
        facts: dict[str, Any] = json.loads((rows.schema.metadata or {})[FACTS])
    except (pa.ArrowException, KeyError, TypeError, ValueError):
        raise ConfigInvalid(f"{place}: is no file of hours") from None
    return rows, facts


def _of(profile: LoadProfile, number: int) -> list[str | int]:
    load = profile.partitions[number]
    return [profile.topic, profile.bits, number, load.start, load.end]


def _name(number: int) -> str:
    return f"partition-{number}.parquet"
