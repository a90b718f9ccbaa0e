"""Scans and log starts of partitions, as readers and other nodes report them."""

from __future__ import annotations

import uuid

import numpy as np

from keylane.keyrange.key_split import PartitionSplit, even_split
from keylane.offsets.lineage import Lineages
from keylane.offsets.state import OffsetState
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans import known_scans as scans_module
from keylane.proxy.scans.known_scans import Scans

PLACE = (uuid.UUID(int=7), 3)
TWO = even_split(2)
KEY = PartitionSplit(*PLACE, TWO)
LANES = [TWO.key_range(lane) for lane in range(2)]


def block(
    start: int, end: int, *, log_start: int = 0, epoch: int = 5, is_own: bool = False
) -> ScannedBlock:
    """A block without a record of any lane."""
    return ScannedBlock(
        topic="orders",
        at=PartitionSplit(PLACE[0], PLACE[1], TWO),
        start=start,
        end=end,
        last_record_offsets=np.array([-1, -1], np.int64),
        outputs=(None, None),
        holes=(),
        log_start_offset=log_start,
        leader_epoch=epoch,
        epochs=((epoch, start),) if is_own else (),
    )


def committed(*offsets: int) -> OffsetState:
    state = OffsetState(committed=None)
    for lane, offset in zip(LANES, offsets, strict=True):
        state.commit_keys((lane,), offset)
    return state


def test_positions_below_the_log_start_go_up_to_it() -> None:
    """Nothing is left to read there, and the stable offset must not wait for it."""
    scans = Scans(Lineages())
    scans.note(block(5_000, 6_000, log_start=5_000))
    before, state = committed(10, 5_500), committed(10, 5_600)

    scans.raise_to_log_start(PLACE, state, before)

    assert state.stable_position == 5_000


def test_a_log_start_does_not_count_until_the_log_of_a_new_leader_was_compared() -> None:
    """The new log may begin lower, at records that no lane has read."""
    lineages = Lineages()
    scans = Scans(lineages)
    scans.note(block(5_000, 6_000, log_start=5_000))
    before, state = committed(10, 5_500), committed(10, 5_600)
    scans.note_leader(PLACE, 6)

    scans.raise_to_log_start(PLACE, state, before)
    assert state.stable_position == 10

    lineages.of(PLACE).leader_epoch = 6
    scans.raise_to_log_start(PLACE, state, before)
    assert state.stable_position == 5_000


def test_a_log_start_outlives_no_cut() -> None:
    """Another log begins where it does: no position moves to where the one before began."""
    scans = Scans(Lineages())
    scans.note(block(5_000, 6_000, log_start=5_000))
    state = committed(17, 20)

    scans.on_truncated(*PLACE, 0)
    scans.raise_to_log_start(PLACE, state, None)

    assert state.stable_position == 17


def test_the_newest_log_start_counts() -> None:
    """A new leader may have kept more than the one before."""
    scans = Scans(Lineages())
    scans.note(block(5_000, 6_000, log_start=5_000))
    scans.note(block(4_000, 5_000, log_start=4_000))
    state = committed(10, 20)

    scans.raise_to_log_start(PLACE, state, committed(10, 20))

    assert state.stable_position == 4_000


def test_a_first_commit_where_members_were_assumed_to_start_is_believed() -> None:
    """Nothing was committed before, so the commit is news, though no position has changed."""
    scans = Scans(Lineages())
    scans.note(block(5_000, 6_000, log_start=5_000))
    state = OffsetState(committed=None, base=17)
    before = state.copy()
    for lane in LANES:
        state.commit_keys((lane,), 17)

    scans.raise_to_log_start(PLACE, state, before)

    assert state.stable_position == 17


def test_a_member_that_reads_below_the_log_start_is_believed() -> None:
    """It has met another log, then: the member's commit is not moved up, nor is the next."""
    scans = Scans(Lineages())
    scans.note(block(5_000, 6_000, log_start=5_000))
    before, state = committed(10, 10), committed(17, 10)

    scans.raise_to_log_start(PLACE, state, before)
    scans.raise_to_log_start(PLACE, state, state)

    assert [state.position_of(lane).offset for lane in LANES] == [17, 10]


def test_a_later_epoch_at_offsets_of_an_earlier_one_contradicts() -> None:
    """Another node has read a new log without knowing the old one."""
    lineages = Lineages()
    scans = Scans(lineages)
    scans.note(block(0, 100, epoch=5))

    found = [
        scans.contradicts(block(start, start + 10, epoch=epoch))
        for start, epoch in ((100, 6), (90, 6), (90, 5), (90, -1))
    ]

    assert found == [False, True, False, False]
    assert (lineages.of(PLACE).newest, lineages.of(PLACE).end) == (5, 100)


def test_a_cut_ends_scan_and_lineage() -> None:
    """What comes after it is scanned anew."""
    lineages = Lineages()
    scans = Scans(lineages)
    scans.note(block(0, 100))
    scan = scans.of(KEY)

    scans.on_truncated(*PLACE, 40)

    assert scan.regions() == [(0, 40)]
    assert scans.of(KEY) is scan
    assert lineages.of(PLACE).end == 40


def passes(scans: Scans, offset: int) -> bool:
    """Whether a lane at 0 is led on to an offset."""
    return scans.known(KEY).effective(LANES[0], 0) >= offset


def test_scans_do_not_count_until_the_log_of_a_new_leader_was_compared() -> None:
    """Metadata names the leader before any reader has met it; its log may be another one."""
    lineages = Lineages()
    scans = Scans(lineages)
    scans.note(block(0, 100))
    lineages.of(PLACE).leader_epoch = 5
    assert passes(scans, 100)

    scans.note_leader(PLACE, 6)

    assert not passes(scans, 1)
    lineages.of(PLACE).leader_epoch = 6  # a reader has compared it, and found nothing cut
    assert passes(scans, 100)


def test_a_cut_by_a_new_leader_leaves_what_was_scanned_since() -> None:
    """The reader that has compared it goes on."""
    scans = Scans(Lineages())
    scans.note(block(0, 100))
    scans.note_leader(PLACE, 6)

    scans.on_truncated(*PLACE, 0)
    scans.note(block(0, 50, epoch=6))

    assert passes(scans, 50) and not passes(scans, 51)


def test_what_another_node_reads_of_a_new_leader_is_no_continuation() -> None:
    """That node has compared its own reading, and not what was scanned here."""
    scans = Scans(Lineages())
    scans.note(block(0, 100))
    scans.note_leader(PLACE, 6)

    assert not scans.contradicts(block(100, 200, epoch=5))
    assert scans.contradicts(block(100, 200, epoch=6))


def test_a_leader_of_a_log_that_was_never_scanned_is_not_kept() -> None:
    """Metadata names the leaders of all partitions of a cluster."""
    lineages = Lineages()
    scans = Scans(lineages)
    lineages.of(PLACE)  # is asked for, by a comparison of states

    scans.note_leader(PLACE, 6)

    assert not scans._new_leaders


def test_what_was_reported_before_the_start_is_of_the_leader_of_then() -> None:
    """The log was cut while all nodes were down: no node has met it, and none reports it."""
    lineages = Lineages()
    scans = Scans(lineages)
    scans.note(block(0, 100))

    scans.note_past(block(0, 100), 5)
    assert passes(scans, 100)
    scans.note_past(block(0, 100), 6)

    assert not passes(scans, 1)
    lineages.of(PLACE).leader_epoch = 6  # a reader has compared it
    assert passes(scans, 100)


def test_scans_of_many_lanes_make_room_for_each_other(monkeypatch) -> None:
    """By lanes, not by their number alone; the longest unused goes first."""
    monkeypatch.setattr(scans_module, "OUTPUTS_MAX", 8)
    scans = Scans(Lineages())
    first, second, third = (PartitionSplit(PLACE[0], number, even_split(4)) for number in range(3))

    scans.of(first)
    scans.of(second)
    scans.of(first)
    scans.of(third)

    assert list(scans._by_split) == [first, third] and scans.output_count == 8


def test_nothing_is_left_of_a_deleted_topic() -> None:
    """Its scans, and what stands beside them."""
    scans = Scans(Lineages())
    scans.note(block(0, 100, log_start=7))
    other = PartitionSplit(uuid.UUID(int=8), 0, TWO)
    scans.of(other)

    gone = scans.forget_topics({PLACE[0]})

    assert gone == [KEY] and scans.topic_ids() == {other[0]}
    assert not scans._log_starts and scans.output_count == 2 and scans._used == {other}


def test_a_new_leader_stays_unsure_for_splits_that_are_left() -> None:
    """One split is forgotten; the scan of the other is still of the earlier leader's log."""
    lineages = Lineages()
    scans = Scans(lineages)
    scans.of(PartitionSplit(*PLACE, even_split(4)))
    scans.sweep(lambda key: key == KEY)
    scans.note(block(0, 100))
    scans.note_leader(PLACE, 6)
    before = passes(scans, 50)

    forgotten = scans.sweep(lambda _key: False)
    after = passes(scans, 50)
    scans.sweep(lambda _key: False)
    scans.sweep(lambda _key: False)

    assert forgotten == [PartitionSplit(*PLACE, even_split(4))]
    assert not before and not after
    assert not scans._new_leaders and not scans._split_counts, "nothing is left"
