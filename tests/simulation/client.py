"""A Kafka client's connections in the simulation: any API, answers by correlation id."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from keylane.wire.header import find_response_body, write_request
from tests.simulation.messages import read_answer, write_question
from tests.simulation.waits import Wait, Waits

if TYPE_CHECKING:
    from tests.simulation.world import Process

REQUEST_TIMEOUT_S = 30.0
Address = tuple[str, int]
OnEnd = Callable[[int, float, bool], None]
"""Called with API, time and whether it was answered, of each request of a connection."""


class Lost(Exception):
    """A connection is lost, or does not answer."""


class Connection(asyncio.Protocol):
    """One connection; requests may be pipelined."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._transport: Any = None
        self._bytes = bytearray()
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._number = 0
        self.is_open, self.timeout_s = False, REQUEST_TIMEOUT_S
        self.on_end: OnEnd = lambda *_: None
        self.on_silent: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self._asked: dict[int, tuple[int, float]] = {}
        """API and time of requests without an answer, by number, also when no task waits for it."""
        self._answered = asyncio.Event()
        """Set at any answer; for `until_answered`."""

    @classmethod
    async def open(cls, process: Process, address: Address, client_id: str) -> Connection:
        """Connect. Raises: Lost."""
        try:
            async with asyncio.timeout(10.0):
                _, made = await process.loop.create_connection(lambda: cls(client_id), *address)
        except (OSError, TimeoutError) as error:
            raise Lost(f"{address}: {error!r}") from None
        connection: Connection = made
        return connection

    async def ask_raw(
        self, key: int, version: int, body: bytes, *, timeout_s: float | None = None
    ) -> tuple[bytes, int]:
        """The answer's frame, and where its body begins. Raises: Lost."""
        timeout_s = timeout_s or self.timeout_s
        if not self.is_open:
            raise Lost("closed")
        self._number += 1
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[self._number] = future
        self._asked[self._number] = key, self._now_s()
        self._transport.write(write_request(key, version, self._number, self._client_id, body))
        try:
            async with asyncio.timeout(timeout_s):
                frame = await future
        except TimeoutError:
            self.on_silent()
            self.close()
            raise Lost(f"no answer to API {key} in {timeout_s:g} s") from None
        return frame, find_response_body(frame, 4, key, version)

    async def until_answered(self, key: int) -> None:
        """Wait until earlier requests of an API are answered, though their answers are dropped.

        Raises: Lost, when the time of one is over.
        """
        while asked := [asked_s for each, asked_s in self._asked.values() if each == key]:
            self._answered.clear()
            try:
                async with asyncio.timeout(asked[0] + self.timeout_s - self._now_s()):
                    await self._answered.wait()
            except TimeoutError:
                self.on_silent()
                self.close()
                raise Lost(f"no answer to API {key} in {self.timeout_s:g} s") from None

    async def ask(self, key: int, version: int, /, **values: Any) -> Any:
        """The answer as a kio entity. Raises: Lost."""
        timeout_s = values.pop("timeout_s", None)
        body = write_question(key, version, values)
        frame, at = await self.ask_raw(key, version, body, timeout_s=timeout_s)
        return read_answer(key, version, frame[at:])

    def close(self) -> None:
        """Drop it."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()
        self._fail("closed")

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def _fail(self, reason: str) -> None:
        asked, self._asked = self._asked, {}
        for each in asked.values():
            self.on_end(*each, False)
        self._answered.set()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(Lost(reason))
                future.exception()  # some have no task that waits for them any more

    # asyncio calls what follows.
    def connection_made(self, transport: Any) -> None:
        self._transport, self.is_open = transport, True

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        while len(self._bytes) >= 4:
            (size,) = struct.unpack_from(">i", self._bytes)
            if len(self._bytes) < 4 + size:
                return
            frame = bytes(self._bytes[: 4 + size])
            del self._bytes[: 4 + size]
            (number,) = struct.unpack_from(">i", frame, 4)
            self.on_end(*self._asked.pop(number), True)
            self._answered.set()
            future = self._waiting.pop(number, None)
            if future is not None and not future.done():
                future.set_result(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self.on_lost()
        self._fail(str(exc) if exc else "closed by the peer")


class Client:
    """State of a stock client: metadata, and a connection per broker."""

    def __init__(self, process: Process, bootstrap: list[Address], client_id: str) -> None:
        self.process, self.bootstrap, self.client_id = process, bootstrap, client_id
        self.group, self.timeout_s = "", REQUEST_TIMEOUT_S
        self.waits: Waits | None = None
        """Book of each request's wait."""
        self._by_address: dict[Address, Connection] = {}
        self.brokers: dict[int, Address] = {}
        self.leaders: dict[tuple[str, int], tuple[int, int]] = {}
        """(broker id, leader epoch) by topic and index."""
        self.topic_ids: dict[str, Any] = {}
        self._silent: set[str] = set()
        """Hosts that have left a request unanswered: asked when no other answers."""

    async def to(self, address: Address, kind: str = "") -> Connection:
        """A connection to an address; one per kind. Raises: Lost."""
        key: Any = (address, kind)
        found = self._by_address.get(key)
        if found is None or not found.is_open:
            found = self._by_address[key] = await Connection.open(
                self.process, address, self.client_id
            )
            found.timeout_s = self.timeout_s
            found.on_silent = partial(self._silent.add, address[0])
            if self.waits is not None:
                self.waits.connections += 1
                number = self.waits.connections
                found.on_end = partial(self._note_end, self.waits, number, address)
        return found

    def _note_end(
        self, waits: Waits, number: int, address: Address, key: int, asked_s: float, answered: bool
    ) -> None:
        now_s = self.process.world.now_s
        took_s = self.process.loop.time() - asked_s
        waits.note(Wait(
            self.process.host, self.group, number, *address, key, now_s - took_s, now_s, answered
        ))  # fmt: skip

    async def to_any(self) -> Connection:
        """Return a connection to any broker. Raises: Lost."""
        rng = self.process.world.rng
        addresses = list(dict.fromkeys([*self.brokers.values(), *self.bootstrap]))
        rng.shuffle(addresses)
        addresses.sort(key=lambda each: each[0] in self._silent)
        reason = "no address"
        for address in addresses:
            try:
                return await self.to(address)
            except Lost as error:
                reason = str(error)
        raise Lost(reason)

    async def refresh(self, *topics: str) -> None:
        """Metadata v12. Raises: Lost."""
        connection = await self.to_any()
        answer = await connection.ask(
            3, 12, topics=[{"name": name} for name in topics], allow_auto_topic_creation=False
        )
        if answer.brokers:
            self.brokers = {
                int(each.node_id): (each.host, int(each.port)) for each in answer.brokers
            }
        for topic in answer.topics:
            if topic.error_code != 0:
                continue
            self.topic_ids[str(topic.name)] = topic.topic_id
            for each in topic.partitions:
                place = str(topic.name), int(each.partition_index)
                self.leaders[place] = int(each.leader_id), int(each.leader_epoch)

    def lanes_of(self, topic: str) -> list[int]:
        """Return the indexes of the topic, by metadata."""
        return sorted(index for name, index in self.leaders if name == topic)

    async def coordinator(self, group: str, *, key_type: int = 0) -> Connection:
        """Return the coordinator of a group, or of a transactional id (1). Raises: Lost."""
        connection = await self.to_any()
        answer = await connection.ask(10, 3, key=group, key_type=key_type)
        if answer.error_code != 0:
            raise Lost(f"FindCoordinator: {answer.error_code}")
        return await self.to((str(answer.host), int(answer.port)), f"coordinator {key_type}")

    def close(self) -> None:
        """Drop all connections."""
        for each in self._by_address.values():
            each.close()
        self._by_address.clear()
