"""Pages that stay open: bounded, and a reader that takes nothing costs no memory."""

from __future__ import annotations

import socket
import struct

from keylane.config.node import split_address
from keylane.proxy.control.live_feed import VIEWERS_MAX
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.test_hostile_listener import resident_bytes

REQUEST = b"GET /page/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
RECEIVE_BYTES = 4096
STATES = 4
GROWTH_BYTES_MAX = 24 << 20
RESET = struct.pack("ii", 1, 0)


def open_page(proxy: KeylaneProcess) -> socket.socket:
    """A stream that was asked for; its system takes little for it."""
    connection = socket.socket()
    connection.settimeout(60)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    connection.connect(split_address(proxy.control))
    connection.sendall(REQUEST)
    return connection


def status_of(connection: socket.socket) -> int:
    """The answer's status; only its first bytes are read."""
    head = b""
    while len(head) < 12:
        chunk = connection.recv(12 - len(head))
        assert chunk, "closed without an answer"
        head += chunk
    return int(head[9:12])


def read_states(connection: socket.socket, count: int) -> None:
    """Read on until there were so many events, or comments where nothing has changed."""
    seen = b""
    while seen.count(b"\n\n") < count:
        chunk = connection.recv(65536)
        assert chunk, "the stream has ended"
        seen += chunk


def test_streams_are_bounded_and_deaf_ones_cost_nothing(keylane, kafka, topic) -> None:
    """All places taken by pages that read nothing: the next is refused, memory stays, then free."""
    name = topic("orders", partitions=8)
    proxy = keylane(f"{name}=512")
    reader = open_page(proxy)
    assert status_of(reader) == 200
    read_states(reader, 2)  # layout and state
    before = resident_bytes(proxy.pid)
    deaf = [open_page(proxy) for _ in range(VIEWERS_MAX - 1)]
    assert [status_of(connection) for connection in deaf] == [200] * (VIEWERS_MAX - 1)

    refused = open_page(proxy)
    assert status_of(refused) == 503
    read_states(reader, STATES)
    grown = resident_bytes(proxy.pid) - before

    assert grown < GROWTH_BYTES_MAX
    for connection in (refused, *deaf):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()
    read_states(reader, STATES)  # what is sent finds those that have gone
    again = open_page(proxy)
    assert status_of(again) == 200
    again.close()
    reader.close()
    assert "Traceback" not in proxy.log
