"""One hostile connection: plain, or with TLS whose records the attacker has in hand.

In:    where to, and bytes.  Out: what came back, as far as it came in time.
Source: RFC 8446, RFC 5246 (records and handshakes).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from keylane.wire.header import write_request
from keylane.wire.messages import write_message

CONNECT_S: Final = 20.0
ANSWER_S: Final = 0.15
"""Seconds to wait for an answer, which a hostile client need not get."""
LOGIN_S: Final = 20.0
RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends RST."""
CHUNK: Final = 65_536
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36


@dataclass(frozen=True, slots=True)
class Aim:
    """Targets of hostile bytes."""

    plain: tuple[str, int]
    """A Kafka listener without TLS."""
    tls: tuple[str, int]
    control: tuple[str, int]
    ca: Path


class Talk:
    """A connection. Use: `async with Talk(address) as talk`."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self.is_closed = False

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(CONNECT_S):
            self.reader, self.writer = await asyncio.open_connection(*self._address)
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.writer.transport.abort()

    def reset(self) -> None:
        """Leave with RST, as a process that is killed does."""
        connection = self.writer.get_extra_info("socket")
        if connection.fileno() != -1:  # the other side has not ended it already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    async def send(self, data: bytes) -> bool:
        """Send bytes; return whether they have left, which fails when the other side has closed."""
        try:
            self.writer.write(data)
            async with asyncio.timeout(CONNECT_S):
                await self.writer.drain()
        except (ConnectionError, TimeoutError):
            self.is_closed = True
        return not self.is_closed

    async def read(self, *, seconds: float = ANSWER_S) -> bytes:
        """Read the next bytes; b"" where none come."""
        try:
            async with asyncio.timeout(seconds):
                data = await self.reader.read(CHUNK)
        except TimeoutError:
            return b""
        except ConnectionError:
            data = b""
        self.is_closed = self.is_closed or not data
        return data

    async def drain(self, *, seconds: float = ANSWER_S) -> int:
        """Read until it is closed or silent; how many bytes came."""
        count = 0
        while data := await self.read(seconds=seconds):
            count += len(data)
        return count

    async def ask(self, api_key: int, version: int, body: bytes) -> bytes:
        """A request and its answer's frame. Raises: ConnectionError."""
        await self.send(write_request(api_key, version, 1, "raw", body))
        try:
            async with asyncio.timeout(LOGIN_S):
                (size,) = struct.unpack(">i", await self.reader.readexactly(4))
                return await self.reader.readexactly(size)
        except (asyncio.IncompleteReadError, TimeoutError) as error:
            raise ConnectionError("no answer") from error

    async def log_in(self, user: str, password: str) -> None:
        """Log in by PLAIN. Raises: ConnectionError."""
        await self.ask(SASL_HANDSHAKE, 1, handshake_body("PLAIN"))
        token = f"\0{user}\0{password}".encode()
        await self.ask(SASL_AUTHENTICATE, 1, token_body(token))


def handshake_body(mechanism: str) -> bytes:
    """SaslHandshake v1."""
    return write_message(SaslHandshakeRequest(mechanism=mechanism))


def token_body(token: bytes) -> bytes:
    """SaslAuthenticate v1."""
    return write_message(SaslAuthenticateRequest(auth_bytes=token))


class TlsTalk:
    """TLS by hand over a `Talk`: each flight of the client is bytes before it is sent."""

    def __init__(self, talk: Talk, *, version: ssl.TLSVersion, name: str | None) -> None:
        """version: the only one that is offered; name: asked for by SNI, None for none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        self.talk, self._in, self._out = talk, ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=name)
        self.is_done = False

    def flight(self) -> bytes:
        """The client's next bytes, after what has been taken in so far. Raises: ssl.SSLError."""
        if not self.is_done:
            try:
                self._tls.do_handshake()
                self.is_done = True
            except ssl.SSLWantReadError:
                pass
        return self._out.read()

    async def take(self) -> bool:
        """Take in what the server says next; whether something came."""
        data = await self.talk.read(seconds=LOGIN_S)
        self._in.write(data)
        return bool(data)

    def wrap(self, data: bytes) -> bytes:
        """Records of data, once the handshake is done."""
        self._tls.write(data)
        return self._out.read()
