"""A member's progress: reported before committed, and never committed for another."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from keylane.audit import AuditReporter
from keylane.demo.events import (
    CommitFailed,
    Delivered,
    Event,
    LanesAssigned,
    LanesCommitted,
    LanesReleased,
)
from keylane.demo.member import COMMIT_INTERVAL_S, MemberProgress
from keylane.demo.orders import OrderRun, order_key, order_value


def make_journal() -> tuple[MemberProgress, list[Event]]:
    events: list[Event] = []
    return MemberProgress(events.append, member=4), events


def process(progress: MemberProgress, lane: int, offset: int, customer: int, number: int) -> None:
    progress.process(lane, offset, order_key(customer), order_value(customer, number))


def test_only_what_was_reported_waits_for_a_commit() -> None:
    """Two orders of lane 7 up to offset 12: position 13 waits once they were reported."""
    progress, events = make_journal()
    process(progress, 7, 10, 1, 0)
    process(progress, 7, 12, 1, 1)
    before = dict(progress.waiting)

    progress.report()

    assert before == {}
    assert progress.waiting == {7: 13}
    reported = events[0]
    assert isinstance(reported, Delivered)
    batch = reported.batches[0]
    assert (batch.first_offset, batch.last_offset, batch.runs) == (10, 12, (OrderRun(1, 0, 2),))


def test_nothing_processed_is_nothing_reported() -> None:
    """An empty poll writes no line."""
    progress, events = make_journal()

    progress.report()

    assert events == []


def test_a_commit_that_was_overtaken_leaves_the_rest() -> None:
    """Position 1 is confirmed while 2 is already waiting: 2 goes on waiting."""
    progress, events = make_journal()
    process(progress, 7, 0, 1, 0)
    progress.report()
    wanted = dict(progress.waiting)
    process(progress, 7, 1, 1, 1)
    progress.report()

    progress.committed(wanted)

    assert progress.waiting == {7: 2}
    assert isinstance(events[-1], LanesCommitted)


def test_a_released_lane_is_never_committed() -> None:
    """After a revoke nothing of the lane waits; the others' positions stay."""
    progress, events = make_journal()
    progress.assigned([7, 3])
    process(progress, 7, 0, 1, 0)
    process(progress, 3, 0, 2, 0)
    progress.report()

    progress.released([7])

    assert progress.waiting == {3: 1}
    assert [type(event) for event in events] == [LanesAssigned, Delivered, LanesReleased]


def test_a_failed_commit_goes_on_waiting() -> None:
    """A refused commit is reported and tried again."""
    progress, events = make_journal()
    process(progress, 7, 0, 1, 0)
    progress.report()

    progress.commit_failed(progress.waiting, "RebalanceInProgress")

    assert progress.waiting == {7: 1}
    assert isinstance(events[-1], CommitFailed)


def test_commits_keep_their_distance() -> None:
    """A commit is due at once, then an interval later, and never with nothing to commit."""
    progress, _ = make_journal()
    idle = progress.commit_is_due(0.0)
    process(progress, 7, 0, 1, 0)
    progress.report()

    due = [progress.commit_is_due(now_s) for now_s in (1.0, 1.5, 1.0 + COMMIT_INTERVAL_S)]

    assert (idle, due) == (False, [True, False, True])


class FakeReporter:
    """A reporter that notes its calls beside the events, so that their order can be seen."""

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
    """Report, flush, deliver, and the commit after it was confirmed."""
    events: list[object] = []
    reporter = FakeReporter(events)
    progress = MemberProgress(events.append, member=4, reporter=cast(AuditReporter, reporter))

    progress.assigned([7], generation=3)
    process(progress, 7, 10, 1, 0)
    progress.report()
    progress.committed({7: 11})

    kinds = [event if isinstance(event, tuple | str) else type(event) for event in events]
    assert kinds == [
        LanesAssigned,
        ("assigned", (7,), 3),
        ("processed", 7, 10, order_key(1)),
        "flush",
        Delivered,
        LanesCommitted,
        ("committed", {7: 11}),
    ]
