"""Reading of lanes by a member: positions, resets, one fetch after the other from each node.

Source: Java's `Fetcher`; KIP-74.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from keylane.wire.fetch import (
    FetchAnswer,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from tests.long.chaos_history import Delivery, Fetched, OutOfRange, Place, Reset
from tests.reference.broker_log import LaneClient
from tests.simulation.client import Address, Client, Connection, Lost
from tests.simulation.waits import FETCH, Waits

OUT_OF_RANGE = 1
LEADER_MOVED = {3, 5, 6, 9, 74, 75, 76, 100}
FETCH_WAIT_MS, FETCH_BYTES = 500, 50 * 1024**2
BACKOFF_S = 0.1
NOT_FETCHED, SOUGHT = -1, -2
NOT_KNOWN = -1
Output = tuple[str, int, int]
"""Topic, partition and offset of an input."""


def parts_of(place: Place, partitions: int, parts: int) -> list[Place]:
    """Lanes of the finest layout that a lane consists of, where it has so many of them each."""
    lane, partition = divmod(place.lane, partitions)
    return [Place(place.topic, (lane * parts + n) * partitions + partition) for n in range(parts)]


@dataclass(frozen=True)
class Handed:
    """A record as a member got it."""

    place: Place
    offset: int
    number: int
    asked_s: float
    at_s: float


@dataclass(frozen=True)
class Habits:
    """Habits of a group's members."""

    group: str
    topic: str
    partition_count: int
    commit_s: float = 1.0
    work_s: float = 0.001
    """Per record."""
    fetch_bytes: int = 1024**2
    is_committed: bool = False
    lane_topic: str = ""
    """The name it subscribes to; the topic's own where empty."""
    by_record: bool = False
    """It commits behind the last record it was given, as librdkafka does; else its position."""
    session_s: float = 10.0
    timeout_s: float = 30.0
    """`request.timeout.ms`."""
    is_patient: bool = False
    """It keeps its lanes and its generation when it loses its coordinator, as stock clients do."""
    reached: dict[Place, int] = field(default_factory=dict)
    """Highest offsets that members of the group have tried to commit."""
    waits: Waits | None = None
    says_epochs: bool = False
    """Its fetches name the leader's epoch."""
    parts: int = 1
    """Parts of a lane: lanes of the finest layout that the topic ever has."""
    begins: Callable[[Place], int] = lambda _: 0
    """Where the log of a lane begins: an application seeks no further."""
    on_back: Callable[[], None] = lambda: None
    """Called when a member commits what it has gone back to."""
    is_java: bool = True
    """It is Java's client, else librdkafka, where the two differ."""
    is_static: bool = False
    """It has a place in its group, and leaves for a while."""
    rebalance_s: float = 300.0
    """`max.poll.interval.ms`, of consumer groups."""
    revoke_s: float = 0.0
    """Seconds until its application gives up a lane of a consumer group."""

    @property
    def subscribed(self) -> str:
        return self.lane_topic or self.topic

    def parts_of(self, place: Place) -> list[Place]:
        """Return the parts of a lane."""
        return parts_of(place, self.partition_count, self.parts)


@dataclass
class Lane:
    """One lane that it holds."""

    index: int
    place: Place
    client: LaneClient
    committed: int = NOT_KNOWN
    """Offset of the coordinator's last answer."""
    asked: int = NOT_KNOWN
    """The offset in the newest commit of it, answered or not."""
    by_record: bool = False
    given: int = -1
    """Offset behind the last record that the application was given; -1: none yet."""
    taken: int = 0
    """Records given to the application."""
    fetched: int = NOT_FETCHED
    """Offset of its last fetch."""

    @property
    def done(self) -> int:
        """Return the offset to commit next; -1: none."""
        if not self.by_record:
            return self.client.position
        return self.committed if self.given < 0 else self.given

    def lose_position(self) -> None:
        """It is out of range: nothing is committed until it has another one, as in Java.

        Its commits and records were of another log: the next offset is committed anew, also when
        it is the same number.
        """
        self.client.position = self.given = -1
        self.committed = self.asked = NOT_KNOWN


class Fetching:
    """Reads the lanes that stand in `_lanes`."""

    def __init__(self, client: Client, habits: Habits, events: list[Any]) -> None:
        self._client, self._habits, self._events = client, habits, events
        self._world, self._name = client.process.world, client.client_id
        self._lanes: dict[int, Lane] = {}
        self._loops: dict[Address, asyncio.Task[None]] = {}
        """Loops of fetches, by node."""
        self._outputs: list[Output] = []
        """Done since the last commit."""
        self.handed: list[Handed] = []
        self._has_sought = False

    @property
    def positions(self) -> dict[int, int]:
        """Return the next fetch offset of each lane; -1: it is to be reset."""
        return {lane.index: lane.client.position for lane in self._lanes.values()}

    def _note(self, event: Any) -> None:
        self._events.append(event)

    def seek(self, back: int) -> None:
        """Have the application go back in its first lane."""
        lane = next(iter(self._lanes.values()), None)
        if lane is not None and lane.client.position > 0:
            first = self._habits.begins(lane.place)
            lane.client.position = max(first, lane.client.position - back)
            lane.given = lane.client.position
            lane.fetched = SOUGHT
            self._has_sought = True
            self._world.report(f"{self._name} seeks in lane {lane.index} to {lane.given}")

    async def _reset(self, lanes: list[Lane]) -> None:
        """auto.offset.reset=earliest. Raises: Lost."""
        for lane in lanes:
            self._note(Reset(self._name, lane.place, self._world.now_s))
            while True:
                connection = await self._leader_of(lane)
                answer = await connection.ask(
                    2, 7, replica_id=-1, isolation_level=0, topics=[{
                        "name": self._habits.subscribed,
                        "partitions": [{"partition_index": lane.index, "timestamp": -2,
                                        "current_leader_epoch": -1}],
                    }],
                )  # fmt: skip
                entry = answer.topics[0].partitions[0]
                if entry.error_code == 0:
                    lane.client.position = int(entry.offset)
                    break
                await asyncio.sleep(BACKOFF_S)
                await self._client.refresh(self._habits.subscribed)

    async def _leader_of(self, lane: Lane) -> Connection:
        broker_id, _ = self._client.leaders.get((self._habits.subscribed, lane.index), (-1, -1))
        address = self._client.brokers.get(broker_id)
        if address is None:
            await self._client.refresh(self._habits.subscribed)
            raise Lost(f"lane {lane.index} has no leader")
        return await self._client.to(address, "fetch")

    def _epoch_of(self, lane: Lane) -> int:
        """Return the leader epoch in the lane's metadata; -1: fetches name none (KIP-320)."""
        if not self._habits.says_epochs:
            return -1
        return self._client.leaders.get((self._habits.subscribed, lane.index), (-1, -1))[1]

    def _address_of(self, lane: Lane) -> Address | None:
        """Return the address of the node that leads it; None: none is known."""
        leader, _ = self._client.leaders.get((self._habits.subscribed, lane.index), (-1, -1))
        return self._client.brokers.get(leader)

    async def _fetches(self) -> None:
        """One loop per node that leads lanes of ours; one that is away ends its own. Raises: Lost.

        A fetch that is under way elsewhere goes on meanwhile, as in stock clients: Java's
        `AbstractFetch` (nodes with pending requests), librdkafka's `rkb_fetching`.
        """
        loops = self._loops = {}
        try:
            while True:
                for address in self._left_out():
                    loop = asyncio.get_running_loop()
                    loops[address] = loop.create_task(self._fetch_from(address))
                if loops:
                    await asyncio.wait(loops.values(), return_when=asyncio.FIRST_COMPLETED)
                for address in [each for each, loop in loops.items() if loop.done()]:
                    loops.pop(address).result()
                await self._refresh_later()
        finally:
            for each in loops.values():
                each.cancel()
            await asyncio.gather(*loops.values(), return_exceptions=True)

    def _left_out(self) -> list[Address]:
        """Return nodes that lead lanes of ours, as is known now, and that have no fetch loop."""
        led = dict.fromkeys(map(self._address_of, self._lanes.values()))
        return [each for each in led if each is not None and each not in self._loops]

    async def _refresh_later(self) -> None:
        """Refresh the leaders after a pause. Raises: Lost."""
        await asyncio.sleep(BACKOFF_S)
        try:
            await self._client.refresh(self._habits.subscribed)
        except Lost:
            if not self._habits.is_patient:
                raise

    async def _fetch_from(self, address: Address) -> None:
        """Fetch until it leads no lane of ours, a leader has moved, or the connection is lost.

        Another leader may have been learnt while a lane was reset.
        """
        while lanes := [lane for lane in self._lanes.values() if self._address_of(lane) == address]:
            try:
                await self._reset([lane for lane in lanes if lane.client.position < 0])
                connection = await self._client.to(address, "fetch")
                # One of an earlier generation may be under way.
                await connection.until_answered(FETCH)
                is_led = await self._fetch(connection, lanes)
            except Lost as error:
                self._world.report(f"{self._name}: fetch: {error}")
                return
            if not is_led or self._left_out():
                return

    async def _fetch(self, connection: Connection, lanes: list[Lane]) -> bool:
        """Fetch once, and take what comes; whether the node still leads them. Raises: Lost."""
        topic = self._habits.subscribed
        entries = tuple(
            FetchPartition(lane.index, self._epoch_of(lane), lane.client.position, -1, -1,
                           self._habits.fetch_bytes)
            for lane in lanes
        )  # fmt: skip
        for lane in lanes:
            self._note_position(lane)
        request = FetchRequest(
            version=12, max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES,
            isolation_level=int(self._habits.is_committed),
            topics=(FetchTopic(name=topic, topic_id=None, partitions=entries),),
        )  # fmt: skip
        asked_s = self._world.now_s
        frame, at = await connection.ask_raw(FETCH, 12, write_fetch_request(request))
        answer = read_fetch_response(frame, at, 12)
        if answer.error_code:
            return False
        by_index = {lane.index: lane for lane in lanes}
        asked = {entry.partition: entry.fetch_offset for entry in entries}
        worked_s = 0.0
        for answered in answer.topics:
            for entry in answered.partitions:
                lane = by_index[entry.partition]
                if self._lanes.get(lane.index) is not lane:
                    continue  # given up meanwhile
                if entry.error_code in LEADER_MOVED:
                    said = f"{self._name}: fetch of lane {lane.index}: error {entry.error_code}"
                    self._world.report(said)
                    return False
                if asked[lane.index] != lane.client.position:
                    continue  # sought or reset meanwhile; Java's `FetchCollector` does the same
                if entry.error_code == OUT_OF_RANGE:
                    now_s = self._world.now_s
                    self._note(OutOfRange(self._name, lane.place, lane.client.position, now_s))
                    lane.lose_position()
                elif not entry.error_code:
                    self._hand_out(lane, entry, asked_s)
                    worked_s += self._habits.work_s if lane.client.seen else 0.0
        # All of an answer is taken at one moment: it is of the log of that moment.
        if worked_s:
            await asyncio.sleep(worked_s)
        return True

    def _note_position(self, lane: Lane, asked_s: float = inf) -> None:
        """Where it is fetched from next; asked_s: when what led it there was."""
        if lane.fetched != lane.client.position:
            is_first, lane.fetched = lane.fetched == NOT_FETCHED, lane.client.position
            now_s = self._world.now_s
            fetched = Fetched(self._name, lane.place, lane.fetched, now_s, is_first, asked_s)
            self._note(fetched)

    def _hand_out(self, lane: Lane, entry: FetchAnswer, asked_s: float) -> None:
        aborted = [(each[0], each[1]) for each in entry.aborted or ()]
        lane.client.apply(entry.records or (), aborted)
        for offset, key, data in lane.client.seen[lane.taken :]:
            lane.taken += 1
            number = int(data.rsplit(b"#", 1)[1][:-1])
            name = (key or b"").decode()
            now_s = self._world.now_s
            self._note(Delivery(self._name, lane.place, offset, name, number, now_s))
            self.handed.append(Handed(lane.place, offset, number, asked_s, now_s))
            lane.given = offset + 1
            partition = lane.index % self._habits.partition_count
            self._outputs.append((self._habits.topic, partition, offset))
        # Of the log that was read, though it is fetched from later.
        self._note_position(lane, asked_s)
