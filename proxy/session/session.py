"""One client connection, paired with one connection to its broker.

A frame that keylane has no reason to read goes upstream as it came, and its answer goes back.
A served request blocks the ones behind it (as a broker does) until its handler has sent what
it sends, or is done: a LeaveGroup must not overtake the OffsetCommit before it.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, cast

from keylane.errors import BrokerUnreachable, FrameInvalid, KeylaneError, UpstreamLost
from keylane.journal.owned import PreparedLock
from keylane.proxy.apis import Route, route_of
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.large import BYTES_AT_ONCE
from keylane.proxy.apis.shared.relay import Handler
from keylane.proxy.apis.shared.request import Request
from keylane.proxy.net.backlog import Backlog
from keylane.proxy.net.framing import Frame, FrameReader
from keylane.proxy.net.response_order import Buffers, ResponseOrder, Slot
from keylane.proxy.net.sockets import has_left, keep_alive
from keylane.proxy.net.upstream import OnResponse, UpstreamLink, answer_of
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.session.hooks import SessionHooks
from keylane.proxy.session.lock_holders import HeldLock, LockHolders
from keylane.proxy.session.login_proof import Proof
from keylane.proxy.session.unread_answers import Taking, flush
from keylane.tasks import spawn
from keylane.wire.header import find_response_body, read_request_header, write_request
from keylane.wire.messages import read_response, write_message

PIPELINED_MAX: Final = 128
"""Requests of one connection under way; Kafka producers have 5, grepplabs' proxy allows 256."""
LOGIN_BYTES_MAX: Final = 512 * 1024
"""A request before the login; Kafka's `sasl.server.max.receive.size` default."""
MINIMUM_BYTES_PER_S: Final = 64 * 1024
"""A large request may take longer than the frame time-out, but not slower than this."""
_numbers = itertools.count(1)


class ClientSession(asyncio.BufferedProtocol):
    """Reads the client's requests, keeps the order of answers, owns the broker connection.

    Invariants: answers leave in request order; while a handler has not released, later frames
    wait in `backlog` and the client is not read; at most PIPELINED_MAX answers are open; no
    request is started while the client does not take its answers.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Awaitable[UpstreamLink]],
        make_context: Callable[[ClientSession], Context],
        stats: ProxyStats,
        request_bytes_max: int,
        hooks: SessionHooks[ClientSession],
        is_login_required: bool = False,
        age_s_max: float = math.inf,
    ) -> None:
        self.session_id = f"s{next(_numbers)}"
        self._connect, self._stats, self._hooks = connect, stats, hooks
        self._reported_bytes = 0
        self._proof = Proof(is_login_required=is_login_required, on_proven=self._proven)
        self.principal: str | None = None
        self._request_bytes_max = request_bytes_max
        self._reader = FrameReader(frame_bytes_max=request_bytes_max, eager=False)
        if is_login_required:
            self._reader.allow(min(request_bytes_max, LOGIN_BYTES_MAX))
        self._order = ResponseOrder()
        self.backlog = Backlog()
        self._transport: asyncio.Transport | None = None
        self._link: UpstreamLink | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._blocker: asyncio.Task[None] | None = None
        self.holding = LockHolders(self._fail)
        self._is_reading_paused = False
        self._is_link_paused = False
        self._is_upstream_full = False
        self._is_client_full = False
        self._served_bytes = 0  # of the request that blocks
        self._taking = Taking()
        self._unsent_bytes = 0  # of the last answer; while the client is full, of all since then
        self._is_closed = False
        self._drain_reason: str | None = None
        self.peer = self.address = "?"
        loop = asyncio.get_running_loop()
        self.clock = loop.time
        self.active_s = self.partial_since_s = loop.time()
        self._ends_s = loop.time() + age_s_max
        self.context = make_context(self)

    # Calls of the server.
    @property
    def is_proven(self) -> bool:
        """Return whether its login is over or, where none is required, a request was answered."""
        return self._proof.is_given

    @property
    def is_idle(self) -> bool:
        """Return whether no request is open."""
        return not len(self._order) and not self.backlog

    @property
    def is_logged_in(self) -> bool:
        """Return whether it has logged in, or may go on without a login."""
        return not self._proof.is_owed

    @property
    def held_bytes(self) -> int:
        """Bytes of requests and unread answers in buffers of this connection."""
        if self._is_closed:
            return 0
        held = self._reader.held_bytes + sum(map(len, self.backlog)) + self._served_bytes
        if self._is_client_full:
            held += self._unsent_bytes
        if self._link is not None:
            held += self._link.unsent_bytes + self._link.arriving_bytes
        return held

    def note_held(self, growth_bytes: int = 0) -> None:
        """Report the bytes that it holds and is about to take, if they have changed."""
        held = self.held_bytes + growth_bytes
        if held != self._reported_bytes:
            self._reported_bytes = held
            self._hooks.on_held(self, held)

    def drain(self, reason: str) -> None:
        """Take no more requests; close as soon as those under way are answered."""
        if self._drain_reason is not None:
            return
        self._drain_reason = reason
        self._update_reading()
        if self.is_idle:
            self.close(reason)

    def end_by(self, time_s: float) -> None:
        """Have the connection end between two requests, at this time or before."""
        self._ends_s = min(self._ends_s, time_s)

    def check_timeouts(
        self, now_s: float, *, frame_s: float, idle_s: float, unread_s: float = math.inf
    ) -> None:
        """Close a connection that is idle, too old, or whose client is too slow either way."""
        allowed_s = frame_s + self._reader.wanted_bytes / MINIMUM_BYTES_PER_S
        partial_s, untaken_s = now_s - self.partial_since_s, self._untaken_s(now_s)
        # While keylane does not read, it is not the client that is slow: no time-out then.
        is_sending = self._reader.is_partial and not self._is_reading_paused
        # Nor would the end of a client that has left be seen.
        is_unread = self._is_reading_paused and self.active_s < now_s - frame_s
        if is_sending and partial_s > allowed_s:
            self.close(f"request not whole after {partial_s:.0f} s", warn=True)
        elif untaken_s > unread_s:
            self.close(f"client has not read responses for {untaken_s:.0f} s", warn=True)
        elif self.is_idle and not self._is_client_full and now_s - self.active_s > idle_s:
            self.close("idle")
        elif is_unread and has_left(self._transport):
            self.close("closed by the client")
        elif now_s > self._ends_s:
            self.drain("maximum age")

    def close(self, reason: str, *, warn: bool = False) -> None:
        """End both connections, with one log line. warn: it is refused for what it did."""
        if not self._is_closed:
            self._stats.sessions_refused += warn
            self._end(reason, warn=warn)

    def _fail(self, reason: str) -> None:
        """Close it for a failure that is not the client's doing."""
        if not self._is_closed:
            self._stats.sessions_failed += 1
            self._end(reason, warn=True)

    def _end(self, reason: str, *, warn: bool) -> None:
        self._is_closed = True
        self._hooks.lines.write(
            self.session_id, self.peer, reason, warn=warn, is_proven=self.is_proven,
            now_s=self.clock(),
        )  # fmt: skip
        for task in self._tasks:
            task.cancel()
        if self._link is not None:
            self._link.on_lost = lambda _: None
            self._link.close()
        self._reader.drop()
        self.backlog.clear()
        if self._transport is not None:
            if warn:
                self._transport.abort()
            else:
                self._transport.close()
                flush(self._transport)
        self._hooks.on_closed(self)

    def _untaken_s(self, now_s: float) -> float:
        """Return the seconds since the client last read of what waits for it; 0: nothing waits."""
        if not self._is_client_full or self._transport is None:
            self._taking.forget()
            return 0.0
        return self._taking.still_s(self._transport, now_s)

    # Calls of handlers, through the context.
    def held(self, lock: PreparedLock) -> HeldLock:
        """See `Connection`."""
        return HeldLock(lock, self.holding, self._stats)

    def send(self, frame: Buffers) -> asyncio.Future[Frame]:
        """See `Connection`."""
        self.holding.expect_no_join()
        future: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        self._send(frame, answer_of(future))
        self.holding.bound(future)
        return future

    def send_unanswered(self, frame: Buffers) -> None:
        """See `Connection`."""
        self._send(frame, None)

    async def ask(self, entity: Any) -> Any:
        """See `Connection`."""
        api_key, version = int(entity.__api_key__), int(entity.__version__)
        frame = await self.send((write_request(api_key, version, 0, None, write_message(entity)),))
        try:
            start = find_response_body(frame, 4, api_key, version)
            return read_response(api_key, version, memoryview(frame)[start:])
        except FrameInvalid as error:
            raise UpstreamLost(f"answer to request {api_key}: {error}") from None

    async def caught_up(self) -> None:
        """See `Connection`."""
        if self._link is None:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._link.when_answered(lambda: None if future.done() else future.set_result(None))
        await future

    async def others_done(self) -> None:
        """See `Connection`."""
        others = self._tasks - {asyncio.current_task()}
        if others:
            await asyncio.wait(others)

    def aside(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """See `Connection`."""
        if not self._is_closed and self._link is not None and self._drain_reason is None:
            self._run(work(), "aside")

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = spawn(work, f"{self.session_id} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._served)
        return task

    def note_login(self, *, is_over: bool | None) -> None:
        """See `Connection`."""
        self._proof.token_taken(is_over=is_over)

    def _proven(self) -> None:
        self._reader.allow(self._request_bytes_max)
        self._hooks.on_proven(self)

    def note_principal(self, principal: str) -> None:
        """See `Connection`."""
        if self.principal is not None:
            return  # it has logged in again, which brokers allow to the same principal only
        refused = self._hooks.admit_principal(principal)
        if refused is None:
            self.principal = principal
        else:
            self.close(refused)

    def release(self) -> None:
        """See `Connection`."""
        # Only the handler that blocks can release; else one that ends late would let requests
        # overtake a later one.
        if self._blocker is not None and self._blocker is asyncio.current_task():
            self._blocker = None
            asyncio.get_running_loop().call_soon(self._work_off)

    def _send(self, frame: Buffers, on_response: OnResponse | None) -> None:
        if self._link is None:
            raise UpstreamLost("not connected to the broker")
        if on_response is not None and not self._proof.is_given:
            on_response = self._proof.noting(on_response)
        self._link.send(frame, on_response)

    # Calls of asyncio.
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the client's transport; the broker is called at its first sound request."""
        # uvloop's transports are none of asyncio's classes, so no isinstance here.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        keep_alive(transport)
        if peer:
            self.address, self.peer = str(peer[0]), f"{peer[0]}:{peer[1]}"
        refused = self._hooks.admit(self)
        if refused is not None:
            self.close(refused)

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Return the buffer for the next bytes."""
        if not self._reader.is_partial:
            self.partial_since_s = self.clock()
        return self._reader.free()

    def buffer_updated(self, nbytes: int) -> None:
        """Cut requests and work on them."""
        self.active_s = self.clock()
        if not self._proof.is_given:
            self._hooks.on_received(self)
        try:
            frames = self._reader.received(nbytes)
        except FrameInvalid as error:
            self.close(str(error), warn=True)
            return
        if frames:
            self.partial_since_s = self.active_s
            self.backlog.extend(frames)
            self._work_off()
            self.context.hurry_fetch()
        # The growth in `get_buffer` is reported here: there, the transport must not be closed.
        self.note_held(self._reader.growth_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the session: the client is gone."""
        # It takes and answers nothing any more; asyncio's own for TLS raises when it is asked.
        self._transport = None
        self.close(str(exc) if exc else "closed by the client")

    def pause_writing(self) -> None:
        """Start no more requests and take no answers: the client does not keep up."""
        self._is_client_full = True
        self.note_held()
        self._update_link()
        self._update_reading()

    def resume_writing(self) -> None:
        """Go on: the client keeps up again."""
        self._is_client_full = False
        self._taking.forget()
        self.active_s = self.clock()
        self.note_held()
        self._update_link()
        self._work_off()

    # Requests.
    def _work_off(self) -> None:
        while self.backlog and self._may_start():
            self._start(self.backlog.popleft())
        self._update_reading()

    def _may_start(self) -> bool:
        return (
            self._blocker is None
            and not self._is_closed
            and not self._is_client_full
            and len(self._order) < PIPELINED_MAX
        )

    def _start(self, frame: Frame) -> None:
        try:
            header = read_request_header(memoryview(frame)[4:])
            request = Request(header, frame)
            route = route_of(request)
            route.check(request, may_relay=self._proof.may_relay)
            is_linked = self._link is not None
            handler = route.handler_of(request, self.context) if is_linked else None
        except FrameInvalid as error:
            self.close(str(error), warn=True)
            return
        self._stats.requests[route.name] += 1
        slot = self._order.open()
        self.holding.note_request(header.api_key, slot)
        if is_linked and handler is None:
            self._relay(route, request, slot)
            return
        self._served_bytes = len(frame)
        self._blocker = self._run(self._serve(route, handler, request, slot), route.name)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._update_link()

    def _relay(self, route: Route, request: Request, slot: Slot) -> None:
        self._stats.requests_relayed += 1
        if route.note is not None:
            route.note(request, self.context)

        def answered(frame: Frame) -> None:
            try:
                patched = route.patch(request, frame, self.context) if route.patch else (frame,)
            except FrameInvalid as error:
                self._fail(f"broker's answer to {route.name}: {error}")
            else:
                self._answer(slot, patched)

        try:
            self._send((request.frame,), answered)
        except UpstreamLost as error:
            self.close(str(error))

    async def _serve(
        self, route: Route, handler: Handler | None, request: Request, slot: Slot
    ) -> None:
        try:
            if handler is None:  # there was no link yet
                await self._open_link()
                handler = route.handler_of(request, self.context)
            if handler is None:
                self._relay(route, request, slot)
                return
            if route.is_decoded and len(request.frame) > BYTES_AT_ONCE:
                await self.context.in_turn(request.decode)
            self._answer(slot, await handler(request, self.context))
        except FrameInvalid as error:
            self.close(f"{route.name} v{request.api_version}: {error}", warn=True)
        except BrokerUnreachable as error:
            # The client connects again, as it does when a broker dies. The broker's absence is
            # logged once for each broker, and not for each client.
            self._stats.sessions_turned_away += 1
            self.close(f"{route.name} v{request.api_version}: {error}")
        except KeylaneError as error:
            self._fail(f"{route.name} v{request.api_version}: {error}")
        except Exception:
            # Our bug: `spawn` logs it with its trace; the client must not wait without end.
            self._fail(f"{route.name} v{request.api_version}: internal error")
            raise
        finally:
            self._served_bytes = 0
            self.release()

    async def _open_link(self) -> None:
        link = await self._connect()
        link.on_lost = lambda reason: self.close(f"broker connection lost: {reason}")
        link.on_writable, link.on_grown = self._upstream_writable, self.note_held
        self._link = link
        self._update_link()

    def _answer(self, slot: Slot, buffers: Buffers) -> None:
        self.holding.note_answer(slot)
        ready = self._order.fill(slot, buffers)
        if self._is_closed or self._transport is None:
            return
        # A TLS transport does not report bytes that wait below it, so they are counted here.
        kept = self._unsent_bytes if self._is_client_full else 0
        self._unsent_bytes = kept + sum(map(len, ready))
        if len(ready) == 1:
            self._transport.write(ready[0])
        elif ready:
            self._transport.writelines(ready)
        self.active_s = self.clock()
        self.note_held()
        if self._drain_reason is not None and self.is_idle:
            self.close(self._drain_reason)
        else:
            self._work_off()

    def _upstream_writable(self, writable: bool) -> None:  # noqa: FBT001
        self._is_upstream_full = not writable
        self.note_held()
        self._update_reading()

    def _update_reading(self) -> None:
        """Read the client only while its requests can be worked on.

        Called with each answer too: exactly PIPELINED_MAX may be open with none behind them.
        """
        pause = (
            bool(self.backlog)
            or self._is_upstream_full
            or self._is_client_full
            or self._drain_reason is not None
            or len(self._order) >= PIPELINED_MAX
        )
        if self._transport is None or self._is_closed or pause == self._is_reading_paused:
            return
        self._is_reading_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self.partial_since_s = self.clock()
            self._transport.resume_reading()

    def _update_link(self) -> None:
        """Take no answers for a client that does not keep up, unless a handler waits for one.

        The handler may hold its group's lock, and the whole group would wait for one stuck client.
        """
        pause = self._is_client_full and not self._tasks
        if self._link is None or self._is_closed or pause == self._is_link_paused:
            return
        self._is_link_paused = pause
        if pause:
            self._link.pause_reading()
        else:
            self._link.resume_reading()
