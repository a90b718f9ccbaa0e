"""A client that fetches and counts, and does nothing else: so the proxy is what is measured.

In:    a broker's address, partitions (lanes) with where they begin and end.
Out:   bytes, batches and records by the batch headers; positions.
Fetch v12, by name, without a fetch session.
Source: protocol guide, Fetch. The limits are those of Kafka's Java consumer.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka.admin import AdminClient

from keylane.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from keylane.wire.header import ApiKey, response_body_position, write_request

VERSION: Final = 12
MAX_WAIT_MS: Final = 500
MAX_BYTES: Final = 50 * 1024**2
PARTITION_MAX_BYTES: Final = 1024**2
BATCH: Final = struct.Struct(">qi11xi30xi")
"""Fields of a batch's header: base offset, length, last offset delta, record count."""
SIZE: Final = struct.Struct(">i")
RECEIVE_BUFFER_BYTES: Final = 4 * 1024**2


class FetchFailed(Exception):
    """A partition was answered with an error."""


@dataclass(slots=True)
class Counts:
    """Counts of bytes and records so far."""

    fetches: int = 0
    wire_bytes: int = 0
    records: int = 0
    batches: int = 0


class Drain:
    """One connection that reads some partitions, from where they begin to where they end."""

    def __init__(
        self, address: tuple[str, int], topic: str, begin: Mapping[int, int], end: Mapping[int, int]
    ) -> None:
        self.topic, self.positions, self.end = topic, dict(begin), dict(end)
        self.counts = Counts()
        self._buffer = bytearray(1024**2)
        self._socket = socket.create_connection(address, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)

    @property
    def is_done(self) -> bool:
        """Return whether every partition is read to its end."""
        return all(self.positions[index] >= end for index, end in self.end.items())

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def drain(self, timeout_s: float) -> float:
        """Read to the end; return the seconds it took. Raises TimeoutError."""
        started_s = time.perf_counter()
        while not self.is_done:
            self.fetch()
            if time.perf_counter() - started_s > timeout_s:
                raise TimeoutError(f"{self.topic} stands at {self.positions}")
        return time.perf_counter() - started_s

    def fetch(self, *, max_bytes: int = MAX_BYTES, partition_max_bytes: int = 0) -> None:
        """Fetch once, from the partitions that are not at their end."""
        entries = tuple(
            FetchPartition(index, -1, offset, -1, -1, partition_max_bytes or PARTITION_MAX_BYTES)
            for index, offset in self.positions.items()
            if offset < self.end[index]
        )
        request = FetchRequest(
            version=VERSION,
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=0,
            topics=(FetchTopic(name=self.topic, topic_id=None, partitions=entries),),
        )
        body = write_fetch_request(request)
        self._socket.sendall(write_request(ApiKey.FETCH, VERSION, 1, "bench-drain", body))
        frame = self._receive()
        self.counts.fetches += 1
        body_position = response_body_position(ApiKey.FETCH, VERSION)
        for answers in read_fetch_response(frame, body_position, VERSION).topics:
            for answer in answers.partitions:
                if answer.error_code:
                    raise FetchFailed(f"{self.topic}-{answer.partition}: {answer.error_code}")
                for piece in answer.records or ():
                    self._count(answer.partition, memoryview(piece))
        # Turned, so that a short answer serves another partition first next time, as clients do.
        first = next(iter(self.positions))
        self.positions[first] = self.positions.pop(first)

    def _receive(self) -> memoryview:
        (size,) = SIZE.unpack(self._fill(4))
        return self._fill(size)

    def _fill(self, size: int) -> memoryview:
        if len(self._buffer) < size:
            self._buffer = bytearray(size)
        view = memoryview(self._buffer)[:size]
        position = 0
        while position < size:
            got = self._socket.recv_into(view[position:])
            if got == 0:
                raise ConnectionError("closed by the other side")
            position += got
        return view

    def _count(self, partition: int, records: memoryview) -> None:
        counts, position, next_offset = self.counts, 0, self.positions[partition]
        counts.wire_bytes += len(records)
        while position + BATCH.size <= len(records):
            base_offset, length, delta, record_count = BATCH.unpack_from(records, position)
            position += 12 + length
            if position > len(records):
                break  # cut, comes whole with the next answer
            next_offset = base_offset + delta + 1
            counts.batches += 1
            counts.records += record_count
        self.positions[partition] = next_offset


def find_leader(bootstrap: str, topic: str) -> tuple[str, int]:
    """Return where the topic's partitions are led; the benchmark's Kafka has one broker."""
    client = AdminClient({"bootstrap.servers": bootstrap})
    described = client.list_topics(topic, timeout=30)
    leaders = {partition.leader for partition in described.topics[topic].partitions.values()}
    assert len(leaders) == 1, f"one broker leads all, not {leaders}"
    broker = described.brokers[leaders.pop()]
    return str(broker.host), broker.port  # its types say None, as if none were ever known
