"""The ledger: each way to break a promise has its own count, and a kill is no breach."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import pytest

from keylane.demo.events import (
    CommitFailed,
    Delivered,
    Ended,
    Event,
    LanesAssigned,
    LanesCommitted,
    LanesReleased,
    OrderBatch,
    RecordsCommitted,
    SessionEnd,
)
from keylane.demo.ledger import Counts, Ledger, build_ledger, judge
from keylane.demo.orders import OrderRun

LANE = 5


class Story:
    """Events of lane 5 and customer 1, a nanosecond apart; offset = order number."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._clock: Iterator[int] = itertools.count(1)

    def assign(self, member: int) -> Story:
        self.events.append(LanesAssigned(member, next(self._clock), (LANE,)))
        return self

    def read(self, member: int, first: int, end: int) -> Story:
        batch = OrderBatch(LANE, first, end - 1, (OrderRun(1, first, end - first),))
        self.events.append(Delivered(member, next(self._clock), (batch,)))
        return self

    def commit(self, member: int, position: int) -> Story:
        self.events.append(LanesCommitted(member, next(self._clock), ((LANE, position),)))
        return self

    def commit_records(self, member: int, *offsets: int) -> Story:
        self.events.append(RecordsCommitted(member, next(self._clock), ((LANE, offsets),)))
        return self

    def fail_commit(self, member: int, reason: str = "x", lanes: Sequence[int] = (LANE,)) -> Story:
        self.events.append(CommitFailed(member, next(self._clock), tuple(lanes), reason))
        return self

    def release(self, member: int, end: SessionEnd = SessionEnd.REVOKED) -> Story:
        self.events.append(LanesReleased(member, next(self._clock), (LANE,), end))
        return self

    def end(self, member: int, end: SessionEnd = SessionEnd.KILLED) -> Story:
        self.events.append(Ended(member, next(self._clock), end))
        return self

    def ledger(self) -> Ledger:
        ledger = build_ledger(self.events)
        ledger.check()
        return ledger

    def counts(self) -> Counts:
        return self.ledger().counts


def test_a_clean_handover_is_clean() -> None:
    """Ten orders at one member, committed, ten more at the next: nothing to report."""
    story = Story().assign(1).read(1, 0, 10).commit(1, 10).release(1)

    ledger = story.assign(2).read(2, 10, 20).commit(2, 20).ledger()

    assert ledger.counts == Counts(deliveries=20)
    assert (ledger.delivered_count(), ledger.lost_count({1: 20})) == (20, 0)


def test_redelivery_after_kill_is_counted() -> None:
    """Orders 4 to 9 were not committed when the member was killed: six come again."""
    story = Story().assign(1).read(1, 0, 4).commit(1, 4).read(1, 4, 10).end(1)

    counts = story.assign(2).read(2, 4, 12).counts()

    assert counts == Counts(deliveries=18, after_kill=6)


def test_a_second_kill_keeps_the_first_in_mind() -> None:
    """The next owner commits one of the six and goes in order; the other five are the kill's."""
    story = Story().assign(1).read(1, 0, 6).end(1)
    story.assign(2).read(2, 0, 1).commit(2, 1).release(2)

    counts = story.assign(3).read(3, 1, 6).counts()

    assert counts == Counts(deliveries=12, after_kill=6)


def test_redelivery_after_failed_commit_is_counted() -> None:
    """A commit that failed explains three orders that come again."""
    story = Story().assign(1).read(1, 0, 3).fail_commit(1).release(1)

    counts = story.assign(2).read(2, 0, 3).counts()

    assert counts == Counts(deliveries=6, after_failed_commit=3)


def test_redelivery_after_lost_lanes_is_counted() -> None:
    """A member that lost its lanes could not commit: three orders may come again."""
    story = Story().assign(1).read(1, 0, 3).release(1, SessionEnd.LOST)

    counts = story.assign(2).read(2, 0, 3).counts()

    assert counts == Counts(deliveries=6, after_failed_commit=3)


def test_redelivery_without_reason_is_a_breach() -> None:
    """Three orders come again after a revoke in order."""
    counts = Story().assign(1).read(1, 0, 3).release(1).assign(2).read(2, 0, 3).counts()

    assert counts == Counts(deliveries=6, unexplained=3)


def test_redelivery_after_commit_is_a_breach() -> None:
    """Order 2 was committed and comes again, though its member was killed afterwards."""
    story = Story().assign(1).read(1, 0, 3).commit(1, 3).end(1)

    counts = story.assign(2).read(2, 2, 3).counts()

    assert counts == Counts(deliveries=4, after_commit=1)


def test_going_back_inside_a_session_is_a_breach() -> None:
    """An older order after a newer one at the same member: out of order, and for no reason."""
    counts = Story().assign(1).read(1, 0, 5).read(1, 3, 4).counts()

    assert counts == Counts(deliveries=6, out_of_order=1, unexplained=1)


def test_a_gap_is_lost() -> None:
    """Orders 3 and 4 were passed over: lost, and so is 9, which never came."""
    ledger = Story().assign(1).read(1, 0, 3).read(1, 5, 9).ledger()

    assert ledger.lost_count({1: 10}) == 3
    assert ledger.lost_count({1: 10, 2: 4}) == 7


def test_a_gap_that_is_filled_is_out_of_order() -> None:
    """Order 1 comes after order 2 for the first time: not lost, but late."""
    story = Story().assign(1).read(1, 0, 1).read(1, 2, 3).end(1)

    ledger = story.assign(2).read(2, 1, 2).ledger()

    assert ledger.lost_count({1: 3}) == 0
    assert ledger.counts.out_of_order == 1


def test_two_owners_of_a_lane_are_a_breach() -> None:
    """The second member is given the lane while the first still has it, and both read."""
    counts = Story().assign(1).assign(2).read(2, 0, 1).read(1, 0, 1).counts()

    assert counts.two_at_once >= 2


def test_a_key_that_moves_back_to_an_older_session_is_a_breach() -> None:
    """Customer 1 is read on a lane opened earlier after it was read on one opened later."""
    run = (OrderRun(1, 0, 1),), (OrderRun(1, 1, 1),)
    events: list[Event] = [
        LanesAssigned(1, 1, (0,)),
        LanesAssigned(2, 2, (1,)),
        Delivered(2, 3, (OrderBatch(1, 0, 0, run[0]),)),
        Delivered(1, 4, (OrderBatch(0, 0, 0, run[1]),)),
    ]

    assert build_ledger(events).counts.two_at_once == 1


def test_events_are_put_in_order_of_time() -> None:
    """A revoke that is read from its pipe after the next owner's assignment is no breach."""
    story = Story().assign(1).read(1, 0, 2).commit(1, 2).release(1).assign(2).read(2, 2, 4)

    counts = build_ledger(reversed(story.events)).counts

    assert counts == Counts(deliveries=4)


def test_members_that_are_behind() -> None:
    """Three orders wait, and they are those of the member that owns the lane now."""
    ledger = Story().assign(1).read(1, 0, 2).end(1).assign(2).ledger()

    assert ledger.behind_by_member({1: 5, 9: 1}) == {2: 3}


def test_the_verdict_names_what_failed() -> None:
    """One lost order fails its two checks and no other."""
    ledger = Story().assign(1).read(1, 0, 2).ledger()

    checks = judge(ledger, {1: 3}, members_started=1, members_wanted=1)

    failed = {check.name for check in checks if not check.passed}
    assert failed == {"lost", "different records processed"}


def test_the_verdict_sees_invented_records_and_idle_members() -> None:
    """One order more than produced, and one member of two without work."""
    ledger = Story().assign(1).read(1, 0, 2).ledger()

    checks = judge(ledger, {1: 1}, members_started=2, members_wanted=2)

    failed = {check.name for check in checks if not check.passed}
    assert failed == {"processed but never produced", "members that had work"}


def test_the_busiest_member_is_compared_with_what_keys_allow() -> None:
    """Lane 0 has half of all: its member is as busy as it must be; with lane 1 it is too busy."""
    ledger = Ledger()
    before = ledger.excess()

    ledger.apply(LanesAssigned(1, 1, (0,)))
    ledger.apply(LanesAssigned(2, 2, (1, 2)))
    ledger.apply(LanesAssigned(3, 3, (3,)))
    for at_ns, (member, lane, count) in enumerate([(1, 0, 50), (2, 1, 20), (2, 2, 10), (3, 3, 20)]):
        batch = OrderBatch(lane, 0, count - 1, (OrderRun(lane, 0, count),))
        ledger.apply(Delivered(member, 10 + at_ns, (batch,)))
    ideal, loads = ledger.excess(), ledger.loads()
    speedup = ledger.speedup(2)
    ledger.apply(LanesReleased(2, 20, (1,), SessionEnd.REVOKED))
    between, no_speedup = ledger.excess(), ledger.speedup(2)
    ledger.apply(LanesAssigned(1, 21, (1,)))

    assert before is None
    assert between is None
    assert no_speedup is None
    assert ideal == 1.0
    assert speedup == pytest.approx(0.6 / 0.5)  # partition 0 has lanes 0 and 2
    assert loads == pytest.approx({1: 0.5, 2: 0.3, 3: 0.2})
    assert ledger.excess() == pytest.approx(0.7 / 0.5)


def test_records_are_committed_one_by_one() -> None:
    """Of two customers' orders at offsets 7 and 3 only the first is committed before the kill."""
    story = Story().assign(1)
    for customer, offset in ((2, 7), (3, 3)):
        batch = OrderBatch(LANE, offset, offset, (OrderRun(customer, 0, 1),))
        story.events.append(Delivered(1, 10 + offset, (batch,)))
    story.events.append(RecordsCommitted(1, 20, ((LANE, (7,)),)))
    story.events += [Ended(1, 21, SessionEnd.KILLED), LanesAssigned(2, 22, (LANE,))]
    batches = [OrderBatch(LANE, 3, 3, (OrderRun(3, 0, 1),))]
    batches.append(OrderBatch(LANE, 7, 7, (OrderRun(2, 0, 1),)))
    story.events.append(Delivered(2, 23, tuple(batches)))

    ledger = story.ledger()

    assert (ledger.counts.after_kill, ledger.counts.after_commit) == (1, 1)
    assert {number: key.committed for number, key in ledger.keys.items()} == {2: 1, 3: 0}


def test_a_commit_of_a_lane_that_is_anothers_is_a_breach() -> None:
    """Member 1 commits offset 0 after member 2 has taken its lane."""
    story = Story().assign(1).read(1, 0, 1).release(1).assign(2).commit_records(1, 0)

    ledger = story.ledger()

    assert ledger.counts.two_at_once == 1


def test_a_member_that_is_killed_while_it_stalls_was_put_out() -> None:
    """It says nothing from before the next assignment to its end: what it had comes again."""
    story = Story().assign(1).read(1, 0, 3).commit(1, 1)

    counts = story.assign(2).read(2, 1, 4).end(1).counts()

    assert counts == Counts(deliveries=6, after_failed_commit=2)


def test_a_killed_member_that_read_beside_the_next_is_a_breach() -> None:
    """Nothing says that it was put out, and it read after the lane was given away."""
    counts = Story().assign(1).assign(2).read(1, 0, 1).end(1).counts()

    assert counts.two_at_once >= 2


def test_a_process_that_ends_with_a_lane_of_its_own_was_not_put_out() -> None:
    """It was killed in order of the show; the next assignment comes after it."""
    counts = Story().assign(1).read(1, 0, 1).end(1).assign(2).read(2, 0, 1).counts()

    assert counts == Counts(deliveries=2, after_kill=1)


@pytest.mark.parametrize("reason", ["CommitFailedError", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"])
def test_a_refused_commit_puts_out_a_member_with_all_of_its_lanes(reason: str) -> None:
    """The commit was of another lane, as nothing of this one waited; it reads on until then."""
    story = Story().assign(1).read(1, 0, 1).commit(1, 1).assign(2).read(1, 1, 2)

    counts = story.fail_commit(1, reason, lanes=(LANE + 1,)).release(1).counts()

    assert counts == Counts(deliveries=1, by_put_out=1)


def test_a_member_that_commits_after_a_refusal_was_not_put_out() -> None:
    """Libraries name a rebalance that is under way like the end of a membership."""
    story = Story().assign(1).read(1, 0, 1).fail_commit(1, "CommitFailedError").assign(2)

    counts = story.read(1, 1, 2).commit(1, 2).release(1).counts()

    assert counts.two_at_once >= 2


def test_a_commit_that_failed_for_another_reason_puts_no_member_out() -> None:
    """The same with a lost connection is a breach, once for the lane and once for the record."""
    story = Story().assign(1).read(1, 0, 1).commit(1, 1).assign(2).read(1, 1, 2)

    counts = story.fail_commit(1, "_TRANSPORT").release(1).counts()

    assert counts.two_at_once >= 2
