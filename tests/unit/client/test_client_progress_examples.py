"""Progress of a partition, by example."""

from __future__ import annotations

from keylane.client.progress import PartitionProgress


def test_gaps_between_committed_ranges_are_amended() -> None:
    """41, 42, 46, 47 and 50 are given, committed as three ranges, and Kafka's offset follows."""
    progress = PartitionProgress(41, [(43, 45), (48, 49)])
    assert progress.wanted(40, 50) == [(41, 42), (46, 47), (50, 50)]

    progress.given([41, 42, 46, 47, 50], 51)
    progress.done_all()

    sent = progress.ranges_to_commit(10)
    assert sent == [(41, 42), (46, 47), (50, 50)]
    progress.committed(sent, stable_offset=50)
    assert (progress.plain_offset(), progress.range_count, progress.open_count) == (51, 0, 0)


def test_a_gap_is_done_with_the_record_before_it() -> None:
    """Offsets of other members' keys join the ranges: one of them, not three."""
    progress = PartitionProgress(0)
    progress.given([2, 7, 9], 12)

    progress.done([2])
    assert progress.ranges_to_commit(10) == [(0, 6)]
    progress.done([9])
    assert progress.ranges_to_commit(10) == [(0, 6), (9, 11)]
    progress.skip(12, 19)
    assert progress.ranges_to_commit(10) == [(0, 6), (9, 19)]
    progress.done([7])

    assert progress.ranges_to_commit(10) == [(0, 19)]
    assert progress.plain_offset() == 20


def test_a_gap_behind_an_open_record_waits_for_it() -> None:
    """The commit never passes a record that is not done."""
    progress = PartitionProgress(5)
    progress.given([5], 6)
    progress.skip(6, 30)

    assert (progress.plain_offset(), progress.range_count) == (5, 0)
    progress.done([5])
    assert progress.plain_offset() == 31


def test_a_range_that_grows_while_it_is_sent_is_committed_in_two() -> None:
    """What was done meanwhile goes with the next commit."""
    progress = PartitionProgress(0)
    progress.given(range(10), 10)
    progress.done(range(3))
    sent = progress.ranges_to_commit(10)
    progress.done([3, 4])

    progress.committed(sent)

    assert (sent, progress.ranges_to_commit(10)) == ([(0, 2)], [(3, 4)])


def test_a_stable_offset_passes_what_is_open() -> None:
    """All members have done it: nothing of it is wanted or committed any more."""
    progress = PartitionProgress(0)
    progress.given(range(4), 4)
    progress.done([1])

    progress.committed([], stable_offset=9)

    assert (progress.plain_offset(), progress.open_count, progress.range_count) == (10, 0, 0)
    assert progress.wanted(0, 12) == [(10, 12)]


def test_the_plain_offset_is_news_until_it_is_committed() -> None:
    """As for a commit to plain Kafka."""
    progress = PartitionProgress(7)
    news = [progress.has_plain_news]
    progress.given([7], 8)
    progress.done_all()
    news.append(progress.has_plain_news)

    progress.plain_committed(8)

    assert [*news, progress.has_plain_news] == [False, True, False]
