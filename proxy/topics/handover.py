"""Sequences of idempotent producers when a partition's clients are sent to this node again.

Source: docs/decisions/008; `wire.sequence`, of producers that keylane does not know.

While a partition was placed at another node, its producers were numbered there. The sequences that
are known here are older: the next number would not be the one that the broker expects, or would be
one that it takes for a retry, and a batch would be lost in silence; librdkafka gives up. A producer
that is not known recovers by its own new epoch, as after a restart of keylane. Partitions that have
gone elsewhere are left alone: until its next Metadata a client goes on here, and no other node
writes with its sequences.
"""

from __future__ import annotations

from collections.abc import Mapping

from keylane.offsets.lineage import PartitionKey
from keylane.producers.sequence import SequenceMap
from keylane.proxy.topics.placement import Placement
from keylane.proxy.topics.registry import TopicRegistry


def forget_gained(
    sequences: SequenceMap,
    registry: TopicRegistry,
    leaders: Mapping[PartitionKey, tuple[int, int]],
    before: Placement,
    after: Placement,
) -> int:
    """Forget the producers of partitions that came here from another node; return their number.

    leaders: (broker id, leader epoch), where they are known.
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
