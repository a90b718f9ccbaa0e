"""proxy/topics/range_splits.py: which of the ranges that fetches name share a reader."""

from __future__ import annotations

import uuid

import pytest

from keylane.keyrange.hash import murmur2_hash
from keylane.keyrange.key_split import NO_OUTPUT, KeySplit, PartitionSplit
from keylane.keyrange.space import HASH_MAX, WHOLE, KeyRange, split_even
from keylane.proxy.topics.range_splits import (
    IDLE_S,
    LOG_INTERVAL_S,
    PAUSE_S,
    PAUSE_S_MAX,
    SPLITS_MAX,
    TIDY_S,
    UNUSED_S,
    Ranges,
    RangeSplits,
)
from keylane.proxy.topics.view import Share

TOPIC, OTHER = uuid.UUID(int=1), uuid.UUID(int=2)
QUARTERS = [(part,) for part in split_even(4)]
HALF = (KeyRange(0, HASH_MAX // 2),)


def ask(splits: RangeSplits, ranges: Ranges, now_s: float, partition: int = 0) -> Share:
    """A fetch that is placed at once."""
    share = splits.place(TOPIC, partition, ranges, now_s).share
    splits.check()
    assert share is not None
    return share


def test_the_first_ranges_are_read_at_once() -> None:
    """Its own keys are an output, all others are dropped."""
    share = ask(RangeSplits(), QUARTERS[1], 0.0)

    assert (share.ranges, share.output) == (QUARTERS[1], 0)
    assert share.key_split.outputs == (NO_OUTPUT, 0, NO_OUTPUT)


def test_newcomers_of_a_moment_share_one_change() -> None:
    """They wait for it together, and then all are outputs of one split."""
    splits = RangeSplits()
    first = ask(splits, QUARTERS[0], 0.0)

    waits = [splits.place(TOPIC, 0, QUARTERS[n], 0.02 * n) for n in (1, 2)]
    meanwhile = ask(splits, QUARTERS[0], 0.05)
    now_s = 0.02 + waits[0].wait_s
    shares = [ask(splits, ranges, now_s) for ranges in QUARTERS[:3]]

    assert [placing.share for placing in waits] == [None, None]
    assert [placing.wait_s for placing in waits] == pytest.approx([PAUSE_S - 0.02, PAUSE_S - 0.04])
    assert meanwhile == first
    assert {share.output for share in shares} == {0, 1, 2}
    assert len({id(share.key_split) for share in shares}) == 1


def test_a_newcomer_that_comes_back_late_is_placed() -> None:
    """It is no less new than one that kept its time."""
    splits = RangeSplits()
    ask(splits, QUARTERS[0], 0.0)
    assert splits.place(TOPIC, 0, QUARTERS[1], 0.01).share is None

    assert ask(splits, QUARTERS[1], 2 * IDLE_S).ranges == QUARTERS[1]


def test_the_pause_grows_while_members_come_one_by_one() -> None:
    """A hundred members in 30 s cost some twenty readers; after a quiet time it is short again."""
    splits = RangeSplits()
    parts = [(part,) for part in split_even(100)]
    seen: list[KeySplit] = []
    for number, ranges in enumerate(parts):
        placing = splits.place(TOPIC, 0, ranges, number * 0.3)
        assert placing.wait_s <= PAUSE_S_MAX + 0.001
        for before in parts[:number]:  # the others go on with their polls
            share = splits.place(TOPIC, 0, before, number * 0.3).share
            seen += [share.key_split] if share is not None and share.key_split not in seen else []
        splits.check()
    later_s = 30.0 + PAUSE_S_MAX
    last = {id(ask(splits, ranges, later_s).key_split) for ranges in parts}

    assert 10 < len(seen) <= 25 and len(last) == 1
    quiet_s = later_s + IDLE_S + PAUSE_S_MAX + 1
    ask(splits, HALF, quiet_s)
    assert splits.place(TOPIC, 0, QUARTERS[3], quiet_s).wait_s == pytest.approx(PAUSE_S)


def test_splits_that_no_fetch_gets_any_more_are_reported() -> None:
    """With a newcomer the one before it; splits out of use with the next change."""
    replaced: list[PartitionSplit] = []
    splits = RangeSplits(replaced.append)
    first = ask(splits, QUARTERS[0], 0.0)
    both = ask(splits, QUARTERS[1], 1.0)
    assert replaced == [PartitionSplit(TOPIC, 0, first.key_split)]

    other = ask(splits, HALF, 2.0)
    assert len(replaced) == 1
    ask(splits, QUARTERS[3], IDLE_S + 4.0)

    gone = {PartitionSplit(TOPIC, 0, share.key_split) for share in (both, other)}
    assert set(replaced[1:]) == gone


def test_ranges_that_overlap_go_to_another_split() -> None:
    """Those that have the first split keep it as it is."""
    splits = RangeSplits()
    first = ask(splits, HALF, 0.0)

    other = ask(splits, QUARTERS[0], 1.0)

    assert other.key_split != first.key_split
    assert ask(splits, HALF, 1.0) == first


def test_ranges_from_before_a_rebalance_give_way() -> None:
    """After some seconds without a fetch they do not keep others from one split."""
    splits = RangeSplits()
    ask(splits, HALF, 0.0)
    ask(splits, QUARTERS[2], 1.0)
    later_s = IDLE_S + 0.5
    ask(splits, QUARTERS[2], later_s)

    shares = [ask(splits, ranges, later_s) for ranges in (QUARTERS[0], QUARTERS[2])]

    assert shares[0].key_split is shares[1].key_split
    assert splits.range_count == 2


def test_two_splits_become_one_when_nothing_overlaps_any_more() -> None:
    """Without a newcomer as well: it is looked at from time to time."""
    splits = RangeSplits()
    ask(splits, HALF, 0.0)
    low = ask(splits, QUARTERS[0], 1.0)
    high = ask(splits, QUARTERS[3], 2.0)
    assert high.key_split is not low.key_split

    for now_s in (8.0, 16.0, 24.0, 32.0):
        for ranges in (QUARTERS[0], QUARTERS[3]):
            ask(splits, ranges, now_s)

    late = [ask(splits, ranges, 2.0 + TIDY_S + IDLE_S) for ranges in (QUARTERS[0], QUARTERS[3])]
    assert late[0].key_split is late[1].key_split


def test_a_ninth_range_that_overlaps_all_others_is_refused(caplog) -> None:
    """Each overlap is one more read of the partition. One line in the log, not one for each."""
    splits = RangeSplits()
    now_s = 0.0
    for number in range(SPLITS_MAX):
        now_s += 2.0
        for before in range(number + 1):
            ask(splits, (KeyRange(0, before),), now_s)

    placings = [splits.place(TOPIC, 0, WHOLE, now_s + 1.7 * (1 + n)) for n in range(3)]
    splits.check()

    assert [(placing.share, placing.wait_s) for placing in placings] == [(None, 0.0)] * 3
    assert splits.refused == 3 and caplog.text.count("fetch of key ranges refused") == 1
    assert splits.place(TOPIC, 0, WHOLE, now_s + 5.2).wait_s > 0
    assert splits.place(TOPIC, 0, WHOLE, now_s + 7.0) == (None, 0.0)
    assert ask(splits, WHOLE, now_s + IDLE_S + LOG_INTERVAL_S).ranges == WHOLE


def test_a_partition_has_a_bound_of_clients() -> None:
    """Of disjoint ranges as well; idle ones make room."""
    splits = RangeSplits(shares_max=2)
    ask(splits, QUARTERS[0], 0.0)
    ask(splits, QUARTERS[1], 1.0)

    assert splits.place(TOPIC, 0, QUARTERS[2], 2.0) == (None, 0.0)
    assert ask(splits, QUARTERS[2], 2.0, partition=1).output == 0
    assert ask(splits, QUARTERS[2], IDLE_S + 2.0).output == 0


def test_a_topic_leaves_room_for_others() -> None:
    """Three quarters of the node's ranges are one topic's at most."""
    splits = RangeSplits(ranges_max=8)
    parts = split_even(20)
    ask(splits, parts[0:12:2], 0.0)

    assert splits.place(TOPIC, 1, parts[0:2], 1.0) == (None, 0.0)
    assert splits.place(OTHER, 1, parts[0:4:2], 1.0).share is not None
    assert splits.place(OTHER, 2, parts[0:2:2], 1.0) == (None, 0.0)
    splits.check()


def test_what_is_not_asked_for_is_dropped() -> None:
    """Ranges that came and never asked again as well; a split that others use stays as it is."""
    splits = RangeSplits()
    ask(splits, QUARTERS[0], 0.0)
    splits.place(TOPIC, 0, QUARTERS[1], 0.01)
    ask(splits, QUARTERS[1], 1.0)
    both = ask(splits, QUARTERS[0], 1.0)
    splits.place(TOPIC, 0, QUARTERS[3], 1.01)
    assert splits.range_count == 3
    splits.sweep(UNUSED_S + 1.005)
    assert splits.range_count == 1

    splits = RangeSplits()
    ask(splits, QUARTERS[0], 0.0)
    splits.place(TOPIC, 0, QUARTERS[1], 0.01)
    both = ask(splits, QUARTERS[0], 1.0)
    ask(splits, QUARTERS[0], UNUSED_S)
    splits.sweep(UNUSED_S + 2.0)

    assert ask(splits, QUARTERS[0], UNUSED_S + 3.0) == both
    assert splits.range_count == 1
    splits.sweep(10 * UNUSED_S)
    splits.check()
    assert splits.range_count == 0


def test_ranges_of_other_hashes_share_nothing() -> None:
    """A topic whose lanes are by murmur2 has other points for its keys."""
    splits = RangeSplits()
    ask(splits, QUARTERS[0], 0.0)

    placing = splits.place(TOPIC, 0, QUARTERS[1], 0.0, key_hash=murmur2_hash(3, 4))

    assert placing.share is not None
    assert placing.share.key_split.key_hash == murmur2_hash(3, 4)
