"""Results and offsets in transactions, over a producer in memory and a virtual clock."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from keylane.client.settings import ConsumerSettings
from keylane.client.values import Committed, ConsumerRecord, TopicPartition
from keylane.client.workers import ExactlyOnce, Output
from keylane.client.workers.source import PlainSettings
from keylane.client.workers.transactions import ABORTS_MAX
from keylane.errors import ConfigInvalid
from keylane.tasks import spawn
from tests.reference.worker_source import P0, P1, FakeSource, make_records
from tests.virtual_time import run_virtual


class Producer:
    """Keeps what is committed. `fail_at` names calls that raise, by their number from 0."""

    def __init__(self, source: FakeSource, fail_at: dict[int, str] | None = None) -> None:
        self.source = source
        self.fail_at = fail_at or {}
        self.calls = 0
        self.committed: list[tuple[str, Any, Any, Any]] = []
        self.transactions: list[int] = []
        self.aborts = 0
        self._open: list[tuple[str, Any, Any, Any]] | None = None
        self._offsets: dict[TopicPartition, int] = {}

    async def begin_transaction(self) -> None:
        assert self._open is None
        self._open, self._offsets = [], {}

    def _may_fail(self, name: str) -> None:
        number, self.calls = self.calls, self.calls + 1
        if number in self.fail_at:
            raise ConnectionError(f"{name}: {self.fail_at[number]}")

    async def send(
        self, topic: str, value: Any = None, key: Any = None, *, headers: Any = None
    ) -> asyncio.Future[Any]:
        self._may_fail("send")
        assert self._open is not None
        self._open.append((topic, key, value, headers))
        sent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sent.set_result(None)
        return sent

    async def send_offsets_to_transaction(self, offsets: Any, group_id: str) -> None:
        self._may_fail("offsets")
        assert group_id == "billing"
        self._offsets = {TopicPartition(*place): offset for place, offset in offsets.items()}

    async def commit_transaction(self) -> None:
        await asyncio.sleep(0.01)
        self._may_fail("commit")
        assert self._open is not None
        self.committed += self._open
        self.transactions.append(len(self._open))
        self.source.offsets.update(self._offsets)
        self._open = None

    async def abort_transaction(self) -> None:
        assert self._open is not None
        self._open = None
        self.aborts += 1


async def double(record: ConsumerRecord) -> list[Any]:
    await asyncio.sleep(0.1)
    return [("out", record.key, b"%d" % record.offset)]


def run(handle: Any, script: Any, source: Any, fail_at: Any = None, **options: Any) -> Producer:
    async def main() -> Producer:
        made = source()
        producer = Producer(made, fail_at)
        async with ExactlyOnce(
            made, handle, producer, signals=False, progress=False, **options
        ) as workers:
            running = spawn(workers.run(), "run")
            scripted = spawn(script(made, producer, workers), "script")
            await asyncio.wait([running, scripted], return_when=asyncio.FIRST_COMPLETED)
            if scripted.done() and scripted.exception() is not None:
                running.cancel()
                await scripted
            scripted.cancel()
            await running
        return producer

    return run_virtual(main)


def until_committed(place: TopicPartition, offset: int) -> Any:
    async def script(source: FakeSource, producer: Producer, workers: ExactlyOnce) -> None:
        async with asyncio.timeout(1000):
            while source.offsets.get(place) != offset:  # noqa: ASYNC110 - a virtual clock
                await asyncio.sleep(0.01)
        workers.stop()

    return script


def values(producer: Producer) -> list[int]:
    return [int(value) for _, _, value, _ in producer.committed]


def test_results_and_offsets_in_one_transaction():
    """Results come in the order of offsets, with the offset behind the last of them."""
    keys = [b"ada", b"ben", b"ada", b"cleo"]

    producer = run(double, until_committed(P0, 4), lambda: FakeSource(*make_records(P0, keys)))

    assert values(producer) == [0, 1, 2, 3]
    assert [key for _, key, _, _ in producer.committed] == keys
    assert sum(producer.transactions) == 4
    assert producer.source.commits == []


def test_results_behind_unfinished_work_wait():
    """A record that is not finished holds back later results of its partition only."""

    async def handle(record: ConsumerRecord) -> list[Output]:
        await asyncio.sleep(60 if record == (*P0, 0, *record[3:]) else 0.1)
        return [Output("out", record.key, b"%d" % record.offset, (("h", b"x"),))]

    async def script(source: FakeSource, producer: Producer, workers: ExactlyOnce) -> None:
        await asyncio.sleep(30)
        assert source.offsets == {P1: 2}
        assert len(producer.committed) == 2
        assert workers.view().queued == 0
        await until_committed(P0, 3)(source, producer, workers)

    records = [*make_records(P0, [b"ada", b"ben", b"cleo"]), *make_records(P1, [b"d", b"e"])]
    producer = run(handle, script, lambda: FakeSource(*records))

    assert values(producer) == [0, 1, 0, 1, 2]
    assert producer.committed[0][3] == [("h", b"x")]


def test_aborted_transaction_is_worked_again():
    """After an abort records are worked anew from the committed offset; results count once."""
    worked: list[int] = []

    async def handle(record: ConsumerRecord) -> list[Any]:
        worked.append(record.offset)
        return await double(record)

    def source_of() -> FakeSource:
        source = FakeSource(*make_records(P0, [b"ada"] * 30))
        source.offsets[P0] = 0
        return source

    producer = run(handle, until_committed(P0, 30), source_of, fail_at={4: "away", 15: "away"})

    assert values(producer) == list(range(30))
    assert producer.aborts == 2
    assert len(worked) > 30
    assert len(producer.source.seeks) == 2


@pytest.mark.parametrize("number", range(20))
def test_any_failure_any_rebalance(number: int):
    """Whatever fails and whichever partition moves, each result is there once, in key order."""
    chance = random.Random(number)
    keys = [chance.choice([b"ada", b"ben", b"cleo"]) for _ in range(60)]
    fail_at = dict.fromkeys(chance.sample(range(2, 200), 6), "away")

    async def handle(record: ConsumerRecord) -> list[Any]:
        await asyncio.sleep(chance.random())
        return [("out", record.key, b"%d" % record.offset)] * (record.offset % 3)

    async def script(source: FakeSource, producer: Producer, workers: ExactlyOnce) -> None:
        for _ in range(3):
            await asyncio.sleep(chance.uniform(1, 6))
            if chance.random() < 0.5:
                source.lose(P0)
            else:
                source.ask_back(P0)
                async with asyncio.timeout(1000):
                    while P0 in source.positions:  # noqa: ASYNC110 - virtual
                        await asyncio.sleep(0.01)
            await asyncio.sleep(chance.random())
            source.assign(P0, source.offsets.get(P0, 0))
        await until_committed(P0, 60)(source, producer, workers)

    producer = run(handle, script, lambda: FakeSource(*make_records(P0, keys)), fail_at)

    assert values(producer) == [each for each in range(60) for _ in range(each % 3)]


def test_a_partition_that_is_lost_during_a_redo_is_left_alone():
    """Trouble that aborts a transaction may rebalance the group: the others go on."""

    class Losing(FakeSource):
        async def committed(self, partition: TopicPartition, /) -> Committed | None:
            if partition == P0:
                self.lose(P0)
            return await super().committed(partition)

        def seek(self, partition: TopicPartition, offset: int, /) -> None:
            assert partition in self.positions, "the consumer raises PartitionLost"
            super().seek(partition, offset)

    records = [*make_records(P0, [b"ada"] * 4), *make_records(P1, [b"ben"] * 4)]

    producer = run(double, until_committed(P1, 4), lambda: Losing(*records), fail_at={1: "away"})

    assert producer.aborts == 1
    assert producer.source.offsets[P1] == 4


def test_aborts_without_end_end_the_run():
    """An error that aborts transaction after transaction is raised by the run."""

    async def script(source: FakeSource, producer: Producer, workers: ExactlyOnce) -> None:
        await asyncio.sleep(10_000)

    fail_at = dict.fromkeys(range(1000), "no right")

    with pytest.raises(ConnectionError):
        run(double, script, lambda: FakeSource(*make_records(P0, [b"ada"])), fail_at)


def test_many_results_are_committed_early():
    """A full ledger commits before its time, so that the interval bounds no throughput."""
    source_of = lambda: FakeSource(*make_records(P0, [None] * 100))  # noqa: E731 - one use

    async def script(source: FakeSource, producer: Producer, workers: ExactlyOnce) -> None:
        await until_committed(P0, 100)(source, producer, workers)
        assert asyncio.get_running_loop().time() < 20

    producer = run(double, script, source_of, max_queued=10, commit_interval_s=1000)

    assert values(producer) == list(range(100))
    assert ABORTS_MAX > 1


def test_a_stop_commits_what_is_finished():
    """What is in progress at a stop is in the last transaction."""

    async def script(source: FakeSource, producer: Producer, workers: ExactlyOnce) -> None:
        await asyncio.sleep(0.05)
        workers.stop()

    producer = run(double, script, lambda: FakeSource(*make_records(P0, [b"ada", b"ben"])))

    assert values(producer) == [0, 1]
    assert producer.source.offsets == {P0: 2}


def test_settings_that_cannot_be():
    """Offsets need a group, and no other commits; a transaction covers many records."""
    source = FakeSource()
    source.settings = PlainSettings(None)

    with pytest.raises(ConfigInvalid, match="group_id"):
        ExactlyOnce(source, double, Producer(source))
    source.settings = ConsumerSettings(group_id="billing", enable_auto_commit=True)
    with pytest.raises(ConfigInvalid, match="enable_auto_commit"):
        ExactlyOnce(source, double, Producer(source))
    with pytest.raises(ConfigInvalid, match="commit_interval_s"):
        ExactlyOnce(FakeSource(), double, Producer(source), commit_interval_s=0)
