"""pipeline/keyed_state.py: exact over repeated batches and changed lanes, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from keylane.keyrange.hash import key_hash
from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.keyed_state import all_states, fold_lane, read_states
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


def fold(
    folder: Path, layout: LaneLayout, lane: int, records: list[Record], batch: int
) -> dict[str, list[int]]:
    offsets, keys, values = (list(column) for column in zip(*records, strict=True))
    chunk = pa.RecordBatch.from_pydict(
        {"partition": [lane] * len(records), "offset": offsets, "key": keys, "value": values}
    )
    summary = fold_lane(iter([chunk.slice(0, 0), chunk]), folder, layout, join, batch)
    assert summary is not None
    reported: dict[str, list[int]] = summary.to_pydict()
    return reported


def test_a_batch_that_is_repeated_starts_where_it_started_before(tmp_path: Path) -> None:
    """Batch 1 cut off after its file was written, and run again, adds its records once."""
    layout = LaneLayout(partition_count=1, lane_count=1)
    fold(tmp_path, layout, 0, [(0, b"k", b"a")], 0)
    fold(tmp_path, layout, 0, [(1, b"k", b"b")], 1)

    summary = fold(tmp_path, layout, 0, [(1, b"k", b"b"), (2, None, b"x")], 1)

    assert read_states(tmp_path, layout, 0, 2) == {b"k": (1, b"ab")}
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

    assert fold_lane(iter([]), tmp_path, layout, join, 8) is None
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
        fold_lane(iter(chunks), tmp_path, layout, join, 1)


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


def test_states_of_another_hash_are_not_taken_for_ones_own(tmp_path: Path) -> None:
    """Keys would silently begin without what they had."""
    plain = LaneLayout(partition_count=1, lane_count=4)
    hashed = LaneLayout(partition_count=1, lane_count=4, hash="murmur2")
    fold(tmp_path, plain, lane_of(plain, b"k"), [(0, b"k", b"a")], 0)

    with pytest.raises(ValueError, match="states of lanes by xxh64, not by murmur2"):
        read_states(tmp_path, hashed, 0, 1)
