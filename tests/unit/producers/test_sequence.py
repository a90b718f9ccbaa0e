"""Sequences of lanes: numbers, retries, rejections, epochs, restarts, bounds."""

from __future__ import annotations

import uuid

import pytest

from keylane.producers.sequence import (
    EPOCH_MAX,
    UNKNOWN_PRODUCER_LOG_START,
    SequencedBatch,
    SequenceMap,
)
from keylane.producers.stream import (
    BATCHES_REMEMBERED,
    SEQUENCE_MAX,
    Assigned,
    increment_sequence,
)
from keylane.wire.produce import Refusal

TOPIC = uuid.UUID(int=7)
PRODUCER = 4000


class Harness:
    """One producer at one partition, one record of lane 99 written unless `is_new`."""

    def __init__(self, *, is_new: bool = False) -> None:
        self.map = SequenceMap(seed=1)
        self.first: int | None = None
        if not is_new:
            given = self.map.assign(SequencedBatch(PRODUCER, 0, TOPIC, 0, 99, 0, 1))
            assert isinstance(given, Assigned)
            self.map.settle(SequencedBatch(PRODUCER, 0, TOPIC, 0, 99, 0, 1), 0)
            self.first = increment_sequence(given.base_sequence, 1)

    def assign(
        self, lane: int, base: int, count: int = 10, *, epoch: int = 0, tx: bool = False
    ) -> tuple[int, int] | Refusal:
        """(place behind the first sequence, epoch) of a batch; a Refusal as it is."""
        given = self.map.assign(
            SequencedBatch(PRODUCER, epoch, TOPIC, 0, lane, base, count, is_transactional=tx)
        )
        self.map.check()
        if isinstance(given, Refusal):
            return given
        if self.first is None:
            self.first = given.base_sequence
        first = self.first if given.producer_epoch == 0 else 0
        return (given.base_sequence - first) % (SEQUENCE_MAX + 1), given.producer_epoch

    def settle(self, lane: int, base: int, code: int = 0, *, epoch: int = 0, at: int = -1) -> int:
        code = self.map.settle(
            SequencedBatch(PRODUCER, epoch, TOPIC, 0, lane, base, 1), code, base_offset=at
        )
        self.map.check()
        return code


def code_of(given: object) -> int:
    assert isinstance(given, Refusal)
    return given.error_code


@pytest.mark.parametrize(
    ("sequence", "count", "expected"),
    [
        (0, 1, 1),
        (SEQUENCE_MAX, 1, 0),
        (SEQUENCE_MAX - 3, 5, 1),
        (SEQUENCE_MAX - 3, 3, SEQUENCE_MAX),
    ],
)
def test_sequences_go_round(sequence: int, count: int, expected: int) -> None:
    """Behind 2^31-1 comes 0, as in DefaultRecordBatch.incrementSequence."""
    assert increment_sequence(sequence, count) == expected


def test_lanes_share_one_row_of_numbers() -> None:
    """Lane batches of 10, 5 and 10 records stand at 0, 10, 15 whatever lane they are of."""
    one = Harness()

    given = [one.assign(0, 0), one.assign(4, 0, 5), one.assign(0, 10)]

    assert given == [(0, 0), (10, 0), (15, 0)]


def test_an_identical_retry_has_the_number_it_had() -> None:
    """Sent again while open: same number, and the next new batch is not moved by it."""
    one = Harness()
    one.assign(0, 0)
    one.assign(4, 0)

    assert one.assign(0, 0) == (0, 0)
    assert one.assign(4, 10) == (20, 0)


def test_a_retry_of_what_is_written_is_answered_from_memory() -> None:
    """The answer is error code 0 and the base offset that the broker gave."""
    one = Harness()
    one.assign(0, 0)
    one.settle(0, 0, at=777)

    given = one.assign(0, 0)

    assert isinstance(given, Refusal)
    assert (given.error_code, given.base_offset) == (0, 777)


def test_a_gap_in_a_lane_is_out_of_order() -> None:
    """Lane sequence 20 after 0 to 9: OUT_OF_ORDER_SEQUENCE_NUMBER, and 10 is still taken."""
    one = Harness()
    one.assign(0, 0)

    assert code_of(one.assign(0, 20)) == 45
    assert one.assign(0, 10) == (10, 0)


def test_the_last_5_batches_of_a_lane_are_remembered() -> None:
    """Of 6 written ones the oldest is out of order when it comes again, the next is known."""
    one = Harness()
    for base in range(0, 60, 10):
        one.assign(0, base)
        one.settle(0, base)

    codes = [code_of(one.assign(0, base)) for base in (0, 10)]

    assert codes == [45, 0]


@pytest.mark.parametrize(("base", "count"), [(-1, 1), (0, 0), (0, -5)])
def test_a_batch_without_a_sequence_or_records_is_invalid(base: int, count: int) -> None:
    """INVALID_RECORD, and nothing is remembered."""
    one = Harness(is_new=True)

    assert code_of(one.assign(0, base, count)) == 87
    assert one.map.lane_count == 0


# -- rejections ---------------------------------------------------------------------------


def test_a_rejected_number_is_given_again() -> None:
    """NOT_ENOUGH_REPLICAS for the newest batch: another lane gets its number."""
    one = Harness()
    one.assign(0, 0)

    code = one.settle(0, 0, 19)

    assert code == 19
    assert one.assign(4, 0) == (0, 0)
    assert one.assign(0, 0) == (10, 0)


def test_batches_behind_a_rejected_one_are_to_be_retried() -> None:
    """Their OUT_OF_ORDER from the broker becomes NOT_ENOUGH_REPLICAS, and all start anew."""
    one = Harness()
    one.assign(0, 0)
    one.settle(0, 0)
    one.assign(0, 10)
    one.assign(4, 0)
    one.assign(8, 0)

    codes = [one.settle(0, 10, 19), one.settle(4, 0, 45), one.settle(8, 0, 45)]

    assert codes == [19, 19, 19]
    assert [one.assign(8, 0), one.assign(4, 0), one.assign(0, 10)] == [(10, 0), (20, 0), (30, 0)]


def test_a_rejected_batch_keeps_its_number_while_one_behind_it_is_open() -> None:
    """Its retry has the number it had: the broker still expects that one."""
    one = Harness()
    one.assign(0, 0)
    one.assign(4, 0)
    one.settle(0, 0, 19)

    assert one.assign(0, 0) == (0, 0)


def test_a_split_batch_waits_for_those_behind_it() -> None:
    """MESSAGE_TOO_LARGE, then half of it: NOT_ENOUGH_REPLICAS until the number is free."""
    one = Harness()
    one.assign(0, 0, 10)
    one.assign(4, 0, 10)
    one.settle(0, 0, 10)

    while_open = one.assign(0, 0, 5)
    one.settle(4, 0, 45)

    assert code_of(while_open) == 19
    assert one.assign(0, 0, 5) == (0, 0)


def test_an_open_outcome_keeps_the_number() -> None:
    """REQUEST_TIMED_OUT may have been written: no other batch gets its number."""
    one = Harness()
    one.assign(0, 0)

    assert one.settle(0, 0, 7) == 7
    assert one.assign(4, 0) == (10, 0)
    assert one.assign(0, 0) == (0, 0)


def test_a_late_error_for_what_is_written_is_a_duplicate() -> None:
    """Sent over two connections: the second answer cannot undo the first."""
    one = Harness()
    one.assign(0, 0)
    one.settle(0, 0)

    assert one.settle(0, 0, 45) == 46
    assert one.settle(0, 0, 0) == 0
    assert one.assign(0, 10) == (10, 0)


def test_no_more_is_under_way_than_a_broker_remembers() -> None:
    """The 6th batch waits while the 1st is open; 4 behind a settled one may go."""
    one = Harness()
    for lane in range(BATCHES_REMEMBERED):
        one.assign(lane, 0)

    refused = one.assign(9, 0)
    room = one.map.room(PRODUCER, TOPIC, 0)
    one.settle(1, 0)
    still = one.assign(9, 0)
    one.settle(0, 0)

    assert (code_of(refused), room, code_of(still)) == (19, 0, 19)
    assert one.map.room(PRODUCER, TOPIC, 0) == 2
    assert one.assign(9, 0) == (50, 0)


def test_real_disorder_is_reported() -> None:
    """OUT_OF_ORDER for the first in line, after others were written, reaches the client."""
    one = Harness()
    one.assign(0, 0)
    one.settle(0, 0)
    one.assign(0, 10)

    assert one.settle(0, 10, 45) == 45


# -- epochs -------------------------------------------------------------------------------


def test_a_new_epoch_starts_at_0() -> None:
    """The partition moves with the first lane; a lane that does not start at 0 is refused."""
    one = Harness()
    one.assign(0, 0)
    one.settle(0, 0)

    assert code_of(one.assign(0, 5, epoch=1)) == 45
    assert one.assign(0, 0, epoch=1) == (0, 1)
    assert code_of(one.assign(0, 10, epoch=0)) == 47


def test_a_lane_that_has_not_bumped_yet_writes_in_the_partitions_epoch() -> None:
    """Lane 4 in epoch 0 gets a number of epoch 1, for the broker takes nothing older."""
    one = Harness()
    one.assign(0, 0)
    one.assign(4, 0)
    one.settle(0, 0)
    one.settle(4, 0)
    one.assign(0, 0, epoch=1)

    given = one.assign(4, 10)
    one.settle(4, 10)

    assert given == (10, 1)
    assert one.assign(4, 0, epoch=1) == (20, 1)


def test_a_batch_refused_before_the_bump_is_numbered_in_the_new_epoch() -> None:
    """Lane 4's batch, rejected in epoch 0, is retried in epoch 1."""
    one = Harness()
    one.assign(0, 0)
    one.assign(4, 0)
    one.settle(0, 0, 7)
    one.settle(4, 0, 45)
    one.assign(0, 0, epoch=1)

    assert one.assign(4, 0) == (10, 1)


def test_a_batch_refused_after_the_bump_is_numbered_in_the_new_epoch() -> None:
    """The same when the broker's answer comes after the bump."""
    one = Harness()
    one.assign(0, 0)
    one.assign(4, 0)
    one.assign(0, 0, epoch=1)

    assert one.settle(4, 0, 47) == 19
    assert one.assign(4, 0) == (10, 1)


def test_a_doubtful_batch_of_an_old_epoch_fails() -> None:
    """Retried after an open outcome and refused for its epoch: INVALID_PRODUCER_EPOCH stays."""
    one = Harness()
    one.assign(0, 0)
    one.assign(4, 0)
    one.assign(4, 0)
    one.assign(0, 0, epoch=1)

    assert one.settle(4, 0, 47) == 47


def test_a_lane_that_leaves_an_open_batch_behind_moves_the_epoch() -> None:
    """Lane 4 bumps to 1 where the partition is; its open batch's number goes with epoch 1."""
    one = Harness()
    one.assign(0, 0)
    one.assign(4, 0)
    one.settle(0, 0)
    one.settle(4, 0)
    one.assign(0, 0, epoch=1)
    one.settle(0, 0, epoch=1)
    one.assign(4, 10)

    assert one.assign(4, 0, epoch=1) == (0, 2)


def test_transactions_keep_their_own_epoch() -> None:
    """Sequences start at 0, and an older epoch is fenced, never carried on in the newer one."""
    one = Harness(is_new=True)
    assert one.map.assign(
        SequencedBatch(PRODUCER, 3, TOPIC, 0, 0, 0, 10, is_transactional=True)
    ) == (0, 3)
    assert one.map.assign(
        SequencedBatch(PRODUCER, 4, TOPIC, 0, 4, 0, 10, is_transactional=True)
    ) == (0, 4)

    assert code_of(one.assign(0, 10, epoch=3, tx=True)) == 47


def test_out_of_epochs_a_producer_needs_a_new_id() -> None:
    """UNKNOWN_PRODUCER_ID where the partition's epoch cannot be bumped any more."""
    one = Harness(is_new=True)
    one.assign(0, 0, epoch=EPOCH_MAX)
    one.settle(0, 0, 45, epoch=EPOCH_MAX)

    assert code_of(one.assign(0, 0, epoch=EPOCH_MAX)) == 59


# -- restarts and bounds ------------------------------------------------------------------


def test_an_unknown_producer_in_mid_sequence_has_to_bump() -> None:
    """UNKNOWN_PRODUCER_ID with a log start that makes a Java producer bump its epoch."""
    one = Harness(is_new=True)

    given = one.assign(0, 30)

    assert isinstance(given, Refusal)
    assert (given.error_code, given.log_start_offset) == (59, UNKNOWN_PRODUCER_LOG_START)
    assert one.assign(0, 0, epoch=1) == one.assign(0, 0, epoch=1)


def test_two_runs_of_keylane_start_at_different_numbers() -> None:
    """So that a broker never takes a new batch for a retry from before a restart."""
    first, second = (
        SequenceMap(seed=seed).assign(SequencedBatch(PRODUCER, 0, TOPIC, 0, 0, 0, 10))
        for seed in (1, 2)
    )

    assert isinstance(first, Assigned)
    assert isinstance(second, Assigned)
    assert first.base_sequence != second.base_sequence
    assert SequenceMap()._seed != SequenceMap()._seed


def test_a_new_producer_has_one_batch_under_way() -> None:
    """A broker without state takes any number: the second waits until the first is written."""
    one = Harness(is_new=True)
    one.assign(0, 0)

    refused = one.assign(4, 0)
    one.settle(0, 0)

    assert code_of(refused) == 19
    assert one.assign(4, 0) == (10, 0)
    assert one.map.room(PRODUCER, TOPIC, 0) == 4
    assert one.map.room(PRODUCER, TOPIC, 1) == 1


@pytest.mark.parametrize("code", [45, 59])
def test_a_broker_that_knows_more_moves_the_partitions_epoch(code: int) -> None:
    """The first batch after a restart is refused: retried at 0 of the next epoch."""
    one = Harness(is_new=True)
    one.assign(0, 0)

    assert one.settle(0, 0, code) == 19
    assert one.assign(0, 0) == (0, 1)


def test_a_broker_in_a_later_epoch_is_followed_with_care() -> None:
    """INVALID_PRODUCER_EPOCH: next epoch, at a number that no batch can have had before."""
    one = Harness(is_new=True)
    first = one.map.assign(SequencedBatch(PRODUCER, 0, TOPIC, 0, 0, 0, 10))
    assert isinstance(first, Assigned)

    code = one.settle(0, 0, 47)

    assert code == 19
    assert one.map.assign(SequencedBatch(PRODUCER, 0, TOPIC, 0, 0, 0, 10)) == (
        first.base_sequence,
        1,
    )


def test_the_epoch_does_not_move_over_an_unknown_batch_of_another_lane() -> None:
    """Lane 4 bumps while lane 0's first batch is open: it waits, then starts epoch 1."""
    one = Harness(is_new=True)
    one.assign(0, 0)

    waiting = one.assign(4, 0, epoch=1)
    one.settle(0, 0)

    assert code_of(waiting) == 19
    assert one.assign(4, 0, epoch=1) == (0, 1)


def test_a_lane_waits_for_its_own_batch_of_an_older_epoch() -> None:
    """Lane 4's second batch is not numbered in epoch 1 while its first is open in epoch 0."""
    one = Harness()
    one.assign(4, 0)
    one.assign(0, 0, epoch=1)

    waiting = one.assign(4, 10)
    one.settle(4, 0)

    assert code_of(waiting) == 19
    assert one.assign(4, 10) == (10, 1)


def test_a_transaction_that_the_broker_knows_better_is_aborted() -> None:
    """UNKNOWN_PRODUCER_ID: a transactional producer aborts and gets a new epoch."""
    one = Harness(is_new=True)

    one.assign(0, 0, tx=True)
    first = one.settle(0, 0, 45)
    one.assign(0, 0, tx=True)
    second = one.settle(0, 0, 47)

    assert (first, second) == (59, 47)


def test_behind_a_transactions_rejected_batch() -> None:
    """OUT_OF_ORDER is to be retried, INVALID_PRODUCER_EPOCH is final."""
    one = Harness()
    for lane in (0, 4, 8):
        one.assign(lane, 0, tx=True)

    codes = [one.settle(0, 0, 19), one.settle(4, 0, 45), one.settle(8, 0, 47)]

    assert codes == [19, 19, 47]


def test_an_answer_without_a_waiter_changes_nothing() -> None:
    """Unknown producer, lane, epoch or batch: the code passes as it is."""
    one = Harness()
    one.assign(0, 0)

    codes = [
        one.map.settle(SequencedBatch(9, 0, TOPIC, 0, 0, 0, 1), 45),
        one.settle(4, 0, 45),
        one.settle(0, 0, 45, epoch=1),
        one.settle(0, 10, 45),
    ]

    assert codes == [45] * 4
    assert one.assign(0, 0) == (0, 0)


def test_the_producer_seen_longest_ago_is_forgotten_first() -> None:
    """Of 3 producers with room for 2, the one used least recently starts anew."""
    one = SequenceMap(producers_max=2)
    for producer_id in (1, 2, 1, 3):
        one.assign(SequencedBatch(producer_id, 0, TOPIC, 0, 0, 0, 10))
        one.settle(SequencedBatch(producer_id, 0, TOPIC, 0, 0, 0, 1), 0)
        one.check()

    codes = [one.assign(SequencedBatch(n, 0, TOPIC, 0, 0, 10, 10)) for n in (1, 2, 3)]

    assert [isinstance(given, Assigned) for given in codes] == [True, False, True]
    assert one.lane_count == 2


def test_lanes_are_bounded_over_all_producers() -> None:
    """Above lanes_max whole producers go, but never the one at work."""
    one = SequenceMap(lanes_max=3)
    for producer_id in (1, 2):
        for lane in range(3):
            one.assign(SequencedBatch(producer_id, 0, TOPIC, lane, lane, 0, 10))
    one.check()

    assert one.lane_count == 3
