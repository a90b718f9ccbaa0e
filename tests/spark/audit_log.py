"""An audit log of a made-up group, with faults put in on purpose, and the expected findings.

In:    how many records, a seed.  Out: `AuditLog`: input offsets, audit messages, expected findings.
The same log serves small tests and the benchmark of a million records.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from keylane.audit.record import Message, ReportBook, lane_places
from keylane.keyrange.hash import key_hash
from keylane.keyrange.lane import LaneLayout

PARTITIONS, LANES, AUDIT_PARTITIONS = 2, 4, 4
LAYOUT = LaneLayout(partition_count=PARTITIONS, lane_count=LANES)
MEMBERS = LAYOUT.index_count
COMMIT_EVERY = 700
LOST, DUPLICATED, SWAPPED, FENCED, OVERLAPPED = 5, 3, 4, 50, 30


@dataclass(slots=True)
class AuditLog:
    """`messages` in the order of writing; `expected`: (partition, offset) by kind of finding."""

    ends: dict[int, int]
    messages: list[Message] = field(default_factory=list)
    expected: dict[str, set[tuple[int, int]]] = field(default_factory=lambda: defaultdict(set))


class _Group:
    """Eight members, one lane each; a rebalance in the middle moves every lane to the next."""

    def __init__(self, log: AuditLog) -> None:
        place_of = lane_places(LAYOUT)
        names = [f"member-{number}" for number in range(MEMBERS)] + ["intruder"]
        self.log, self.now_us = log, 0
        self.books = [
            ReportBook(member=name, place_of=place_of, audit_partition_count=AUDIT_PARTITIONS)
            for name in names
        ]
        self.owner: dict[int, int] = {}
        self.positions: dict[int, int] = {}

    def assign(self, lane: int, member: int, generation: int) -> None:
        self.owner[lane] = member
        book = self.books[member]
        self.log.messages += book.assigned([lane], now_us=self.now_us, generation=generation)

    def report(self, lane: int, offset: int, key: bytes, *, member: int | None = None) -> None:
        self.now_us += 1
        book = self.books[self.owner[lane] if member is None else member]
        self.log.messages.append(book.processed(lane, offset, key, now_us=self.now_us))
        self.positions[lane] = offset + 1

    def commit(self, lane: int) -> None:
        book = self.books[self.owner[lane]]
        if lane in self.positions:
            reported = {lane: self.positions[lane]}
            self.log.messages += book.committed(reported, now_us=self.now_us)


@dataclass(slots=True)
class _Plan:
    """Faults by (partition, offset)."""

    lost: set[tuple[int, int]]
    twice: set[tuple[int, int]]
    swaps: dict[tuple[int, int], tuple[int, int]]


def lane_of_key(partition: int, key: bytes) -> int:
    """Lane index of a key."""
    hashed = key_hash(key)
    lane = next(lane for lane in range(LANES) if LAYOUT.key_range(partition, lane).contains(hashed))
    return LAYOUT.lane_index(partition, lane)


def make_log(count: int, *, seed: int, keys: int = 2000, faulty: bool = True) -> AuditLog:
    """A log of `count` records in two partitions; without faults it is clean."""
    chance = random.Random(seed)
    names = [b"key-%d" % number for number in range(keys)]
    lanes = [
        {name: lane_of_key(partition, name) for name in names} for partition in range(PARTITIONS)
    ]
    per_partition = count // PARTITIONS
    keys_at = [chance.choices(names, k=per_partition) for _ in range(PARTITIONS)]
    log = AuditLog(ends=dict.fromkeys(range(PARTITIONS), per_partition))
    group, plan = _Group(log), _Plan(set(), set(), {})
    middle = per_partition // 2
    if faulty:
        plan = _choose(chance, keys_at, middle, log)
    for lane in range(MEMBERS):
        group.assign(lane, lane, 1)
    for offset in range(per_partition):
        if offset == middle:
            _rebalance(group, keys_at, lanes, log, faulty=faulty)
        for partition in range(PARTITIONS):
            key = keys_at[partition][offset]
            _process(group, plan, partition, offset, key, lanes[partition][key])
        if offset % COMMIT_EVERY == COMMIT_EVERY - 1:
            for lane in range(MEMBERS):
                group.commit(lane)
        if faulty and offset == middle + middle // 2:
            _overlap(group, keys_at[0], lanes[0], offset + 1, log)
        if faulty and offset == middle + middle // 2 + OVERLAPPED:
            group.assign(0, group.owner[0], 3)
    return log


def _choose(chance: random.Random, keys_at: list[list[bytes]], middle: int, log: AuditLog) -> _Plan:
    """Choose places of faults, each with its own key, all in the quiet first half."""
    plan = _Plan(set(), set(), {})
    used: set[bytes] = set()
    places: dict[bytes, list[int]] = defaultdict(list)
    for offset in range(middle - 1):
        places[keys_at[1][offset]].append(offset)
    candidates = [key for key, found in places.items() if len(found) > 3]
    for key in chance.sample(candidates, LOST + DUPLICATED + SWAPPED):
        used.add(key)
        first, second, third = places[key][:3]
        if len(plan.lost) < LOST:
            plan.lost.add((1, second))
            log.expected["lost"].add((1, second))
        elif len(plan.twice) < DUPLICATED:
            plan.twice.add((1, second))
            log.expected["duplicated"].add((1, second))
        else:
            plan.swaps[1, first], plan.swaps[1, second] = (1, second), (1, first)
            log.expected["out_of_order"].add((1, first))
        assert third > second
    return plan


def _process(
    group: _Group, plan: _Plan, partition: int, offset: int, key: bytes, lane: int
) -> None:
    if (partition, offset) in plan.lost:
        return
    _, reported = plan.swaps.get((partition, offset), (partition, offset))
    group.report(lane, reported, key)
    if (partition, offset) in plan.twice:
        group.report(lane, reported, key)


def _rebalance(
    group: _Group,
    keys_at: list[list[bytes]],
    lanes: list[dict[bytes, int]],
    log: AuditLog,
    *,
    faulty: bool,
) -> None:
    """Every lane to the next member; the last uncommitted records of lane 2 come again."""
    middle = log.ends[0] // 2
    again = [
        (offset, keys_at[0][offset])
        for offset in range(middle - middle % COMMIT_EVERY, middle)
        if lanes[0][keys_at[0][offset]] == 2
    ]
    late = [
        (offset, keys_at[0][offset])
        for offset in range(middle)
        if lanes[0][keys_at[0][offset]] == 0
    ][:3]
    old = dict(group.owner)
    for lane in range(MEMBERS):
        group.assign(lane, (lane + 1) % MEMBERS, 2)
    for offset, key in again:
        group.report(2, offset, key)
    if not faulty:
        return
    # The first offsets of lane 0 were committed long ago; its new owner does them once more.
    for offset, key in late:
        group.report(0, offset, key)
        log.expected["duplicated"].add((0, offset))
    # The old owner of lane 4 does not know that it has lost it.
    zombie = [
        (offset, keys_at[0][offset])
        for offset in range(middle, log.ends[0])
        if lanes[0][keys_at[0][offset]] == 4
    ][:FENCED]
    book = group.books[old[4]]
    book.generation = 1
    for offset, key in zombie:
        # What it holds now as lane 5's owner has another session: reports by lane.
        log.messages.append(book.processed(4, offset, key, now_us=group.now_us))
        log.expected["fenced"].add((0, offset))
    book.generation = 2


def _overlap(
    group: _Group, keys: list[bytes], lanes: dict[bytes, int], start: int, log: AuditLog
) -> None:
    """The intruder is given lane 0, while its owner goes on for the next records."""
    owner = group.owner[0]
    group.assign(0, MEMBERS, 2)
    group.owner[0] = owner
    for offset in range(start, start + OVERLAPPED):
        if lanes[keys[offset]] == 0:
            log.expected["overlap"].add((0, offset))
