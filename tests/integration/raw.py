"""A client of a few lines that sends any bytes, and shows every byte that comes back."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from kio.index import load_request_schema
from kio.schema.metadata.v12.request import MetadataRequest
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from scramp import ScramClient

from keylane.config.node import split_address
from keylane.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from keylane.wire.header import response_body_position, write_request
from keylane.wire.messages import read_response, write_message
from tests.integration.secured import Login
from tests.transcript.entities import build, plain

TIMEOUT_S = 60.0
FETCH = 1


class RawClient:
    """One connection; `received` is all that has come over it."""

    def __init__(
        self,
        bootstrap: str,
        ca: Path,
        certificate: Path | None = None,
        *,
        receive_bytes: int | None = None,
    ) -> None:
        """receive_bytes: what the system takes for a client that does not read."""
        host, port = split_address(bootstrap.split(",", maxsplit=1)[0])
        context = ssl.create_default_context(cafile=str(ca))
        if certificate is not None:
            context.load_cert_chain(certificate)
        plain = socket.socket()
        try:
            plain.settimeout(TIMEOUT_S)
            if receive_bytes is not None:
                plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            plain.connect((host, port))
            self.socket = context.wrap_socket(plain, server_hostname=host)
        except OSError:
            plain.close()
            raise
        self.received = b""
        self.certificate: Any = self.socket.getpeercert()
        self.known: dict[str, bytes] = {}
        """Ids of topics; a test may put one there that the client may not ask for."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def call(self, api_key: int, version: int, body: bytes) -> memoryview:
        """Send a body, return the answer's. Raises: ConnectionError, when it is closed."""
        self.send(api_key, version, body)
        return self.receive(api_key, version)

    def send(self, api_key: int, version: int, body: bytes) -> None:
        """Send a body."""
        self.socket.sendall(write_request(api_key, version, 5, "raw", body))

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that need be no request."""
        self.socket.sendall(data)

    def fileno(self) -> int:
        """Return the socket's descriptor, for `select`."""
        return self.socket.fileno()

    def receive(self, api_key: int, version: int) -> memoryview:
        """The body of the next answer. Raises: ConnectionError, when it is closed."""
        frame = self._read(struct.unpack(">i", self._read(4))[0])
        return memoryview(frame)[response_body_position(api_key, version) :]

    def ask(self, entity: Any) -> Any:
        """Send a kio request and return the kio answer."""
        api_key, version = int(entity.__api_key__), int(entity.__version__)
        return read_response(api_key, version, self.call(api_key, version, write_message(entity)))

    def login(self, login: Login) -> list[Any]:
        """Log in; all answers, the last of which may be a refusal."""
        answers = [self.ask(SaslHandshakeRequest(mechanism=login.mechanism))]
        if answers[0].error_code != 0:
            return answers
        messages = _messages(login)
        message = next(messages)
        while True:
            answers.append(self.ask(SaslAuthenticateRequest(auth_bytes=message)))
            if answers[-1].error_code != 0:
                return answers
            try:
                message = messages.send(answers[-1].auth_bytes)
            except StopIteration:
                return answers

    def topic_id(self, topic: str) -> bytes:
        """A topic's id, asked for at the first time."""
        if topic not in self.known:
            request = build(MetadataRequest, {"topics": [{"name": topic}]})
            (found,) = self.ask(request).topics
            assert found.error_code == 0
            self.known[topic] = found.topic_id.bytes
        return self.known[topic]

    def codes(self, api_key: int, version: int, values: dict[str, Any]) -> set[int]:
        """Ask, and gather every error code of the answer."""
        answer = self.ask(build(load_request_schema(api_key, version), values))
        return set(_error_codes(plain(answer)))

    def ask_lanes(
        self,
        topic: str,
        version: int,
        lanes: Sequence[int],
        *,
        offset: int = 0,
        max_wait_ms: int = 200,
        min_bytes: int = 1,
    ) -> None:
        """Send a fetch of lanes from an offset on; `lane_codes` takes its answer."""
        topic_id = self.topic_id(topic) if version >= 13 else None
        entries = tuple(FetchPartition(lane, -1, offset, -1, -1, 1 << 26) for lane in lanes)
        name = None if topic_id else topic
        request = FetchRequest(
            version=version,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=1 << 26,
            isolation_level=0,
            topics=(FetchTopic(name=name, topic_id=topic_id, partitions=entries),),
        )
        self.send(FETCH, version, write_fetch_request(request))

    def lane_codes(self, version: int) -> set[int]:
        """The error codes of the next answer, which is one to a fetch."""
        answer = read_fetch_response(self.receive(FETCH, version), 0, version)
        return {entry.error_code for found in answer.topics for entry in found.partitions}

    def fetch_codes(
        self, topic: str, version: int, lanes: Sequence[int], **options: int
    ) -> set[int]:
        """Fetch lanes; return the error codes. `options` are those of `ask_lanes`."""
        self.ask_lanes(topic, version, lanes, **options)
        return self.lane_codes(version)

    def fetch_until_closed(self, topic: str) -> None:
        """Fetch until the connection ends. Raises: ConnectionError."""
        while True:
            self.fetch_codes(topic, 12, range(8))

    def holds_any(self, values: Iterable[str]) -> bool:
        """Return whether a value of a record is in what has come; lanes are sent uncompressed."""
        return any(value.encode() in self.received for value in values)

    def is_closed(self) -> bool:
        """Return whether the other side closes, waiting for it."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        self.received += data
        return data


def _error_codes(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key.endswith("error_code"):
                yield item
            else:
                yield from _error_codes(item)
    elif isinstance(value, list):
        for item in value:
            yield from _error_codes(item)


def _messages(login: Login) -> Generator[bytes, bytes, None]:
    if login.mechanism == "PLAIN":
        yield f"\0{login.user}\0{login.password}".encode()
    elif login.mechanism == "OAUTHBEARER":
        if (yield f"n,,\x01auth=Bearer {login.token}\x01\x01".encode()):
            yield b"\x01"
    else:
        client = ScramClient([login.mechanism], login.user, login.password)
        client.set_server_first((yield client.get_client_first().encode()).decode())
        yield client.get_client_final().encode()
