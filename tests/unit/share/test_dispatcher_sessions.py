"""Records of a share group in key order, at the broker: one promise for each test."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from keylane.share.held import NO_KEY
from keylane.wire.share import ACCEPT, GAP, REJECT, RELEASE, RENEW, AckBatch
from tests.unit.share.by_hand import A, B, Partition

# Sessions at the broker.


def test_a_member_keeps_its_records_through_a_new_session() -> None:
    """Its outcome is sent under the new lock."""
    part = Partition([A, A])
    part.take()
    part.lose_session()
    part.say(ACCEPT, 0)
    sent_before = part.dispatcher.next_acks()

    part.acquire(0, 1, count=2)
    part.settle()

    assert sent_before == []
    assert part.confirm() == [AckBatch(0, 0, bytes((ACCEPT,)))]
    assert (part.codes, part.take("n")) == ([0], [1])


def test_nothing_is_handed_out_before_a_session_has_settled() -> None:
    """A lower record of the key may be missing."""
    part = Partition([A, A])
    part.lose_session()
    part.acquire(1, count=2)
    before = part.take()

    part.acquire(0, count=2)
    part.settle()

    assert (before, part.take()) == ([], [0])


def test_records_of_a_former_process_wait_and_other_keys_go_on() -> None:
    """A member that got one from that process may be at work on it; records behind it wait, too."""
    part = Partition([])
    part.points = [A, A, B, A, B]
    part.acquire(0, 2, count=2)
    part.acquire(1)
    part.dispatcher.be_quiet(part.now_s + 5.0, part.now_s, apart={2})
    part.settle()
    part.acquire(3, 4, count=2)

    during = [part.take("m"), part.take("n"), part.dispatcher.next_wake_s]
    part.say(ACCEPT, 2)
    part.confirm()
    behind = part.take("n")
    part.now_s += 5.0

    assert during == [[2], [], part.now_s]
    assert (behind, part.take("m", 2), part.take("n", 2)) == ([], [0], [4])


def test_a_record_that_is_archived_while_a_member_has_it_keeps_its_key() -> None:
    """Its lock ended with the session, at its last delivery: another member would be a second."""
    part = Partition([A, A])
    part.take("m")
    part.lose_session()
    part.acquire(1, count=2)
    part.settle()
    during = part.take("n")

    code = part.say(ACCEPT, 0, member="m")

    assert (during, code, part.codes) == ([], None, [ErrorCode.invalid_record_state])
    assert part.take("n") == [1]


def test_an_outcome_that_arrived_with_a_lost_connection_is_confirmed() -> None:
    """The new session does not get the record: the broker has taken what was sent."""
    part = Partition([A, A])
    part.take()
    part.say(ACCEPT, 0)
    part.dispatcher.next_acks()
    part.lose_session()

    part.acquire(1, count=2)
    part.settle()

    assert (part.codes, part.take()) == ([0], [1])


def test_a_refused_outcome_is_an_error_and_the_record_comes_again() -> None:
    """Its lock was lost."""
    part = Partition([A, A])
    part.take()
    part.say(ACCEPT, 0)

    part.dispatcher.refused(part.dispatcher.next_acks(), 121, part.now_s)
    before = part.take()
    part.acquire(0, count=2)

    assert (part.codes, before, part.take()) == ([121], [], [0])


def test_an_outcome_that_a_fetch_has_refused_is_sent_under_the_lock_that_it_has_brought() -> None:
    """The lock had ended, and the same answer gives the record again: its member has decided."""
    part = Partition([A, A])
    part.take()
    part.say(ACCEPT, 0)
    acks = part.dispatcher.next_acks()

    part.dispatcher.unsend(acks)
    part.acquire(0, count=2)

    assert part.take() == []
    assert (part.confirm(), part.codes, part.take()) == (acks, [0], [1])


def test_outcomes_that_were_not_judged_are_sent_again() -> None:
    """Once each, also those of gaps, and of records that a member has called gaps."""
    part = Partition([A, B, NO_KEY])
    part.take(records_max=2)
    part.say(GAP, 0)
    part.say(ACCEPT, 1)
    part.dispatcher.acquire_gap(3, 5)
    acks = part.dispatcher.next_acks()

    part.dispatcher.unsend(acks)

    assert part.dispatcher.locked_count == 6
    assert part.dispatcher.next_acks() == acks


def test_locks_are_renewed_when_a_third_is_over() -> None:
    """Also of records at members; ranges go together."""
    part = Partition([A, B, A])
    part.take()
    before = part.dispatcher.renewals(part.now_s + 9.9)
    part.now_s += 10.0

    due = part.dispatcher.renewals(part.now_s)
    part.dispatcher.renewed(due, part.now_s)

    assert (before, due) == ([], [AckBatch(0, 2, bytes((RENEW,)))])
    assert part.dispatcher.renewals(part.now_s) == []


def test_a_lost_lock_in_the_middle_of_a_key_holds_it_up() -> None:
    """Until the broker gives the record again, or has archived it."""
    part = Partition([A, A])

    part.dispatcher.lose([AckBatch(1, 1, bytes((RENEW,)))], part.now_s)
    part.dispatcher.check()
    before = part.take()

    assert (before, part.fetch_nothing(), part.take()) == ([], [1], [0])


# Records that do not come again.


def test_a_record_that_two_late_fetches_do_not_bring_is_archived() -> None:
    """Not one, and none that was sent while the release may be under way, or that ended below."""
    part = Partition([A, A, B])
    part.take()
    part.say(RELEASE, 0)
    part.confirm()
    dispatcher, now_s = part.dispatcher, part.now_s
    early = [dispatcher.fetched(now_s + 1.9, None, now_s + 3.0) for _ in range(3)]
    late = [dispatcher.fetched(now_s + 2.0, 7, now_s + 3.0)]

    assert early + late == [[]] * 4
    assert part.take() == [2]
    assert (part.fetch_nothing(1), part.take()) == ([0], [1])


def test_a_fetch_that_ended_below_a_record_says_nothing_of_it() -> None:
    """The broker gives what is available lowest first."""
    part = Partition([A, B, B])
    for offset in (0, 1):
        part.take()
        part.say(RELEASE, offset)
    part.confirm()
    part.now_s += 10.0

    found = [part.dispatcher.fetched(part.now_s, 0, part.now_s) for _ in range(5)]

    assert found == [[]] * 5


def test_an_outcome_without_a_lock_ends_with_its_archived_record() -> None:
    """Else its key would be held up, and its member wait, until the next session."""
    part = Partition([A, A])
    part.take()
    part.dispatcher.lose([AckBatch(0, 0, bytes((RENEW,)))], part.now_s)
    part.say(ACCEPT, 0)

    archived = part.fetch_nothing()

    assert (archived, part.codes) == ([0], [ErrorCode.invalid_record_state])
    assert part.take() == [1]


# Dead letters.


def test_a_rejected_record_is_copied_before_the_broker_learns_of_it() -> None:
    """So is the release of a last delivery."""
    part = Partition([A, B], copies_rejected=True)
    part.dispatcher.last_delivery = 5
    part.acquire(1, count=5)
    part.take(records_max=1)
    part.take(records_max=1)
    part.say(REJECT, 0)
    part.say(RELEASE, 1)
    before, copies = part.confirm(), list(part.dispatcher.to_copy)

    for record in copies:
        part.dispatcher.copied(record, part.now_s)

    assert before == []
    assert part.confirm() == [AckBatch(0, 1, bytes((REJECT,)))]


@pytest.mark.parametrize("kind", [REJECT, RELEASE])
def test_a_record_that_is_being_copied_keeps_its_bytes_through_a_new_session(kind: int) -> None:
    """The broker has archived it with the session; the copy is the last of it."""
    part = Partition([A, A], copies_rejected=True)
    part.dispatcher.last_delivery = 1
    part.dispatcher.acquire([0], [A], 1, part.now_s, block="bytes")
    part.take()
    part.say(kind, 0)
    part.lose_session()
    part.acquire(1)
    part.settle()
    (record,) = part.dispatcher.to_copy
    block, before = record.block, part.take()

    part.dispatcher.copied(record, part.now_s)

    assert (block, before, len(part.codes)) == ("bytes", [], 1)
    assert part.take() == [1]


def test_a_release_that_has_become_the_last_is_copied_first() -> None:
    """The lock had ended unseen, and the record came again with its last count."""
    part = Partition([A], copies_rejected=True)
    part.dispatcher.last_delivery = 2
    part.take()
    part.say(RELEASE, 0)

    part.acquire(0, count=2)

    assert [record.offset for record in part.dispatcher.to_copy] == [0]
    assert part.confirm() == []


def test_an_outcome_whose_lock_is_lost_does_not_take_the_next_ones_place() -> None:
    """The record came again, and its second member's REJECT waits for the copy."""
    part = Partition([A], copies_rejected=True)
    part.take()
    part.say(RELEASE, 0)
    part.dispatcher.lose([AckBatch(0, 0, bytes((RENEW,)))], part.now_s)
    part.acquire(0, count=2)
    part.take()

    part.say(REJECT, 0)

    assert part.confirm() == []


# Dead letters before the last delivery.


def test_a_record_whose_deliveries_a_crash_has_used_up_gets_a_letter_unseen() -> None:
    """It is not handed out: one delivery more would end it at the broker."""
    part = Partition([A, A], copies_rejected=True)
    part.dispatcher.last_delivery = 4
    part.lose_session()
    part.acquire(0, count=5)
    part.acquire(1, count=2)
    part.settle()

    taken, (record,) = part.take(records_max=2), part.dispatcher.to_copy
    part.dispatcher.copied(record, part.now_s)

    assert (taken, record.offset) == ([], 0)
    assert part.confirm() == [AckBatch(0, 0, bytes((REJECT,)))]
    assert part.take() == [1]


def test_a_record_is_released_until_its_last_delivery_but_one() -> None:
    """Then a letter is written in the place of the release."""
    part = Partition([A], copies_rejected=True)
    part.dispatcher.last_delivery = 2
    part.take()
    part.say(RELEASE, 0)
    released = part.confirm()
    part.acquire(0, count=2)
    part.take()
    part.say(RELEASE, 0)

    assert released == [AckBatch(0, 0, bytes((RELEASE,)))]
    assert part.confirm() == []
    assert [record.offset for record in part.dispatcher.to_copy] == [0]


class EpochBlock:
    """A block of batches that were written in one leader epoch."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def epoch_of(self, _row: int) -> int:
        """Return the epoch of a record's batch."""
        return self.epoch


def acquire_in_epoch(part: Partition, offset: int, point: int, epoch: int, count: int = 1) -> None:
    """The broker gives a record of a log that a leader of this epoch has written."""
    part.dispatcher.acquire([offset], [point], count, part.now_s, EpochBlock(epoch))
    part.dispatcher.check()


# A log that was cut.


def test_an_outcome_of_a_record_that_the_log_has_lost_ends_no_other_record() -> None:
    """A new leader without the record has another one of the same key at its offset."""
    part = Partition([A])
    acquire_in_epoch(part, 0, A, epoch=1)
    part.take()
    part.lose_session()
    acquire_in_epoch(part, 0, A, epoch=2)
    part.settle()

    refused = part.say(ACCEPT, 0)

    assert refused == ErrorCode.invalid_record_state
    assert part.confirm() == []
    assert part.take("n") == [0]


def test_an_outcome_on_its_way_is_refused_when_the_log_has_lost_its_record() -> None:
    """Its member learns that it does not count."""
    part = Partition([A])
    acquire_in_epoch(part, 0, A, epoch=1)
    part.take()
    part.say(ACCEPT, 0)
    part.lose_session()
    acquire_in_epoch(part, 0, B, epoch=2)
    part.settle()

    assert part.codes == [ErrorCode.invalid_record_state]
    assert part.take("n") == [0]


def test_a_record_of_the_same_log_stays_with_its_member() -> None:
    """Its outcome is sent under the lock of the next session."""
    part = Partition([A])
    acquire_in_epoch(part, 0, A, epoch=1)
    part.take()
    part.lose_session()
    acquire_in_epoch(part, 0, A, epoch=1, count=2)
    part.settle()

    assert part.say(ACCEPT, 0) is None
    assert part.confirm() == [AckBatch(0, 0, bytes((ACCEPT,)))]
