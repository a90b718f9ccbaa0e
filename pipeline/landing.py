"""Rows that a job writes with Spark and reads back: as many come back as were written, or it fails.

Source: Spark's guide on `DataFrame.observe`: metrics come from the tasks that wrote.

A path without a scheme is another folder on each machine: workers of a cluster write to their
disks, the driver lists its own disk, and what it finds is empty and without an error. So the rows
are counted where they are written, and the count is held against what is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import Observation
from pyspark.sql import functions as F

from keylane.errors import JobFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class CountedFolder:
    """Parquet in one folder, written once or piece by piece, and the count of its rows.

    Invariant: `row_count` is what the tasks have counted since the last overwrite.
    """

    def __init__(self, spark: SparkSession, path: Path, *, what: str, option: str) -> None:
        """`what` names the rows in an error, `option` the flag that sets the folder."""
        self.row_count = 0
        self._spark, self._path, self._what, self._option = spark, path, what, option
        self._schema: StructType | None = None

    def write(self, frame: DataFrame) -> None:
        """Replace what the folder holds."""
        self.row_count = 0
        self._put(frame, "overwrite")

    def append(self, frame: DataFrame) -> None:
        """Add to what was written."""
        self._put(frame, "append")

    def read(self) -> DataFrame:
        """The rows that were written.

        Raises:
            JobFailed: more or fewer rows stand there; the text names the folder and the option.
        """
        assert self._schema is not None, "write before reading"
        rows = self._spark.read.schema(self._schema).parquet(str(self._path))
        found = rows.count()  # from the footers of the files
        if found != self.row_count:
            raise JobFailed(
                f"{self._what}: {self.row_count:,} rows were written to {self._path} and"
                f" {found:,} are there: the folder is not shared by all machines of Spark, or"
                f" was changed meanwhile; choose one that is shared, with {self._option}"
            )
        return rows

    def _put(self, frame: DataFrame, mode: str) -> None:
        observed = Observation()
        counted = frame.observe(observed, F.count(F.lit(1)).alias("rows"))
        counted.write.mode(mode).parquet(str(self._path))
        self.row_count += observed.get["rows"]
        self._schema = frame.schema
