"""A tap between clients and keylane: forwards bytes, and notes offsets in requests and answers.

In:    ports to listen on, ports of keylane's listeners.  Out: events by group, in `events`.

A request is noted when its last byte has come and before it is passed on, an answer likewise: so
an answer that was noted before a request was sent before that request, on any connection.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, Self

from tests.long.chaos_history import Event
from tests.long.tap_frames import TapBook

CHUNK_BYTES: Final = 1 << 16
FRAME_BYTES_MAX: Final = 1 << 28
SIZE: Final = struct.Struct(">i")


class FrameCutter:
    """Cuts a stream into frames without their sizes."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take, self._data = take, bytearray()

    def feed(self, data: bytes) -> None:
        """More bytes of the stream. Raises: AssertionError for a size that cannot be."""
        self._data += data
        while len(self._data) >= SIZE.size:
            (size,) = SIZE.unpack_from(self._data)
            assert 0 <= size <= FRAME_BYTES_MAX, f"a frame of {size} bytes"
            if len(self._data) < SIZE.size + size:
                return
            frame = bytes(self._data[SIZE.size : SIZE.size + size])
            del self._data[: SIZE.size + size]
            self._take(frame)


class Tap:
    """Listens on ports and forwards to others, in its own thread, until `stop`."""

    def __init__(
        self,
        ports: Mapping[int, int],
        topic_of: Callable[[str], str | None],
        *,
        followed: frozenset[str] = frozenset(),
    ) -> None:
        """ports: where clients connect -> where keylane listens, all on 127.0.0.1.

        topic_of: Kafka's name of a topic as clients call it; None: not watched.
        followed: topics of which all offsets that members fetch from are noted.
        """
        self._ports = dict(ports)
        self.events: dict[str, list[Event]] = {}
        """Events by group; fetches and resets by the client id, which is the member's."""
        self.faults: list[str] = []
        """Frames that could not be read: the tap has not seen everything then."""
        self._book = TapBook(self._note, topic_of, followed)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="tap")

    def start(self) -> Self:
        """Listen."""
        self._thread.start()
        assert self._started.wait(30), "the tap does not listen"
        return self

    def stop(self) -> None:
        """End all connections; requests without an answer are noted as such."""
        if self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _note(self, owner: str, event: Event) -> None:
        self.events.setdefault(owner, []).append(event)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        servers = [
            await asyncio.start_server(self._handler(target), "127.0.0.1", port)
            for port, target in self._ports.items()
        ]
        self._started.set()
        await self._stopping.wait()
        for server in servers:
            server.close()

    def _handler(self, target: int) -> Callable[..., Awaitable[None]]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._forward(reader, writer, target)

        return handle

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: int
    ) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            writer.close()
            return
        connection = self._book.open()
        asked = FrameCutter(lambda frame: connection.asked(frame, time.monotonic()))
        reported = FrameCutter(lambda frame: connection.answered(frame, time.monotonic()))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, up_writer, asked))
                group.create_task(self._pump(up_reader, writer, reported))
        except* ConnectionError:
            pass
        finally:
            connection.closed()
            for each in (writer, up_writer):
                each.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: FrameCutter
    ) -> None:
        """Forward until one side ends. Raises: ConnectionResetError, to end the other way too."""
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                try:
                    frames.feed(data)
                except Exception as error:  # noqa: BLE001  the run goes on, and is void
                    self.faults.append(f"the tap cannot read a frame: {error!r}")
                writer.write(data)
                await writer.drain()
        raise ConnectionResetError("one side has ended")
