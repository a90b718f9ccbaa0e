"""Findings as Parquet: by the executors where they reach the folder, else by this process."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from keylane.errors import StorageFailed
from keylane.files import replacing
from keylane.pipeline.audit.rules import FINDING_COLUMNS
from keylane.pipeline.storage import Folder, LocalFolder, is_local

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME: Final = "findings"
ROWS_AT_ONCE: Final = 100_000
"""Rows that are in this process at a time, about 20 MB."""
ARROW_TYPES: Final = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64()}


def write_findings(findings: DataFrame, out: Folder, count: int) -> None:
    """Replace `out/findings`; `count` is the number of rows.

    Executors of a cluster do not reach a folder of this machine: a path means another folder on
    each of them. So its rows come here, a bounded piece at a time.

    Raises:
        StorageFailed: the folder cannot be written.
    """
    if isinstance(out, LocalFolder) and not is_local(findings.sparkSession):
        out.delete(NAME)
        _write_here(findings.repartition(count // ROWS_AT_ONCE + 1), out)
    else:
        findings.write.mode("overwrite").parquet(out.child(NAME).uri)


def _write_here(findings: DataFrame, out: LocalFolder) -> None:
    schema = pa.schema([(name, ARROW_TYPES[kind]) for name, kind in FINDING_COLUMNS.items()])
    rows = (row.asDict() for row in findings.toLocalIterator())
    folder = out.child(NAME).path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (
            replacing(folder / "part-0.parquet") as partial,
            pq.ParquetWriter(partial, schema) as writer,
        ):
            while some := list(islice(rows, ROWS_AT_ONCE)):
                writer.write_table(pa.Table.from_pylist(some, schema=schema))
    except OSError as error:
        raise StorageFailed(f"{folder}: {error.strerror}") from None
