"""The member on aiokafka: its report of its lanes when it leaves the group."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import ConsumerRebalanceListener, TopicPartition

from keylane.demo import member_aiokafka
from keylane.demo.events import Ended, Event, LanesAssigned, SessionEnd
from keylane.demo.ledger import build_ledger
from keylane.demo.member import MemberProgress, Seat
from keylane.demo.orders import order_key, order_value

LANES = {TopicPartition("orders", 0), TopicPartition("orders", 1)}


class Record:
    """One order of customer 1, at offset 0."""

    offset, key, value = 0, order_key(1), order_value(1, 0)


class FakeConsumer:
    """Reads one order of lane 0; as aiokafka, it calls no listener when it leaves the group."""

    def __init__(self, left: Callable[[], None], *, joins_again: bool) -> None:
        self._left, self._joins_again = left, joins_again
        self._listener: Any = None
        self.committed: dict[TopicPartition, int] = {}

    def subscribe(self, topics: list[str], *, listener: ConsumerRebalanceListener) -> None:
        self._listener = listener

    async def start(self) -> None:
        await self._listener.on_partitions_assigned(LANES)

    def assignment(self) -> set[TopicPartition]:
        return LANES

    async def getmany(self, **_: int) -> dict[TopicPartition, list[Record]]:
        return {TopicPartition("orders", 0): [Record()]}

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        self.committed.update(offsets)

    async def stop(self) -> None:
        if self._joins_again:  # a rebalance under way is finished first
            await self._listener.on_partitions_revoked(LANES)
            await self._listener.on_partitions_assigned(LANES)
        self._left()


@pytest.mark.parametrize("joins_again", [False, True])
def test_lanes_end_before_the_next_member_can_have_them(
    monkeypatch: pytest.MonkeyPatch, joins_again: bool
) -> None:
    """They are another's as soon as the group is left; the process may end much later."""
    events: list[Event] = []
    progress = MemberProgress(events.append, member=1)
    left_at: list[int] = []
    consumer = FakeConsumer(lambda: left_at.append(len(events)), joins_again=joins_again)
    monkeypatch.setattr(member_aiokafka, "AIOKafkaConsumer", lambda **_: consumer)
    # A member has its own process, and logs nothing there.
    monkeypatch.setattr(logging, "disable", lambda _level: None)
    turns = iter([False, True])

    member_aiokafka.consume(progress, Seat("b:9092", "orders", "g", "c"), lambda: next(turns))

    assert consumer.committed == {TopicPartition("orders", 0): 1}
    assert left_at == [len(events)]
    moment = events[-1].at_ns
    events.append(LanesAssigned(2, moment + 1, (0, 1)))
    events.append(Ended(1, moment + 2, SessionEnd.LEFT))
    ledger = build_ledger(events)
    ledger.check()
    assert (ledger.counts.two_at_once, ledger.counts.deliveries) == (0, 1)
    assert {lane: owner.member for lane, owner in ledger.lane_owners.items()} == {0: 2, 1: 2}
