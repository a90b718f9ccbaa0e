"""A KIP-848 group with a broker, clients and keylane's part, for state machines.

Source: KIP-848; Kafka 4.3, `GroupMetadataManager.consumerGroupHeartbeat`.

The broker moves its epoch at each join and end, and takes a member's word with each heartbeat.
Answers are on their way until they are delivered, in any order; a lost one has its client say all.
"""

from __future__ import annotations

import itertools
import uuid
from dataclasses import dataclass, field

from keylane.assignor.model import Lane, LaneTopic
from keylane.assignor.sticky import plan_sticky
from keylane.offsets.records.held import HeldTable
from keylane.offsets.records.journal import JournalRecord
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_members import GroupTopic, Listed, Subscribed, Word

INTERVAL_S = 5.0
TOPIC = LaneTopic(name="orders", partition_count=2, lane_count=4)
TOPICS = {"orders": GroupTopic(lanes=TOPIC, topic_id=uuid.UUID(int=1), view_id=uuid.UUID(int=1))}
LANES = frozenset(("orders", index) for index in range(TOPIC.index_count))


@dataclass(slots=True)
class Client:
    """A member as its library runs it."""

    member_id: str
    epoch: int = 0
    reading: frozenset[Lane] = frozenset()
    given: frozenset[Lane] | None = None
    """Assignment that it has not reconciled yet."""
    says_all: bool = True
    acknowledges: bool = False
    is_waiting: bool = False
    """A heartbeat is on its way."""


@dataclass(slots=True)
class Answer:
    """A heartbeat that the broker has taken."""

    client: Client
    word: Word


@dataclass
class World:
    """Broker, clients, keylane and the journal."""

    now_s: float = 0.0
    clients: dict[str, Client] = field(default_factory=dict)
    """By place; each process has another id."""
    members: dict[str, int] = field(default_factory=dict)
    """Epoch of each member at the broker."""
    epoch: int = 0
    pending: list[Answer] = field(default_factory=list)
    journal: list[JournalRecord] = field(default_factory=list)
    table: HeldTable = field(default_factory=HeldTable)
    group: ConsumerGroup = field(init=False)
    order: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.group = ConsumerGroup(0.0)
        self.group.is_met = True

    def start(self, place: str) -> None:
        """A new process joins."""
        client = self.clients[place] = Client(f"{place}-{next(self.order)}")
        self.send(client)

    def remove(self, place: str, *, is_leaving: bool) -> None:
        """A process ends; one that is killed is a member until its session ends."""
        client = self.clients.pop(place)
        if self.members.pop(client.member_id, None) is not None:
            self.epoch += 1
            if is_leaving and self.group.find(client.member_id):
                self.group.end(client.member_id)
                self.save()

    # The broker.
    def send(self, client: Client) -> None:
        """A heartbeat reaches the broker."""
        if client.is_waiting:
            return
        if client.epoch == 0:
            self.epoch += client.member_id not in self.members
            self.members[client.member_id] = self.epoch
        elif client.member_id not in self.members:
            self.end(client)
            return
        known = self.group.find(client.member_id)
        is_partial = client.epoch > 0 and not client.says_all
        if is_partial and (known is None or not known.has_spoken):
            client.says_all = True  # COORDINATOR_NOT_AVAILABLE
            return
        self.members[client.member_id] = self.epoch
        says_owned = client.says_all or client.acknowledges or client.epoch == 0
        word = Word(
            order=next(self.order),
            member_id=client.member_id,
            epoch=self.epoch,
            is_join=client.epoch == 0,
            is_full=client.says_all,
            subscribed=Subscribed(frozenset({"orders"})) if client.says_all else None,
            owned=(frozenset() if client.epoch == 0 else client.reading) if says_owned else None,
        )
        client.is_waiting, client.acknowledges = True, False
        self.pending.append(Answer(client, word))

    def end(self, client: Client) -> None:
        """The broker does not know the member: it drops all, and joins anew."""
        client.reading, client.given, client.epoch = frozenset(), None, 0
        client.says_all, client.acknowledges = True, False
        known = self.group.find(client.member_id)
        if known is not None:
            self.group.end(known.identity)
            self.save()

    # keylane.
    def deliver(self, answer: Answer, *, is_lost: bool) -> None:
        """The answer comes to keylane, and on to the client unless it is lost."""
        client = answer.client
        client.is_waiting = False
        member = self.group.take(client.member_id, answer.word)
        self.group.begin_grace(INTERVAL_S)
        if self.group.epoch > self.group.listed_epoch:
            self.look()
        self.plan()
        if self.group.members.get(client.member_id) is not member:
            self.end(client)
            return
        given = self.group.give(client.member_id, self.now_s)
        self.save()
        if is_lost or client not in self.clients.values():
            client.says_all = True
            return
        if client.member_id in self.members or client.reading:
            client.epoch = answer.word.epoch
        if answer.word.is_full or answer.word.is_join or member.sent != given:
            client.given = given
            member.sent = given
        client.says_all = False

    def look(self) -> None:
        """The broker describes the group."""
        asked = self.group.turn, self.group.epoch
        listed = [Listed(identity=name, member_id=name) for name in self.members]
        waiting = {answer.client.member_id for answer in self.pending}
        for member_id in waiting:
            self.group.begin_join(member_id)
        self.group.note_listed(listed, asked)
        for member_id in waiting:
            self.group.end_join(member_id)

    def plan(self) -> None:
        if self.group.is_plan_due(self.now_s, 60.0):
            self.group.set_topics(TOPICS)
            members, reason = self.group.begin_plan()
            plan = plan_sticky(members, [TOPIC], {})
            self.group.set_target(plan, reason, self.now_s, int(1000 * self.now_s))

    def save(self) -> None:
        changes = self.group.changes()
        self.journal += self.table.changed("g", changes, 1, 0)
        self.group.note_written(changes)

    def restart(self) -> None:
        """Another process begins with the journal; answers on their way are lost."""
        for answer in self.pending:
            answer.client.is_waiting, answer.client.says_all = False, True
        self.pending.clear()
        self.table = HeldTable()
        for record in self.journal:
            self.table.apply(record.key, record.value)
        self.group = ConsumerGroup(self.now_s)
        self.group.load(self.table.of_group("g").values())
        self.group.still_until_s = float("inf")
        self.look()
        self.group.is_met = True
        self.save()

    # Clients.
    def reconcile(self, client: Client) -> None:
        """Revoke, then assign, then say so with the next heartbeat."""
        if client.given is not None:
            client.reading, client.given, client.acknowledges = client.given, None, True

    def check(self) -> None:
        """No lane is read by two members of the group."""
        self.group.check()
        readers: dict[Lane, str] = {}
        for client in self.clients.values():
            name = client.member_id
            if name not in self.members:
                continue  # a zombie: it learns it with its next heartbeat
            for lane in client.reading:
                assert lane not in readers, f"{lane} is read by {readers[lane]} and {name}"
                readers[lane] = name
