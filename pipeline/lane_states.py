"""States of keys as files beside each lane, and the query that they belong to.

    <folder>/fold.json                        query id, hash, partitions
    <folder>/p<partition>-<lo>-<hi>/<batch>.parquet

The driver lists the folder once per batch and gives the list to all tasks: each attempt of a task
starts from the same files, on whichever worker it runs. Batches count from a query's checkpoint.
With another checkpoint they begin at 0 again and would pass over what is there, so the folder
remembers the query's id, which Spark keeps in the checkpoint.

Source: Spark's StreamExecution (`sql.streaming.queryId`) and StreamMetadata.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from keylane.errors import ConfigInvalid, StorageFailed
from keylane.keyrange.hash import KeyHash
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import KeyRange
from keylane.pipeline.arrow_files import WorkerFiles

BINDING: Final = "fold.json"
FORMAT: Final = "keylane-lane-fold"
VERSION: Final = 1
BINDING_BYTES_MAX: Final = 64 << 10
FILES_KEPT: Final = 2
"""The newest, and the one that a repeated batch starts from."""
STATE_SCHEMA: Final = pa.schema(
    [("key", pa.binary()), ("offset", pa.int64()), ("state", pa.binary())]
)
_FILE: Final = re.compile(r"(p[0-9]+-[0-9]+-[0-9]+)/([0-9]+)\.parquet")
States = dict[bytes, tuple[int, bytes]]
"""Last offset and state by key."""
Batches = Mapping[str, tuple[int, ...]]
"""Numbers of the batches that have a file, ascending, by the place of a key range."""


@dataclass(frozen=True, slots=True)
class LanePlaces:
    """The folder as one batch finds it. `before` has the files of earlier batches only."""

    files: WorkerFiles
    layout: LaneLayout
    binding: bytes
    batch: int
    before: Batches


def begin_batch(files: WorkerFiles, layout: LaneLayout, query_id: str, batch: int) -> LanePlaces:
    """Look at the folder before a batch; an empty one is bound to the query.

    Raises:
        ConfigInvalid: the states are of another query, hash or number of partitions, newer than
            the batch, or those of earlier batches are elsewhere.
        StorageFailed: the folder cannot be read or written.
    """
    names = files.names()
    batches = parse_places(names)
    binding = make_binding(layout, query_id)
    if BINDING in names:
        expect_binding(files, layout, query_id)
    elif batches or batch:
        raise ConfigInvalid(
            f"{files.place}: has no {BINDING}, and the query is at batch {batch}: the states of its"
            " earlier batches are not here. Give it their folder, or start anew with an empty"
            " folder and a new checkpoint"
        )
    else:
        files.write(BINDING, binding)
    newest = max((numbers[-1] for numbers in batches.values()), default=-1)
    if newest > batch:
        raise ConfigInvalid(
            f"{files.place}: has states of batch {newest}, and the query begins batch {batch}: its"
            " checkpoint is older. Give it the newest checkpoint, or start anew with an empty"
            " folder and a new checkpoint"
        )
    return LanePlaces(files, layout, binding, batch, _before(batches, batch))


def make_binding(layout: LaneLayout, query_id: str) -> bytes:
    """The contents of `fold.json`."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "query": query_id,
        "hash": layout.hash,
        "partitions": layout.partition_count,
    }
    return json.dumps(document, indent=2).encode() + b"\n"


def expect_binding(files: WorkerFiles, layout: LaneLayout, query_id: str | None) -> None:
    """Compare the folder's owner; any query may read (None).

    Raises:
        ConfigInvalid: the folder is of another query, hash or number of partitions.
    """
    place = f"{files.place}/{BINDING}"
    try:
        found: Any = json.loads(files.read(BINDING, BINDING_BYTES_MAX) or b"null")
    except ValueError:
        found = None
    if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (
        FORMAT,
        VERSION,
    ):
        raise ConfigInvalid(f"{place}: expected format {FORMAT} version {VERSION}")
    if query_id not in {None, found.get("query")}:
        raise ConfigInvalid(
            f"{files.place}: has the states of query {found.get('query')}, and this is"
            f" {query_id}, with a checkpoint that is not theirs. Give the query its old"
            " checkpoint, or start anew with an empty folder and a new checkpoint"
        )
    if found.get("hash") != layout.hash:
        raise ConfigInvalid(
            f"{files.place}: has states of lanes by {found.get('hash')}, not by {layout.hash}"
        )
    if found.get("partitions") != layout.partition_count:
        raise ConfigInvalid(
            f"{files.place}: has states of {found.get('partitions')} partitions, and the topic has"
            f" {layout.partition_count}"
        )


def parse_places(names: Collection[str]) -> dict[str, tuple[int, ...]]:
    """Batches by place, from the names of all files of a folder."""
    found: dict[str, list[int]] = {}
    for match in filter(None, map(_FILE.fullmatch, names)):
        found.setdefault(match[1], []).append(int(match[2]))
    return {place: tuple(sorted(numbers)) for place, numbers in found.items()}


def _before(batches: Batches, limit: int) -> dict[str, tuple[int, ...]]:
    found = {
        place: tuple(number for number in numbers if number < limit)
        for place, numbers in batches.items()
    }
    return {place: numbers for place, numbers in found.items() if numbers}


def plan_reads(places: LanePlaces, lane_index: int) -> list[tuple[int, str]]:
    """Batch and place of each file that has keys of a lane, older ones first.

    Keys are in files of other ranges where the lane count has changed; newer files win.
    """
    layout = places.layout
    partition = layout.partition_of(lane_index)
    wanted = layout.key_range(partition, layout.lane_of(lane_index))
    found = []
    for place, batches in places.before.items():
        head, lo, hi = place.split("-")
        if head == f"p{partition}" and int(lo) <= wanted.hi and wanted.lo <= int(hi):
            found.append((batches[-1], place))
    return sorted(found)


def read_states(places: LanePlaces, lane_index: int) -> States:
    """Last offset and state by key of a lane, as they were before the batch.

    Raises:
        StorageFailed: a file is gone, or this machine does not see the driver's folder.
    """
    files, layout = places.files, places.layout
    if files.is_local and files.read(BINDING, BINDING_BYTES_MAX) != places.binding:
        raise StorageFailed(f"{files.place}: this worker does not share it with the driver")
    partition = layout.partition_of(lane_index)
    wanted = layout.key_range(partition, layout.lane_of(lane_index))
    states: States = {}
    for batch, place in plan_reads(places, lane_index):
        states.update(_read_file(files, f"{place}/{batch}.parquet", wanted, layout.key_hash))
    return states


def write_states(places: LanePlaces, lane_index: int, states: States) -> None:
    """Write what a lane has after the batch, and remove what no repetition starts from.

    Raises: StorageFailed.
    """
    place = _place_of(places.layout, lane_index)
    table = pa.table(
        {
            "key": list(states),
            "offset": [offset for offset, _ in states.values()],
            "state": [state for _, state in states.values()],
        },
        schema=STATE_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    places.files.write(f"{place}/{places.batch}.parquet", sink.getvalue())
    for old in places.before.get(place, ())[: 1 - FILES_KEPT]:
        places.files.delete(f"{place}/{old}.parquet")


def states_of(files: WorkerFiles, layout: LaneLayout) -> dict[tuple[int, bytes], tuple[int, bytes]]:
    """Last offset and state by (partition, key), of all lanes, after the newest batch.

    Raises: ConfigInvalid, the folder is not of this layout; StorageFailed.
    """
    batches = parse_places(files.names())
    if not batches:
        return {}
    expect_binding(files, layout, None)
    binding = files.read(BINDING, BINDING_BYTES_MAX) or b""
    newest = max(numbers[-1] for numbers in batches.values())
    places = LanePlaces(files, layout, binding, newest + 1, batches)
    return {
        (layout.partition_of(index), key): value
        for index in range(layout.index_count)
        for key, value in read_states(places, index).items()
    }


def _read_file(files: WorkerFiles, name: str, wanted: KeyRange, key_hash: KeyHash) -> States:
    columns = files.read_table(name, pq.read_table).to_pydict()
    rows = zip(columns["key"], columns["offset"], columns["state"], strict=True)
    return {
        key: (offset, state) for key, offset, state in rows if wanted.contains(key_hash.point(key))
    }


def _place_of(layout: LaneLayout, lane_index: int) -> str:
    partition = layout.partition_of(lane_index)
    part = layout.key_range(partition, layout.lane_of(lane_index))
    return f"p{partition}-{part.lo}-{part.hi}"
