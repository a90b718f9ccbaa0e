"""Records of one answer: a member's share, and its part of what is left at the end of the log."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from keylane.config.share_rules import ShareRule
from keylane.proxy.share.groups import Collector
from keylane.share.dispatcher import Dispatcher
from keylane.share.held import NO_KEY

NOW_S = 100.0
MEMBERS = ("m", "n", "o", "p")


@dataclass
class Partition:
    """Stands for `OrderedPartition`: records of 10 bytes in one block."""

    dispatcher: Dispatcher
    rule: ShareRule = field(default_factory=lambda: ShareRule(group="g"))
    is_at_end: bool = True
    may_hand_out: bool = True

    def has_member(self, _member: Any) -> bool:
        return True


def window(*points: int, several: int = 1) -> Dispatcher:
    dispatcher = Dispatcher(several_per_key=several)
    for member in MEMBERS:
        dispatcher.join(member)
    block = SimpleNamespace(largest_bytes=10, epoch_of=lambda _row: 0)
    dispatcher.acquire(list(range(len(points))), points, 1, NOW_S, block)
    dispatcher.settle(NOW_S)
    return dispatcher


async def given(partition: Partition, member: str, records_max: int = 30) -> int:
    """Return the number of records that a member gets, whose polls have ten."""
    session: Any = member
    parts: Any = (partition,)
    collector = Collector(
        session, parts, poll_max=10, records_max=records_max, bytes_max=1 << 20, clock=lambda: NOW_S
    )
    return sum(len(each.records) for each in collector.collect())


@pytest.mark.parametrize(("is_at_end", "count"), [(False, 5), (True, 4)])
async def test_at_the_end_of_the_log_half_of_what_is_at_members_counts_as_done(
    is_at_end: bool, count: int
) -> None:
    """Ten records are ready and ten at members: one of four gets a quarter of fifteen, or 20."""
    partition = Partition(window(*[NO_KEY] * 20), is_at_end=is_at_end)
    partition.dispatcher.take("m", 5, NOW_S)
    partition.dispatcher.take("n", 5, NOW_S)

    assert partition.dispatcher.out_count == 10
    assert await given(partition, "o") == count


async def test_before_the_end_a_member_gets_several_polls() -> None:
    """As many as it may have, within its share of all."""
    partition = Partition(window(*[NO_KEY] * 200), is_at_end=False)

    assert await given(partition, "m") == 30
    assert await given(partition, "n", records_max=80) == 50


async def test_several_records_of_a_key_go_together_at_the_end_as_well() -> None:
    """The part is counted in keys."""
    rule = ShareRule(group="g", several_per_key=5)
    partition = Partition(window(*[7] * 20, several=5), rule=rule)

    assert await given(partition, "m") == 5
