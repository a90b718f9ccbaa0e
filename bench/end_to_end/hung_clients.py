"""The clients of `hung_broker`: each asks one thing at a time, and notes how long it waits.

In:    where to begin.  Out: a `Book` of waits and records.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Producer
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from bench.end_to_end.drain import BATCH, MAX_BYTES, MAX_WAIT_MS, PARTITION_MAX_BYTES
from keylane.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from keylane.wire.header import ApiKey, response_body_position, write_request
from keylane.wire.messages import read_response, write_message

PARTITIONS: Final = 6
FETCH_VERSION: Final = 12
PATIENCE_S: Final = 30.0
"""Kafka clients' `request.timeout.ms` default: then a client connects anew."""
RECORD_BYTES: Final = 1000
Address = tuple[str, int]


@dataclass(slots=True)
class Book:
    """Notes of all clients of one way; times are time.monotonic's."""

    waits: list[tuple[str, float, float, str]] = field(default_factory=list)
    """(kind, when it began, seconds, why the client cannot go on, "" where it can)."""
    records: list[tuple[str, int, float, int]] = field(default_factory=list)
    """(topic, partition, when, how many)."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def wait(self, kind: str) -> Iterator[None]:
        """Note how long what is inside takes, and whether it raises."""
        began_s, reason = time.monotonic(), ""
        try:
            yield
        except (OSError, Refused) as error:
            reason = str(error)
            raise
        finally:
            with self.lock:
                self.waits.append((kind, began_s, time.monotonic() - began_s, reason))


class Refused(Exception):
    """An answer with an error that a client asks again upon."""


class Wire:
    """One connection."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection(address, timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def ask(self, entity: Any) -> Any:
        """A kio request, and its answer."""
        api_key, version = int(entity.__api_key__), int(entity.__version__)
        return read_response(api_key, version, self.call(api_key, version, write_message(entity)))

    def call(self, api_key: int, version: int, body: bytes) -> memoryview:
        """A body, and the answer's."""
        self._socket.sendall(write_request(api_key, version, 1, "bench-hung", body))
        (size,) = struct.unpack(">i", self._read(4))
        return memoryview(self._read(size))[response_body_position(api_key, version) :]

    def _read(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("closed by the other side")
            data += piece
        return data


@dataclass(slots=True)
class Way:
    """Direct, or behind keylane: where clients begin, and what they call a topic."""

    name: str
    bootstrap: Sequence[Address]
    lanes: int
    """Per partition; 0 for partitions themselves."""
    book: Book = field(default_factory=Book)

    def shown(self, topic: str) -> str:
        """The name that clients use."""
        return f"{topic}.lanes-{self.lanes}" if self.lanes else topic

    def indexes(self, partition: int) -> list[int]:
        """Return what clients call a partition: it, or its lanes."""
        return [lane * PARTITIONS + partition for lane in range(max(1, self.lanes))]

    def begin(self, use: Callable[[Wire], Any]) -> Any:
        """Ask at the first bootstrap address that answers, as clients do, one after the other."""
        for address in self.bootstrap:
            with suppress(OSError):
                wire = Wire(address)
                try:
                    return use(wire)
                finally:
                    wire.close()
        raise ConnectionError("no bootstrap address answers")

    def leader(self, topic: str, partition: int) -> Address:
        """Return where a partition, or its first lane, is led. Raises: Refused."""
        wanted = MetadataRequestTopic(topic_id=None, name=TopicName(self.shown(topic)))
        request = MetadataRequest(
            topics=(wanted,),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        answer = self.begin(lambda wire: wire.ask(request))
        places = {int(b.node_id): (str(b.host), int(b.port)) for b in answer.brokers}
        for entry in answer.topics[0].partitions:
            if int(entry.partition_index) == partition and int(entry.leader_id) in places:
                return places[int(entry.leader_id)]
        raise Refused(f"{topic}-{partition} has no leader")

    def coordinator(self, group: str) -> tuple[int, Address]:
        """Id and address of a group's coordinator. Raises: Refused."""
        answer = self.begin(lambda wire: wire.ask(FindCoordinatorRequest(key=group)))
        if answer.error_code:
            raise Refused(str(answer.error_code))
        return int(answer.node_id), (str(answer.host), int(answer.port))


class Client(threading.Thread):
    """Does its step again and again; connects anew after whatever fails."""

    def __init__(self, way: Way, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.way, self.over = way, over
        self.wire: Wire | None = None

    def run(self) -> None:
        """Repeat the step until the end."""
        while not self.over.is_set():
            try:
                self.step()
            except (OSError, Refused):
                self.leave()
                self.over.wait(0.2)
        self.leave()

    def leave(self) -> None:
        """Close the connection."""
        if self.wire is not None:
            self.wire.close()
            self.wire = None

    def step(self) -> None:
        """One request."""
        raise NotImplementedError


class Reader(Client):
    """Reads a partition, or all lanes of it, at the log end."""

    def __init__(self, way: Way, over: threading.Event, topic: str, partition: int) -> None:
        super().__init__(way, over)
        self.topic, self.partition = topic, partition
        self.positions = dict.fromkeys(way.indexes(partition), 0)

    def step(self) -> None:
        """One fetch."""
        kind = f"fetch {self.topic}-{self.partition}"
        if self.wire is None:
            with self.way.book.wait(f"open {self.topic}-{self.partition}"):
                self.wire = Wire(self.way.leader(self.topic, self.partition))
        with self.way.book.wait(kind):
            self._fetch(self.wire)

    def _fetch(self, wire: Wire) -> None:
        entries = tuple(
            FetchPartition(index, -1, offset, -1, -1, PARTITION_MAX_BYTES)
            for index, offset in self.positions.items()
        )
        request = FetchRequest(
            version=FETCH_VERSION,
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=0,
            topics=(
                FetchTopic(name=self.way.shown(self.topic), topic_id=None, partitions=entries),
            ),
        )
        body = wire.call(ApiKey.FETCH, FETCH_VERSION, write_fetch_request(request))
        for topic in read_fetch_response(body, 0, FETCH_VERSION).topics:
            for answer in topic.partitions:
                if answer.error_code:
                    raise Refused(str(answer.error_code))
                self._take(answer.partition, b"".join(map(bytes, answer.records or ())))

    def _take(self, index: int, records: bytes) -> None:
        position = count = 0
        while position + BATCH.size <= len(records):
            base_offset, length, delta, record_count = BATCH.unpack_from(records, position)
            position += 12 + length
            if position > len(records):
                break
            self.positions[index] = base_offset + delta + 1
            count += record_count
        book = self.way.book
        with book.lock:
            book.records.append((self.topic, self.partition, time.monotonic(), count))


class Committer(Client):
    """Commits a partition, or its first lane, for its own group, twice a second."""

    def __init__(self, way: Way, over: threading.Event, group: str, partition: int) -> None:
        super().__init__(way, over)
        self.group, self.partition, self.offset = group, partition, 0
        self.first, _ = way.coordinator(group)

    def step(self) -> None:
        """One commit."""
        if self.wire is None:
            with self.way.book.wait(f"coordinator {self.first}"):
                self.wire = Wire(self.way.coordinator(self.group)[1])
        with self.way.book.wait(f"commit {self.first}"):
            self._commit(self.wire)
        self.over.wait(0.5)

    def _commit(self, wire: Wire) -> None:
        self.offset += 1
        entry = OffsetCommitRequestPartition(
            partition_index=i32(self.partition),
            committed_offset=i64(self.offset),
            committed_metadata="",
        )
        name = TopicName(self.way.shown("single"))
        topic = OffsetCommitRequestTopic(name=name, partitions=(entry,))
        request = OffsetCommitRequest(
            group_id=GroupId(self.group),
            generation_id_or_member_epoch=i32(-1),
            member_id="",
            topics=(topic,),
        )
        for topic_answer in wire.ask(request).topics:
            for answer in topic_answer.partitions:
                if answer.error_code:
                    raise Refused(answer.error_code.name)


class Newcomer(Client):
    """A client that starts, once a second: it knows the bootstrap addresses only."""

    def __init__(self, way: Way, over: threading.Event, partition: int) -> None:
        super().__init__(way, over)
        self.partition = partition

    def step(self) -> None:
        """Ask for the leader of a partition."""
        with self.way.book.wait("start"):
            self.way.leader("single", self.partition)
        self.over.wait(1.0)


class Load(threading.Thread):
    """Writes records to the partitions of one leader, so many per second and partition."""

    def __init__(
        self, bootstrap: str, places: Sequence[tuple[str, int]], rate: int, over: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self._places, self._rate, self._over = places, rate, over
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 5,
                "compression.type": "lz4",
                "acks": "1",
                "message.timeout.ms": 600_000,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        """Write until the end; records that a hung broker does not take wait, and come later."""
        value, number, due_s = os.urandom(RECORD_BYTES // 2) * 2, 0, time.monotonic()
        while not self._over.is_set():
            for topic, partition in self._places:
                with suppress(BufferError):
                    self._producer.produce(topic, value, b"key-%d" % (number % 997), partition)
                number += 1
            self._producer.poll(0)
            due_s = max(due_s, time.monotonic() - 0.1) + 1 / self._rate  # no burst after a pause
            self._over.wait(max(0.0, due_s - time.monotonic()))
        self._producer.flush(10)
