"""State per key beside each lane: fold records in key order, without a shuffle.

Spark's own stateful operators shuffle by key first. Here the lane is the shuffle: a key's records
are all in one task, in order, so the task itself can hold the key's state. What a batch leaves is
a file per lane, written before the batch counts as done (`lane_states`).

A batch that is run again starts from the newest file before it, so that the result is exact
however often it is cut off. A range finds its keys in the files of other ranges too: the lane
count may change, when the checkpoint is moved as well (`keylane spark checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from keylane.errors import ConfigInvalid
from keylane.garbage import leave_out_modules
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.arrow_files import WorkerFiles, worker_files
from keylane.pipeline.lane_states import (
    LanePlaces,
    States,
    begin_batch,
    read_states,
    states_of,
    write_states,
)
from keylane.pipeline.storage import open_folder, require_shared

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SUMMARY_SCHEMA: Final = "lane int, records bigint, keys bigint, out_of_order bigint"
QUERY_ID: Final = "sql.streaming.queryId"
"""The local property of Spark's that has the id of the query which runs a batch."""

Fold = Callable[[bytes | None, bytes, int, bytes | None], bytes]
"""(state or None, key, offset, value) -> the new state. Called in the order of each key. It has to
give the same state for the same records each time."""


@dataclass(frozen=True, slots=True)
class LaneFold:
    """A function for `foreachBatch`. `layout` is that of the lane topic which the query reads.

    Records without a key have no state: they are counted, and not folded. A query may not begin
    with states that another checkpoint has left; the query then fails with one line.
    """

    folder: Path | str
    """A path or URI. Workers and driver have to share it: on a cluster a path is checked first."""
    layout: LaneLayout
    fold: Fold
    on_summary: Callable[[int, list[tuple[int, int, int, int]]], None] = lambda _id, _rows: None
    """Called with the number of a batch and its rows of `SUMMARY_SCHEMA`."""
    filesystem: Any = None
    """A pyarrow.fs.FileSystem, in the place of the one that Spark's settings describe."""
    _opened: list[WorkerFiles] = field(default_factory=list, init=False, repr=False)

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Fold one micro-batch.

        Raises: ConfigInvalid, the folder cannot be used for this query; StorageFailed.
        """
        fold = self.fold
        spark = batch.sparkSession
        query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
        if query_id is None:
            raise ConfigInvalid("LaneFold works inside foreachBatch only")
        places = begin_batch(self._files(spark), self.layout, query_id, batch_id)

        def work(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            summary = fold_lane(chunks, places, fold)
            if summary is not None:
                yield summary
            leave_out_modules()  # Spark's worker collects garbage after each task

        columns = batch.select("partition", "offset", "key", "value")
        rows = columns.mapInArrow(work, SUMMARY_SCHEMA).collect()  # one row per lane
        self.on_summary(batch_id, [(row[0], row[1], row[2], row[3]) for row in rows])

    def _files(self, spark: SparkSession) -> WorkerFiles:
        """The folder, looked at once per start of a query."""
        if not self._opened:
            folder = open_folder(str(self.folder), spark)
            require_shared(spark, folder, "LaneFold's folder")
            self._opened.append(worker_files(folder, self.filesystem))
        return self._opened[0]


def fold_lane(
    chunks: Iterator[pa.RecordBatch], places: LanePlaces, fold: Fold
) -> pa.RecordBatch | None:
    """Fold what one task has of one lane, and write its state; None when there was nothing."""
    states: States | None = None
    lane_index, records, disorders = -1, 0, 0
    for chunk in chunks:
        lanes = chunk.column(0).to_pylist()
        if not lanes:
            continue
        if states is None:
            lane_index = lanes[0]
            states = read_states(places, lane_index)
        if any(lane != lane_index for lane in lanes):
            raise ValueError("a task holds records of two lanes: the source cut them by offset")
        for offset, key, value in zip(
            chunk.column(1).to_pylist(),
            chunk.column(2).to_pylist(),
            chunk.column(3).to_pylist(),
            strict=True,
        ):
            records += 1
            if key is None:
                continue
            last, state = states.get(key, (-1, None))
            disorders += offset <= last
            states[key] = (offset, fold(state, key, offset, value))
    if states is None:
        return None
    write_states(places, lane_index, states)
    return pa.RecordBatch.from_pydict(
        {
            "lane": pa.array([lane_index], pa.int32()),
            "records": pa.array([records], pa.int64()),
            "keys": pa.array([len(states)], pa.int64()),
            "out_of_order": pa.array([disorders], pa.int64()),
        }
    )


def all_states(
    folder: Path | str,
    layout: LaneLayout,
    spark: SparkSession | None = None,
    filesystem: Any = None,
) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """Last offset and state by (partition, key), of all lanes, after the newest batch.

    Raises: ConfigInvalid, the folder is not of this layout, or a URI without Spark; StorageFailed.
    """
    return states_of(worker_files(open_folder(str(folder), spark), filesystem), layout)
