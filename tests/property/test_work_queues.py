"""The workers' scheduler is its naive twin: order per key, one of a key, each record once.

A record in line is passed by so many others at most, whatever comes.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.client.workers.queue import ORDERS, Order, Work, WorkQueues
from tests.reference.naive_work_queues import NaiveWorkQueues
from tests.reference.worker_source import P0, P1, P2, make_record

PLACES = st.sets(st.sampled_from([P0, P1, P2]), max_size=3)
KEYS = st.sampled_from([None, b"", b"ada", b"ben"])


class WorkQueuesMachine(RuleBasedStateMachine):
    """Polls, work, failures, rebalances, in any order."""

    at_work: Bundle[Work | None] = Bundle("at_work")

    @initialize(order=st.sampled_from(ORDERS), passed_max=st.sampled_from([1, 3, 10, 1000]))
    def begin(self, order: Order, passed_max: int) -> None:
        self.order, self.passed_max = order, passed_max
        self.queues = WorkQueues(order, passed_max)
        self.naive = NaiveWorkQueues(order, passed_max)
        self.latest: dict[int, tuple[ConsumerRecord, int]] = {}
        """Records in line, and how many are taken by then before each, at most."""
        self.ends: Counter[TopicPartition] = Counter()
        self.finished: list[ConsumerRecord] = []
        self.now_s = 0.0

    @rule(drawn=st.lists(st.tuples(st.sampled_from([P0, P1, P2]), KEYS), max_size=8))
    def poll(self, drawn: list[tuple[TopicPartition, bytes | None]]) -> None:
        records = []
        for place, key in sorted(drawn, key=lambda each: each[0]):
            records.append(make_record(place, self.ends[place], key, b"x" * len(key or b"")))
            self.ends[place] += 1
        assert self.queues.add(records) == self.naive.add(records)

    @rule(target=at_work)
    def take(self) -> Work | None:
        startable = self.naive.startable()
        work = self.queues.take()
        if work is None:
            assert not startable
            return None
        assert work.record is startable[0]
        _, latest = self.latest.pop(id(work.record))
        assert self.naive.taken_count <= latest
        self.naive.start(work.record)
        return work

    @rule(work=consumes(at_work))
    def finish(self, work: Work | None) -> None:
        if work is None:
            return
        assert self.queues.finished(work) == self.naive.finish(work.record)
        assert not any(work.record is each for each in self.finished)
        self.finished.append(work.record)

    @rule(work=consumes(at_work), pause_s=st.integers(0, 5))
    def fail(self, work: Work | None, pause_s: int) -> None:
        if work is None:
            return
        due_s = self.now_s + pause_s
        will_come = self.naive.retry(work.record, due_s)
        assert self.queues.retry(work, due_s) == will_come
        if not will_come:
            assert self.queues.finished(work) == self.naive.finish(work.record)

    @rule(pause_s=st.integers(0, 5))
    def wait(self, pause_s: int) -> None:
        self.now_s += pause_s
        self.queues.wake(self.now_s)
        self.naive.wake(self.now_s)
        due_s = self.queues.retry_due_s
        assert due_s is None or due_s > self.now_s

    @rule(places=PLACES)
    def hold(self, places: set[TopicPartition]) -> None:
        self.naive.held |= places
        assert_same(self.queues.hold(places), self.naive.drop(places))

    @rule(places=PLACES)
    def unhold(self, places: set[TopicPartition]) -> None:
        self.naive.held -= places
        self.queues.unhold(places)

    @rule(places=PLACES)
    def lose(self, places: set[TopicPartition]) -> None:
        assert_same(self.queues.lose(places), self.naive.lose(places))

    @rule(pressures=st.dictionaries(st.sampled_from([P0, P1, P2]), st.floats(1.0, 9.0)))
    def press(self, pressures: dict[TopicPartition, float]) -> None:
        self.queues.press(pressures)
        self.naive.pressures = pressures

    @rule()
    def close(self) -> None:
        if self.now_s < 20:
            return  # late only, since nothing comes after it
        self.naive.is_closed = True
        assert_same(self.queues.close(), self.naive.drop([P0, P1, P2]))

    @invariant()
    def same_counts(self) -> None:
        if not hasattr(self, "queues"):
            return
        self.queues.check()
        entries = self.naive.entries
        assert self.queues.at_work_count == sum(each.is_at_work for each in entries)
        assert self.queues.queued_count == sum(not each.is_at_work for each in entries)
        assert self.queues.ready_count == len(self.naive.startable())
        assert self.queues.retry_count == sum(each.due_s is not None for each in entries)
        startable = self.naive.startable()
        latest = self.naive.taken_count + len(startable) + self.queues.at_work_count
        for record in startable:
            self.latest.setdefault(id(record), (record, latest + self.passed_max))
        for place in (P0, P1, P2):
            assert self.queues.unfinished_count(place) == self.naive.unfinished_count(place)
            waiting = [
                each
                for each in entries
                if each.record.topic_partition == place and not each.is_at_work
            ]
            assert self.queues.waiting_count(place) == len(waiting)
        if not entries:
            assert self.queues.held_bytes == 0


SKEWED = [b"hot"] * 6 + [b"warm"] * 3 + [b"ada", b"ben", b"eve", None]


@given(
    passed_max=st.sampled_from([1, 3, 10, 1000]),
    workers=st.integers(1, 3),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_skewed_keys_go_in_the_order_of_their_weight(
    passed_max: int, workers: int, seed: int
) -> None:
    """Two polls of skewed keys, workers that end or fail in any order: the same line throughout."""
    machine = WorkQueuesMachine()
    machine.begin("key", passed_max)
    choice = Random(seed)
    keys = choice.choices(SKEWED, k=40)
    polls = [[(choice.choice([P0, P1]), key) for key in part] for part in (keys[:15], keys[15:])]
    at_work: list[Work] = []
    while polls or machine.naive.entries:
        if polls and choice.random() < 0.2:
            machine.press({P0: choice.uniform(1, 4)} if choice.random() < 0.7 else {})
            machine.poll(polls.pop(0))
            machine.same_counts()
        while len(at_work) < workers and machine.queues.ready_count:
            work = machine.take()
            assert isinstance(work, Work)
            at_work.append(work)
            machine.same_counts()
        if at_work:
            work = at_work.pop(choice.randrange(len(at_work)))
            if choice.random() < 0.1:
                machine.fail(work, 1)
            else:
                machine.finish(work)
        else:
            machine.wait(1)
        machine.same_counts()
    assert len(machine.finished) == len(keys)


def assert_same(dropped: list[ConsumerRecord], expected: list[ConsumerRecord]) -> None:
    """The same records were dropped, in whatever order."""
    assert Counter(map(id, dropped)) == Counter(map(id, expected))


TestWorkQueues = WorkQueuesMachine.TestCase
TestWorkQueues.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
