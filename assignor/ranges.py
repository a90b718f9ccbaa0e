"""Range: a block of neighbours each; partitions for members, or members for partitions.

Source: Apache Kafka's RangeAssignor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from keylane.assignor.key_range import Partition, Strategy
from keylane.assignor.model import Member


def cut_blocks(count: int, block_count: int) -> list[range]:
    """Cut `count` places into blocks of neighbours; the first ones have one more when uneven."""
    size, longer_count = divmod(count, block_count)
    starts = [block * size + min(block, longer_count) for block in range(block_count)]
    return [range(start, end) for start, end in pairwise([*starts, count])]


def deal_blocks(member_ids: Sequence[str], partition_count: int) -> list[list[str]]:
    """Give each partition a block of members."""
    blocks = cut_blocks(len(member_ids), partition_count)
    return [list(member_ids[block.start : block.stop]) for block in blocks]


def assign_blocks(
    partitions_per_topic: Mapping[str, int], members: Sequence[Member]
) -> dict[str, list[Partition]]:
    """Give each member that subscribes to a topic a block of its partitions."""
    assigned: dict[str, list[Partition]] = {member.member_id: [] for member in members}
    for topic in sorted(partitions_per_topic):
        subscribed = [member.member_id for member in members if topic in member.topics]
        if not subscribed:
            continue
        blocks = cut_blocks(partitions_per_topic[topic], len(subscribed))
        for member_id, block in zip(subscribed, blocks, strict=True):
            assigned[member_id] += [(topic, partition) for partition in block]
    return assigned


RANGE: Final = Strategy("range", deal_blocks, assign_blocks)
