"""A Kafka cluster in memory: topics, logs, leaders, groups, offsets, producer ids.

Source: Apache Kafka 4.3, `GroupMetadataManager`, `OffsetMetadataManager` (commits are checked
against member and generation; offsets expire), `ReplicaManager`; KIP-98, KIP-101, KIP-320.

What is simpler here: an append is on all in-sync replicas as soon as the leader has it. A topic is
*safe* (three replicas, two in sync: a new leader has all that was acknowledged) or not: then a new
leader may lack some of its end.
"""

from __future__ import annotations

import itertools
import uuid
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from tests.reference.broker_log import BrokerLog
from tests.reference.consumer_coordinator import ConsumerTwin, FindTopic, Part, Times
from tests.reference.group_coordinator import UNKNOWN_MEMBER_ID, GroupTwin

if TYPE_CHECKING:
    from tests.simulation.world import World

NO_LEADER = -1
GENERATION_UNKNOWN = -1


@dataclass
class Partition:
    """A partition's log and leader."""

    topic: str
    index: int
    log: BrokerLog
    leader_id: int
    epoch: int = 0
    waiters: list[Callable[[], None]] = field(default_factory=list)
    """Long polls: called at every change."""

    def wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for wake in waiters:
            wake()


@dataclass
class Topic:
    """A topic that clients read."""

    name: str
    topic_id: uuid.UUID
    partitions: list[Partition]
    is_safe: bool


@dataclass(frozen=True)
class Committed:
    """An offset of a group."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True)
class Held:
    """A request from when a broker could have read it until its answer, or its connection's end."""

    api_key: int
    host: str
    broker: str
    asked_s: float
    ended_s: float


@dataclass
class OwnRecord:
    """A record of one of keylane's own topics."""

    offset: int
    key: bytes | None
    value: bytes | None
    at_ms: int


@dataclass
class OwnLog:
    """One partition of one of them."""

    records: list[OwnRecord] = field(default_factory=list)
    end: int = 0
    epochs: dict[int, int] = field(default_factory=dict)
    """Producer id -> its latest epoch."""
    sequences: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    """(producer id, epoch) -> base sequence -> base offset, of batches that were written."""
    waiters: list[Callable[[], None]] = field(default_factory=list)
    """Long polls."""

    def compact(self) -> None:
        """Keep the last record of each key; what has no key stays, and so does the last one."""
        last = {record.key: record.offset for record in self.records if record.key is not None}
        newest = self.records[-1].offset if self.records else -1
        self.records = [
            record
            for record in self.records
            if record.offset == newest
            or record.key is None
            or (last[record.key] == record.offset and record.value is not None)
        ]


@dataclass
class Transaction:
    """State of a transactional id at its coordinator."""

    producer_id: int
    epoch: int
    timeout_s: float
    groups: set[str] = field(default_factory=set)
    """Empty: none is open."""
    is_ending: bool = False
    number: int = 0


class Group:
    """A group at its coordinator."""

    def __init__(self, world: World, find_topic: FindTopic) -> None:
        self.twin = GroupTwin(world.after)
        self.consumer = ConsumerTwin(world.after, lambda: world.now_s, find_topic)
        """The group as one of KIP-848, which it is once a member of that protocol has joined."""
        self.offsets: dict[tuple[str, int], Committed] = {}
        self.pending: dict[int, dict[tuple[str, int], Committed]] = {}
        """Offsets of transactions that are not over, by producer id."""

    @property
    def is_unknown(self) -> bool:
        """Return whether it has had neither member nor commit."""
        twin = self.twin
        is_classic = bool(twin.generation_id or twin.members or twin.pending)
        return not (is_classic or self.consumer.is_known or self.offsets)

    @property
    def has_members(self) -> bool:
        """Return whether it has members, of one protocol or the other."""
        return bool(self.twin.members or self.consumer.members)

    def fail_over(self, load_s: float) -> None:
        """Another coordinator loads it; all that was not stored is lost."""
        self.twin.fail_over(load_s)
        self.consumer.fail_over(load_s)

    def refusal(
        self, member_id: str, generation_id: int, version: int
    ) -> tuple[int, Callable[[Part], int]]:
        """Return the error of a commit, and a judge of its partitions; 0: it is taken."""
        if self.consumer.is_known:
            return self.consumer.commit_refusal(member_id, generation_id, version)
        return self._classic_refusal(member_id, generation_id), lambda _: 0

    def _classic_refusal(self, member_id: str, generation_id: int) -> int:
        twin = self.twin
        if generation_id == GENERATION_UNKNOWN and not member_id:
            return 0 if not twin.members else UNKNOWN_MEMBER_ID
        if member_id not in twin.members:
            return UNKNOWN_MEMBER_ID if twin.members or generation_id >= 0 else 0
        if generation_id != twin.generation_id:
            return 22
        return 27 if twin.state == "COMPLETING" else 0


class Cluster:
    """State that all brokers share."""

    def __init__(self, world: World, broker_count: int) -> None:
        self.world = world
        self.broker_ids = list(range(1, broker_count + 1))
        self.down: set[int] = set()
        self.topics: dict[str, Topic] = {}
        self.own: dict[str, list[OwnLog]] = {}
        self.groups: dict[str, Group] = {}
        self.times: dict[str, Times] = {}
        """Configurations of consumer groups."""
        self.memberships: dict[str, dict[str, list[tuple[float, float]]]] = defaultdict(dict)
        """When each member of a consumer group was one, by group and member id."""
        self.deleted: list[tuple[str, float]] = []
        """Deleted groups, with times: their generations begin anew."""
        self.producer_ids: dict[str, tuple[int, int]] = {}
        self.transactions: dict[str, Transaction] = {}
        self.on_elected: list[Callable[[Partition], None]] = []
        """Called with a partition that has another leader."""
        self.on_decided: list[Callable[[str, bool], None]] = []
        """Called with (transactional id, whether it commits) when a transaction is decided."""
        self._next_producer_id = itertools.count(1000)
        self._moved: dict[str, int] = {}
        self.on_commit: list[Callable[[str, str, int, Committed], None]] = []
        """Called with (group, topic, partition, what) at every commit that is taken."""
        self.unacknowledged: set[tuple[str, str, int]] = set()
        """Group, topic and partition: the offset there was answered as failed, and written later.
        The next one may be lower, where lanes are not led on by it."""
        self.failed: dict[tuple[str, str, int], set[int]] = defaultdict(set)
        """By group, topic and partition: offsets whose commit was answered as failed, and that did
        not stand there already."""
        self.late_commits = 0
        """Answered as failed, and still to be written."""
        self.on_moment: list[Callable[[str, str], None]] = []
        """Called with (what a broker has just done, host that asked for it) before it answers."""
        self.held: list[Held] = []
        """Requests that brokers did not answer for a while, for `waits` to judge."""

    # Topics.
    def create(self, name: str, partition_count: int, *, is_safe: bool = True) -> Topic:
        """A topic with partitions led in turn."""
        ids = self.broker_ids
        partitions = [
            Partition(name, index, BrokerLog(leader_epoch=0), ids[index % len(ids)])
            for index in range(partition_count)
        ]
        for partition in partitions:
            partition.log.lead(0)
        number = len(self.topics) + 1
        topic = Topic(name, uuid.UUID(int=number << 64 | number), partitions, is_safe)
        self.topics[name] = topic
        return topic

    def elect(self, partition: Partition, *, lose: int = 0, start: int | None = None) -> None:
        """Another broker leads, which lacks the last `lose` records; none, while all are down.

        start: where a log begins that has lost all.
        """
        alive = [each for each in self.broker_ids if each not in self.down]
        others = [each for each in alive if each != partition.leader_id] or alive
        partition.leader_id = self.world.rng.choice(others) if others else NO_LEADER
        partition.epoch += 1
        log = partition.log
        if lose:
            log.truncate(max(log.log_start, log.end - lose))
            if start is not None and not log.batches:
                log.log_start = start
            log.end = log.batches[-1].next_offset if log.batches else log.log_start
        log.lead(partition.epoch)
        self.world.report(
            f"kafka: {partition.topic}-{partition.index} is led by broker {partition.leader_id}"
            f" in epoch {partition.epoch}, log {log.log_start} to {log.end}"
        )
        for reported in self.on_elected:
            reported(partition)
        partition.wake()

    # Coordinators.
    def coordinator(self, group: str) -> int:
        """The broker that coordinates a group or a transactional id."""
        alive = [each for each in self.broker_ids if each not in self.down]
        if not alive:
            return NO_LEADER
        number = sum(group.encode()) + self._moved.get(group, 0)
        return alive[number % len(alive)]

    def move_coordinator(self, group: str, load_s: float) -> None:
        """Another broker coordinates it; all that was not stored is lost."""
        self._moved[group] = self._moved.get(group, 0) + 1
        self.group(group).fail_over(load_s)
        self.world.report(f"kafka: group {group} is coordinated by {self.coordinator(group)}")

    def group(self, name: str) -> Group:
        if name not in self.groups:
            self.groups[name] = self._new_group(name)
        return self.groups[name]

    def _new_group(self, name: str) -> Group:
        group = Group(self.world, self._find_topic)
        group.consumer.times = self.times.get(name, group.consumer.times)
        group.consumer.on_member = partial(self._note_member, name)
        return group

    def _find_topic(self, name: str) -> tuple[uuid.UUID, int] | None:
        found = self.topics.get(name)
        return None if found is None else (found.topic_id, len(found.partitions))

    def _note_member(self, group: str, member_id: str, is_there: bool) -> None:
        self.world.report(f"kafka: {group} has {'a' if is_there else 'no'} member {member_id}")
        spans = self.memberships[group].setdefault(member_id, [])
        if is_there:
            spans.append((self.world.now_s, inf))
        else:
            spans[-1] = spans[-1][0], self.world.now_s

    def delete_group(self, name: str) -> None:
        """Forget it; ids of its members never come again."""
        ids = self.groups[name].twin._ids
        self.groups[name] = self._new_group(name)
        self.groups[name].twin._ids = ids
        self.deleted.append((name, self.world.now_s))

    def commit(self, group: str, topic: str, partition: int, committed: Committed) -> None:
        """An offset is written."""
        self.group(group).offsets[topic, partition] = committed
        self.world.report(f"kafka: offset of {group} in {topic}-{partition} is {committed.offset}")
        for reported in self.on_commit:
            reported(group, topic, partition, committed)
        self.unacknowledged.discard((group, topic, partition))

    def note_moment(self, what: str, host: str) -> None:
        """Something was done for a host, and is not answered yet."""
        for reported in self.on_moment:
            reported(what, host)

    # Producer ids.
    def next_epoch(self, transactional_id: str | None) -> tuple[int, int]:
        """InitProducerId."""
        if transactional_id is None:
            return next(self._next_producer_id), 0
        known = self.producer_ids.get(transactional_id)
        found = (next(self._next_producer_id), 0) if known is None else (known[0], known[1] + 1)
        self.producer_ids[transactional_id] = found
        return found

    def note_decided(self, name: str, *, commit: bool) -> None:
        """The coordinator has written what becomes of a transaction."""
        for reported in self.on_decided:
            reported(name, commit)

    def end_transaction(self, name: str, *, commit: bool) -> None:
        """Its markers are written: what was pending counts, or is forgotten."""
        found = self.transactions[name]
        for group_name in sorted(found.groups):
            pending = self.group(group_name).pending.pop(found.producer_id, {})
            for (topic, partition), committed in pending.items():
                if commit:
                    self.commit(group_name, topic, partition, committed)
        found.groups, found.is_ending = set(), False

    # keylane's own topics.
    def create_own(self, name: str, partition_count: int) -> None:
        self.own.setdefault(name, [OwnLog() for _ in range(partition_count)])

    def append_own(
        self,
        name: str,
        partition: int,
        batch: list[tuple[bytes | None, bytes | None]],
        *,
        producer: tuple[int, int],
        sequence: int,
    ) -> int | None:
        """Base offset of a batch of an idempotent producer; None: it is fenced."""
        log = self.own[name][partition]
        producer_id, epoch = producer
        if epoch < log.epochs.get(producer_id, -1):
            return None
        written = log.sequences.setdefault(producer, {})
        if sequence in written:
            return written[sequence]
        log.epochs[producer_id] = epoch
        base = written[sequence] = log.end
        now_ms = int(self.world.now_s * 1000) + 1_700_000_000_000
        for key, value in batch:
            log.records.append(OwnRecord(log.end, key, value, now_ms))
            log.end += 1
        waiters, log.waiters = log.waiters, []
        for wake in waiters:
            wake()
        return base
