"""A KIP-848 group with a broker, clients and keylane's part, for state machines.

Source: KIP-848, KIP-1251; Kafka 4.3, `GroupMetadataManager.consumerGroupHeartbeat`,
`CurrentAssignmentBuilder`.

The broker moves its epoch at each join and end, and takes a member's word with each heartbeat.
It gives a partition to one member, once no other one owns it.
Answers are on their way until they are delivered, in any order; a lost one has its client say all.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from dataclasses import dataclass, field

from keylane.assignor.model import Lane, LaneTopic
from keylane.assignor.sticky import plan_sticky
from keylane.offsets.records.held import HeldTable
from keylane.offsets.records.journal import JournalRecord
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_members import (
    GroupTopic,
    Lanes,
    Listed,
    Parts,
    Subscribed,
    Word,
)
from keylane.proxy.groups.group_plans import identity_of

INTERVAL_S, TIMEOUT_S, LOAD_S = 5.0, 20.0, 60.0
ORDERS = LaneTopic(name="orders", partition_count=2, lane_count=4)
SHOP = LaneTopic(name="shop", partition_count=1, lane_count=3)
TOPICS = {
    topic.name: GroupTopic(lanes=topic, topic_id=topic_id, view_id=topic_id)
    for topic, topic_id in ((ORDERS, uuid.UUID(int=1)), (SHOP, uuid.UUID(int=2)))
}
DIRECT = "direct"
"""The id of a member that connects to the broker."""


def lanes_of(topics: frozenset[str], parts: Parts | None = None) -> Lanes:
    """Lanes of some topics, or of their partitions among `parts`."""
    return frozenset(
        (name, index)
        for name in topics
        for index in range(TOPICS[name].lanes.index_count)
        if parts is None or TOPICS[name].part_of(index) in parts
    )


@dataclass(slots=True, eq=False)
class Client:
    """A member as its library runs it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[str]
    epoch: int = 0
    reading: Lanes = frozenset()
    given: Lanes | None = None
    """Assignment that it has not reconciled yet."""
    says_all: bool = True
    acknowledges: bool = False
    is_waiting: bool = False
    """A heartbeat is on its way."""
    losses: Counter[Lane] = field(default_factory=Counter)
    """Times that it gave a lane up."""

    @property
    def identity(self) -> str:
        """Its name at keylane."""
        return identity_of(self.member_id, self.instance_id)

    def read(self, lanes: Lanes) -> None:
        """Read these lanes from now on."""
        self.losses.update(self.reading - lanes)
        self.reading = lanes


@dataclass(slots=True)
class Answer:
    """A heartbeat that the broker has taken."""

    client: Client
    word: Word


@dataclass(slots=True)
class Commit:
    """A commit that a client has made."""

    client: Client
    lane: Lane
    epoch: int
    loss_count: int


@dataclass
class Broker:
    """Members, epochs and partitions."""

    epoch: int = 0
    members: dict[str, int] = field(default_factory=dict)
    """Epoch of each."""
    topics: dict[str, frozenset[str]] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)
    """Instance ids by member id."""
    owned: dict[str, Parts] = field(default_factory=dict)
    """As each member said last."""
    assigned: dict[str, Parts] = field(default_factory=dict)

    def join(self, member_id: str, topics: frozenset[str], instance_id: str | None) -> None:
        """A member joins; a static one takes the place of its last process."""
        replaced = [one for one, instance in self.instances.items() if instance == instance_id]
        self.epoch += not replaced and member_id not in self.members
        for one in replaced if instance_id else ():
            self.remove(one, moves_epoch=False)
        self.members[member_id], self.topics[member_id] = self.epoch, topics
        if instance_id:
            self.instances[member_id] = instance_id

    def remove(self, member_id: str, *, moves_epoch: bool = True) -> None:
        """A member has ended."""
        if self.members.pop(member_id, None) is not None:
            self.epoch += moves_epoch
            for known in (self.topics, self.instances, self.owned, self.assigned):
                known.pop(member_id, None)

    def target(self, member_id: str) -> Parts:
        """Partitions that it is to get, dealt out in turn."""
        found = set()
        for name, topic in TOPICS.items():
            readers = sorted(one for one, topics in self.topics.items() if name in topics)
            for number in range(topic.lanes.partition_count):
                if readers and readers[number % len(readers)] == member_id:
                    found.add((topic.topic_id, number))
        return frozenset(found)

    def beat(self, member_id: str, owned: Parts) -> Parts:
        """Take a heartbeat; return the partitions that it is assigned."""
        self.members[member_id], self.owned[member_id] = self.epoch, owned
        target = self.target(member_id)
        others = [
            self.owned.get(one, frozenset()) | self.assigned.get(one, frozenset())
            for one in self.members
            if one != member_id
        ]
        free = target.difference(*others)
        self.assigned[member_id] = owned & target if owned - target else free
        return self.assigned[member_id]

    def beat_direct(self) -> None:
        """A member that bypasses keylane gives up at once what it is to."""
        if DIRECT in self.members:
            self.beat(DIRECT, self.assigned.get(DIRECT, frozenset()))

    def listed(self) -> list[Listed]:
        """Describe the group."""
        return [
            Listed(
                identity=identity_of(one, self.instances.get(one)),
                member_id=one,
                parts=self.assigned.get(one, frozenset()) | self.target(one),
            )
            for one in self.members
        ]


@dataclass
class World:
    """Broker, clients, keylane and the journal."""

    now_s: float = 0.0
    clients: dict[str, Client] = field(default_factory=dict)
    """By place; each process has another id."""
    broker: Broker = field(default_factory=Broker)
    pending: list[Answer] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    """Commits that are late."""
    loads: dict[Lane, float] = field(default_factory=dict)
    journal: list[JournalRecord] = field(default_factory=list)
    table: HeldTable = field(default_factory=HeldTable)
    group: ConsumerGroup = field(init=False)
    order: itertools.count[int] = field(default_factory=itertools.count)
    is_slow: bool = False
    description: tuple[list[Listed], tuple[int, int]] | None = None
    """Of the group, on its way."""
    accepted: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.group = ConsumerGroup(0.0)
        self.group.is_met = True

    def start(self, place: str, topics: frozenset[str], instance_id: str | None = None) -> None:
        """A new process joins; its place may be that of a static member that will be back."""
        client = Client(f"{place}-{next(self.order)}", instance_id, topics)
        self.clients[place] = client
        self.send(client)

    def leave(self, place: str) -> None:
        """A process closes: a static member is waited for."""
        client = self.clients.pop(place)
        known = self.group.find(client.member_id)
        if client.member_id not in self.broker.members:
            return
        if client.instance_id is None:
            self.broker.remove(client.member_id)
        if known is not None and client.instance_id is None:
            self.group.end(known.identity)
        elif known is not None:
            self.group.pause(known.identity)
        self.save()

    def send(self, client: Client) -> None:
        """A heartbeat passes keylane and reaches the broker."""
        if client.is_waiting:
            return
        known, is_join = self.group.find(client.member_id), client.epoch == 0
        if is_join:
            self.broker.join(client.member_id, client.topics, client.instance_id)
        elif client.member_id not in self.broker.members:
            self.end(client)
            return
        if not (is_join or client.says_all) and (known is None or not known.has_spoken):
            client.says_all = True  # COORDINATOR_NOT_AVAILABLE
            return
        claimed = frozenset() if known is None or is_join else self.group.claim(known.identity)
        parts = self.broker.beat(client.member_id, claimed)
        says_owned = client.says_all or client.acknowledges
        word = Word(
            order=next(self.order),
            member_id=client.member_id,
            instance_id=client.instance_id,
            epoch=self.broker.epoch,
            is_join=is_join,
            is_full=client.says_all,
            subscribed=Subscribed(client.topics) if client.says_all else None,
            rebalance_timeout_s=TIMEOUT_S if client.says_all else None,
            owned=client.reading if says_owned else None,
            parts=parts,
        )
        client.is_waiting, client.acknowledges = True, False
        self.pending.append(Answer(client, word))

    def end(self, client: Client) -> None:
        """The broker does not know the member: it drops all, and joins anew."""
        client.read(frozenset())
        client.given, client.epoch = None, 0
        client.says_all, client.acknowledges = True, False
        known = self.group.find(client.member_id)
        if known is not None:
            self.group.end(known.identity)
            self.save()

    # keylane.
    def deliver(self, answer: Answer, *, is_lost: bool) -> None:
        """The answer comes to keylane, and on to the client unless it is lost."""
        client, group = answer.client, self.group
        client.is_waiting = False
        member = group.take(client.identity, answer.word)
        group.begin_grace(INTERVAL_S)
        if group.is_list_due(self.now_s):
            self.look()
        self.plan()
        if group.members.get(client.identity) is not member:
            self.end(client)
            return
        given = group.give(client.identity, self.now_s)
        self.save()
        if is_lost or client not in self.clients.values():
            client.says_all = True
        else:
            client.epoch = answer.word.epoch
            if answer.word.is_full or answer.word.is_join or member.sent != given:
                client.given = member.sent = given
            client.says_all = False
        for late in group.late(self.now_s):
            late.late_since_s = None
            self.broker.remove(late.member_id)
            group.end(late.identity)
            self.save()

    def look(self) -> None:
        """The broker is asked to describe the group; the answer may take a while."""
        if self.description is not None:
            return
        self.description = self.broker.listed(), (self.group.turn, self.group.epoch)
        if not self.is_slow:
            self.describe()

    def describe(self) -> None:
        """The broker's description comes."""
        if self.description is None:
            return
        (listed, asked), self.description = self.description, None
        waiting = {answer.client.member_id for answer in self.pending}
        for member_id in waiting:
            self.group.begin_join(member_id)
        self.group.note_listed(listed, asked)
        self.save()
        for member_id in waiting:
            self.group.end_join(member_id)

    def plan(self) -> None:
        """Plan anew where it is time."""
        if self.group.is_plan_due(self.now_s, LOAD_S):
            self.group.set_topics(TOPICS)
            members, reason = self.group.begin_plan()
            plan = plan_sticky(members, [topic.lanes for topic in TOPICS.values()], self.loads)
            self.group.set_target(plan, reason, self.now_s, int(1000 * self.now_s))

    def save(self) -> None:
        """Write what the journal lacks."""
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
            self.table.apply(record.key or b"", record.value)
        self.group = ConsumerGroup(self.now_s)
        self.group.load(self.table.of_group("g").values())
        self.group.still_until_s = float("inf")
        self.description, self.is_slow = None, False
        self.look()
        self.group.is_met = True
        self.save()

    # Clients.
    def reconcile(self, client: Client) -> None:
        """Revoke, then assign, then say so with the next heartbeat."""
        if client.given is not None:
            client.read(client.given)
            client.given, client.acknowledges = None, True

    def commit(self, client: Client, number: int, *, is_late: bool) -> None:
        """Commit a lane, now or when the commit arrives."""
        if client.reading:
            lane = sorted(client.reading)[number % len(client.reading)]
            commit = Commit(client, lane, client.epoch, client.losses[lane])
            if is_late:
                self.commits.append(commit)
                return
            known = self.group.find(client.member_id)
            knows = known is not None and known.has_spoken and not client.is_waiting
            is_taken = self.arrive(commit)
            if knows and client.member_id in self.broker.members:
                assert is_taken, f"{lane} of {client.member_id} is refused"

    def arrive(self, commit: Commit) -> bool:
        """The broker takes a commit under the member's epoch only; return whether it has."""
        client, lane = commit.client, commit.lane
        known = self.group.find(client.member_id)
        epoch = commit.epoch
        if known is not None:
            epoch = self.group.newest_epoch(known.identity, commit.epoch, [lane])
        if self.broker.members.get(client.member_id) != epoch:
            return False
        if epoch != commit.epoch:
            assert client.losses[lane] == commit.loss_count, f"{lane} was another's since"
            self.accepted["older"] += 1
        for other in self.clients.values():
            is_other = other is not client and other.member_id in self.broker.members
            assert not is_other or epoch == commit.epoch or lane not in other.reading
        return True

    def check(self) -> None:
        """No lane is read by two members of the group."""
        self.group.check()
        readers: dict[Lane, str] = {}
        for client in self.clients.values():
            name = client.member_id
            if name not in self.broker.members:
                continue  # a zombie: it learns it with its next heartbeat
            for lane in client.reading:
                assert lane not in readers, f"{lane} is read by {readers[lane]} and {name}"
                readers[lane] = name
