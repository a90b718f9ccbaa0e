"""The ledger against simulated groups: it accepts every honest one and finds every fault.

A simulated group reads one log per lane, commits now and then, and is killed at random moments.
Faults are then put into what it reported.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

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
from keylane.demo.ledger import Ledger, build_ledger, judge
from keylane.demo.orders import OrderRun, append_run

LANES = 3
CUSTOMERS = 6

seeds = st.integers(0, 2**32)


@dataclass
class Group:
    """Members take lanes in turn; `logs[lane]` holds (customer, number) in offset order."""

    draw: random.Random
    logs: list[list[tuple[int, int]]] = field(default_factory=list)
    committed: list[int] = field(default_factory=lambda: [0] * LANES)
    events: list[Event] = field(default_factory=list)
    member: int = 0
    done: set[tuple[int, int]] = field(default_factory=set)
    """Lane and offset of records that were committed one by one."""

    def tick(self) -> int:
        return len(self.events) + 1

    def produce(self, count: int) -> None:
        numbers: Counter[int] = Counter()
        self.logs = [[] for _ in range(LANES)]
        for _ in range(count):
            customer = self.draw.randrange(CUSTOMERS)
            self.logs[customer % LANES].append((customer, numbers[customer]))
            numbers[customer] += 1

    def produced(self) -> Counter[int]:
        return Counter(customer for log in self.logs for customer, _ in log)

    def read(self, lane: int, first: int, end: int) -> None:
        runs: list[OrderRun] = []
        for customer, number in self.logs[lane][first:end]:
            append_run(runs, customer, number)
        batch = OrderBatch(lane, first, end - 1, tuple(runs))
        self.events.append(Delivered(self.member, self.tick(), (batch,)))

    def commit(self, lane: int, position: int) -> None:
        self.committed[lane] = position
        self.events.append(LanesCommitted(self.member, self.tick(), ((lane, position),)))

    def serve(self, lane: int, *, to_the_end: bool) -> None:
        """One session: a new member reads on from what is committed, and leaves or is killed."""
        self.member += 1
        self.events.append(LanesAssigned(self.member, self.tick(), (lane,)))
        position, log_end = self.committed[lane], len(self.logs[lane])
        while position < log_end and (to_the_end or self.draw.random() < 0.7):
            end = min(log_end, position + self.draw.randint(1, 4))
            self.read(lane, position, end)
            position = end
            if self.draw.random() < 0.4:
                self.commit(lane, position)
        if to_the_end or self.draw.random() < 0.5:
            self.commit(lane, position)
            released = LanesReleased(self.member, self.tick(), (lane,), SessionEnd.REVOKED)
            self.events.append(released)
        else:
            self.events.append(Ended(self.member, self.tick(), SessionEnd.KILLED))


class WorkersGroup(Group):
    """Members work on any key's next record, and commit records one by one."""

    def serve(self, lane: int, *, to_the_end: bool) -> None:
        self.member += 1
        self.events.append(LanesAssigned(self.member, self.tick(), (lane,)))
        waiting: dict[int, list[int]] = {}
        for offset, (customer, _) in enumerate(self.logs[lane]):
            if (lane, offset) not in self.done:
                waiting.setdefault(customer, []).append(offset)
        worked: list[int] = []
        while waiting and (to_the_end or self.draw.random() < 0.9):
            customer = self.draw.choice(sorted(waiting))
            offset = waiting[customer].pop(0)
            if not waiting[customer]:
                del waiting[customer]
            self.read(lane, offset, offset + 1)
            worked.append(offset)
            if self.draw.random() < 0.2:
                self.commit_records(lane, worked)
        if to_the_end or self.draw.random() < 0.5:
            self.commit_records(lane, worked)
            released = LanesReleased(self.member, self.tick(), (lane,), SessionEnd.REVOKED)
            self.events.append(released)
        else:
            self.events.append(Ended(self.member, self.tick(), SessionEnd.KILLED))

    def commit_records(self, lane: int, offsets: list[int]) -> None:
        self.done.update((lane, offset) for offset in offsets)
        records = ((lane, tuple(offsets)),)
        self.events.append(RecordsCommitted(self.member, self.tick(), records))
        offsets.clear()


def play_group(seed: int, kind: type[Group] = Group) -> Group:
    """A group that loses nothing and reads everything, with kills on the way."""
    group = kind(random.Random(seed))
    group.produce(60)
    for _ in range(group.draw.randint(0, 8)):
        group.serve(group.draw.randrange(LANES), to_the_end=False)
    for lane in range(LANES):
        group.serve(lane, to_the_end=True)
    return group


def failed_checks(events: list[Event], produced: Counter[int]) -> set[str]:
    """Names of the checks that fail."""
    checks = judge(build_ledger(events), produced, members_started=1, members_wanted=1)
    return {check.name for check in checks if not check.passed}


def deliveries(events: list[Event]) -> Counter[tuple[int, int]]:
    """How often each order was processed: the naive twin of the ledger's sums."""
    counter: Counter[tuple[int, int]] = Counter()
    for event in events:
        if isinstance(event, Delivered):
            for batch in event.batches:
                for run in batch.runs:
                    counter.update((run.customer, n) for n in range(run.first, run.end))
    return counter


@pytest.mark.parametrize("kind", [Group, WorkersGroup])
@given(seed=seeds)
def test_an_honest_group_passes(seed: int, kind: type[Group]) -> None:
    """Kills at any moment fail no check, and the sums are those of a plain count."""
    group = play_group(seed, kind)

    ledger = Ledger()
    for event in group.events:
        ledger.apply(event)
        ledger.check()

    counted = deliveries(group.events)
    assert failed_checks(group.events, group.produced()) == set()
    assert ledger.counts.deliveries == counted.total()
    assert ledger.counts.after_kill == counted.total() - len(counted)


@given(seeds)
def test_a_lost_record_is_found(seed: int) -> None:
    """Orders that no member processed are lost, exactly as many as are missing."""
    group = play_group(seed)
    at = group.draw.choice([i for i, e in enumerate(group.events) if isinstance(e, Delivered)])
    del group.events[at]
    missing = group.produced().total() - len(deliveries(group.events))
    assume(missing > 0)

    ledger = build_ledger(group.events)

    assert ledger.lost_count(group.produced()) == missing
    assert "lost" in failed_checks(group.events, group.produced())


@given(seeds)
def test_a_repeated_record_is_found(seed: int) -> None:
    """A batch that is processed twice in one session is out of order."""
    group = play_group(seed)
    at = group.draw.choice([i for i, e in enumerate(group.events) if isinstance(e, Delivered)])
    group.events.insert(at, group.events[at])

    failed = failed_checks(group.events, group.produced())

    assert "keys out of order" in failed


@given(seeds)
def test_a_reordered_key_is_found(seed: int) -> None:
    """Two orders of one key that changed places inside a first session are out of order."""
    group = Group(random.Random(seed))
    group.produce(60)
    log = group.logs[0]
    places = [at for at in range(1, len(log)) if log[at][0] == log[at - 1][0]]
    assume(places)
    at = group.draw.choice(places)
    log[at - 1], log[at] = log[at], log[at - 1]
    for lane in range(LANES):
        group.serve(lane, to_the_end=True)

    assert "keys out of order" in failed_checks(group.events, group.produced())


@given(seeds)
def test_a_delivery_after_commit_is_found(seed: int) -> None:
    """A further session that starts one order before what was committed is a breach."""
    group = play_group(seed)
    lane = group.draw.choice([lane for lane in range(LANES) if group.logs[lane]])
    end = len(group.logs[lane])
    group.member += 1
    group.events.append(LanesAssigned(group.member, group.tick(), (lane,)))
    group.read(lane, end - 1, end)

    assert failed_checks(group.events, group.produced()) == {"delivered again after commit"}


@given(seeds)
def test_a_record_that_was_committed_alone_does_not_come_again(seed: int) -> None:
    """A record that was committed behind an open one comes again: a breach."""
    group = play_group(seed, WorkersGroup)
    lane, offset = group.draw.choice(sorted(group.done))
    last = max(i for i, log in enumerate(group.logs[lane]) if log[0] == group.logs[lane][offset][0])
    group.member += 1
    group.events.append(LanesAssigned(group.member, group.tick(), (lane,)))
    group.read(lane, last, last + 1)

    assert failed_checks(group.events, group.produced()) == {"delivered again after commit"}


@given(seeds)
def test_a_member_that_reads_what_is_not_its_own_is_found(seed: int) -> None:
    """A batch reported by a member that does not own the lane is a breach."""
    group = play_group(seed)
    at = group.draw.choice([i for i, e in enumerate(group.events) if isinstance(e, Delivered)])
    stolen = group.events[at]
    assert isinstance(stolen, Delivered)
    group.events[at] = Delivered(999, stolen.at_ns, stolen.batches)

    assert "key or lane at two members at once" in failed_checks(group.events, group.produced())


def play_overlap(seed: int, last_words: list[Event]) -> tuple[Group, int]:
    """A member reads on beside the next owner of its lane, then says its last words.

    Returns the group, and how many orders the member read beside the other one.
    """
    group = Group(random.Random(seed))
    group.produce(60)
    end = len(group.logs[0])
    assume(end > 3)
    took_over, reads_to = sorted(group.draw.sample(range(1, end), 2))
    group.member = 1
    group.events.append(LanesAssigned(1, group.tick(), (0,)))
    group.read(0, 0, took_over)
    group.events.append(LanesAssigned(2, group.tick(), (0,)))
    group.member = 2
    if group.draw.random() < 0.5:
        group.read(0, 0, end)
    group.member = 1
    group.read(0, took_over, reads_to)
    group.events += [replace(event, at_ns=group.tick() + n) for n, event in enumerate(last_words)]
    group.member = 2
    if not any(isinstance(e, Delivered) and e.member == 2 for e in group.events):
        group.read(0, 0, end)
    group.commit(0, end)
    for lane in range(1, LANES):
        group.serve(lane, to_the_end=True)
    return group, reads_to - took_over


LOST = LanesReleased(1, 0, (0,), SessionEnd.LOST)
REVOKED = LanesReleased(1, 0, (0,), SessionEnd.REVOKED)
IS_REFUSED = CommitFailed(1, 0, (0,), "CommitFailedError")
IS_TAKEN = LanesCommitted(1, 0, ((0, 1),))
IS_KILLED = Ended(1, 0, SessionEnd.KILLED)


@pytest.mark.parametrize("last_words", [[LOST], [IS_REFUSED, REVOKED]], ids=["lost", "refused"])
@given(seed=seeds)
def test_a_member_that_was_put_out_reads_on_as_direct(seed: int, last_words: list[Event]) -> None:
    """Beside the next owner; nothing of it counts as processed."""
    group, count = play_overlap(seed, last_words)

    assert failed_checks(group.events, group.produced()) == set()
    assert build_ledger(group.events).counts.by_put_out == count


@pytest.mark.parametrize(
    "last_words",
    [
        [REVOKED],
        [IS_TAKEN, REVOKED],
        [IS_TAKEN, LOST],
        [IS_REFUSED, IS_TAKEN, REVOKED],
        [IS_KILLED],
    ],
    ids=["in order", "commit", "commit, then lost", "refused, then commit", "killed"],
)
@given(seed=seeds)
def test_two_owners_of_a_lane_are_found(seed: int, last_words: list[Event]) -> None:
    """The group has not put the member out, or has taken a commit of it all the same."""
    group, _ = play_overlap(seed, last_words)

    assert "key or lane at two members at once" in failed_checks(group.events, group.produced())
