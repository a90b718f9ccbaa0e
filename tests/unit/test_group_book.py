"""The oracle of the chaos test finds what it is there for."""

from __future__ import annotations

import pytest

from tests.long.group_book import Reported, Stall, judge, stall
from tests.long.kafka_history import Writer, judge_writers


def reported(at_s: float, member: str, event: str, **what) -> Reported:
    return at_s, member, event, what


def records(at_s: float, member: str, *found: tuple[int, int]) -> Reported:
    """`(offset, number)` of records of key k in lane 0."""
    said = [(0, offset, "k", f"k:{number}") for offset, number in found]
    return reported(at_s, member, "records", records=said)


A_HOLDS = reported(1, "a", "assigned", lanes=[0])
A_READS = records(2, "a", (10, 0), (11, 1))
A_COMMITS = reported(3, "a", "committed", offsets={"0": 12})


def test_a_handover_after_a_commit_is_clean() -> None:
    """What was committed is not seen again, the next record is."""
    verdict = judge([A_HOLDS, A_READS, A_COMMITS, reported(4, "b", "assigned", lanes=[0])])

    assert verdict.breaches == [] and verdict.delivered == 2


def test_uncommitted_records_may_come_again() -> None:
    """A repeat before a commit is noted, and is no breach."""
    verdict = judge(
        [A_HOLDS, A_READS, reported(4, "b", "assigned", lanes=[0]), records(5, "b", (10, 0))]
    )

    assert verdict.breaches == [] and verdict.repeated == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ([reported(4, "b", "assigned", lanes=[0]), records(5, "b", (11, 1))], "was committed"),
        ([records(5, "a", (11, 1))], "went back"),
        ([records(5, "a", (14, 3))], "out of order"),
    ],
)
def test_breaches_are_reported(more, said) -> None:
    """Committed and seen again; back in one assignment; a number left out."""
    verdict = judge([A_HOLDS, A_READS, A_COMMITS, *more])

    assert any(said in text for text in verdict.breaches)


def test_a_member_that_was_given_up_is_late_only() -> None:
    """It held the lane before another member committed, and got no rebalance."""
    b_commits = reported(4, "b", "committed", offsets={"0": 15})
    verdict = judge([A_HOLDS, A_READS, b_commits, records(5, "a", (12, 2))])

    assert verdict.breaches == [] and len(verdict.late) == 1


@pytest.mark.parametrize(
    ("writers", "is_clean"),
    [
        ([Writer(0, 7, 0), Writer(1, 7, 0), Writer(2, 7, 1)], True),
        ([Writer(0, 7, 0), Writer(1, 8, 0)], True),
        ([Writer(0, 7, 1), Writer(1, 7, 0)], False),
        ([Writer(0, 7, 0), Writer(1, 8, 0), Writer(2, 7, 0)], False),
    ],
)
def test_a_fenced_writer_writes_no_more(writers, is_clean) -> None:
    """An epoch, or a producer, that another one has followed does not come back."""
    assert (not judge_writers(writers, "p")) == is_clean


def test_a_stall_is_the_longest_gap() -> None:
    """Over all lanes, and of the worst one; the window's start counts as a record."""
    found = [(1.0, 0), (2.0, 1), (5.0, 0), (6.0, 1)]

    assert stall(found, [0, 1], 0.5, 6.5) == Stall(3.0, 4.0, 0)
