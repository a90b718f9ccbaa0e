"""A client of a few lines for attacks: blocking, without TLS, with bodies from plain values.

In:    where to, requests as dicts.  Out: kio answers; what went wrong, as text.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from kio.index import load_request_schema

from keylane.config.node import split_address
from keylane.wire.header import response_body_position, write_request
from keylane.wire.messages import read_response, write_message
from tests.long.hostile_stage import PASSWORDS
from tests.transcript.entities import build

TIMEOUT_S: Final = 10.0
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
HARM: Final = "HARM "
"""Prefix of results that an attacker must not get; `attacks` counts them as failures."""


@dataclass(frozen=True, slots=True)
class Places:
    """Targets of attacks, each as `host:port`."""

    keylane: str
    control: str
    brokers: str
    """Listener at which users log in."""
    admin: str
    """The brokers' listener of super users, to set quotas with."""
    load_group: str
    load_topic: str


class AttackClient:
    """One connection. Use: `with AttackClient(address) as client`."""

    def __init__(self, address: str, *, timeout_s: float = TIMEOUT_S) -> None:
        self._socket = socket.create_connection(split_address(address), timeout=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        """Bytes as they are."""
        self._socket.sendall(data)

    def send(self, key: int, version: int, values: dict[str, Any]) -> None:
        """A request, whose answer is not waited for."""
        body = write_message(build(load_request_schema(key, version), values))
        self.write(write_request(key, version, 5, "attack", body))

    def receive(self, key: int, version: int) -> Any:
        """The next answer. Raises: OSError."""
        (size,) = struct.unpack(">i", self._read(4))
        frame = self._read(size)
        return read_response(
            key, version, memoryview(frame)[response_body_position(key, version) :]
        )

    def ask(self, key: int, version: int, values: dict[str, Any]) -> Any:
        """A request and its answer. Raises: OSError."""
        self.send(key, version, values)
        return self.receive(key, version)

    def log_in(self, user: str) -> Self:
        """By PLAIN. Raises: OSError."""
        self.ask(SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        token = f"\0{user}\0{PASSWORDS[user]}".encode()
        answer = self.ask(SASL_AUTHENTICATE, 1, {"auth_bytes": token})
        if answer.error_code != 0:
            raise ConnectionError(f"login: {int(answer.error_code)}")
        return self

    def is_open(self) -> bool:
        """Return whether the other side has not closed it; nothing is expected to come."""
        self._socket.setblocking(False)
        with suppress(BlockingIOError):
            try:
                return self._socket.recv(1) != b""
            except ConnectionError:
                return False
        return True

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(min(count - len(data), 1 << 20))
            if not part:
                raise ConnectionError("closed")
            data += part
        return bytes(data)


def say(error: Exception) -> str:
    """Return a short name of an error."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return "closed" if isinstance(error, ConnectionError) else type(error).__name__
