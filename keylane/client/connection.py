"""aiokafka's client under the consumer: its TLS, SASL and pools, with keylane's own bytes.

A request goes through aiokafka as bytes, and its answer comes back as bytes, received into the
buffer that holds it: aiokafka's own reader copies each answer three times. Everything that touches
aiokafka's private surface (0.14) is in this module.

Source: aiokafka 0.14, client.py and conn.py; asyncio, "Buffered Streaming Protocols".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from io import BytesIO
from typing import Any, Final, NamedTuple

from aiokafka.client import AIOKafkaClient
from aiokafka.conn import AIOKafkaConnection, CloseReason, OAuthAuthenticator
from aiokafka.errors import (
    IllegalSaslStateError,
    KafkaError,
    RequestTimedOutError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import BrokerMetadata

from keylane.client import errors as e
from keylane.client.settings import ConsumerSettings
from keylane.errors import KeylaneError
from keylane.tasks import spawn
from keylane.wire.header import find_response_body, write_request_head

log = logging.getLogger("keylane.client.connection")

REQUEST_SIZE_BYTES: Final = 4
SCRATCH_BYTES: Final = 64 * 1024
"""Small answers are received here, and the beginnings of large ones."""
FRAME_BYTES_MAX: Final = (1 << 31) - 1
LOGIN_ERRORS: Final = (
    SaslAuthenticationFailed, UnsupportedSaslMechanismError, IllegalSaslStateError,
)  # fmt: skip
"""A second try with the same login is of no use."""
CLOSED_S_MAX: Final = 1.0
"""Time for a server to close a connection on which it has refused a login."""


class _Encoded(NamedTuple):
    """Bytes in the place of aiokafka's own header."""

    data: bytes

    def encode(self) -> bytes:
        """Return them."""
        return self.data


class _Request:
    """A request that is bytes already, with the methods that aiokafka calls."""

    def __init__(self, api_key: int, version: int, body: bytes) -> None:
        self._api_key, self._version, self._body = api_key, version, body

    def __repr__(self) -> str:
        return f"<request of API {self._api_key} v{self._version}>"

    def prepare(self, _versions: object) -> _Request:
        """Nothing is left to choose."""
        return self

    def build_request_header(self, *, correlation_id: int, client_id: str) -> _Encoded:
        """Make the header without the size, which aiokafka writes."""
        head = write_request_head(
            self._api_key, self._version, correlation_id, client_id, len(self._body)
        )
        return _Encoded(head[REQUEST_SIZE_BYTES:])

    def encode(self) -> bytes:
        """Return the body."""
        return self._body

    def body_of(self, frame: memoryview) -> memoryview:
        """Return an answer behind its header. Raises: FrameInvalid."""
        return frame[find_response_body(frame, 0, self._api_key, self._version) :]


class _Frames(asyncio.BufferedProtocol):
    """Receives frames, each large one straight into the bytes that it is given as.

    Records are slices of these. `BytesIO` is what lets bytes be filled: its value is the object
    that it was made of, if all views of it are released.
    """

    def __init__(self, link: _Link, closed: asyncio.Future[None]) -> None:
        self._link, self._closed = link, closed
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._filled = 0
        """Bytes of the scratch that are received and not taken."""
        self._frame = BytesIO()
        self._room: memoryview | None = None
        """Of a large frame that is received in part."""
        self._rest = self._scratch
        """View of it that was given last."""
        self._received = 0

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return room for what comes next."""
        del sizehint
        if self._room is not None:
            self._rest = self._room[self._received :]
            return self._rest
        return self._scratch[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received."""
        if self._room is not None:
            self._received += nbytes
            if self._received == len(self._room):
                self._link.take_frame(self._end_frame(self._room))
            return
        self._filled += nbytes
        self._cut()

    def _end_frame(self, room: memoryview) -> memoryview:
        """Return the large frame, which is received now."""
        with suppress(BufferError):  # another loop than asyncio's may have them: then it is a copy
            self._rest.release()
            room.release()
        frame, self._frame, self._room = self._frame.getvalue(), BytesIO(), None
        return memoryview(frame)

    def _cut(self) -> None:
        """Take whole frames out of the scratch; make room for one that does not fit."""
        at = 0
        while self._filled - at >= REQUEST_SIZE_BYTES:
            size = int.from_bytes(self._scratch[at : at + REQUEST_SIZE_BYTES], "big")
            if size > FRAME_BYTES_MAX:
                self._link.close(reason=CloseReason.OUT_OF_SYNC)
                return
            start, at = at + REQUEST_SIZE_BYTES, at + REQUEST_SIZE_BYTES + size
            if at <= self._filled:
                self._link.take_frame(memoryview(bytes(self._scratch[start:at])))
            elif size + REQUEST_SIZE_BYTES <= SCRATCH_BYTES // 2:
                at = start - REQUEST_SIZE_BYTES  # its rest comes into the scratch
                break
            else:
                self._received = self._filled - start
                self._frame = BytesIO(bytes(size))
                self._room = self._frame.getbuffer()
                self._room[: self._received] = self._scratch[start : self._filled]
                self._filled = 0
                return
        rest = bytes(self._scratch[at : self._filled])
        self._scratch[: len(rest)] = rest
        self._filled = len(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits."""
        self._link.close(reason=CloseReason.CONNECTION_BROKEN, exc=exc)
        if not self._closed.done():
            self._closed.set_result(None)


class _TokenLogin(OAuthAuthenticator):  # type: ignore[misc]
    """aiokafka's, which takes the reason of a refusal for success (RFC 7628, section 3.2.2)."""

    async def step(self, payload: bytes | None) -> tuple[bytes, bool] | None:
        """Return what to send next; None: the server has let it in."""
        if payload:
            raise SaslAuthenticationFailed(payload.decode(errors="replace"))
        found: tuple[bytes, bool] | None = await super().step(payload)
        return found


class _Link(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no types
    """A connection; once it is let in, frames come to `take_frame`."""

    async def connect(self) -> Any:
        """Connect and log in, as aiokafka does, then receive frames without its stream."""
        try:
            found = await super().connect()
        except OSError:
            raise  # a certificate that is not trusted is a ValueError as well
        except (ValueError, KeyError) as error:  # a proof of SCRAM that is wrong, or none
            raise SaslAuthenticationFailed(f"the server's own proof: {error}") from error
        if self._reader is not None:
            self._read_task.cancel()
            self._writer.transport.set_protocol(_Frames(self, self._closed_fut))
        return found

    def authenticator_oauth(self) -> _TokenLogin:
        """Return what logs in by a token."""
        return _TokenLogin(sasl_oauth_token_provider=self._sasl_oauth_token_provider)

    def take_frame(self, frame: memoryview) -> None:
        """Give an answer to the request that it belongs to: the first one that waits."""
        if not self._requests:
            self.close(reason=CloseReason.OUT_OF_SYNC)
            return
        correlation_id, request, future = self._requests[0]
        if not isinstance(request, _Request):  # logging in anew, and aiokafka's own
            self._handle_frame(bytes(frame))
            return
        if int.from_bytes(frame[:4], "big", signed=True) != correlation_id:
            self.close(reason=CloseReason.OUT_OF_SYNC)
            return
        self._last_action = self._loop.time()
        self._requests.popleft()
        if future.done():
            return
        try:
            future.set_result(request.body_of(frame))
        except KeylaneError as error:
            future.set_exception(error)


class _Client(AIOKafkaClient):  # type: ignore[misc]
    """aiokafka's client, whose metadata is `ClusterClient`'s and whose connections are `_Link`s."""

    def __init__(self, refresh: Callable[[], Awaitable[None]], options: dict[str, Any]) -> None:
        super().__init__(**options)
        self._refresh_all = refresh
        self._sync_task: asyncio.Task[None] | None = None

    async def _metadata_update(self, _metadata: object, _topics: object) -> bool:
        try:
            await self._refresh_all()
        except KeylaneError as error:
            log.warning("metadata not refreshed error=%s", error)
            return False
        return True

    async def link(self, node_id: int, group: int) -> _Link:
        """Return the connection to a node, made first if need be. Raises: Disconnected."""
        name = (node_id, group)
        found: _Link | None = self._conns.get(name)
        if found is not None and found.connected():
            return found
        node = self.cluster.broker_metadata(node_id)
        if node is None:
            raise e.Disconnected(f"node {node_id}: the metadata has no address of it")
        async with self._lock_of(name):
            found = self._conns.get(name)
            if found is not None and found.connected():
                return found
            made = self._make(node.host, node.port, on_close=self._on_connection_closed)
            try:
                await made.connect()
            except (KafkaError, OSError, TimeoutError) as error:
                text = f"node {node_id} at {node.host}:{node.port}: {str(error) or 'no answer'}"
                raise e.Disconnected(text) from error
            self._conns[name] = made
            return made

    def _make(self, host: str, port: int, on_close: Any = None) -> _Link:
        return _Link(
            host,
            port,
            client_id=self._client_id,
            request_timeout_ms=self._request_timeout_ms,
            ssl_context=self._ssl_context,
            security_protocol=self._security_protocol,
            on_close=on_close,
            max_idle_ms=self._connections_max_idle_ms,
            sasl_mechanism=self._sasl_mechanism,
            sasl_plain_username=self._sasl_plain_username,
            sasl_plain_password=self._sasl_plain_password,
            sasl_kerberos_service_name=self._sasl_kerberos_service_name,
            sasl_kerberos_domain_name=self._sasl_kerberos_domain_name,
            sasl_oauth_token_provider=self._sasl_oauth_token_provider,
        )

    async def bootstrap(self) -> None:
        """Ask the servers in turn for the nodes, until one answers.

        aiokafka's own logs each reason and raises none of them.
        Raises: AuthenticationFailed, when one refuses it; ClusterUnreachable with all reasons.
        """
        reasons = []
        for host, port, _ in self.hosts:
            link = self._make(host, port)
            try:
                await link.connect()
                metadata = await link.send(MetadataRequest([]))
            except LOGIN_ERRORS as error:
                # The program ends next: a loop that closes first would warn of the connection.
                if (closed := link.close()) is not None:
                    await asyncio.wait([closed], timeout=CLOSED_S_MAX)
                login = f"{self._sasl_mechanism}, user {self._sasl_plain_username!r}"
                raise e.AuthenticationFailed(f"{host}:{port} ({login}): {error}") from error
            except (KafkaError, OSError, TimeoutError) as error:
                reasons.append(f"{host}:{port} ({str(error) or 'no answer'})")
            else:
                self.cluster.update_metadata(metadata)
                if self.cluster.brokers():
                    break
                reasons.append(f"{host}:{port} (it names no brokers)")
            finally:
                link.close()
        else:
            raise e.ClusterUnreachable(f"no bootstrap server answers: {', '.join(reasons)}")
        if self._sync_task is None:
            self._sync_task = spawn(self._md_synchronizer(), "keylane client: age of metadata")

    def _lock_of(self, name: tuple[int, int]) -> asyncio.Lock:
        """Return the lock of one connection: a node that is away holds up no other one."""
        locks: dict[tuple[int, int], asyncio.Lock] = self.__dict__.setdefault("_locks", {})
        return locks.setdefault(name, asyncio.Lock())


class Connections:
    """Connections to nodes: several to each, by number."""

    def __init__(self, settings: ConsumerSettings, refresh: Callable[[], Awaitable[None]]) -> None:
        """refresh: called when the metadata are old, or a connection broke."""
        self._client = _Client(
            refresh,
            {
                name: getattr(settings, name)
                for name in (
                    "bootstrap_servers", "client_id", "metadata_max_age_ms", "request_timeout_ms",
                    "retry_backoff_ms", "ssl_context", "security_protocol", "sasl_mechanism",
                    "sasl_plain_username", "sasl_plain_password", "sasl_kerberos_service_name",
                    "sasl_kerberos_domain_name", "sasl_oauth_token_provider",
                )
            },
        )  # fmt: skip

    async def bootstrap(self) -> list[BrokerMetadata]:
        """Ask a bootstrap server for the nodes.

        Raises: ClusterUnreachable, naming all of them and why; AuthenticationFailed.
        """
        await self._client.bootstrap()
        return list(self._client.cluster.brokers())

    async def close(self) -> None:
        """Close all."""
        await self._client.close()

    def set_nodes(self, nodes: Iterable[BrokerMetadata]) -> None:
        """Make connections to these addresses from now on."""
        self._client.cluster._brokers = {node.nodeId: node for node in nodes}  # noqa: SLF001

    def versions_of(self, node_id: int, api_key: int) -> tuple[int, int] | None:
        """Return the versions that a node offers; None without the API, or a connection to it."""
        for (node, _), link in self._client._conns.items():  # noqa: SLF001
            if node == node_id and link.connected():
                found: tuple[int, int] | None = link._versions.get(api_key)  # noqa: SLF001
                return found
        return None

    async def connect(self, node_id: int, number: int) -> None:
        """Make a connection if there is none. Raises: Disconnected."""
        await self._client.link(node_id, number)

    async def ask(
        self,
        node_id: int,
        number: int,
        request: tuple[int, int, bytes],
        timeout_s: float | None,
    ) -> memoryview:
        """Send (API key, version, body); return the body of the answer.

        Raises: Disconnected, RequestTimedOut, FrameInvalid.
        """
        link: Any = await self._client.link(node_id, number)
        usual_s = link._request_timeout  # noqa: SLF001
        if timeout_s is not None:
            link._request_timeout = timeout_s  # noqa: SLF001 -- read when `send` is called
        try:
            answer = link.send(_Request(*request))
        except KafkaError as error:
            raise e.Disconnected(f"node {node_id}: {error}") from error
        finally:
            link._request_timeout = usual_s  # noqa: SLF001
        try:
            found: memoryview = await answer
        except (RequestTimedOutError, TimeoutError) as error:
            link.close(reason=CloseReason.CONNECTION_TIMEOUT)
            waited_s = usual_s if timeout_s is None else timeout_s
            text = f"node {node_id}: no answer to API {request[0]} within {waited_s:g} s"
            raise e.RequestTimedOut(text) from error
        except (KafkaError, OSError) as error:
            raise e.Disconnected(f"node {node_id}: {error}") from error
        return found
