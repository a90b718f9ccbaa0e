"""A member's journal: told before committed, and never committed for another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from keylane.audit import AuditReporter
from keylane.demo.events import CommitFailed, Committed, Delivered, Event, LanesAssigned, Released
from keylane.demo.member import COMMIT_INTERVAL_S, MemberProgress
from keylane.demo.orders import OrderRun, order_key, order_value


def make_journal() -> tuple[MemberProgress, list[Event]]:
    events: list[Event] = []
    return MemberProgress(events.append, member=4), events


def process(journal: MemberProgress, lane: int, offset: int, customer: int, number: int) -> None:
    journal.process(lane, offset, order_key(customer), order_value(customer, number))


def test_only_what_was_told_waits_for_a_commit() -> None:
    """Two orders of lane 7 up to offset 12: position 13 waits once they were told."""
    journal, events = make_journal()
    process(journal, 7, 10, 1, 0)
    process(journal, 7, 12, 1, 1)
    before = dict(journal.waiting)

    journal.report()

    assert before == {}
    assert journal.waiting == {7: 13}
    reported = events[0]
    assert isinstance(reported, Delivered)
    batch = reported.batches[0]
    assert (batch.first_offset, batch.last_offset, batch.runs) == (10, 12, (OrderRun(1, 0, 2),))


def test_nothing_processed_is_nothing_told() -> None:
    """An empty poll writes no line."""
    journal, events = make_journal()

    journal.report()

    assert events == []


def test_a_commit_that_was_overtaken_leaves_the_rest() -> None:
    """Position 1 is confirmed while 2 is already waiting: 2 goes on waiting."""
    journal, events = make_journal()
    process(journal, 7, 0, 1, 0)
    journal.report()
    wanted = dict(journal.waiting)
    process(journal, 7, 1, 1, 1)
    journal.report()

    journal.committed(wanted)

    assert journal.waiting == {7: 2}
    assert isinstance(events[-1], Committed)


def test_a_released_lane_is_never_committed() -> None:
    """After a revoke nothing of the lane waits; the others' positions stay."""
    journal, events = make_journal()
    journal.assigned([7, 3])
    process(journal, 7, 0, 1, 0)
    process(journal, 3, 0, 2, 0)
    journal.report()

    journal.released([7])

    assert journal.waiting == {3: 1}
    assert [type(event) for event in events] == [LanesAssigned, Delivered, Released]


def test_a_failed_commit_goes_on_waiting() -> None:
    """A refused commit is told and tried again."""
    journal, events = make_journal()
    process(journal, 7, 0, 1, 0)
    journal.report()

    journal.commit_failed(journal.waiting, "RebalanceInProgress")

    assert journal.waiting == {7: 1}
    assert isinstance(events[-1], CommitFailed)


def test_commits_keep_their_distance() -> None:
    """A commit is due at once, then an interval later, and never with nothing to commit."""
    journal, _ = make_journal()
    idle = journal.commit_is_due(0.0)
    process(journal, 7, 0, 1, 0)
    journal.report()

    due = [journal.commit_is_due(now_s) for now_s in (1.0, 1.5, 1.0 + COMMIT_INTERVAL_S)]

    assert (idle, due) == (False, [True, False, True])


class FakeReporter:
    """Notes what it is told beside the events, so that their order can be seen."""

    def __init__(self, events: list[object]) -> None:
        self.events = events

    def assigned(self, lanes: Iterable[int], *, generation: int = -1) -> None:
        self.events.append(("assigned", tuple(lanes), generation))

    def processed(self, lane: int, offset: int, key: bytes) -> None:
        self.events.append(("processed", lane, offset, key))

    def flush(self) -> None:
        self.events.append("flush")

    def committed(self, positions: Mapping[int, int]) -> None:
        self.events.append(("committed", dict(positions)))


def test_reports_are_flushed_before_anything_may_be_committed() -> None:
    """Report, flush, tell, and the commit after it was confirmed."""
    events: list[object] = []
    reporter = FakeReporter(events)
    journal = MemberProgress(events.append, member=4, reporter=cast(AuditReporter, reporter))

    journal.assigned([7], generation=3)
    process(journal, 7, 10, 1, 0)
    journal.report()
    journal.committed({7: 11})

    kinds = [event if isinstance(event, tuple | str) else type(event) for event in events]
    assert kinds == [
        LanesAssigned,
        ("assigned", (7,), 3),
        ("processed", 7, 10, order_key(1)),
        "flush",
        Delivered,
        Committed,
        ("committed", {7: 11}),
    ]
