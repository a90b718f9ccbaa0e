"""pipeline/audit/stream.py: a loss is reported once, below what the group has committed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keylane.errors import ConfigInvalid
from keylane.pipeline.audit.rules import BITMAP_BITS
from keylane.pipeline.audit.stream import LOGGED_MAX, STATE, WHOLE, Follower
from keylane.pipeline.storage import LocalFolder


def bits(*positions: int) -> bytes:
    return sum(1 << position for position in positions).to_bytes(BITMAP_BITS // 8, "little")


def make_follower(folder: Path, committed: dict[int, int]) -> Follower:
    follower = Follower(lambda: committed, lambda _: None, LocalFolder(folder))
    follower.load()
    return follower


def make_checkpoint(folder: Path, query_id: str = "one") -> None:
    """The files of a checkpoint in which one batch is done."""
    (folder / "checkpoint" / "commits").mkdir(parents=True, exist_ok=True)
    (folder / "checkpoint" / "commits" / "0").write_text("v1")
    (folder / "checkpoint" / "metadata").write_text(json.dumps({"id": query_id}))


def test_only_what_was_committed_without_a_report_is_lost(tmp_path: Path) -> None:
    """Offset 5 lies below the floor of 8 and is lost; 9 may still be reported."""
    follower = make_follower(tmp_path, {1: BITMAP_BITS + 8})

    follower.take(1, 2, bits(3, 5, 9), bits(3), 0)

    assert follower.judge() == [(1, BITMAP_BITS + 5)]
    assert follower.judge() == []
    assert follower.lost == {(1, 2): 1 << 5}
    assert follower.lost_count == 1


def test_a_report_that_comes_closes_its_bucket_and_repeats_are_counted(tmp_path: Path) -> None:
    """Two reports beyond the first of their offset; nothing is open then."""
    follower = make_follower(tmp_path, {})

    follower.take(0, 1, bits(0, 7), bits(0), 0)
    was_open = dict(follower.open)
    follower.take(0, 1, None, None, 2)

    assert was_open == {(0, 1): 1 << 7}
    assert follower.open == {}
    assert follower.repeat_count == 2


def test_what_is_open_survives_a_restart(tmp_path: Path) -> None:
    """A bucket that does not change again is judged all the same."""
    follower = make_follower(tmp_path, {3: 5})
    make_checkpoint(tmp_path)
    follower.take(0, 1, bits(2, 4), bits(4), 1)
    follower.take(3, 1, bits(4), bits(), 0)
    assert follower.judge() == [(3, 4)]
    follower._save()

    again = make_follower(tmp_path, {0: 3, 3: 5})

    assert again.open == {(0, 1): 1 << 2, (3, 1): 1 << 4}
    assert again.judge() == [(0, 2)]
    assert again.lost == {(3, 1): 1 << 4, (0, 1): 1 << 2}
    assert again.repeat_count == 1


def test_a_group_that_is_far_behind_costs_a_reference_per_bucket(tmp_path: Path) -> None:
    """A billion offsets without a report: all buckets share one number, and the file is small."""
    follower = make_follower(tmp_path, {0: 10**9})
    make_checkpoint(tmp_path)
    whole = b"\xff" * (BITMAP_BITS // 8)
    for bucket in range(1, 30_001):
        follower.take(0, bucket, whole, bytes(BITMAP_BITS // 8), 0)

    listed = follower.judge()
    follower._save()

    assert {id(held) for held in (*follower.open.values(), *follower.lost.values())} == {id(WHOLE)}
    assert listed == [(0, offset) for offset in range(LOGGED_MAX)]
    assert follower.lost_count == 30_000 * BITMAP_BITS
    assert (tmp_path / STATE).stat().st_size < 10_000_000
    assert make_follower(tmp_path, {}).lost == follower.lost


@pytest.mark.parametrize("fault", ["missing", "of another"])
def test_a_checkpoint_goes_on_with_its_own_state_alone(tmp_path: Path, fault: str) -> None:
    """Without the open buckets of its batches, what was lost before would never be listed."""
    make_checkpoint(tmp_path)
    make_follower_state(tmp_path)
    if fault == "missing":
        (tmp_path / STATE).unlink()
    else:
        make_checkpoint(tmp_path, "another")

    with pytest.raises(ConfigInvalid, match=r"follow\.json is not that of checkpoint"):
        make_follower(tmp_path, {})


def test_a_new_checkpoint_begins_anew(tmp_path: Path) -> None:
    """What is left of a removed checkpoint says nothing."""
    make_checkpoint(tmp_path)
    make_follower_state(tmp_path)
    (tmp_path / "checkpoint" / "commits" / "0").unlink()

    assert make_follower(tmp_path, {}).open == {}


def make_follower_state(folder: Path) -> None:
    """`follow.json` of the checkpoint in the folder, with an open bucket."""
    follower = Follower(dict, lambda _: None, LocalFolder(folder))
    follower.take(0, 1, bits(1), bits(), 0)
    follower._save()
