"""Round robin: partitions dealt to members in turn; members to partitions when they outnumber them.

Source: Apache Kafka's RoundRobinAssignor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from keylane.assignor.key_range import Partition, Strategy
from keylane.assignor.model import Member


def deal_in_turn(member_ids: Sequence[str], partition_count: int) -> list[list[str]]:
    """Member i goes to partition i modulo their count."""
    return [list(member_ids[partition::partition_count]) for partition in range(partition_count)]


def assign_in_turn(
    partitions_per_topic: Mapping[str, int], members: Sequence[Member]
) -> dict[str, list[Partition]]:
    """Deal all partitions, topic by topic, to the next member that subscribes to the topic.

    The turn goes on from one topic to the next, as in Kafka's assignor.
    """
    assigned: dict[str, list[Partition]] = {member.member_id: [] for member in members}
    turn = 0
    for topic in sorted(partitions_per_topic):
        if not any(topic in member.topics for member in members):
            continue
        for partition in range(partitions_per_topic[topic]):
            while topic not in members[turn].topics:
                turn = (turn + 1) % len(members)
            assigned[members[turn].member_id].append((topic, partition))
            turn = (turn + 1) % len(members)
    return assigned


ROUND_ROBIN: Final = Strategy("roundrobin", deal_in_turn, assign_in_turn)
