"""Connections to brokers: the one paired with a client, and keylane's own.

Source: Kafka protocol guide, "Network": a broker answers a connection in request order.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, cast

from keylane.errors import (
    BrokerUnreachable,
    FrameInvalid,
    KeylaneError,
    UpstreamLost,
    reason_of,
)
from keylane.proxy.net.answer_times import Address, Patience
from keylane.proxy.net.framing import Frame, FrameReader
from keylane.proxy.net.response_order import Buffers
from keylane.proxy.net.security.service_login import ServiceLogin
from keylane.proxy.net.sockets import UNACKNOWLEDGED_MS_MAX, keep_alive
from keylane.tasks import spawn
from keylane.wire.header import ApiKey, find_response_body, write_request
from keylane.wire.messages import read_response, write_message

OnResponse = Callable[[Frame], None]


class Room(Protocol):
    """Memory for a large answer."""

    def take(self, size_bytes: int) -> bool:
        """Take room for an answer of so many bytes, if there is any now."""

    async def for_answer(self, size_bytes: int) -> None:
        """Wait for room. Raises: AnswerTooLarge."""


CONNECT_TIMEOUT_S: Final = 10.0
"""Kafka clients' `socket.connection.setup.timeout.ms` default."""
PACE_BYTES_PER_S: Final = 64 * 1024
"""An answer that has begun may take longer, but comes no slower than this."""
GROWTH_BYTES: Final = 4 * 1024**2
"""Part of a large answer that comes between two looks at the bytes of its connection."""
LOGIN_AGE: Final = 0.85
"""Share of a login's lifetime after which it is renewed; Java's take 0.85 to 0.95 (KIP-368)."""


def answer_of(future: asyncio.Future[Frame]) -> OnResponse:
    """Set the result of a future to an answer, unless it was cancelled."""

    def answered(frame: Frame) -> None:
        if not future.done():
            future.set_result(frame)

    return answered


class UpstreamLink(asyncio.BufferedProtocol):
    """One connection to a broker; answers are handed out in request order."""

    def __init__(self, *, response_bytes_max: int) -> None:
        self._reader = FrameReader(frame_bytes_max=response_bytes_max, eager=True)
        self._waiting: deque[OnResponse] = deque()
        self._transport: asyncio.Transport | None = None
        self._is_full = False
        self._sent_bytes = 0  # by the last request; while the broker is full, by all since then
        self.on_lost: Callable[[str], None] = lambda _reason: None
        self.on_writable: Callable[[bool], None] = lambda _writable: None
        self.on_large: Callable[[int], None] | None = None
        """A large answer has begun: its size. It may pause reading until there is room."""
        self.on_grown: Callable[[], None] = lambda: None
        """A large answer has grown by some MiB, or has ended."""
        self._wanted_bytes = self._reported_bytes = 0

    @classmethod
    async def open(
        cls, host: str, port: int, *, response_bytes_max: int, tls: ssl.SSLContext | None = None
    ) -> UpstreamLink:
        """Connect. Raises: BrokerUnreachable, also for a certificate that is not good."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                _, link = await loop.create_connection(
                    lambda: cls(response_bytes_max=response_bytes_max), host, port, ssl=tls
                )
        except (OSError, TimeoutError) as error:
            reason = reason_of(error) or "timed out"
            raise BrokerUnreachable(f"broker at {host}:{port}: {reason}") from None
        return link

    @property
    def is_open(self) -> bool:
        """Return whether requests can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def unsent_bytes(self) -> int:
        """Bytes of requests that wait for a broker that does not keep up; else 0."""
        return self._sent_bytes if self._is_full else 0

    @property
    def arriving_bytes(self) -> int:
        """Bytes of a large answer that have come."""
        return self._reader.filled_bytes

    def send(self, buffers: Buffers, on_response: OnResponse | None) -> None:
        """Write a request; `on_response` is None for one that has no answer (acks=0)."""
        if self._transport is None or self._transport.is_closing():
            raise UpstreamLost("connection to the broker is closed")
        if on_response is not None:
            self._waiting.append(on_response)
        self._sent_bytes = (self._sent_bytes if self._is_full else 0) + sum(map(len, buffers))
        if len(buffers) == 1:
            self._transport.write(buffers[0])
        else:
            self._transport.writelines(buffers)

    def when_answered(self, then: Callable[[], None]) -> None:
        """Call `then` once each request that was sent so far is answered, which may be now."""
        if not self._waiting:
            then()
            return
        last = self._waiting[-1]

        def answered(frame: Frame) -> None:
            last(frame)
            then()

        self._waiting[-1] = answered

    def close(self) -> None:
        """Drop the connection; its answers are not waited for any more."""
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Take no more answers until `resume_reading`: the client does not keep up."""
        if self.is_open and self._transport is not None:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take answers again."""
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()

    # Calls of asyncio.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and have it probed for a broker that vanishes."""
        keep_alive(transport, unacknowledged_ms_max=UNACKNOWLEDGED_MS_MAX)
        # uvloop's transports are none of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return where the next bytes go."""
        return self._reader.free()

    def buffer_updated(self, nbytes: int) -> None:
        """Hand out the answers that are whole."""
        try:
            for frame in self._reader.received(nbytes):
                if not self._waiting:
                    raise FrameInvalid("an answer without a request")
                self._waiting.popleft()(frame)
        except FrameInvalid as error:
            self._lose(f"broker sent nonsense: {error}")
            return
        wanted_bytes = self._reader.wanted_bytes
        if wanted_bytes or self._wanted_bytes:
            self._note_large(wanted_bytes)

    def _note_large(self, wanted_bytes: int) -> None:
        """Report a large answer that begins, grows or has ended."""
        has_begun = wanted_bytes and not self._wanted_bytes
        self._wanted_bytes, filled_bytes = wanted_bytes, self.arriving_bytes
        if has_begun and self.on_large is not None:
            self.on_large(wanted_bytes)
        if not wanted_bytes or filled_bytes - self._reported_bytes >= GROWTH_BYTES:
            self._reported_bytes = filled_bytes
            self.on_grown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the owner of the link."""
        self._lose(str(exc) if exc else "closed by the broker")

    def pause_writing(self) -> None:
        """The broker does not keep up."""
        self._is_full = True
        self.on_writable(False)

    def resume_writing(self) -> None:
        """The broker keeps up again."""
        self._is_full = False
        self.on_writable(True)

    def _lose(self, reason: str) -> None:
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()
        on_lost, self.on_lost = self.on_lost, lambda _reason: None
        on_lost(reason)


class _Wait:
    """The time that a broker has for one answer; it begins anew while the answer arrives."""

    def __init__(self, future: asyncio.Future[Frame], link: UpstreamLink, allowed_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._future, self._link, self._allowed_s = future, link, allowed_s
        self._began_s = self._loop.time()
        self._paused_s: float | None = None
        self._seen_bytes = 0
        self._timer = self._loop.call_later(allowed_s, self._look)

    @property
    def took_s(self) -> float:
        """Seconds since the request was sent, or the answer was last looked at; without pauses."""
        return (self._paused_s or self._loop.time()) - self._began_s

    def pause(self) -> None:
        """Stop the clock: the broker is not what is waited for."""
        self._timer.cancel()
        self._paused_s = self._loop.time()

    def resume(self) -> None:
        """Give the broker as long as before, from now on."""
        if self._paused_s is None or self._future.done():
            return
        self._began_s += self._loop.time() - self._paused_s
        self._paused_s, self._seen_bytes = None, self._link.arriving_bytes
        self._timer = self._loop.call_later(self._allowed_s, self._look)

    def _look(self) -> None:
        if self._future.done():
            return
        arriving_bytes = self._link.arriving_bytes
        if arriving_bytes - self._seen_bytes > self._allowed_s * PACE_BYTES_PER_S:
            self._began_s, self._seen_bytes = self._loop.time(), arriving_bytes
            self._timer = self._loop.call_later(self._allowed_s, self._look)
        else:
            self._future.set_exception(TimeoutError())


class ServiceLink:
    """A connection of keylane's own principal, with awaitable requests.

    Where a broker ends logins after a while (KIP-368), the first request that comes when most of
    the time is over logs in again; the others wait, for nothing else may be sent meanwhile.
    """

    def __init__(
        self,
        link: UpstreamLink,
        address: Address,
        *,
        client_id: str,
        login: ServiceLogin | None,
        patience: Patience,
    ) -> None:
        self._link, self._address, self.client_id = link, address, client_id
        self._login, self._patience = login, patience
        self._renew_s: float | None = None
        """The loop's time at which to log in again; None: never."""
        self._logging_in = asyncio.Lock()
        self._clock = asyncio.get_running_loop().time
        self._futures: set[asyncio.Future[Frame]] = set()
        self._correlation_id = 0
        self.version_max: dict[int, int] = {}
        link.on_lost = self._lost
        self._wait: _Wait | None = None
        """Wait of the last request."""

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        client_id: str,
        response_bytes_max: int,
        tls: ssl.SSLContext | None = None,
        login: ServiceLogin | None = None,
        patience: Patience,
    ) -> ServiceLink:
        """Connect, learn what the broker speaks, log in. Raises: UpstreamLost, LoginRefused."""
        link = await UpstreamLink.open(host, port, response_bytes_max=response_bytes_max, tls=tls)
        service = cls(link, (host, port), client_id=client_id, login=login, patience=patience)
        try:
            body = await service.request_raw(ApiKey.API_VERSIONS, 0, b"")
            answer = read_response(ApiKey.API_VERSIONS, 0, body)
            await service.log_in()
        except FrameInvalid as error:
            service.close()
            raise UpstreamLost(f"broker at {host}:{port}: {error}") from None
        except BaseException:  # also when the task that waits for it was cancelled
            service.close()
            raise
        service.version_max = {key.api_key: key.max_version for key in answer.api_keys}
        return service

    @property
    def is_open(self) -> bool:
        """Return whether requests can be sent."""
        return self._link.is_open

    async def request_raw(
        self, api_key: int, api_version: int, body: bytes, *, timeout_s: float | None = None
    ) -> memoryview:
        """Send a body, return the answer's body. Raises: UpstreamLost, LoginRefused.

        timeout_s: None for the time that `Patience` gives the broker.
        """
        await self._renew_login()
        return await self._request_raw(api_key, api_version, body, timeout_s=timeout_s)

    async def request_in_room(
        self, api_key: int, api_version: int, body: bytes, *, wait_s: float, room: Room
    ) -> memoryview:
        """Do as `request_raw` on a connection without other requests; `room` is for the answer.

        A large answer stays at the broker until there is room. wait_s: what the broker is asked to
        wait. Raises: as `request_raw`, and as `room`.
        """
        await self._renew_login()
        self._link.on_large = partial(self._make_room, room)
        try:
            return await self._request_raw(api_key, api_version, body, wait_s=wait_s)
        finally:
            self._link.on_large = None

    def _make_room(self, room: Room, size_bytes: int) -> None:
        if not self._futures or room.take(size_bytes):
            return
        self._link.pause_reading()
        (future,) = self._futures
        task = spawn(self._wait_for_room(room, size_bytes, future), "room for an answer")
        # If the request ends first, the room is not needed.
        future.add_done_callback(lambda _: task.cancel())

    async def _wait_for_room(
        self, room: Room, size_bytes: int, future: asyncio.Future[Frame]
    ) -> None:
        wait = self._wait
        assert wait is not None, "a request is under way"
        wait.pause()  # this wait is not the broker's
        try:
            await room.for_answer(size_bytes)
        except KeylaneError as error:
            if not future.done():
                future.set_exception(error)
            self._link.close()
            return
        wait.resume()
        self._link.resume_reading()

    async def log_in(self) -> None:
        """Log in, if there is a login. Raises: UpstreamLost, LoginRefused."""
        if self._login is None:
            return
        lifetime_s = await self._login.log_in(self._ask)
        self._renew_s = self._clock() + LOGIN_AGE * lifetime_s if lifetime_s else None

    def _is_login_old(self) -> bool:
        return self._renew_s is not None and self._clock() >= self._renew_s

    async def _renew_login(self) -> None:
        if not self._is_login_old():
            return
        async with self._logging_in:
            if not self._is_login_old():
                return  # another request was first
            try:
                await self.log_in()
            except BaseException:  # a broken exchange cannot be taken up again
                self._link.close()
                raise

    async def _ask(self, entity: Any, *, timeout_s: float | None = None) -> Any:
        api_key, version = int(entity.__api_key__), int(entity.__version__)
        written = write_message(entity)
        body = await self._request_raw(api_key, version, written, timeout_s=timeout_s)
        try:
            return read_response(api_key, version, body)
        except FrameInvalid as error:
            raise UpstreamLost(f"answer to request {api_key}: {error}") from None

    async def _request_raw(
        self,
        api_key: int,
        api_version: int,
        body: bytes,
        *,
        timeout_s: float | None = None,
        wait_s: float = 0.0,
    ) -> memoryview:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        frame = write_request(api_key, api_version, self._correlation_id, self.client_id, body)
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._link.send((frame,), answer_of(future))
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        allowed_s = timeout_s
        if allowed_s is None:
            allowed_s = self._patience.seconds(self._address) + wait_s
        wait = self._wait = _Wait(future, self._link, allowed_s)
        try:
            answer = await future
        except TimeoutError:
            # A late answer would be taken for that of the next request.
            self._link.close()
            if timeout_s is None:
                self._patience.timed_out(self._address, allowed_s - wait_s)
            raise UpstreamLost(f"no answer to request {api_key} in {allowed_s:g} s") from None
        finally:
            wait.pause()
        if timeout_s is None:
            self._patience.answered(self._address, max(0.0, wait.took_s - wait_s))
        try:
            return memoryview(answer)[find_response_body(answer, 4, api_key, api_version) :]
        except FrameInvalid as error:
            self._link.close()
            raise UpstreamLost(f"answer to request {api_key}: {error}") from None

    async def request(self, entity: Any, *, timeout_s: float | None = None) -> Any:
        """Send a kio request, return the kio answer. Raises: UpstreamLost, LoginRefused."""
        await self._renew_login()
        return await self._ask(entity, timeout_s=timeout_s)

    def close(self) -> None:
        """Drop the connection."""
        self._link.close()
        self._lost("closed by keylane")

    def _lost(self, reason: str) -> None:
        for future in list(self._futures):
            if not future.done():
                future.set_exception(UpstreamLost(reason))
