"""pipeline/keyed_state.py: exact over repeated batches and changed lanes, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from keylane.errors import ConfigInvalid, StorageFailed
from keylane.keyrange.hash import key_hash
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.arrow_files import worker_files
from keylane.pipeline.keyed_state import all_states, fold_lane
from keylane.pipeline.lane_states import BINDING, LanePlaces, begin_batch, read_states
from keylane.pipeline.storage import LocalFolder
from tests.reference.murmur2 import default_partition

Record = tuple[int, bytes | None, bytes]


def join(state: bytes | None, key: bytes, offset: int, value: bytes | None) -> bytes:
    return (state or b"") + (value or b"-")


def lane_of(layout: LaneLayout, key: bytes) -> int:
    return next(
        index
        for index in range(layout.index_count)
        if layout.partition_of(index) == 0
        and layout.key_range(0, layout.lane_of(index)).contains(key_hash(key))
    )


def begin(folder: Path, layout: LaneLayout, batch: int, query: str = "q") -> LanePlaces:
    return begin_batch(worker_files(LocalFolder(folder)), layout, query, batch)


def fold(
    folder: Path, layout: LaneLayout, lane: int, records: list[Record], batch: int
) -> dict[str, list[int]]:
    offsets, keys, values = (list(column) for column in zip(*records, strict=True))
    chunk = pa.RecordBatch.from_pydict(
        {"partition": [lane] * len(records), "offset": offsets, "key": keys, "value": values}
    )
    chunks = iter([chunk.slice(0, 0), chunk])
    summary = fold_lane(chunks, begin(folder, layout, batch), join)
    assert summary is not None
    reported: dict[str, list[int]] = summary.to_pydict()
    return reported


def test_a_batch_that_is_repeated_starts_where_it_started_before(tmp_path: Path) -> None:
    """Batch 1 cut off after its file was written, and run again, adds its records once."""
    layout = LaneLayout(partition_count=1, lane_count=1)
    fold(tmp_path, layout, 0, [(0, b"k", b"a")], 0)
    fold(tmp_path, layout, 0, [(1, b"k", b"b")], 1)

    summary = fold(tmp_path, layout, 0, [(1, b"k", b"b"), (2, None, b"x")], 1)

    assert read_states(begin(tmp_path, layout, 2), 0) == {b"k": (1, b"ab")}
    assert summary == {"lane": [0], "records": [2], "keys": [1], "out_of_order": [0]}


def test_states_follow_their_keys_to_other_lanes(tmp_path: Path) -> None:
    """One lane, then four, then two: each key goes on from what it had, old files or not."""
    keys = [b"key-%d" % number for number in range(40)]
    layouts = [LaneLayout(partition_count=1, lane_count=count) for count in (1, 4, 2)]

    for batch, layout in enumerate(layouts):
        for lane in range(layout.index_count):
            records: list[Record] = [
                (batch * 100 + at, key, b"%d" % batch)
                for at, key in enumerate(keys)
                if lane_of(layout, key) == lane
            ]
            reported = fold(tmp_path, layout, lane, records, batch)
            assert reported["out_of_order"] == [0]

    found = all_states(tmp_path, layouts[-1])
    assert found == {(0, key): (200 + at, b"012") for at, key in enumerate(keys)}


def test_a_lane_without_records_keeps_what_it_has(tmp_path: Path) -> None:
    """Batches 1 to 5 had nothing of it; two files are kept."""
    layout = LaneLayout(partition_count=2, lane_count=1)
    for batch in (0, 6, 7):
        fold(tmp_path, layout, 1, [(batch, b"k", b"%d" % batch)], batch)

    assert fold_lane(iter([]), begin(tmp_path, layout, 8), join) is None
    assert all_states(tmp_path, layout) == {(1, b"k"): (7, b"067")}
    assert sorted(path.name for path in tmp_path.rglob("*.parquet")) == ["6.parquet", "7.parquet"]


def test_disorder_is_counted_and_two_lanes_in_a_task_are_refused(tmp_path: Path) -> None:
    """An offset that does not ascend is one; a source that cut by offset is an error."""
    layout = LaneLayout(partition_count=1, lane_count=2)

    summary = fold(tmp_path, layout, 0, [(5, b"k", b"a"), (3, b"k", b"b"), (5, b"k", b"c")], 0)

    assert summary["out_of_order"] == [1]  # 5 after 3 goes forward again
    chunks = [
        pa.RecordBatch.from_pydict(
            {"partition": [lane], "offset": [0], "key": [b"k"], "value": [b""]}
        )
        for lane in (0, 1)
    ]
    with pytest.raises(ValueError, match="records of two lanes"):
        fold_lane(iter(chunks), begin(tmp_path, layout, 1), join)


def test_lanes_by_murmur2_have_the_states_of_their_keys(tmp_path: Path) -> None:
    """Four lanes, then eight: each key goes on, in the lane that the partitioner has."""
    keys = [b"key-%d" % number for number in range(40)]

    for batch, lanes in enumerate((4, 8)):
        layout = LaneLayout(partition_count=1, lane_count=lanes, hash="murmur2")
        for lane in range(lanes):
            records: list[Record] = [
                (100 * batch + number, key, b"%d" % batch)
                for number, key in enumerate(keys)
                if default_partition(key, lanes) == lane
            ]
            if records:
                fold(tmp_path, layout, lane, records, batch)

    assert {value for _, value in all_states(tmp_path, layout).values()} == {b"01"}
    assert len(all_states(tmp_path, layout)) == len(keys)


@pytest.mark.parametrize(
    ("query", "batch", "layout", "text"),
    [
        ("other", 0, LaneLayout(1, 4), "has the states of query q, and this is other"),
        ("q", 2, LaneLayout(1, 4), "has states of batch 3, and the query begins batch 2"),
        ("q", 3, LaneLayout(1, 4, hash="murmur2"), "states of lanes by xxh64, not by murmur2"),
        ("q", 3, LaneLayout(2, 4), "has states of 1 partitions, and the topic has 2"),
    ],
)
def test_states_that_are_not_the_querys_are_refused(
    tmp_path: Path, query: str, batch: int, layout: LaneLayout, text: str
) -> None:
    """Another checkpoint, an older one, another hash or topic: keys would lose what they had."""
    plain = LaneLayout(partition_count=1, lane_count=4)
    for number in (0, 3):
        fold(tmp_path, plain, lane_of(plain, b"k"), [(number, b"k", b"a")], number)
    kept = all_states(tmp_path, plain)

    with pytest.raises(ConfigInvalid, match=text):
        begin(tmp_path, layout, batch, query)

    assert all_states(tmp_path, plain) == kept == {(0, b"k"): (3, b"aa")}


def test_a_folder_without_the_states_of_earlier_batches_is_refused(tmp_path: Path) -> None:
    """An empty folder under an old checkpoint, or states of an unknown query."""
    layout = LaneLayout(partition_count=1, lane_count=1)

    with pytest.raises(ConfigInvalid, match=r"has no fold.json, and the query is at batch 7"):
        begin(tmp_path, layout, 7)
    fold(tmp_path, layout, 0, [(0, b"k", b"a")], 0)
    (tmp_path / BINDING).unlink()
    with pytest.raises(ConfigInvalid, match=r"has no fold.json, and the query is at batch 0"):
        begin(tmp_path, layout, 0)
    (tmp_path / BINDING).write_text("{}")
    with pytest.raises(ConfigInvalid, match="expected format keylane-lane-fold version 1"):
        begin(tmp_path, layout, 1)


def test_a_worker_without_the_drivers_folder_folds_nothing(tmp_path: Path) -> None:
    """It would begin with nothing, and leave states that no other worker finds."""
    layout = LaneLayout(partition_count=1, lane_count=1)
    places = begin(tmp_path, layout, 0)
    (tmp_path / BINDING).unlink()  # as on a machine with another disk

    with pytest.raises(StorageFailed, match="this worker does not share it with the driver"):
        read_states(places, 0)


def test_an_attempt_that_comes_late_finds_no_files_and_fails(tmp_path: Path) -> None:
    """Batches 1 to 3 are done: what batch 1 started from is gone, and it does not start anew."""
    layout = LaneLayout(partition_count=1, lane_count=1)
    fold(tmp_path, layout, 0, [(0, b"k", b"0")], 0)
    late = begin(tmp_path, layout, 1)
    for batch in (1, 2, 3):
        fold(tmp_path, layout, 0, [(batch, b"k", b"%d" % batch)], batch)

    with pytest.raises(StorageFailed, match=r"0\.parquet"):
        read_states(late, 0)

    assert all_states(tmp_path, layout) == {(0, b"k"): (3, b"0123")}
