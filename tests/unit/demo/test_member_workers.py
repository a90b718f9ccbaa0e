"""The member with workers: what it reports, in which order, and what it never commits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Self

import pytest

from keylane.cli.main import main
from keylane.client.consumer import Consumer
from keylane.client.errors import Disconnected
from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.demo import member_workers
from keylane.demo.events import (
    CommitFailed,
    Delivered,
    Event,
    LanesAssigned,
    LanesReleased,
    OrderBatch,
    RecordsCommitted,
    SessionEnd,
)
from keylane.demo.ledger import build_ledger
from keylane.demo.member import MemberProgress, Seat
from keylane.demo.member_workers import (
    OrderHandler,
    RecordProgress,
    ReportingConsumer,
    ReportingListener,
)
from keylane.demo.orders import OrderRun, order_key, order_value
from tests.virtual_time import run_virtual

SEAT = Seat("b:9092", "orders", "g", "c")
LANES = frozenset({TopicPartition("orders", 7), TopicPartition("orders", 3)})


def order(lane: int, offset: int, customer: int, number: int) -> ConsumerRecord:
    key, value = order_key(customer), order_value(customer, number)
    return ConsumerRecord("orders", lane, offset, 0, key, value)


def make() -> tuple[RecordProgress, list[Event]]:
    events: list[Event] = []
    return RecordProgress(MemberProgress(events.append, member=4)), events


class FakeWorkers:
    """Stands for `Workers`: one poll, its records in descending order, then the last commit."""

    stops = 0

    def __init__(self, source: Any, handle: Any, **options: Any) -> None:
        assert options["concurrency"] == member_workers.CONCURRENCY
        self._source, self._handle = source, handle

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    def stop(self) -> None:
        type(self).stops += 1

    async def run(self) -> None:
        for record in reversed(await self._source.getmany(timeout_ms=1)):
            await self._handle(record)
            self._source.mark_done(record)
        await self._source.commit()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of a consumer without a cluster: two orders of lane 7, at offsets 8 and 5."""
    calls: list[str] = []

    def note(name: str, result: Any = None) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def call(_self: Consumer, *_: Any, **_options: Any) -> Any:
            calls.append(name)
            return result

        return call

    async def start(consumer: Consumer) -> None:
        assert consumer._listener is not None
        await consumer._listener.on_partitions_assigned(LANES)

    async def stop(consumer: Consumer) -> None:
        assert consumer._listener is not None
        await consumer._listener.on_partitions_revoked(LANES)

    monkeypatch.setattr(Consumer, "start", start)
    monkeypatch.setattr(Consumer, "stop", stop)
    monkeypatch.setattr(Consumer, "getmany", note("poll", [order(7, 5, 1, 0), order(7, 8, 2, 0)]))
    monkeypatch.setattr(Consumer, "commit", note("commit"))
    monkeypatch.setattr(Consumer, "mark_done", lambda _self, *_: calls.append("mark"))
    monkeypatch.setattr(member_workers, "Workers", FakeWorkers)
    monkeypatch.setattr(logging, "disable", lambda _level: None)
    return calls


def test_a_member_reports_before_it_marks_and_commits(calls: list[str]) -> None:
    """Offsets 8 and 5 are reported in the order of their work, and both are committed."""
    events: list[Event] = []

    member_workers.consume(MemberProgress(events.append, member=4), SEAT, lambda: True)

    kinds = [type(event) for event in events]
    assert kinds == [LanesAssigned, Delivered, Delivered, RecordsCommitted, LanesReleased]
    assert calls == ["poll", "mark", "mark", "commit"]
    assert FakeWorkers.stops == 1
    assert [each.batches[0].last_offset for each in events if isinstance(each, Delivered)] == [8, 5]
    committed = next(each for each in events if isinstance(each, RecordsCommitted))
    assert committed.records == ((7, (5, 8)),)
    ledger = build_ledger(events)
    ledger.check()
    assert {number: key.committed for number, key in ledger.keys.items()} == {1: 1, 2: 1}


def test_a_failed_commit_is_reported_and_repeated(
    monkeypatch: pytest.MonkeyPatch, calls: list[str]
) -> None:
    """A connection that ends during a commit leaves offset 5 waiting for the next one."""
    progress, events = make()
    consumer = ReportingConsumer(progress, SEAT, lambda: False)
    progress.assigned([7])
    progress.process(order(7, 5, 1, 0))
    consumer.mark_done(order(7, 5, 1, 0))

    async def fail(_self: Consumer, _what: object = None) -> None:
        raise Disconnected("the node is away")

    with monkeypatch.context() as context:
        context.setattr(Consumer, "commit", fail)
        with pytest.raises(Disconnected):
            asyncio.run(consumer.commit())
    asyncio.run(consumer.commit())

    failed, done = events[-2:]
    assert isinstance(failed, CommitFailed) and isinstance(done, RecordsCommitted)
    assert (failed.lanes, failed.reason, done.records) == ((7,), "Disconnected", ((7, (5,)),))
    assert calls == ["mark", "commit"]


def test_what_goes_during_a_commit_is_not_reported_as_committed() -> None:
    """Lane 7 is lost between a commit and its answer; lane 3 stays."""
    progress, events = make()
    progress.assigned([7, 3])
    progress.mark([order(7, 5, 1, 0), order(3, 2, 2, 0), order(9, 1, 3, 0)])
    wanted = {lane: frozenset(offsets) for lane, offsets in progress.waiting.items()}

    progress.released([7], lost=True)
    progress.committed(wanted)

    assert isinstance(events[-1], RecordsCommitted)
    assert events[-1].records == ((3, (2,)),)
    assert progress.waiting == {3: set()}


def test_a_released_lane_reports_its_work_first() -> None:
    """An order that was processed and not reported is reported before its lane goes."""
    progress, events = make()
    listener = ReportingListener(progress)
    asyncio.run(listener.on_partitions_assigned(LANES))
    progress.process(order(7, 5, 1, 0))

    asyncio.run(listener.on_partitions_lost(LANES))

    assert [type(event) for event in events] == [LanesAssigned, Delivered, LanesReleased]
    assert isinstance(events[1], Delivered) and isinstance(events[2], LanesReleased)
    assert events[1].batches == (OrderBatch(7, 5, 5, (OrderRun(1, 0, 1),)),)
    assert (events[2].lanes, events[2].end) == ((3, 7), SessionEnd.LOST)


def test_an_order_of_a_lost_lane_is_not_processed() -> None:
    """Its lane is lost, and comes back, while the handler waits: it waits for its end."""
    progress, events = make()
    handler = OrderHandler(progress, work_s=1.0)

    async def main() -> None:
        progress.assigned([7])
        async with asyncio.timeout(5.0):
            async with asyncio.TaskGroup() as group:
                group.create_task(handler(order(7, 5, 1, 0)))
                await asyncio.sleep(0.5)  # of virtual time: the handler is half way
                progress.released([7], lost=True)
                progress.assigned([7])

    with pytest.raises(TimeoutError):
        run_virtual(main)

    progress.report()
    assert not any(isinstance(event, Delivered) for event in events)


def test_the_demo_of_workers_needs_lanes(capsys: pytest.CaptureFixture[str]) -> None:
    """`keylane demo --workers --direct` ends with the reason."""
    assert main(["demo", "--workers", "--direct"]) == 2
    assert "--direct has none" in capsys.readouterr().err
