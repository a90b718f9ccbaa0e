"""Node that clients are sent to, for a partition or a group; broker ids for each node.

Source: docs/decisions/020; rendezvous hashing (Thaler, Ravishankar 1998).

A client knows a broker by its id and connects to the address of that id. Each pair of a node and
a broker has its own id, so that a partition can be sent to any node, whichever broker leads it. A
broker's own id would be that of another node, or of none: clients would retry without end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from keylane.bounded import BoundedDict
from keylane.errors import ConfigInvalid
from keylane.keyrange.hash import key_hash
from keylane.offsets.lineage import PartitionKey
from keylane.offsets.records.journal import ic_partition
from keylane.producers.sequence import SequenceMap
from keylane.proxy.topics.node_values import Address, Membership, NodeInfo
from keylane.proxy.topics.registry import TopicRegistry

ID_STRIDE: Final = 1_000_000
"""Between the virtual ids of two nodes; 999 times this and broker ids below it fit an int32."""
TOPICS_CACHED_MAX: Final = 10_000
PARTITIONS_MAX: Final = 100_000
"""Partitions of a topic that are placed evenly; more of them, or a wrong index, cost no memory."""


class Placement:
    """Places of clients. The lone node (number None) changes neither ids nor addresses.

    Invariants: this node is always among the nodes; all nodes that know the same membership
    place everything alike, since they go by its content alone. No client is sent to a node that
    drains, as long as another one serves.
    """

    def __init__(self, number: int | None = None) -> None:
        self.number = number
        self.is_alone: Final = number is None
        self._nodes: dict[int, NodeInfo | None] = {} if number is None else {number: None}
        self._owners: tuple[int, ...] = ()
        self._serving: tuple[int, ...] = tuple(self._nodes)
        self._cached: BoundedDict[tuple[str, int], Sequence[int]] = BoundedDict(TOPICS_CACHED_MAX)

    def update(self, membership: Membership) -> Placement:
        """Replace the known membership; return the former one."""
        assert self.number is not None, "the lone node has no other"
        before = Placement(self.number)
        before._nodes, before._owners = self._nodes, self._owners
        before._serving = self._serving
        found: dict[int, NodeInfo | None] = {self.number: None}
        found.update({node.number: node for node in membership.nodes})
        self._nodes = dict(sorted(found.items()))
        self._owners = membership.owners
        serving = {*membership.serving, *self._nodes.keys() - {n.number for n in membership.nodes}}
        self._serving = tuple(sorted(serving))
        self._cached.clear()
        return before

    @property
    def numbers(self) -> Sequence[int]:
        """Return the nodes that clients are sent to, ascending; none for the lone node."""
        return self._serving

    @property
    def has_others(self) -> bool:
        """Return whether another node is known, which may drain."""
        return len(self._nodes) > 1

    @property
    def home(self) -> int | None:
        """Return the node that clients are sent to for what any node can do; None: the lone one.

        It is this node, or the first one that serves while this one drains.
        """
        if self.is_alone or self.number in self._serving:
            return self.number
        return self._serving[0]

    # Broker ids.
    def virtual_id(self, number: int | None, broker_id: int) -> int:
        """Return the id of a broker at a node, for clients. Negative ids (none) stay.

        Raises: ConfigInvalid, the cluster's broker ids are too large for many nodes.
        """
        if number is None or self.is_alone or broker_id < 0:
            return broker_id
        if broker_id >= ID_STRIDE:
            raise ConfigInvalid(
                f"node: broker id {broker_id} is too large for many nodes, use ids < {ID_STRIDE}"
            )
        return number * ID_STRIDE + broker_id

    def own_id(self, broker_id: int) -> int:
        """Return the id of a broker at this node, for clients."""
        return self.virtual_id(self.number, broker_id)

    def home_id(self, broker_id: int) -> int:
        """Return the id of a broker where any node would do, for clients."""
        return self.virtual_id(self.home, broker_id)

    def home_place(self, broker_id: int, own: Address) -> tuple[int, Address]:
        """Return (virtual id, address) of a broker where any node would do; own: at this node."""
        home = self._address(self.home, broker_id, own)
        if home is None:  # that node has no listener for it yet
            return self.own_id(broker_id), own
        return self.home_id(broker_id), home

    def split_id(self, virtual_id: int) -> tuple[int | None, int]:
        """Return (node number, broker id) of a virtual id; no number at the lone node."""
        if self.is_alone or virtual_id < 0:
            return None, virtual_id
        return divmod(virtual_id, ID_STRIDE)

    def real_id(self, virtual_id: int) -> int:
        """Return the broker's own id for the id that a client sent; an own id stays."""
        return self.split_id(virtual_id)[1]

    # Addresses.
    def endpoints(self, broker_id: int, own: Address | None) -> list[tuple[int, Address]]:
        """Return (virtual id, address) of a broker at every node where clients reach it.

        own: the address at this node, None: none. Nodes without a listener for it are left out.
        """
        if self.is_alone:
            return [] if own is None else [(broker_id, own)]
        found = []
        for number in self.numbers:
            address = self._address(number, broker_id, own)
            if address is not None:
                found.append((self.virtual_id(number, broker_id), address))
        return found

    def coordinator(
        self, group: str, broker_id: int, own: Address | None
    ) -> tuple[int, Address] | None:
        """Return (virtual id, address) of a group's coordinator, from the broker's own id.

        None: no node serves the group at this moment, or clients cannot reach the broker there.
        """
        number = self.node_of_group(group)
        if number is None and not self.is_alone:
            return None
        address = self._address(number, broker_id, own)
        return None if address is None else (self.virtual_id(number, broker_id), address)

    def reaches(self, number: int | None, broker_id: int, own: Address | None) -> bool:
        """Return whether clients reach a broker at a node; own: its address at this node."""
        return self._address(number, broker_id, own) is not None

    def _address(self, number: int | None, broker_id: int, own: Address | None) -> Address | None:
        if number is None or number == self.number:
            return own  # other nodes know only the listeners of when this one joined
        node = self._nodes.get(number)
        return None if node is None else node.brokers.get(broker_id)

    # Places.
    def node_of_group(self, group: str) -> int | None:
        """Return the node that serves a group's offsets; None: no node at this moment."""
        if not self._owners:
            return None
        owner = self._owners[ic_partition(group, len(self._owners))]
        return owner if owner in self._nodes else None

    def knows(self, number: int) -> bool:
        """Return whether there is a node of this number, whether or not it drains."""
        return number in self._nodes

    def partitions_of(self, number: int) -> int:
        """Return how many partitions of the journal a node serves."""
        return self._owners.count(number)

    @property
    def is_led_away(self) -> bool:
        """Return whether clients of this node are sent to others, since it drains."""
        return self.home != self.number

    def control_of_group(self, group: str) -> str | None:
        """Return the control URL of the node that serves a group; None: this node, or none."""
        return self.control_of(self.node_of_group(group))

    def control_of(self, number: int | None) -> str | None:
        """Return the control URL of another node; None: it is this node, none, or has none."""
        node = self._nodes.get(number) if number is not None else None
        return node.control or None if node is not None and number != self.number else None

    def lists(self, group: str) -> bool:
        """Return whether this node lists a group: one node does, as librdkafka adds up answers."""
        if self.is_alone:
            return True
        number = self.node_of_group(group)
        return self.number == (self.numbers[0] if number is None else number)

    def node_of_partition(
        self, topic: str, partition: int, partition_count: int, leader_id: int = -1
    ) -> int | None:
        """Return the node that clients of a partition, and of its lanes, are sent to.

        partition_count: of the topic at the brokers. leader_id: the broker's own id; the node
        has a listener for it, if any has. None: the lone node.
        """
        if self.is_alone:
            return None
        count = max(partition_count, partition + 1)
        if partition >= 0 and count <= PARTITIONS_MAX:
            number = self._places(topic, count)[partition]
        else:
            number = _best(topic, partition, self.numbers)
        if leader_id < 0 or self._reaches(number, leader_id):
            return number
        able = [other for other in self.numbers if self._reaches(other, leader_id)]
        if not able:
            return self.number  # where its listener is tried for before an answer names the broker
        return _best(topic, partition, able)

    def _reaches(self, number: int, broker_id: int) -> bool:
        """Return the addresses in the membership, of this node too: other nodes know no more."""
        node = self._nodes[number]
        return node is None or broker_id in node.brokers

    def _places(self, topic: str, partition_count: int) -> Sequence[int]:
        key = (topic, partition_count)
        found = self._cached.get(key)
        if found is None:
            found = self._cached[key] = spread(topic, partition_count, self.numbers)
        return found


def spread(topic: str, partition_count: int, numbers: Sequence[int]) -> Sequence[int]:
    """Return by partition the node it is placed on: even to one partition, with few moves.

    Plain rendezvous hashing gives one of 4 nodes 5 of 12 partitions, as a rule. Here the best
    pair of all is taken first, and no node takes more than its share, rounded up for as many
    as need it; that moves a few more when a node comes or goes (`tests/property`).
    """
    share, extra = divmod(partition_count, len(numbers))
    loads = dict.fromkeys(numbers, 0)
    placed: dict[int, int] = {}
    pairs = [
        (-_score(topic, partition, number), partition, number)
        for partition in range(partition_count)
        for number in numbers
    ]
    for _, partition, number in sorted(pairs):
        if partition in placed or loads[number] >= share + (extra > 0):
            continue
        extra -= loads[number] == share
        loads[number] += 1
        placed[partition] = number
    return [placed[partition] for partition in range(partition_count)]


def is_placed_here(
    placement: Placement,
    registry: TopicRegistry,
    leaders: Mapping[PartitionKey, tuple[int, int]],
    topic: str,
    place: PartitionKey,
) -> bool:
    """Return whether clients of a partition are sent to this node."""
    leader_id, _ = leaders.get(place, (-1, -1))
    count = registry.count_of(topic)
    return placement.node_of_partition(topic, place[1], count, leader_id) == placement.number


def forget_gained(
    sequences: SequenceMap,
    registry: TopicRegistry,
    leaders: Mapping[PartitionKey, tuple[int, int]],
    before: Placement,
    after: Placement,
) -> int:
    """Forget the producers of partitions that came here from another node; return their number.

    While a partition was placed at another node, its producers were numbered there, and what is
    known here is older. The next number would not be the one that the broker expects, and
    librdkafka gives up; or the broker would take it for a retry, and a batch would be lost in
    silence. A producer that is not known recovers by its own new epoch. Partitions that have gone
    elsewhere stay: until its next Metadata a client goes on here, and no other node writes with
    its sequences.

    leaders: (broker id, leader epoch), where they are known. Source: docs/decisions/008.
    """
    gone = 0
    for topic_id, partition in sequences.places():
        name = registry.name_of_id(topic_id)
        if name is None:
            continue  # the topic is gone
        leader_id, _ = leaders.get((topic_id, partition), (-1, -1))
        at = partition, registry.count_of(name), leader_id
        here = after.number
        if before.node_of_partition(name, *at) != here == after.node_of_partition(name, *at):
            gone += sequences.forget(topic_id, partition)
    return gone


def _best(topic: str, partition: int, numbers: Iterable[int]) -> int:
    return max(numbers, key=lambda number: _score(topic, partition, number))


def _score(topic: str, partition: int, number: int) -> int:
    return key_hash(b"%s\x00%d\x00%d" % (topic.encode(), partition, number))
