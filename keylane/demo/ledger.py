"""The books of the demo: every record of every key, its members, and what was committed.

A *session* is one member owning one lane from its assignment to its end. Inside a session the
orders of a customer must come one after the other. A new session may start again at an order
that was processed before, but only where nothing later was committed, and only because the
session before it was cut off: that is what at-least-once delivery promises.

A member that was away for longer than its session time-out is put out by the group, and reads on
until an answer says so: as with Kafka itself its lanes are at two members meanwhile. What it does
then does not count as processed, and none of it may be committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

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
from keylane.demo.orders import OrderRun
from keylane.demo.put_out import SessionStart, find_put_out


@dataclass(slots=True, eq=False)
class Session:
    """One member owning one lane; `number` grows with time over all sessions."""

    number: int
    member: int
    lane: int
    end: SessionEnd | None = None
    commit_failed: bool = False
    is_put_out: bool = False
    """It ends by the group going on without it."""
    waiting: deque[OrderBatch] = field(default_factory=deque)
    """Processed and not committed yet, in the order of processing."""


class Segment(NamedTuple):
    """Orders of one key, `first` to `end - 1`, that `session` processed and did not commit."""

    first: int
    end: int
    session: Session


@dataclass(slots=True)
class KeyState:
    """Facts about one customer.

    Invariants: committed <= next_number; every number in `missing` is below `next_number`;
    delivered are exactly the numbers below `next_number` that are not in `missing`.
    """

    next_number: int = 0
    """One after the highest order that was processed."""
    committed: int = 0
    """One after the highest order whose processing was committed."""
    session: Session | None = None
    """The session that processed this key last."""
    expected: int = 0
    """Number that must follow inside `session`."""
    missing: set[int] = field(default_factory=set)
    """Passed over; lost unless it still comes."""
    uncommitted: list[Segment] = field(default_factory=list)

    @property
    def delivered(self) -> int:
        """Number of different orders that were processed."""
        return self.next_number - len(self.missing)


@dataclass(slots=True)
class Counts:
    """Findings of the ledger; `unexplained` to `two_at_once` must stay zero."""

    deliveries: int = 0
    """Records processed, each time counted."""
    after_kill: int = 0
    """Processed again because a member was killed before it committed."""
    after_failed_commit: int = 0
    """Processed again because a commit failed, or a member lost its lanes before it."""
    unexplained: int = 0
    """Processed again without either reason."""
    after_commit: int = 0
    """Processed again although that was committed."""
    out_of_order: int = 0
    """An older order of a key after a newer one, other than a new session starting again."""
    two_at_once: int = 0
    """A key or a lane at a second member while the first still had it."""
    by_put_out: int = 0
    """Processed by members that were put out, once another member had their lanes."""


class Check(NamedTuple):
    """One line of the verdict."""

    name: str
    value: str
    passed: bool


class Ledger:
    """Applies events one by one; `lane_owners` and `counts` can be read at any time.

    put_out: sessions that end by the group going on without the member. A live ledger cannot know
    them, and counts what they do beside the next owner as two members at once.
    """

    def __init__(self, put_out: frozenset[SessionStart] = frozenset()) -> None:
        self.counts = Counts()
        self.keys: dict[int, KeyState] = {}
        self.lane_owners: dict[int, Session] = {}
        self.member_deliveries: dict[int, int] = {}
        self.lane_deliveries: dict[int, int] = {}
        self._session_count = 0
        self._put_out = put_out
        self._outside: set[tuple[int, int]] = set()
        """By member and lane: put out, and no answer says so yet; another member has the lane."""

    def apply(self, event: Event) -> None:
        """Take in one event; events must come in order of `at_ns`."""
        match event:
            case LanesAssigned(member=member, at_ns=at_ns, lanes=lanes):
                for lane in lanes:
                    self._open(SessionStart(member, lane, at_ns))
            case LanesReleased(member=member, lanes=lanes, end=end):
                self._close(member, lanes, end)
            case Ended(member=member, end=end):
                self._close(member, tuple(self.lane_owners), end)
            case Delivered(member=member, batches=batches):
                for batch in batches:
                    self._deliver(member, batch)
            case LanesCommitted(member=member, positions=positions):
                for lane, position in positions:
                    self._commit(self._session(member, lane), position)
            case RecordsCommitted(member=member, records=records):
                for lane, offsets in records:
                    self._commit_records(self._session(member, lane), frozenset(offsets))
            case CommitFailed(member=member, lanes=lanes):
                self._fail_commit(member, lanes)

    def delivered_count(self) -> int:
        """Number of different records that were processed."""
        return sum(key.delivered for key in self.keys.values())

    def lost_count(self, produced: Mapping[int, int]) -> int:
        """Return the number of `produced` (orders per customer) that were not processed yet."""
        total = 0
        for customer, count in produced.items():
            key = self.keys.get(customer, KeyState())
            total += max(0, count - key.next_number) + sum(n < count for n in key.missing)
        return total

    def behind_by_member(self, produced: Mapping[int, int]) -> dict[int, int]:
        """Records that wait, by the member whose key they are; None's share is left out."""
        behind: dict[int, int] = {}
        for customer, count in produced.items():
            key = self.keys.get(customer)
            if key is None or key.session is None:
                continue
            owner = self.lane_owners.get(key.session.lane, key.session)
            behind[owner.member] = behind.get(owner.member, 0) + max(0, count - key.next_number)
        return behind

    def loads(self) -> dict[int, float]:
        """Part of all records that came so far on the lanes which each member has now."""
        total = sum(self.lane_deliveries.values()) or 1
        loads: dict[int, float] = {}
        for lane, owner in self.lane_owners.items():
            part = self.lane_deliveries.get(lane, 0) / total
            loads[owner.member] = loads.get(owner.member, 0.0) + part
        return loads

    def excess(self) -> float | None:
        """Load of the busiest member, in times of what keys allow: the mean, or one lane's.

        None: a lane that has had records has no member now, or nothing has come yet.
        """
        loads, total = self.loads(), sum(self.lane_deliveries.values())
        if not total or not self.lane_deliveries.keys() <= self.lane_owners.keys():
            return None
        allowed = max(1 / len(loads), max(self.lane_deliveries.values()) / total)
        return max(loads.values()) / allowed

    def speedup(self, partition_count: int) -> float | None:
        """Records of the fullest partition, in times those on the lanes of the busiest member.

        So many times faster than with one member per partition is the group, where work is a time
        per record. None: as for `excess`.
        """
        loads, total = self.loads(), sum(self.lane_deliveries.values())
        if not total or not self.lane_deliveries.keys() <= self.lane_owners.keys():
            return None
        partitions = [0] * partition_count
        for lane, count in self.lane_deliveries.items():
            partitions[lane % partition_count] += count
        return max(partitions) / total / max(loads.values())

    def check(self) -> None:
        """Assert the invariants; for tests."""
        for key in self.keys.values():
            assert 0 <= key.committed <= key.next_number
            assert all(0 <= number < key.next_number for number in key.missing)
        for lane, session in self.lane_owners.items():
            assert session.lane == lane and session.end is None

    def _open(self, start: SessionStart) -> None:
        member, lane, _ = start
        self._outside.discard((member, lane))
        owner = self.lane_owners.pop(lane, None)
        if owner is not None:
            owner.end = SessionEnd.LOST
            if owner.is_put_out:
                self._outside.add((owner.member, lane))
            else:
                # The same member again: it was assigned anew without a word about the old one.
                self.counts.two_at_once += owner.member != member
        self._session_count += 1
        session = Session(self._session_count, member, lane, is_put_out=start in self._put_out)
        self.lane_owners[lane] = session

    def _close(self, member: int, lanes: Iterable[int], end: SessionEnd) -> None:
        """End the sessions of `member` on `lanes`; lanes of others stay theirs."""
        for lane in lanes:
            self._outside.discard((member, lane))
            owner = self.lane_owners.get(lane)
            if owner is not None and owner.member == member:
                owner.end = end
                del self.lane_owners[lane]

    def _fail_commit(self, member: int, lanes: Iterable[int]) -> None:
        for lane in lanes:
            owner = self.lane_owners.get(lane)
            if owner is not None and owner.member == member:
                owner.commit_failed = True

    def _session(self, member: int, lane: int) -> Session:
        owner = self.lane_owners.get(lane)
        if owner is None or owner.member != member:
            # It reads or commits a lane that is not its own: judged, and booked as its own.
            self.counts.two_at_once += 1
            return Session(0, member, lane, end=SessionEnd.LOST)
        return owner

    def _deliver(self, member: int, batch: OrderBatch) -> None:
        count = sum(run.order_count for run in batch.runs)
        if (member, batch.lane) in self._outside:
            self.counts.by_put_out += count
            return
        session = self._session(member, batch.lane)
        session.waiting.append(batch)
        for run in batch.runs:
            self._deliver_run(session, run)
        self.counts.deliveries += count
        self.lane_deliveries[batch.lane] = self.lane_deliveries.get(batch.lane, 0) + count
        deliveries = self.member_deliveries.get(session.member, 0)
        self.member_deliveries[session.member] = deliveries + count

    def _deliver_run(self, session: Session, run: OrderRun) -> None:
        key = self.keys.setdefault(run.customer, KeyState())
        if key.session is not session:
            if key.session is not None and key.session.number > session.number:
                self.counts.two_at_once += 1
            key.session = session
        elif run.first < key.expected:
            self.counts.out_of_order += 1
        if run.first < key.next_number:
            self._judge_again(key, run)
        key.missing.update(range(key.next_number, run.first))
        key.next_number = max(key.next_number, run.end)
        key.expected = run.end
        last = key.uncommitted[-1] if key.uncommitted else None
        if last is not None and last.session is session and last.end == run.first:
            key.uncommitted[-1] = Segment(last.first, run.end, session)
        else:
            key.uncommitted.append(Segment(run.first, run.end, session))

    def _judge_again(self, key: KeyState, run: OrderRun) -> None:
        """Book the orders of `run` that are not new: late ones, and ones that came before."""
        for number in range(run.first, min(run.end, key.next_number)):
            if number in key.missing:
                key.missing.discard(number)
                self.counts.out_of_order += 1
            elif number < key.committed:
                self.counts.after_commit += 1
            else:
                self._book_redelivery(key, number)

    def _book_redelivery(self, key: KeyState, number: int) -> None:
        segments = reversed(key.uncommitted)
        before = next((s.session for s in segments if s.first <= number < s.end), None)
        if before is not None and before.end is SessionEnd.KILLED:
            self.counts.after_kill += 1
        elif before is not None and (before.end is SessionEnd.LOST or before.commit_failed):
            self.counts.after_failed_commit += 1
        else:
            self.counts.unexplained += 1

    def _commit(self, session: Session, position: int) -> None:
        """Book a commit of a member that processes in the order of offsets."""
        while session.waiting and session.waiting[0].last_offset < position:
            self._commit_batch(session.waiting.popleft())

    def _commit_records(self, session: Session, offsets: frozenset[int]) -> None:
        """Book a commit of records one by one; their batches have a record each."""
        rest = deque[OrderBatch]()
        for batch in session.waiting:
            if batch.last_offset in offsets:
                self._commit_batch(batch)
            else:
                rest.append(batch)
        session.waiting = rest

    def _commit_batch(self, batch: OrderBatch) -> None:
        for run in batch.runs:
            key = self.keys[run.customer]
            key.committed = max(key.committed, run.end)
            key.uncommitted = [s for s in key.uncommitted if s.end > key.committed]


def build_ledger(events: Iterable[Event]) -> Ledger:
    """The books after all `events`, whatever order they arrived in.

    Pipes of different members are read one after the other, so a live ledger may see two
    events the wrong way round. This one cannot: the verdict is made from it.
    """
    in_order = sorted(events, key=lambda event: event.at_ns)
    ledger = Ledger(find_put_out(in_order))
    for event in in_order:
        ledger.apply(event)
    return ledger


def judge(
    ledger: Ledger, produced: Mapping[int, int], *, members_started: int, members_wanted: int
) -> list[Check]:
    """The verdict. `members_wanted`: how many members at least must have processed something."""
    counts, total = ledger.counts, sum(produced.values())
    lost = ledger.lost_count(produced)
    invented = ledger.delivered_count() + lost - total
    busy = sum(count > 0 for count in ledger.member_deliveries.values())
    return [
        Check("records produced", f"{total:,}", total > 0),
        Check("different records processed", f"{total - lost:,}", lost == 0),
        _zero("lost", lost),
        _zero("processed but never produced", max(0, invented)),
        _zero("keys out of order", counts.out_of_order),
        _zero("key or lane at two members at once", counts.two_at_once),
        _zero("delivered again after commit", counts.after_commit),
        _zero("delivered again without a reason", counts.unexplained),
        Check("redelivered after kill -9", f"{counts.after_kill:,}", passed=True),
        Check("redelivered after a failed commit", f"{counts.after_failed_commit:,}", passed=True),
        Check("read by members that were put out", f"{counts.by_put_out:,}", passed=True),
        Check("members that had work", f"{busy} of {members_started}", busy >= members_wanted),
    ]


def _zero(name: str, count: int) -> Check:
    return Check(name, f"{count:,}", count == 0)
