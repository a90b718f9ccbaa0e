"""A made-up TCP: connections with latency, in order, between hosts that may be cut off.

In:    bytes.  Out: the same bytes later, in pieces; or a reset.

Bytes to a process that hangs are taken by its system up to a window; then the writer is paused, as
by a socket's buffers. Between hosts that are cut off bytes wait, and go on when the cut is over.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

LATENCY_S = 0.0005
JITTER_S = 0.001
WINDOW_BYTES = 256 * 1024
"""Bytes that both systems keep between a writer and a reader that does not read."""
SPLIT_SHARE = 0.05
"""Share of pieces that come in two."""


class Acceptor(Protocol):
    """A listener at an address."""

    host: str

    def accept(self, end: End) -> None:
        """A connection has come."""

    @property
    def is_reachable(self) -> bool:
        """Return whether its machine answers."""


def _nothing(*_: Any) -> None:
    """Do nothing, at an address without a listener."""


class End:
    """One end of a connection."""

    def __init__(self, network: Network, host: str) -> None:
        self.network, self.host = network, host
        self.peer: End = self
        self.is_open = True
        self.on_data: Callable[[bytes], None] = _nothing
        self.on_lost: Callable[[Exception | None], None] = _nothing
        self.on_drained: Callable[[], None] = _nothing
        self._queue: deque[tuple[float, bytes | None]] = deque()
        """What is on its way from here; None: the end of it."""
        self.unread_bytes = 0
        """Bytes that were sent from here and are not read yet."""
        self._is_pumping = False
        self.is_paused = False
        """It does not read."""
        self.process: Process | None = None

    def send(self, data: bytes | None) -> None:
        """Send bytes; None: no more will come."""
        if not self.is_open:
            return
        world = self.network.world
        ready_s = world.now_s + self.network.latency_s(self.host, self.peer.host)
        if self._queue:
            ready_s = max(ready_s, self._queue[-1][0])
        if data is None:
            self.is_open = False
        else:
            self.unread_bytes += len(data)
        rng = world.rng
        if data is not None and len(data) > 1 and rng.random() < SPLIT_SHARE:
            at = rng.randrange(1, len(data))
            self._queue.append((ready_s, data[:at]))
            self._queue.append((ready_s + rng.random() * JITTER_S, data[at:]))
        else:
            self._queue.append((ready_s, data))
        self._pump_at(ready_s)

    def _drop_all(self) -> None:
        self._queue.clear()
        self.unread_bytes = 0

    def reset(self) -> None:
        """End the connection at once, both ways; the peer finds out a moment later."""
        was_open, self.is_open = self.is_open, False
        self._drop_all()
        if was_open or self.peer.is_open:
            network = self.network
            network.world.after(network.latency_s(self.host, self.peer.host), self._reset_peer)

    def _reset_peer(self) -> None:
        if self.network.is_cut(self.host, self.peer.host):
            self.network.at_heal(self._reset_peer)
        else:
            self.peer.lose(ConnectionResetError("reset by the peer"))

    def lose(self, error: Exception | None) -> None:
        """The peer has ended the connection."""
        if self.is_open or error is None:
            self.is_open = False
            self._drop_all()
            self.on_lost(error)

    def pause(self, *, is_paused: bool) -> None:
        """Stop reading, or go on."""
        self.is_paused = is_paused
        if not is_paused:
            self.peer.pump()

    def _pump_at(self, when_s: float) -> None:
        if not self._is_pumping:
            self._is_pumping = True
            self.network.world.after(max(0.0, when_s - self.network.world.now_s), self.pump)

    def pump(self) -> None:
        """Hand over what has arrived."""
        self._is_pumping = False
        network, peer = self.network, self.peer
        if network.is_cut(self.host, peer.host):
            network.at_heal(self.pump)
            return
        has_moved = False
        while self._queue and self._queue[0][0] <= network.world.now_s:
            data = self._queue[0][1]
            if data is not None and peer.is_paused and peer.is_open:
                break  # `pause` pumps again
            self._queue.popleft()
            has_moved = True
            if data is None:
                peer.lose(None)
                continue
            self.unread_bytes -= len(data)
            if peer.is_open:
                peer.on_data(data)
            else:
                self.lose(ConnectionResetError("reset by the peer"))
                return
        if self._queue and not peer.is_paused:
            self._pump_at(self._queue[0][0])
        if has_moved:
            self.on_drained()


class SimTransport(asyncio.Transport):
    """A process's end, as asyncio shows it to a protocol."""

    def __init__(self, process: Process, end: End, protocol: Any, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "sockname": (process.host, 0)})
        self._process, self._end, self._protocol = process, end, protocol
        self._is_buffered = isinstance(protocol, asyncio.BufferedProtocol)
        self._is_closing = self._is_lost = self._is_full = False
        end.process = process
        end.on_data = partial(process.post, self._feed)
        end.on_lost = partial(process.post, self._lose)
        end.on_drained = lambda: process.post(self._drained) if self._is_full else None
        process.world.network.transports.append(self)

    # asyncio.Transport.
    def write(self, data: Any) -> None:
        if self._is_closing or self._is_lost:
            return
        self._end.send(bytes(data))
        if not self._is_full and self._end.unread_bytes > WINDOW_BYTES:
            self._is_full = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end.send(None)
            self._process.loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self._is_lost:
            self._is_closing = True
            self._end.reset()
            self._process.loop.call_soon(self._lose, None)

    def is_closing(self) -> bool:
        return self._is_closing or self._is_lost

    def pause_reading(self) -> None:
        self._end.pause(is_paused=True)

    def resume_reading(self) -> None:
        self._end.pause(is_paused=False)

    def is_reading(self) -> bool:
        return not self._end.is_paused

    def get_write_buffer_size(self) -> int:
        return self._end.unread_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    # The network's side, in the process's loop.
    def begin(self) -> None:
        self._protocol.connection_made(self)

    def _feed(self, data: bytes) -> None:
        if self._is_closing or self._is_lost:
            return
        if not self._is_buffered:
            self._protocol.data_received(data)
            return
        view = memoryview(data)
        while view and not self._is_closing:
            buffer = self._protocol.get_buffer(-1)
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            self._protocol.buffer_updated(count)
            view = view[count:]

    def _drained(self) -> None:
        if self._is_full and not self._is_lost and self._end.unread_bytes <= WINDOW_BYTES // 4:
            self._is_full = False
            self._protocol.resume_writing()

    def _lose(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        if self._end.is_open:
            self._end.send(None)
        self._protocol.connection_lost(error)

    def drop(self) -> None:
        """Its process is dead."""
        self._is_lost = self._is_closing = True
        self._end.on_data = self._end.on_lost = self._end.on_drained = _nothing
        self._end.reset()


class _Socket:
    def __init__(self, host: str, port: int) -> None:
        self._name = host, port

    def getsockname(self) -> tuple[str, int]:
        return self._name


class SimServer:
    """A listening process, as asyncio shows it."""

    def __init__(self, process: Process, factory: Callable[[], Any], host: str, port: int) -> None:
        self.process, self._factory = process, factory
        self.host, self.port = process.host, port
        self.sockets = [_Socket(host, port)]
        self._backlog: list[End] = []
        """Connections that its system has taken, and the process not yet."""

    @property
    def is_reachable(self) -> bool:
        return not self.process.is_dead

    async def start_serving(self) -> None:
        self.process.world.network.open(self, self.port)

    def close(self) -> None:
        self.process.world.network.shut(self, self.port)

    async def wait_closed(self) -> None:
        pass

    def accept(self, end: End) -> None:
        self._backlog.append(end)
        self.process.post(self._take)

    def _take(self) -> None:
        if self._backlog:
            end = self._backlog.pop(0)
            peer = end.peer.host, 40000 + len(self.process.world.network.transports)
            SimTransport(self.process, end, self._factory(), peer).begin()

    def drop(self) -> None:
        """Its process is dead: the system resets what it has not taken."""
        for end in self._backlog:
            end.reset()


class _Attempt:
    """A connection that is about to be made.

    An object, as functions that name each other, and frames that keep what they raise, are garbage
    that only a search finds: there are many hundreds in a run.
    """

    def __init__(self, network: Network, process: Process, address: tuple[str, int]) -> None:
        self._network, self._process, self._address = network, process, address
        self._latency_s = network.latency_s(process.host, address[0])
        self._future: asyncio.Future[End] = process.loop.create_future()

    def begin(self) -> asyncio.Future[End]:
        self._network.world.after(self._latency_s, self._arrive)
        return self._future

    def _arrive(self) -> None:
        network, process, (host, port) = self._network, self._process, self._address
        if network.is_cut(process.host, host):
            network.at_heal(self._arrive)
            return
        listener = network.listener(host, port)
        if listener is None or not listener.is_reachable:
            error = ConnectionRefusedError(111, f"connect to {host}:{port} refused")
            network.world.after(self._latency_s, partial(process.post, self._refuse, error))
            return
        here, there = End(network, process.host), End(network, host)
        here.peer, there.peer = there, here
        listener.accept(there)
        network.world.after(self._latency_s, partial(process.post, self._connect, here))

    def _refuse(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    def _connect(self, here: End) -> None:
        if self._future.done():
            here.reset()
        elif not here.is_open:
            self._future.set_exception(ConnectionResetError("reset by the peer"))
        else:
            self._future.set_result(here)


class Network:
    """The hosts, and the links between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._listeners: dict[tuple[str, int], Acceptor] = {}
        self.transports: list[SimTransport] = []
        self._cuts: dict[frozenset[str], int] = {}
        self._slow: dict[str, float] = {}
        self._waiting: list[Callable[[], None]] = []

    # Faults.
    def cut(self, first: str, second: str) -> None:
        """Nothing passes between two hosts."""
        pair = frozenset((first, second))
        self._cuts[pair] = self._cuts.get(pair, 0) + 1

    def heal(self, first: str, second: str) -> None:
        """It passes again."""
        pair = frozenset((first, second))
        self._cuts[pair] -= 1
        if not self._cuts[pair]:
            del self._cuts[pair]
        waiting, self._waiting = self._waiting, []
        for do in waiting:
            self.world.after(LATENCY_S, do)

    def slow(self, host: str, seconds: float) -> None:
        """Whatever goes to and from a host takes so much longer."""
        self._slow[host] = seconds
        if not seconds:
            del self._slow[host]

    @property
    def has_faults(self) -> bool:
        """Return whether something is cut off or slow."""
        return bool(self._cuts or self._slow)

    def is_cut(self, first: str, second: str) -> bool:
        return bool(self._cuts) and frozenset((first, second)) in self._cuts

    def at_heal(self, do: Callable[[], None]) -> None:
        self._waiting.append(do)

    def latency_s(self, first: str, second: str) -> float:
        slow_s = self._slow.get(first, 0.0) + self._slow.get(second, 0.0) if self._slow else 0.0
        return LATENCY_S + self.world.rng.random() * JITTER_S + slow_s

    # Listening and connecting.
    def open(self, listener: Acceptor, port: int) -> None:
        self._listeners[listener.host, port] = listener

    def shut(self, listener: Acceptor, port: int) -> None:
        if self._listeners.get((listener.host, port)) is listener:
            del self._listeners[listener.host, port]

    def listener(self, host: str, port: int) -> Acceptor | None:
        """Return the listener there."""
        return self._listeners.get((host, port))

    def listen(
        self, process: Process, factory: Callable[[], Any], host: str, port: int, **options: Any
    ) -> SimServer:
        if (process.host, port) in self._listeners:
            raise OSError(98, "address already in use")
        server = SimServer(process, factory, host, port)
        if options.get("start_serving", True):
            self.open(server, port)
        return server

    async def connect(
        self, process: Process, factory: Callable[[], Any], host: str, port: int
    ) -> tuple[SimTransport, Any]:
        end = await _Attempt(self, process, (host, port)).begin()
        protocol = factory()
        transport = SimTransport(process, end, protocol, (host, port))
        transport.begin()
        return transport, protocol

    def reset_all(self, process: Process) -> None:
        """A process has died."""
        for transport in self.transports:
            if transport._process is process:
                transport.drop()
        self.transports = [each for each in self.transports if each._process is not process]
        for address, listener in list(self._listeners.items()):
            if isinstance(listener, SimServer) and listener.process is process:
                del self._listeners[address]
                listener.drop()
