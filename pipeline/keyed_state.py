"""State per key beside each lane: fold records in key order, without a shuffle.

Spark's own stateful operators shuffle by key first. Here the lane is the shuffle: a key's records
are all in one task, in order, so the task itself can hold the key's state. What a batch leaves is
a file per lane, written before the batch counts as done:

    <folder>/p<partition>-<lo>-<hi>/<batch>.parquet

A batch that is run again starts from the newest file before it, so that the result is exact
however often it is cut off. A range finds its keys in the files of other ranges too: the lane
count may change, when the checkpoint is moved as well (`keylane spark checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from keylane.files import replacing
from keylane.keyrange.hash import HashName, KeyHash
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import KeyRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SUMMARY_SCHEMA: Final = "lane int, records bigint, keys bigint, out_of_order bigint"
STATE_SCHEMA: Final = pa.schema(
    [("key", pa.binary()), ("offset", pa.int64()), ("state", pa.binary())]
)
PREFIXES: Final[dict[HashName, str]] = {"xxh64": "p", "murmur2": "m"}
"""Begin the names of folders, by the hash of the lanes whose states they have."""
FILES_KEPT: Final = 2
"""The newest, and the one that a repeated batch starts from."""

Fold = Callable[[bytes | None, bytes, int, bytes | None], bytes]
"""(state or None, key, offset, value) -> the new state. Called in the order of each key."""


@dataclass(frozen=True, slots=True)
class LaneFold:
    """A function for `foreachBatch`. `layout` is that of the lane topic which the query reads.

    Records without a key have no state: they are counted, and not folded.
    """

    folder: Path
    layout: LaneLayout
    fold: Fold
    on_summary: Callable[[int, list[tuple[int, int, int, int]]], None] = lambda _id, _rows: None
    """Called with the number of a batch and its rows of `SUMMARY_SCHEMA`."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Fold one micro-batch."""
        folder, layout, fold = self.folder, self.layout, self.fold

        def work(chunks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            summary = fold_lane(chunks, folder, layout, fold, batch_id)
            if summary is not None:
                yield summary

        columns = batch.select("partition", "offset", "key", "value")
        rows = columns.mapInArrow(work, SUMMARY_SCHEMA).collect()  # one row per lane
        self.on_summary(batch_id, [(row[0], row[1], row[2], row[3]) for row in rows])


def fold_lane(
    chunks: Iterator[pa.RecordBatch],
    folder: Path,
    layout: LaneLayout,
    fold: Fold,
    batch_id: int,
) -> pa.RecordBatch | None:
    """Fold what one task has of one lane, and write its state; None when there was nothing."""
    states: dict[bytes, tuple[int, bytes]] | None = None
    lane_index, records, disorders = -1, 0, 0
    for chunk in chunks:
        lanes = chunk.column(0).to_pylist()
        if not lanes:
            continue
        if states is None:
            lane_index = lanes[0]
            states = read_states(folder, layout, lane_index, batch_id)
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
    _write_states(_range_folder(folder, layout, lane_index), batch_id, states)
    return pa.RecordBatch.from_pydict(
        {
            "lane": pa.array([lane_index], pa.int32()),
            "records": pa.array([records], pa.int64()),
            "keys": pa.array([len(states)], pa.int64()),
            "out_of_order": pa.array([disorders], pa.int64()),
        }
    )


def read_states(
    folder: Path, layout: LaneLayout, lane_index: int, before_batch: int
) -> dict[bytes, tuple[int, bytes]]:
    """Last offset and state by key of a lane, as they were before a batch.

    Raises: ValueError, the folder has states of lanes by another hash.
    """
    partition = layout.partition_of(lane_index)
    wanted = layout.key_range(partition, layout.lane_of(lane_index))
    _expect_hash(folder, layout)
    found: list[tuple[int, Path]] = []
    for place in folder.glob(f"{PREFIXES[layout.hash]}{partition}-*-*"):
        lo, hi = (int(part) for part in place.name.split("-")[1:])
        if lo <= wanted.hi and wanted.lo <= hi:
            batches = [number for number in _batches(place) if number < before_batch]
            found += [(max(batches), place)] if batches else []
    states: dict[bytes, tuple[int, bytes]] = {}
    for batch, place in sorted(found):  # newer ones over older ones
        states.update(_read_file(place / f"{batch}.parquet", wanted, layout.key_hash))
    return states


def all_states(folder: Path, layout: LaneLayout) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """Last offset and state by (partition, key), of all lanes, after the newest batch."""
    places = folder.glob(f"{PREFIXES[layout.hash]}*-*-*")
    newest = max((max(_batches(place), default=-1) for place in places), default=-1)
    return {
        (layout.partition_of(index), key): value
        for index in range(layout.index_count)
        for key, value in read_states(folder, layout, index, newest + 1).items()
    }


def _read_file(path: Path, wanted: KeyRange, key_hash: KeyHash) -> dict[bytes, tuple[int, bytes]]:
    columns = pq.read_table(path).to_pydict()
    rows = zip(columns["key"], columns["offset"], columns["state"], strict=True)
    return {
        key: (offset, state) for key, offset, state in rows if wanted.contains(key_hash.point(key))
    }


def _write_states(place: Path, batch: int, states: dict[bytes, tuple[int, bytes]]) -> None:
    place.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "key": list(states),
            "offset": [offset for offset, _ in states.values()],
            "state": [state for _, state in states.values()],
        },
        schema=STATE_SCHEMA,
    )
    with replacing(place / f"{batch}.parquet") as partial:
        pq.write_table(table, partial)
    for old in sorted(_batches(place))[:-FILES_KEPT]:
        (place / f"{old}.parquet").unlink(missing_ok=True)


def _batches(place: Path) -> list[int]:
    return [int(path.stem) for path in place.glob("*.parquet") if path.stem.isdecimal()]


def _range_folder(folder: Path, layout: LaneLayout, lane_index: int) -> Path:
    partition = layout.partition_of(lane_index)
    part = layout.key_range(partition, layout.lane_of(lane_index))
    return folder / f"{PREFIXES[layout.hash]}{partition}-{part.lo}-{part.hi}"


def _expect_hash(folder: Path, layout: LaneLayout) -> None:
    for name, prefix in PREFIXES.items():
        if name != layout.hash and any(folder.glob(f"{prefix}[0-9]*-*-*")):
            raise ValueError(f"{folder}: has states of lanes by {name}, not by {layout.hash}")
