"""The files of a profile: summary, Parquet and pictures in one folder, a path or a URI.

Parquet is made in memory and written whole. Bound: a partition has 4,096 rows, which take less
than 100 kB in `buckets.parquet`.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from keylane.assignor.profile import SUMMARY_NAME, LoadProfile, write_profile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from keylane.pipeline.storage import Folder

BUCKETS: Final = "buckets.parquet"
HEAVY: Final = "heavy.parquet"
DOTS_PER_INCH: Final = 120
BUCKETS_SCHEMA: Final = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "bucket": pa.int32(),
        "records": pa.int64(),
        "bytes": pa.int64(),
    }
)
HEAVY_SCHEMA: Final = pa.schema(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "key_hash": pa.int64(),
        "records": pa.int64(),
        "bytes": pa.int64(),
        "key": pa.binary(),
    }
)


def save_profile(profile: LoadProfile, folder: Folder) -> None:
    """Write two Parquet files, then the summary, each whole or not at all.

    Raises: StorageFailed.
    """
    buckets = (
        pa.record_batch(
            [
                pa.repeat(profile.topic, profile.bucket_count),
                pa.repeat(pa.scalar(number, pa.int32()), profile.bucket_count),
                pa.array(range(profile.bucket_count), pa.int32()),
                pa.array(load.records, pa.int64()),
                pa.array(load.size_bytes, pa.int64()),
            ],
            schema=BUCKETS_SCHEMA,
        )
        for number, load in enumerate(profile.partitions)
    )
    folder.write(BUCKETS, parquet_bytes(buckets, BUCKETS_SCHEMA))
    heavy = [
        {
            "topic": profile.topic,
            "partition": key.partition,
            "key_hash": key.key_hash,
            "records": key.records,
            "bytes": key.size_bytes,
            "key": key.key,
        }
        for key in profile.heavy
    ]
    rows = pa.RecordBatch.from_pylist(heavy, schema=HEAVY_SCHEMA)
    folder.write(HEAVY, parquet_bytes([rows], HEAVY_SCHEMA))
    folder.write(SUMMARY_NAME, write_profile(profile))


def save_pictures(pictures: Mapping[str, Figure], folder: Folder) -> None:
    """Write each figure as PNG and SVG, under its name. Raises: StorageFailed."""
    for name, figure in pictures.items():
        for kind in ("png", "svg"):
            # No date in the file: the same profile gives the same bytes.
            stamp = {"Date": None} if kind == "svg" else {}
            sink = io.BytesIO()
            figure.savefig(sink, format=kind, dpi=DOTS_PER_INCH, metadata=stamp)
            folder.write(f"{name}.{kind}", sink.getvalue())


def parquet_bytes(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """A Parquet file with a row group for each batch."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()
