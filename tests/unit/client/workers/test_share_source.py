"""A share group as the workers' source, over a stand-in for confluent-kafka."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from keylane.client.raw_headers import read_headers
from keylane.client.values import NO_TIMESTAMP, ConsumerRecord, TopicPartition
from keylane.client.workers import Retry, Workers
from keylane.client.workers.share_source import ShareSource
from keylane.errors import ConfigInvalid
from keylane.tasks import spawn

GROUP = {"group.id": "billing"}


class Message:
    def __init__(self, offset: int, key: bytes | None = None, error: Any = None) -> None:
        self._offset, self._key, self._error = offset, key, error

    def error(self) -> Any:
        return self._error

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes:
        return b"v"

    def timestamp(self) -> tuple[int, int]:
        return (0, 0) if self._offset else (1, 1_700_000_000_000)

    def headers(self) -> list[tuple[str, bytes]] | None:
        return [("trace", b"x")] if self._offset else None


class IllegalStateException(Exception):
    pass


class ShareConsumer:
    """Gives a list of batches; as the real one it refuses polls while records are open."""

    made: list[ShareConsumer]
    batches: list[list[Message]]

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.open: set[int] = set()
        self.pending: list[tuple[int, str]] = []
        self.outcomes: list[list[tuple[int, str]]] = []
        self.expired: set[int] = set()
        self.threads: set[int] = set()
        self.errors: list[Exception] = []
        self.is_closed = False
        self.made.append(self)

    def subscribe(self, topics: list[str]) -> None:
        self.topics = topics

    def poll(self, timeout_s: float) -> list[Message]:
        self.threads.add(threading.get_ident())
        assert not self.open
        batch = self.batches.pop(0) if self.batches else []
        self.open = {each.offset() for each in batch}
        return batch

    def acknowledge(self, message: Message, outcome: str) -> None:
        self.acknowledge_offset("orders", 0, message.offset(), outcome)

    def acknowledge_offset(self, topic: str, partition: int, offset: int, outcome: str) -> None:
        self.threads.add(threading.get_ident())
        self.open.remove(offset)
        if offset in self.expired:
            raise IllegalStateException
        self.pending.append((offset, outcome))

    def commit_sync(self) -> dict[Any, Any]:
        if self.errors:
            raise self.errors.pop(0)
        self.outcomes.append(self.pending)
        refused = any(offset >= 100 for offset, _ in self.pending)
        self.pending = []
        place = TopicPartition("orders", 0)
        return {place: "the lock has ended" if refused else None}

    def close(self) -> None:
        self.is_closed = True


def make_library(*batches: list[Message]) -> Any:
    ShareConsumer.made, ShareConsumer.batches = [], list(batches)
    return SimpleNamespace(
        ShareConsumer=ShareConsumer,
        AcknowledgeType=SimpleNamespace(ACCEPT="ACCEPT", RELEASE="RELEASE", REJECT="REJECT"),
        IllegalStateException=IllegalStateException,
        TIMESTAMP_NOT_AVAILABLE=0,
    )


async def work(handle: Any, *batches: list[Message], when_over: Any = "reject") -> ShareConsumer:
    """Run workers over batches until all have outcomes."""
    count = sum(map(len, batches))
    async with ShareSource(
        GROUP, ["orders"], when_over=when_over, library=make_library(*batches)
    ) as source:
        [consumer] = ShareConsumer.made
        workers = Workers(
            source, handle, retry=Retry(attempts=2, backoff_s=0), signals=False, progress=False
        )
        async with workers, asyncio.timeout(30):
            running = spawn(workers.run(), "run")
            while sum(map(len, consumer.outcomes)) < count:  # noqa: ASYNC110 - a thread's list
                await asyncio.sleep(0.001)
            workers.stop()
            await running
    assert consumer.is_closed
    assert len(consumer.threads) == 1
    assert threading.get_ident() not in consumer.threads
    return consumer


def outcomes_of(consumer: ShareConsumer) -> dict[int, str]:
    return dict(each for sent in consumer.outcomes for each in sent)


async def test_outcomes_by_the_handler():
    """A record is accepted when done and rejected when its attempts are over."""
    attempts: list[int] = []

    async def handle(record: ConsumerRecord) -> None:
        attempts.append(record.offset)
        if record.offset == 1:
            raise ValueError("no such order")

    consumer = await work(handle, [Message(0), Message(1)], [Message(2)])

    assert outcomes_of(consumer) == {0: "ACCEPT", 1: "REJECT", 2: "ACCEPT"}
    assert attempts.count(1) == 2
    assert consumer.config == {**GROUP, "share.acknowledgement.mode": "explicit"}
    assert consumer.topics == ["orders"]


async def test_released_when_over():
    """With when_over="release" a record whose attempts are over comes again, elsewhere too."""

    async def handle(record: ConsumerRecord) -> None:
        raise ConnectionError("away")

    consumer = await work(handle, [Message(3)], when_over="release")

    assert outcomes_of(consumer) == {3: "RELEASE"}


async def test_outcomes_go_out_while_others_are_at_work():
    """An outcome does not wait for the rest of its batch: the next of its key waits for it."""
    library = make_library([Message(0), Message(1)])
    async with ShareSource(GROUP, ["orders"], library=library) as source:
        first, second = await source.getmany(timeout_ms=10)

        source.mark_done(second)
        await source.commit()

        [consumer] = ShareConsumer.made
        assert consumer.outcomes == [[(1, "ACCEPT")]]
        assert await source.getmany(timeout_ms=0) == []  # one of the batch is open
        source.release(first)
        source.mark_done(second)  # a second outcome is none
        assert await source.getmany(timeout_ms=0) == []
        assert outcomes_of(consumer) == {0: "RELEASE", 1: "ACCEPT"}


async def test_records_of_messages():
    """A record has what its message has; a message with an error is released."""
    library = make_library([Message(0, b"ada"), Message(1), Message(2, error="corrupt")])
    async with ShareSource(GROUP, ["orders"], library=library) as source:
        first, second = await source.getmany(timeout_ms=10)
        source.mark_done(first, second)

    assert first[:7] == ("orders", 0, 0, 1_700_000_000_000, b"ada", b"v", b"")
    assert second.timestamp_ms == NO_TIMESTAMP
    assert read_headers(second.raw_headers) == [("trace", b"x")]
    assert outcomes_of(ShareConsumer.made[0])[2] == "RELEASE"


async def test_late_outcomes_are_counted():
    """An outcome behind the end of its lock is refused, counted, and no error of the run."""
    library = make_library([Message(0), Message(100)])
    async with ShareSource(GROUP, ["orders"], library=library) as source:
        records = await source.getmany(timeout_ms=10)
        ShareConsumer.made[0].expired.add(0)
        source.mark_done(*records)
        await source.commit()

        assert source.refused_count == 2


async def test_error_of_the_client():
    """What the client raises for outcomes, the next commit raises."""
    library = make_library([Message(0)])
    async with ShareSource(GROUP, ["orders"], library=library) as source:
        [record] = await source.getmany(timeout_ms=10)
        ShareConsumer.made[0].errors.append(PermissionError("no right"))
        source.mark_done(record)

        with pytest.raises(PermissionError):
            await source.commit()


async def test_an_error_of_the_last_outcomes_closes_the_client_too():
    """Its locks go back at once, and its thread ends."""

    async def end_with_an_error() -> None:
        async with ShareSource(GROUP, ["orders"], library=make_library([Message(0)])) as source:
            [record] = await source.getmany(timeout_ms=10)
            ShareConsumer.made[0].errors.append(PermissionError("no right"))
            source.mark_done(record)

    with pytest.raises(PermissionError):
        await end_with_an_error()

    assert ShareConsumer.made[0].is_closed


def test_refused_settings(monkeypatch: pytest.MonkeyPatch):
    """Implicit mode, an unknown end, and a client without share consumers are refused."""
    with pytest.raises(ConfigInvalid, match="explicit"):
        ShareSource({"share.acknowledgement.mode": "implicit"}, ["orders"])
    with pytest.raises(ConfigInvalid, match="when_over"):
        ShareSource(GROUP, ["orders"], when_over="accept")  # type: ignore[arg-type]
    monkeypatch.setitem(__import__("sys").modules, "confluent_kafka", SimpleNamespace())
    with pytest.raises(ConfigInvalid, match="ShareConsumer"):
        ShareSource(GROUP, ["orders"])


def test_the_installed_client_has_what_is_used():
    """confluent-kafka's own names are those that are called here."""
    library = pytest.importorskip("confluent_kafka")

    ShareSource(GROUP, ["orders"])

    for name in ("acknowledge", "acknowledge_offset", "commit_sync", "poll", "close", "subscribe"):
        assert hasattr(library.ShareConsumer, name)
    for name in ("ACCEPT", "RELEASE", "REJECT"):
        assert hasattr(library.AcknowledgeType, name)
    assert hasattr(library, "TIMESTAMP_NOT_AVAILABLE")
    assert issubclass(library.IllegalStateException, Exception)
