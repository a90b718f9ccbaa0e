"""Small tables of results as bytes of files: Parquet, and rows that go into JSON."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def parquet_bytes(table: pa.Table) -> bytes:
    """The table as a Parquet file."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def json_rows(rows: Iterable[Mapping[str, Any]], *hashes: str) -> list[dict[str, Any]]:
    """Rows for JSON: bytes are text, and the columns `hashes` decimal strings.

    Numbers beyond 2^53 do not survive every reader of JSON (RFC 8259, section 6).
    """

    def value_of(name: str, value: Any) -> Any:
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        return str(value) if name in hashes and value is not None else value

    return [{name: value_of(name, value) for name, value in row.items()} for row in rows]
