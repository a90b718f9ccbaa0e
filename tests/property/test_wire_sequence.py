"""A producer of lanes, keylane and a broker, with answers lost and batches refused at random."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from keylane.producers.sequence import SequencedBatch, SequenceMap
from keylane.wire.produce import Refusal
from tests.reference.broker_sequences import BrokerPartition

TOPIC = uuid.UUID(int=1)
RETRIABLE = (7, 13, 19)
IN_FLIGHT_MAX = 3


def sequenced(batch: Batch) -> SequencedBatch:
    return SequencedBatch(1, batch.epoch, TOPIC, 0, batch.lane, batch.base, batch.count)


@dataclass
class Batch:
    """A batch of a lane, as the producer keeps it until it is acknowledged."""

    lane: int
    number: int
    count: int
    epoch: int = 0
    base: int = 0
    is_sent: bool = False


@dataclass
class ProducerLane:
    """Unacknowledged batches in order, and what comes next."""

    batches: list[Batch] = field(default_factory=list)
    epoch: int = 0
    next: int = 0
    number: int = 0


@dataclass
class Sent:
    """A batch on its way to the broker."""

    batch: Batch
    epoch: int
    base_sequence: int
    code: int | None = None


class World:
    """Producer, keylane and broker on one connection; chance decides what happens next."""

    def __init__(self, rng: random.Random, lane_count: int) -> None:
        self.rng, self.broker, self.map = rng, BrokerPartition(), SequenceMap(seed=1)
        self.other = SequenceMap(seed=2**40)
        """Another node's; both live on while clients go to one of them."""
        self.lanes = [ProducerLane() for _ in range(lane_count)]
        self.wire: list[Sent] = []
        self.epoch = 0
        self.at_risk: set[tuple[int, int]] = set()
        self.failed: set[tuple[int, int]] = set()
        self.reported: Counter[int] = Counter()

    def send(self) -> None:
        index = self.rng.randrange(len(self.lanes))
        lane = self.lanes[index]
        waiting = [batch for batch in lane.batches if not batch.is_sent]
        if not waiting:
            if len(lane.batches) >= IN_FLIGHT_MAX:
                return
            if lane.epoch != self.epoch:  # as Java: a lane bumps when nothing is under way
                if lane.batches:
                    return
                lane.epoch, lane.next = self.epoch, 0
            batch = Batch(index, lane.number, self.rng.randrange(1, 4), lane.epoch, lane.next)
            lane.number += 1
            lane.next += batch.count
            lane.batches.append(batch)
            waiting = [batch]
        self.submit(waiting[0])

    def submit(self, batch: Batch) -> None:
        batch.is_sent = True
        given = self.map.assign(sequenced(batch))
        self.map.check()
        if isinstance(given, Refusal):
            self.answered(batch, given.error_code)
        else:
            self.wire.append(Sent(batch, given.producer_epoch, given.base_sequence))

    def serve(self, *, faults: bool) -> None:
        """The broker takes the next batch; now and then it refuses, or its answer is unclear."""
        sent = next((one for one in self.wire if one.code is None), None)
        if sent is None:
            return
        if faults and self.rng.random() < 0.1:
            sent.code = 19
            return
        key = sent.batch.lane, sent.batch.number
        sent.code = self.broker.append(sent.epoch, sent.base_sequence, sent.batch.count, key)
        if faults and sent.code == 0 and self.rng.random() < 0.1:
            sent.code = 7

    def answer(self) -> None:
        if not self.wire or self.wire[0].code is None:
            return
        sent = self.wire.pop(0)
        batch, answered = sent.batch, sent.code
        assert answered is not None
        code = self.map.settle(sequenced(batch), answered)
        self.map.check()
        self.answered(batch, code)

    def answered(self, batch: Batch, code: int) -> None:
        lane = self.lanes[batch.lane]
        if code in (0, 46):
            lane.batches.remove(batch)
        elif code in RETRIABLE or batch is not lane.batches[0]:
            batch.is_sent = False
        else:
            assert code in (45, 47, 59), code
            self.reported[code] += 1
            if code == 47:  # the producer gives up on this one, and reports it
                self.failed.add((batch.lane, batch.number))
                lane.batches.remove(batch)
            self.bump(lane)

    def bump(self, lane: ProducerLane) -> None:
        """Number a lane's batches anew in a new epoch, as TransactionManager does.

        Direct or not, what was written without an acknowledgement is written again by that.
        """
        self.at_risk |= {(batch.lane, batch.number) for batch in lane.batches}
        self.epoch += 1
        lane.epoch, lane.next = self.epoch, 0
        for batch in lane.batches:
            batch.epoch, batch.base, batch.is_sent = self.epoch, lane.next, False
            lane.next += batch.count
        self.wire = [one for one in self.wire if one.batch not in lane.batches]

    def lose_connection(self) -> None:
        """The broker may still have taken some of what was on its way; no answer arrives."""
        for _ in range(self.rng.randrange(len(self.wire) + 1)):
            self.serve(faults=False)
        for sent in self.wire:
            sent.batch.is_sent = False
        self.wire.clear()

    def restart_keylane(self) -> None:
        self.at_risk |= {(b.lane, b.number) for lane in self.lanes for b in lane.batches}
        self.lose_connection()
        self.map = SequenceMap(seed=self.rng.getrandbits(64))

    def move_to_another_node(self) -> None:
        """The partition's clients are sent there; it forgets what it knew of them long ago."""
        self.at_risk |= {(b.lane, b.number) for lane in self.lanes for b in lane.batches}
        self.lose_connection()
        self.map, self.other = self.other, self.map
        self.map.forget(TOPIC, 0)
        self.map.check()

    def drain(self) -> None:
        for _ in range(5_000):
            for lane in self.lanes:
                if waiting := [batch for batch in lane.batches if not batch.is_sent]:
                    self.submit(waiting[0])
            self.serve(faults=False)
            self.answer()
            if not any(lane.batches for lane in self.lanes):
                return
        raise AssertionError("batches are never acknowledged")


def run(
    seed: int, lane_count: int, steps: int, *, restarts: bool = False, moves: bool = False
) -> World:
    rng = random.Random(seed)
    world = World(rng, lane_count)
    for _ in range(steps):
        chance = rng.random()
        if chance < 0.45:
            world.send()
        elif chance < 0.7:
            world.serve(faults=True)
        elif chance < 0.97:
            world.answer()
        elif chance < (0.98 if moves else 0.99) or not (restarts or moves):
            world.lose_connection()
        elif restarts:
            world.restart_keylane()
        else:
            world.move_to_another_node()
    world.drain()
    return world


def expected_log(world: World) -> dict[int, list[int]]:
    return {i: list(range(lane.number)) for i, lane in enumerate(world.lanes)}


def appended(world: World, lane: int) -> list[int]:
    return [number for one, number in world.broker.log if one == lane]


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 300))
def test_every_lane_batch_is_written_once_and_in_order(
    seed: int, lane_count: int, steps: int
) -> None:
    """Refusals, unclear outcomes and lost connections: the log of each lane is 0, 1, 2, ..."""
    world = run(seed, lane_count, steps, restarts=False)

    assert {i: appended(world, i) for i in range(lane_count)} == expected_log(world)
    assert world.epoch == 0, "no lane had to bump its epoch"


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 300))
def test_a_restart_of_keylane_loses_nothing(seed: int, lane_count: int, steps: int) -> None:
    """Only what was unacknowledged at a restart may be written twice, or fail and say so."""
    assert_nothing_is_lost(run(seed, lane_count, steps, restarts=True), lane_count)


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(300, 600))
def test_a_partition_that_goes_from_node_to_node_loses_nothing(
    seed: int, lane_count: int, steps: int
) -> None:
    """As after a restart, though each node still knows what it knew when clients left it."""
    assert_nothing_is_lost(run(seed, lane_count, steps, moves=True), lane_count)


def assert_nothing_is_lost(world: World, lane_count: int) -> None:
    """But what may be lost and is reported, and nothing twice but what was at risk; in order."""
    for index in range(lane_count):
        counts = Counter(appended(world, index))
        lost = {(index, number) for number in expected_log(world)[index] if number not in counts}
        assert lost <= world.failed
        twice = {(index, number) for number, count in counts.items() if count > 1}
        assert twice <= world.at_risk
        firsts = [
            n for n in dict.fromkeys(appended(world, index)) if (index, n) not in world.at_risk
        ]
        assert firsts == sorted(firsts)
