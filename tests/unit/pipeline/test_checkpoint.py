"""pipeline/checkpoint.py: splits are exact, merges only at one offset, and nothing else is done."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.keyrange.lane import LaneLayout
from keylane.pipeline.checkpoint import (
    CheckpointRefused,
    apply_migration,
    plan_migration,
    plan_offsets,
    split_lane_name,
)
from keylane.pipeline.storage import LocalFolder

METADATA = '{"batchWatermarkMs":0,"conf":{}}'


def make_checkpoint(
    folder: Path, offsets: dict[str, dict[str, int]], *, committed: bool = True, version: str = "v1"
) -> Path:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    text = "\n".join([version, METADATA, json.dumps(offsets)])
    (folder / "offsets" / "9").write_text("v1\n{}\n-")
    (folder / "offsets" / "10").write_text(text)
    (folder / "offsets" / ".10.crc").write_bytes(b"crc")
    (folder / "commits" / "9").write_text("v1\n{}")
    if committed:
        (folder / "commits" / "10").write_text("v1\n{}")
    return folder


def test_a_split_takes_over_the_offset_of_the_lane_it_comes_from(tmp_path: Path) -> None:
    """Two lanes of two partitions become four: each half goes on where the whole stood."""
    offsets = {"orders.lanes-2": {"0": 10, "1": 20, "2": 30, "3": 40}, "other": {"0": 5}}
    folder = make_checkpoint(tmp_path / "ck", offsets)

    migration = plan_migration(LocalFolder(folder), "orders.lanes-2", "orders.lanes-4")
    unchanged = (folder / "offsets" / "10").read_text()
    backup = apply_migration(migration)

    written = (folder / "offsets" / "10").read_text().split("\n")
    assert json.loads(unchanged.split("\n")[2]) == offsets
    assert Path(backup).read_text() == unchanged
    assert written[:2] == ["v1", METADATA]
    assert json.loads(written[2]) == {
        "other": {"0": 5},
        "orders.lanes-4": {
            "0": 10, "1": 20, "2": 10, "3": 20, "4": 30, "5": 40, "6": 30, "7": 40,
        },
    }  # fmt: skip
    assert not (folder / "offsets" / ".10.crc").exists()


def test_a_whole_topic_becomes_lanes_and_back_when_all_stand_together(tmp_path: Path) -> None:
    """`orders` to `orders.lanes-3` is a split; back is a merge at one offset per partition."""
    folder = make_checkpoint(tmp_path / "ck", {"orders": {"0": 7, "1": 8}})
    apply_migration(plan_migration(LocalFolder(folder), "orders", "orders.lanes-3"))

    back = plan_migration(LocalFolder(folder), "orders.lanes-3", "orders")

    assert back.old_offsets == {0: 7, 1: 8, 2: 7, 3: 8, 4: 7, 5: 8}
    assert back.offsets == {0: 7, 1: 8}


def test_a_merge_of_lanes_at_different_offsets_is_refused(tmp_path: Path) -> None:
    """Lanes at 10 and 30 have no common offset: one would repeat, the other lose."""
    folder = make_checkpoint(tmp_path / "ck", {"orders.lanes-2": {"0": 10, "1": 30}})

    with pytest.raises(CheckpointRefused, match="new lane 0 joins old lanes 0 at 10, 1 at 30"):
        plan_migration(LocalFolder(folder), "orders.lanes-2", "orders")


def test_lanes_that_cross_old_cuts_are_refused() -> None:
    """Three lanes out of two: the middle one takes keys from both."""
    two, three = (LaneLayout(partition_count=1, lane_count=count) for count in (2, 3))

    with pytest.raises(CheckpointRefused, match="1 lanes cannot be joined exactly"):
        plan_offsets({0: 10, 1: 30}, two, three)
    assert plan_offsets({0: 10, 1: 10}, two, three) == {0: 10, 1: 10, 2: 10}


@given(
    before=st.integers(1, 8),
    after=st.integers(1, 8),
    partitions=st.integers(1, 3),
    offsets=st.lists(st.integers(0, 3), min_size=24, max_size=24),
    hashes=st.lists(st.integers(0, 2**63 - 1), max_size=20),
)
def test_a_hash_goes_on_where_it_stood(
    before: int, after: int, partitions: int, offsets: list[int], hashes: list[int]
) -> None:
    """Whatever is not refused keeps the next offset of every point of the hash space."""
    old = LaneLayout(partition_count=partitions, lane_count=before)
    new = LaneLayout(partition_count=partitions, lane_count=after)
    standing = dict(enumerate(offsets[: old.index_count]))

    try:
        planned = plan_offsets(standing, old, new)
    except CheckpointRefused:
        return

    for partition in range(partitions):
        for point in [0, 2**63 - 1, *hashes]:
            was, now = (
                next(
                    layout.lane_index(partition, lane)
                    for lane in range(layout.lane_count)
                    if layout.key_range(partition, lane).contains(point)
                )
                for layout in (old, new)
            )
            assert planned[now] == standing[was]


def test_a_batch_that_is_not_committed_is_refused(tmp_path: Path) -> None:
    """Spark would run it again with the ends that the file has."""
    folder = make_checkpoint(tmp_path / "ck", {"orders": {"0": 1}}, committed=False)

    with pytest.raises(CheckpointRefused, match="batch 10 was begun and is not committed"):
        plan_migration(LocalFolder(folder), "orders", "orders.lanes-2")


@pytest.mark.parametrize(
    ("offsets", "source", "target", "text"),
    [
        ({"orders": {"0": 1}}, "order", "order.lanes-2", "no topic order, only orders"),
        ({"orders": {"0": 1, "2": 1}}, "orders", "orders.lanes-2", r"partitions \[0, 2\]"),
        ({"orders": {}}, "orders", "orders.lanes-2", r"partitions \[\]"),
        ({"orders": {"a": 1}}, "orders", "orders.lanes-2", "no numbers"),
        ({"o.lanes-2": {"0": 1, "1": 1, "2": 1}}, "o.lanes-2", "o", "no multiple of 2"),
        ({"a": {"0": 1}, "b": {"0": 1}}, "a", "b", "b is in it already"),
        ({"a": {"0": 1}}, "a", "a.lanes-2000", "from 1 to 1024"),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, offsets: dict[str, dict[str, int]], source: str, target: str, text: str
) -> None:
    """The message names the file and the topic."""
    folder = make_checkpoint(tmp_path / "ck", offsets)

    with pytest.raises(CheckpointRefused, match=text):
        plan_migration(LocalFolder(folder), source, target)


def test_no_checkpoint_and_an_unknown_format_are_refused(tmp_path: Path) -> None:
    """An empty folder, and a log of a version that keylane does not know."""
    with pytest.raises(CheckpointRefused, match="no checkpoint of a query"):
        plan_migration(LocalFolder(tmp_path), "orders", "orders.lanes-2")
    folder = make_checkpoint(tmp_path / "ck", {"orders": {"0": 1}}, version="v2")
    with pytest.raises(CheckpointRefused, match="format 'v2'"):
        plan_migration(LocalFolder(folder), "orders", "orders.lanes-2")


def test_a_query_that_went_on_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    """A new batch between reading and writing ends the migration."""
    folder = make_checkpoint(tmp_path / "ck", {"orders": {"0": 1}})
    migration = plan_migration(LocalFolder(folder), "orders", "orders.lanes-2")
    for name in ("offsets", "commits"):
        (folder / name / "11").write_text('v1\n{}\n{"orders":{"0":2}}')

    with pytest.raises(CheckpointRefused, match="changed meanwhile"):
        apply_migration(migration)


def test_lane_names() -> None:
    """A lane name has the topic and the count in it; a plain name is the topic."""
    assert split_lane_name("a.b.lanes-16") == ("a.b", 16)
    assert split_lane_name("a.lanes-0") == ("a.lanes-0", None)


def test_layouts_may_be_given_apart_from_the_name(tmp_path: Path) -> None:
    """Lanes under a topic's own name: 4 indexes of `orders` at 2 lanes are 2 partitions."""
    folder = make_checkpoint(tmp_path / "ck", {"orders": {"0": 1, "1": 2, "2": 3, "3": 4}})

    migration = plan_migration(LocalFolder(folder), "orders", "orders.lanes-4", from_layout=2)

    assert migration.to_layout == LaneLayout(partition_count=2, lane_count=4)
    assert migration.offsets == {0: 1, 1: 2, 2: 1, 3: 2, 4: 3, 5: 4, 6: 3, 7: 4}
    wrong = LaneLayout(partition_count=2, lane_count=1)
    with pytest.raises(CheckpointRefused, match="4 lanes there, not 2"):
        plan_migration(LocalFolder(folder), "orders", "orders.lanes-4", from_layout=wrong)


def test_lanes_by_murmur2_split_in_their_own_order(tmp_path: Path) -> None:
    """Lane k of four becomes the lanes k and k + 4 of eight."""
    offsets = {"orders.lanes-4": {str(lane): 10 * lane for lane in range(4)}}
    folder = make_checkpoint(tmp_path / "ck", offsets)

    migration = plan_migration(
        LocalFolder(folder), "orders.lanes-4", "orders.lanes-8", key_hash="murmur2"
    )

    assert migration.offsets == {lane: 10 * (lane % 4) for lane in range(8)}


def test_lanes_of_two_hashes_are_no_parts_of_each_other(tmp_path: Path) -> None:
    """Not even where all offsets are one; by way of whole partitions it is exact."""
    plain, hashed = LaneLayout(1, 4), LaneLayout(1, 4, hash="murmur2")
    at_seven = dict.fromkeys(range(4), 7)

    with pytest.raises(CheckpointRefused, match="4 lanes by xxh64 and 4 by murmur2"):
        plan_offsets(at_seven, plain, hashed)

    whole = plan_offsets(at_seven, plain, LaneLayout(1, 1))
    assert plan_offsets(whole, LaneLayout(1, 1), hashed) == at_seven
