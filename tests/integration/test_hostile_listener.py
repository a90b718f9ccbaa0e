"""Hostile bytes on the listener: closed with one log line, others undisturbed, memory flat."""

from __future__ import annotations

import random
import re
import socket
import struct
from pathlib import Path

import pytest

from keylane.config.node import split_address
from tests.integration.harness import Group, produce

KEYS = [f"key-{number}" for number in range(50)]


def header(api_key: int, api_version: int, correlation_id: int = 1) -> bytes:
    """A request header v1 without client id."""
    return struct.pack(">hhih", api_key, api_version, correlation_id, -1)


def framed(body: bytes) -> bytes:
    """Put the size in front."""
    return struct.pack(">i", len(body)) + body


HOSTILE = {
    "negative size": struct.pack(">i", -5) + b"x" * 20,
    "huge size": struct.pack(">i", 2**31 - 1) + b"x" * 20,
    "empty frame": struct.pack(">i", 0),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "tls": bytes.fromhex("16030100a5010000a10303") + b"\0" * 60,
    "unknown api": framed(header(999, 0)),
    "internal api": framed(header(4, 0) + b"\0" * 8),
    "unknown version": framed(header(3, 99) + b"\0"),
    "client id beyond the end": framed(struct.pack(">hhih", 3, 1, 1, 30000)),
    "metadata, huge array": framed(header(3, 1) + struct.pack(">i", 2**31 - 1)),
    "metadata, negative array": framed(header(3, 1) + struct.pack(">i", -7)),
    "fetch, truncated": framed(header(1, 4) + struct.pack(">iiii", -1, 0, 0, 0)),
    "fetch, huge array": framed(header(1, 4) + struct.pack(">iiiibi", -1, 0, 0, 0, 0, 2**31 - 1)),
    "offset commit, garbage": framed(header(8, 2) + b"\xff" * 64),
    "produce, garbage": framed(header(0, 3) + b"\xff" * 64),
}


def talk(bootstrap: str, data: bytes) -> bytes:
    """Send bytes; return what comes back before the connection is closed."""
    with socket.create_connection(split_address(bootstrap), timeout=30) as connection:
        connection.sendall(data)
        received = b""
        try:
            while chunk := connection.recv(65536):
                received += chunk
        except ConnectionResetError:
            pass  # closed hard, as it should be
        return received


@pytest.mark.parametrize("kinds", [list(HOSTILE)[:8], list(HOSTILE)[8:]], ids=["first", "last"])
def test_hostile_bytes_close_the_connection_with_one_log_line(kinds, keylane) -> None:
    """Each connection is closed without an answer, and one line says why: of ten in a minute."""
    proxy = keylane("orders=4")

    answers = [talk(proxy.bootstrap, HOSTILE[kind]) for kind in kinds]

    proxy.stop()  # its log is whole then
    assert answers == [b""] * len(kinds)
    closed = [line for line in proxy.log.splitlines() if "WARNING keylane.session closed" in line]
    assert len(closed) == len(kinds)
    assert "Traceback" not in proxy.log


def test_a_flood_of_garbage_leaves_memory_and_others_alone(kafka, keylane, topic) -> None:
    """2,000 hostile connections while a group reads: nothing lost, memory flat."""
    name = topic("orders", partitions=2)
    proxy = keylane(f"{name}=4")
    random_bytes = random.Random(20261121)
    kinds = list(HOSTILE.values())
    with Group(proxy.bootstrap, name, f"g-{name}") as group:
        group.add("aiokafka", 2)
        group.wait_for_lanes(8)
        first = produce(kafka, name, KEYS, rounds=5)
        group.wait_for_values(first)
        before = resident_bytes(proxy.pid)

        for number in range(2000):
            data = kinds[number % len(kinds)] if number % 3 else random_bytes.randbytes(200)
            if number % 3 == 0:
                data = framed(data)
            talk(proxy.bootstrap, data)
        second = produce(kafka, name, KEYS, rounds=5, first=5)
        group.wait_for_values(second)

    assert group.seen.values() == dict.fromkeys(first + second, 1)
    assert resident_bytes(proxy.pid) - before < 32 * 1024**2


def test_a_slow_loris_is_closed(keylane) -> None:
    """Connections that send a request byte by byte, or never end it, are closed in time."""
    proxy = keylane("orders=4", args=["--set", "frame_timeout_s=1"])
    begun = framed(header(3, 1) + struct.pack(">i", 0))[:7]

    connections = [
        socket.create_connection(split_address(proxy.bootstrap), timeout=30) for _ in range(50)
    ]
    for connection in connections:
        connection.sendall(begun)
    closed = sum(connection.recv(1) == b"" for connection in map(_Tolerant, connections))

    proxy.stop()  # its log is whole then
    assert closed == len(connections)
    assert len(re.findall(r"request not whole after", proxy.log)) == len(connections)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


class _Tolerant:
    """A socket whose reset counts as closed."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def recv(self, count: int) -> bytes:
        """Receive as `socket.recv` does; empty when the peer has reset the connection."""
        try:
            return self._connection.recv(count)
        except ConnectionResetError:
            return b""
        finally:
            self._connection.close()
