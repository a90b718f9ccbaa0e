"""A broker of a later Kafka: a real one behind a listener that offers and sends more.

Every answer in a flexible version has tagged fields that no schema knows, in its header and at
every level of its body. ApiVersions offers one version more of each API, APIs and features without
a name, and is a version newer itself. A request that only that later Kafka would take is noted.

Source: KIP-35, KIP-482, KIP-511, KIP-584.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from kio.index import load_response_schema

from keylane.config.node import split_address
from keylane.embedded import EmbeddedKafka
from keylane.embedded.ports import find_free_port
from keylane.errors import KeylaneError
from keylane.tasks import spawn
from keylane.wire.header import (
    ApiKey,
    find_response_body,
    is_flexible,
    read_request_header,
    response_body_position,
)
from keylane.wire.messages import read_response, write_message
from keylane.wire.primitives import write_tags
from tests.fuzz.unknown_tags import with_tags
from tests.transcript.entities import build

LISTENER: Final = "TOMORROW"
SIZE: Final = struct.Struct(">i")
FRAME_BYTES_MAX: Final = 1 << 28
TAG: Final = 4711
HEADER_TAGS: Final = write_tags({TAG: b"of a header"})
NEW_APIS: Final = {93: (0, 3), 94: (2, 2), 1000: (0, 0), 32767: (0, 32767)}
FEATURE: Final = "tomorrow.version"
FIRST_WITH_FEATURES: Final = 3
Offer = dict[int, tuple[int, int]]


class BrokerOfTomorrow:
    """The listener, in a separate thread, until `stop`."""

    def __init__(self, port: int, target: str) -> None:
        """target: `host:port` of the real broker."""
        self.port, self.behind, self._target = port, target, split_address(target)
        self.offer: Offer = {}
        """Versions of the real broker by API key, once one was asked for them."""
        self.answered: set[tuple[int, int]] = set()
        """(API key, version) of requests that it has answered."""
        self.refused: set[tuple[int, int]] = set()
        """Those that the real broker would not have taken."""
        self.faults: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="broker of tomorrow")

    @property
    def bootstrap(self) -> str:
        """`host:port` of the listener."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen."""
        self._thread.start()
        assert self._listening.wait(30), "the broker of tomorrow does not listen"

    def stop(self) -> None:
        """End all connections."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        serving: list[asyncio.Task[None]] = []

        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            serving.append(spawn(self._serve(reader, writer), "connection"))

        server = await asyncio.start_server(serve, "127.0.0.1", self.port)
        self._listening.set()
        await self._stopping.wait()
        server.close()
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(*self._target)
        asked: dict[int, tuple[int, int]] = {}
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._ask(reader, up_writer, asked))
                group.create_task(self._answer(up_reader, writer, asked))
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        except* (AssertionError, KeylaneError) as error:
            self.faults += [str(each) for each in error.exceptions]
        finally:
            for each in (writer, up_writer):
                each.close()

    async def _ask(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: dict[int, tuple[int, int]],
    ) -> None:
        while True:
            frame = await _read_frame(reader)
            header = read_request_header(frame)
            call = header.api_key, header.api_version
            low, high = self.offer.get(header.api_key, (0, 0x7FFF))
            if not low <= header.api_version <= high:
                self.refused.add(call)
            asked[header.correlation_id] = call
            writer.write(SIZE.pack(len(frame)) + frame)
            await writer.drain()

    async def _answer(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked: dict[int, tuple[int, int]],
    ) -> None:
        while True:
            frame = await _read_frame(reader)
            call = asked.pop(SIZE.unpack_from(frame)[0])
            self.answered.add(call)
            newer = self._newer(frame, *call)
            writer.write(SIZE.pack(len(newer)) + newer)
            await writer.drain()

    def _newer(self, frame: bytes, api_key: int, version: int) -> bytes:
        """The answer as a later Kafka gives it."""
        body = find_response_body(frame, 0, api_key, version)
        is_too_new = api_key == ApiKey.API_VERSIONS and frame[body : body + 2] == b"\x00\x23"
        if is_too_new or (not is_flexible(api_key, version) and api_key != ApiKey.API_VERSIONS):
            return frame
        answer = read_response(api_key, version, memoryview(frame)[body:])
        if api_key == ApiKey.API_VERSIONS:
            answer = self._newer_offer(answer, version)
        head = frame[:4] + (HEADER_TAGS if response_body_position(api_key, version) > 4 else b"")
        return head + write_message(with_tags(answer, _tags_of))

    def _newer_offer(self, answer: Any, version: int) -> Any:
        self.offer = {
            int(one.api_key): (one.min_version, one.max_version) for one in answer.api_keys
        }
        newer = [(key, low, high + 1) for key, (low, high) in self.offer.items()]
        newer += [(key, low, high) for key, (low, high) in NEW_APIS.items()]
        values: dict[str, Any] = {
            "api_keys": [
                {"api_key": key, "min_version": low, "max_version": high}
                for key, low, high in newer
            ]
        }
        if version >= FIRST_WITH_FEATURES:
            values |= {
                "supported_features": [{"name": FEATURE, "min_version": 0, "max_version": 9}],
                "finalized_features": [
                    {"name": FEATURE, "min_version_level": 7, "max_version_level": 7}
                ],
            }
        added = build(load_response_schema(ApiKey.API_VERSIONS, version), values)
        more = {name: getattr(answer, name) + getattr(added, name) for name in values}
        return replace(answer, **more | {"api_keys": added.api_keys})


def _tags_of(entity: Any) -> dict[int, bytes]:
    return {TAG: type(entity).__name__.encode()}


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = SIZE.unpack(await reader.readexactly(SIZE.size))
    assert 0 <= size <= FRAME_BYTES_MAX, f"a frame of {size} bytes"
    return await reader.readexactly(size)


@contextmanager
def broker_of_tomorrow(folder: Path, properties: Mapping[str, str]) -> Iterator[BrokerOfTomorrow]:
    """A real broker that names the listener's address as its own, and the listener."""
    broker = EmbeddedKafka(folder, properties=properties, listeners={LISTENER: "PLAINTEXT"})
    listener = BrokerOfTomorrow(find_free_port(), broker.bootstrap_of(LISTENER))
    broker.properties["advertised.listeners"] = (
        f"PLAINTEXT://{broker.bootstrap},{LISTENER}://{listener.bootstrap}"
    )
    with broker:
        listener.start()
        try:
            yield listener
        finally:
            listener.stop()
