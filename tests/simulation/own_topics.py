"""Stands for aiokafka in front of keylane's own topics: a producer, a consumer, an admin client.

In:    calls as keylane makes them.  Out: what aiokafka would give, after the network's time.
Source: aiokafka 0.12+, `AIOKafkaProducer` (idempotent: batches of a partition in order, one at a
time, sent again with the same sequence until the broker says something), `AIOKafkaConsumer`.

A request reaches the broker that leads the topic, if it is up and not cut off; it is tried again
until the client's own time-out. Own topics are led by the first broker that is alive.
"""

from __future__ import annotations

import asyncio
import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, ProducerFenced, RequestTimedOutError

from keylane.config.own_names import JOURNAL_TOPIC

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster, OwnLog
    from tests.simulation.world import Process, World

REQUEST_TIMEOUT_S = 40.0
"""Seconds of aiokafka's `request_timeout_ms`."""
RETRY_S = 0.1
INTENT = 5
"""Kind of a journal record, in the third byte of its key: what a push that goes back is about."""
T = TypeVar("T")


class Own:
    """The way from processes to own topics, and its faults."""

    def __init__(self, world: World, cluster: Cluster) -> None:
        self.world, self.cluster = world, cluster
        self.lost_acks = 0
        """Number of answers that will get lost."""
        self.delay_s: Callable[[str, str], float] = lambda _topic, _host: 0.0
        """How much longer the next batch for a topic is under way from a host."""

    @property
    def leader(self) -> str | None:
        """Host of the broker that leads them now."""
        alive = [each for each in self.cluster.broker_ids if each not in self.cluster.down]
        return f"kafka{alive[0]}" if alive else None

    async def call(
        self, do: Callable[[], T], *, timeout_s: float = REQUEST_TIMEOUT_S, topic: str = ""
    ) -> T:
        """Have `do` done at the broker; again and again until an answer comes back.

        What was sent arrives whatever becomes of the process that has sent it.
        topic: that is written to. Raises: KafkaConnectionError.
        """
        process = self.world.current
        assert process is not None, "called by a process"
        clock = process.loop.time
        end_s = clock() + timeout_s
        while True:
            future: asyncio.Future[T] = process.loop.create_future()
            timer = process.loop.call_at(end_s, _fail, future, RequestTimedOutError())
            delay_s = self.delay_s(topic, process.host) if topic else 0.0
            _Sending(self, process, do, future).begin(delay_s)
            try:
                return await future
            except ConnectionError as error:
                if clock() + RETRY_S > end_s:
                    raise KafkaConnectionError(str(error)) from None
            finally:
                timer.cancel()
            await asyncio.sleep(RETRY_S)

    def log(self, topic: str, partition: int) -> OwnLog:
        return self.cluster.own[topic][partition]


class _Sending:
    """One request that is under way; an object, as functions that name each other are garbage."""

    def __init__(
        self, own: Own, process: Process, do: Callable[[], T], future: asyncio.Future[T]
    ) -> None:
        self._own, self._process, self._do, self._future = own, process, do, future
        self._leader = own.leader

    def begin(self, delay_s: float) -> None:
        network = self._own.world.network
        latency_s = network.latency_s(self._process.host, self._leader or "kafka1")
        self._own.world.after(delay_s + latency_s, self._arrive)

    def _arrive(self) -> None:
        world, here = self._own.world, self._process.host
        broker = world.brokers.get(self._leader or "")
        if broker is None or not broker.is_reachable:
            self._lose()
        elif world.network.is_cut(here, broker.host):
            # Its system sends on, unless the connection was given up meanwhile.
            world.network.at_heal(self._arrive if world.rng.random() < 0.5 else self._lose)
        elif broker.is_hung:
            broker.held.append(self._arrive)
        else:
            self._answer(broker.host)

    def _answer(self, host: str) -> None:
        own, world = self._own, self._own.world
        latency_s = world.network.latency_s(self._process.host, host)
        try:
            value = self._do()
        except Exception as error:  # noqa: BLE001 - the client gets it
            world.after(latency_s, partial(self._process.post, _fail, self._future, error))
            return
        if own.lost_acks:
            own.lost_acks -= 1
            world.report(f"{host}: an answer of keylane's own topics is lost")
            world.after(0.01, self._lose)
            return
        world.after(latency_s, partial(self._process.post, _set, self._future, value))

    def _lose(self) -> None:
        self._process.post(_fail, self._future, ConnectionError("connection is lost"))


def _set(future: asyncio.Future[Any], value: Any) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class _TxnManager:
    def __init__(self) -> None:
        self.known: tuple[int, int] | None = None

    def set_pid_and_epoch(self, producer_id: int, epoch: int) -> None:
        self.known = producer_id, epoch


class _Client:
    async def close(self) -> None:
        pass


class _Batch:
    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None]] = []

    def append(self, *, timestamp: None, key: bytes | None, value: bytes | None) -> object:
        assert timestamp is None
        self.records.append((key, value))
        return object()

    def close(self) -> None:
        pass


class _Producer:
    own: Own

    def __init__(self, **options: Any) -> None:
        self._txn_manager, self.client = _TxnManager(), _Client()
        self._timeout_s = options.get("request_timeout_ms", 40_000) / 1000
        process = self.own.world.current
        assert process is not None, "made by a process"
        self._host = process.host
        self._queues: dict[tuple[str, int], list[tuple[Any, Any, Any]]] = {}
        self._senders: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._sequences: dict[tuple[str, int], itertools.count[int]] = {}

    async def start(self) -> None:
        if self._txn_manager.known is None:
            self._txn_manager.known = await self.own.call(lambda: self.own.cluster.next_epoch(None))

    async def send(
        self, topic: str, value: Any, key: Any = None, partition: int = 0
    ) -> asyncio.Future[Any]:
        return self._put((topic, partition), key, value)

    def _put(self, place: tuple[str, int], key: Any, value: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._queues.setdefault(place, []).append((key, value, future))
        if place not in self._senders or self._senders[place].done():
            self._senders[place] = loop.create_task(self._send_on(place))
        return future

    def create_batch(self) -> _Batch:
        return _Batch()

    async def send_batch(self, batch: _Batch, topic: str, *, partition: int) -> asyncio.Future[Any]:
        futures = [self._put((topic, partition), *record) for record in batch.records]
        return futures[0]

    async def _send_on(self, place: tuple[str, int]) -> None:
        await asyncio.sleep(0)
        while queue := self._queues.get(place):
            self._queues[place] = []
            records = [(key, value) for key, value, _ in queue]
            numbers = self._sequences.setdefault(place, itertools.count())
            sequence = next(numbers)
            try:
                base = await self._written(place, partial(self._append, place, records, sequence))
            except Exception as error:  # noqa: BLE001 - of each record
                for _, _, future in queue:
                    if not future.done():
                        future.set_exception(error)
                continue
            for number, (_, _, future) in enumerate(queue):
                if not future.done():
                    where = TopicPartition(*place)
                    future.set_result(SimpleNamespace(
                        topic=place[0], partition=place[1], topic_partition=where,
                        offset=base + number,
                    ))  # fmt: skip

    async def _written(self, place: tuple[str, int], append: Callable[[], int]) -> int:
        """A batch goes out until a broker has said something: an idempotent one never expires."""
        while True:
            with suppress(RequestTimedOutError, KafkaConnectionError):
                return await self.own.call(append, timeout_s=self._timeout_s, topic=place[0])

    def _append(self, place: tuple[str, int], records: Any, sequence: int) -> int:
        assert self._txn_manager.known is not None
        base = self.own.cluster.append_own(
            *place, records, producer=self._txn_manager.known, sequence=sequence
        )
        if base is None:
            raise ProducerFenced
        kinds = {key[2] for key, _ in records if key is not None}
        if place[0] == JOURNAL_TOPIC:
            self.own.cluster.note_moment("intent" if INTENT in kinds else "append", self._host)
        return base

    async def stop(self) -> None:
        waiting = [task for task in self._senders.values() if not task.done()]
        if waiting:
            await asyncio.wait(waiting)


class _Consumer:
    own: Own

    def __init__(self, *_topics: str, **_options: Any) -> None:
        self._positions: dict[TopicPartition, int] = {}

    async def start(self) -> None:
        await self.own.call(lambda: None)

    async def stop(self) -> None:
        pass

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._positions = dict.fromkeys(partitions, 0)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        for partition in partitions:
            self._positions[partition] = 0

    async def position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    async def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[Any, int]:
        return await self.own.call(
            lambda: {each: self.own.log(each.topic, each.partition).end for each in partitions}
        )

    async def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    async def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[Any, Any]:
        def find() -> dict[Any, Any]:
            found: dict[Any, Any] = {}
            for each, at_ms in times.items():
                records = self.own.log(each.topic, each.partition).records
                later = [record.offset for record in records if record.at_ms >= at_ms]
                found[each] = SimpleNamespace(offset=later[0]) if later else None
            return found

        return await self.own.call(find)

    async def getmany(self, *partitions: TopicPartition, timeout_ms: int = 0) -> dict[Any, Any]:
        wanted = partitions or tuple(self._positions)
        end_s = asyncio.get_running_loop().time() + timeout_ms / 1000
        process = self.own.world.current
        assert process is not None, "called by a process"
        news: asyncio.Future[None] = process.loop.create_future()
        read = partial(self._read, wanted, news, process)
        batches = self._moved(await self.own.call(read))
        left_s = end_s - process.loop.time()
        if batches or left_s <= 0:
            return batches
        await asyncio.wait([news], timeout=left_s)
        if not news.done():
            return {}
        return self._moved(await self.own.call(read))

    def _moved(self, found: dict[Any, Any]) -> dict[Any, Any]:
        """Return what was read, with positions behind it."""
        for each, records in found.items():
            self._positions[each] = records[-1].offset + 1
        return found

    def _read(
        self, wanted: Iterable[TopicPartition], news: asyncio.Future[None], process: Process
    ) -> dict[Any, Any]:
        """Return what is there; else `news` is set when something comes."""

        def wake() -> None:
            latency_s = self.own.world.network.latency_s(process.host, "kafka1")
            self.own.world.after(latency_s, partial(process.post, _set, news, None))

        found = {}
        for each in wanted:
            there = self.own.log(each.topic, each.partition).records
            first = bisect_left(there, self._positions[each], key=attrgetter("offset"))
            records = [
                SimpleNamespace(
                    topic=each.topic, partition=each.partition, offset=record.offset,
                    key=record.key, value=record.value, timestamp=record.at_ms,
                )
                for record in there[first:]
            ]  # fmt: skip
            if records:
                found[each] = records
        if not found:
            for each in wanted:
                self.own.log(each.topic, each.partition).waiters.append(wake)
        return found


class _Admin:
    own: Own

    def __init__(self, **_options: Any) -> None:
        pass

    async def start(self) -> None:
        await self.own.call(lambda: None)

    async def close(self) -> None:
        pass

    async def find_coordinator(self, _group: str) -> int:
        return 1

    async def describe_topics(self) -> list[dict[str, Any]]:
        def describe() -> list[dict[str, Any]]:
            return [
                {
                    "topic": name,
                    "error_code": 0,
                    "partitions": [{"leader": 1, "replicas": [1, 2, 3]} for _ in logs],
                }
                for name, logs in self.own.cluster.own.items()
            ]

        return await self.own.call(describe)

    async def describe_configs(self, resources: Sequence[Any]) -> list[Any]:
        (resource,) = resources
        policy = "delete" if "scan" in resource.name else "compact"
        settings = [("min.insync.replicas", "2"), ("cleanup.policy", policy)]
        row = (0, None, 2, resource.name, settings)
        return await self.own.call(lambda: [SimpleNamespace(resources=[row])])

    async def create_topics(self, topics: Sequence[Any]) -> Any:
        def create() -> Any:
            errors = []
            for each in topics:
                is_there = each.name in self.own.cluster.own
                self.own.cluster.create_own(each.name, each.num_partitions)
                errors.append((each.name, 36 if is_there else 0, None))
            return SimpleNamespace(topic_errors=errors)

        return await self.own.call(create)


def clients(own: Own) -> dict[str, type]:
    """Classes by the name that they stand for."""
    stand_ins = {
        "AIOKafkaProducer": _Producer, "AIOKafkaConsumer": _Consumer, "AIOKafkaAdminClient": _Admin,
    }  # fmt: skip
    return {name: type(name, (base,), {"own": own}) for name, base in stand_ins.items()}
