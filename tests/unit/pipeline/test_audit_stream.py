"""pipeline/audit/stream.py: a loss is reported once, below what the group has committed."""

from __future__ import annotations

from pathlib import Path

from keylane.pipeline.audit.rules import BITMAP_BITS
from keylane.pipeline.audit.stream import Follower


def bits(*positions: int) -> bytes:
    return sum(1 << position for position in positions).to_bytes(BITMAP_BITS // 8, "little")


def make_follower(folder: Path, committed: dict[int, int]) -> Follower:
    follower = Follower(lambda: committed, lambda _: None, folder / "state" / "follow.json")
    follower.load()
    return follower


def test_only_what_was_committed_without_a_report_is_lost(tmp_path: Path) -> None:
    """Offset 5 lies below the floor of 8 and is lost; 9 may still be reported."""
    follower = make_follower(tmp_path, {1: BITMAP_BITS + 8})

    follower.take(1, 2, bits(3, 5, 9), bits(3), 1)

    assert follower.judge() == {(1, BITMAP_BITS + 5)}
    follower.lost = {(1, BITMAP_BITS + 5)}
    assert follower.judge() == set()


def test_a_report_that_comes_closes_its_bucket_and_repeats_are_counted(tmp_path: Path) -> None:
    """Four reports of two offsets are two again; nothing is open then."""
    follower = make_follower(tmp_path, {})

    follower.take(0, 1, bits(0, 7), bits(0), 1)
    was_open = dict(follower.open)
    follower.take(0, 1, bits(0, 7), bits(0, 7), 4)

    assert was_open == {(0, 1): 1 << 7}
    assert follower.open == {}
    assert follower.repeat_count == 2


def test_what_is_open_survives_a_restart(tmp_path: Path) -> None:
    """A bucket that does not change again is judged all the same."""
    follower = make_follower(tmp_path, {})
    follower.take(0, 1, bits(2, 4), bits(4), 2)
    follower.lost = {(3, 4)}
    follower._save()

    again = make_follower(tmp_path, {0: 3})

    assert again.open == {(0, 1): 1 << 2}
    assert again.judge() == {(0, 2)}
    assert again.lost == {(3, 4)}
    assert again.repeat_count == 1
