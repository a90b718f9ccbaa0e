"""Files that stand for lanes of a topic, as a stream that needs no Kafka."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq

from keylane.keyrange.hash import key_hash
from keylane.keyrange.lane import LaneLayout
from tests.spark.s3 import S3Server

LAYOUT = LaneLayout(partition_count=1, lane_count=2)
SCHEMA = "partition int, offset bigint, key binary, value binary"


def join(state: bytes | None, _key: bytes, _offset: int, value: bytes | None) -> bytes:
    return (state or b"") + (value or b"-")


def put_lane_file(s3: S3Server, uri: str, lane: int, start: int) -> list[bytes]:
    """One more file of a stream: three keys of one lane, twice each. Returns the keys."""
    part = LAYOUT.key_range(0, lane)
    names = (b"key-%d" % number for number in range(1000))
    keys = [key for key in names if part.contains(key_hash(key))][:3]
    offsets = range(start, start + 6)
    table = pa.table(
        {
            "partition": pa.array([lane] * 6, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "key": pa.array(keys * 2, pa.binary()),
            "value": pa.array([b"%d" % offset for offset in offsets], pa.binary()),
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink)
    bucket = uri.removeprefix("s3a://")
    name = f"in/{start:03}-{lane}.parquet"
    s3.client().put_object(Bucket=bucket, Key=name, Body=sink.getvalue())
    return keys
