"""Windows that are open at a node, in the order of group, topic and partition."""

from __future__ import annotations

import asyncio

from keylane.config.share_rules import ShareRule
from keylane.proxy.control.shares import windows
from keylane.proxy.control.shares.windows import look_at_windows
from keylane.tasks import spawn
from tests.reference.share_windows import SharedGroups


async def test_a_window_is_measured_by_the_look_ahead_of_its_rule() -> None:
    """Four offsets of a look-ahead of 8 are half of it, with a hole as well."""
    shared = SharedGroups(ShareRule(group="g", look_ahead=8))
    partition = shared.open(error_code=3)
    partition.hold(5, 5)
    partition.hold(6, first=3)

    (found,) = await look_at_windows(shared.ordered)

    assert found.used == 0.5
    assert (found.look_ahead, found.leader_id, found.error_code) == (8, 1, 3)
    assert (found.summary.records, found.summary.ready, found.summary.waiting) == (3, 2, 1)


async def test_one_group_is_asked_for_alone() -> None:
    """Others are not looked at; all are sorted."""
    shared = SharedGroups(ShareRule(group="*"))
    for group, topic, partition in (("b", "x", 1), ("b", "x", 0), ("a", "y", 0)):
        shared.open(group, topic, partition, leader=None)

    every = await look_at_windows(shared.ordered)
    of_b = await look_at_windows(shared.ordered, "b")

    assert [(w.place.group, w.place.partition) for w in every] == [("a", 0), ("b", 0), ("b", 1)]
    assert [w.place.partition for w in of_b] == [0, 1]
    assert every[0].leader_id is None


async def test_others_are_served_between_many_records(monkeypatch) -> None:
    """After each turn the loop does what waits."""
    monkeypatch.setattr(windows, "RECORDS_AT_ONCE", 3)
    shared = SharedGroups()
    for number in range(4):
        shared.open(partition=number).hold(1, 2)
    turns: list[int] = []

    async def count() -> None:
        while True:
            turns.append(1)
            await asyncio.sleep(0)

    counting = spawn(count(), "count")
    await look_at_windows(shared.ordered)
    counting.cancel()

    assert len(turns) == 2
