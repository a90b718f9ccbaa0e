"""One broker hangs: what it leads waits, and nothing else does."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from keylane.errors import UpstreamLost
from keylane.keyrange.lane import LaneLayout
from keylane.proxy.lanes.fetch_request import LaneFetch, LaneFetchRequest
from keylane.proxy.lanes.fetcher import FetchLimits, LaneFetcher
from keylane.proxy.lanes.read_memory import ByteGate, ReadRoom
from keylane.proxy.lanes.split_io import RawFetch, ScanSeams
from keylane.proxy.net.framing import CHUNK_BYTES
from keylane.proxy.runtime.stats import ProxyStats
from keylane.tasks import spawn
from tests.reference.broker_log import BrokerLog, LogSource
from tests.virtual_time import InlineExecutor, run_virtual

LAYOUT = LaneLayout(1, 4)
READ_BYTES = 64 * 1024
GATE_BYTES = 8 * READ_BYTES
HUNG, HEALTHY = 1, 2
IDS = {broker: uuid.UUID(int=broker) for broker in (HUNG, HEALTHY)}
ANSWER_S = 5.0


class World:
    """Two brokers, each with a log behind all of its partitions; one of them may hang."""

    def __init__(self) -> None:
        self.logs = {broker: filled_log() for broker in (HUNG, HEALTHY)}
        self.hangs_at: str | None = None
        """Where: before it answers, or in the middle of an answer."""
        self.goes_on = asyncio.Event()
        self.fetcher = LaneFetcher(
            self.open,
            FetchLimits(
                cache_bytes_max=2**20,
                filtering_bytes_max=GATE_BYTES,
                batch_bytes_max=2**20,
                read_bytes_max=READ_BYTES,
                threads=1,
            ),
            ScanSeams(on_scanned=lambda _: None),
            clock=lambda: asyncio.get_running_loop().time(),
            stats=ProxyStats(),
            pool=InlineExecutor(),
        )

    @property
    def gate(self) -> ByteGate:
        return self.fetcher._kit.gates.filtering

    async def open(self, topic: str, topic_id: uuid.UUID, partition: int) -> Source:
        broker = int(topic)
        return Source(self, broker, self.logs[broker])

    async def fetch(self, broker: int, partition: int, offset: int) -> tuple[int, float]:
        """Bytes of an answer for all lanes, and the seconds that it took."""
        began_s = asyncio.get_running_loop().time()
        lanes = tuple(
            LaneFetch(
                topic=str(broker),
                topic_id=IDS[broker],
                partition=partition,
                output=lane,
                key_split=LAYOUT.key_split(0),
                fetch_offset=offset,
                partition_max_bytes=2**20,
            )
            for lane in range(4)
        )
        request = LaneFetchRequest(
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=2**20,
            isolation_level=0,
            lanes=lanes,
            cursor_id=f"{broker}-{partition}",
        )
        answers = await self.fetcher.fetch(request)
        took_s = asyncio.get_running_loop().time() - began_s
        return sum(answer.size_bytes for answer in answers), took_s


class Source(LogSource):
    """As `UpstreamSource`: an answer that has begun has its room before the rest comes."""

    def __init__(self, world: World, broker: int, log: BrokerLog) -> None:
        super().__init__(log)
        self._world, self._broker = world, broker

    async def fetch(self, offset: int, *, room: ReadRoom, **how: Any) -> RawFetch:
        room.broker_id = self._broker
        world = self._world
        if self._broker == HUNG and world.hangs_at == "answer" and not room.take(READ_BYTES):
            await room.for_answer(READ_BYTES)
        if self._broker == HUNG and world.hangs_at:
            await asyncio.wait({spawn(world.goes_on.wait(), "goes on")}, timeout=ANSWER_S)
            if world.hangs_at:
                raise UpstreamLost("no answer to request 1 in 5 s")
        return await super().fetch(offset, room=room, **how)


def filled_log() -> BrokerLog:
    """Some answers' worth of records."""
    log = BrokerLog()
    for number in range(64):
        log.append(*((b"k%d" % key, bytes(1000)) for key in range(number, number + 8)))
    assert sum(map(len, log.wires)) > 4 * CHUNK_BYTES
    return log


async def hang(world: World, partitions: int) -> list[asyncio.Task[Any]]:
    """Clients that ask for partitions of the hung broker, again and again."""

    async def ask(partition: int) -> None:
        while True:
            await world.fetch(HUNG, partition, 0)
            await asyncio.sleep(0)

    asking = [spawn(ask(partition), f"hung {partition}") for partition in range(partitions)]
    await asyncio.sleep(1)
    return asking


async def healthy_pace(world: World) -> list[float]:
    """Seconds of answers with records, of the other broker's partitions."""
    waits = []
    for partition in range(6):
        size_bytes, took_s = await world.fetch(HEALTHY, partition, 0)
        assert size_bytes > 0, "records came"
        waits.append(took_s)
    return waits


def test_a_broker_that_answers_nothing_holds_no_room() -> None:
    """However many of its partitions are asked for; the lanes of others go on at their pace."""

    async def main() -> None:
        world = World()
        world.hangs_at = "request"
        asking = await hang(world, 50)

        assert world.gate.bytes_used == 0
        assert max(await healthy_pace(world)) < 0.5
        for task in asking:
            task.cancel()

    run_virtual(main)


def test_a_broker_that_hangs_in_the_middle_of_its_answers_holds_its_share() -> None:
    """All 50 have begun to answer: there is room for others; it answers again when it goes on."""

    async def main() -> None:
        world = World()
        world.hangs_at = "answer"
        asking = await hang(world, 50)

        assert 0 < world.gate._by_origin[HUNG] <= GATE_BYTES * 3 // 4
        assert max(await healthy_pace(world)) < 0.5

        world.hangs_at = None
        world.goes_on.set()
        size_bytes, _ = await world.fetch(HUNG, 99, 0)
        assert size_bytes > 0
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
        await world.fetcher.stop()
        await asyncio.sleep(100)
        assert world.gate.bytes_used == 0 and world.gate._by_origin[HUNG] == 0

    run_virtual(main)


def test_several_that_hang_leave_room_for_one_more() -> None:
    """Each has no more than what it leaves free."""

    async def main() -> None:
        gate = ByteGate(1_000)
        for broker in range(3):
            while gate.take(100, broker) is not None:
                pass

        assert [gate._by_origin[broker] for broker in range(3)] == [500, 300, 100]
        waiting = [spawn(gate.enter(100, 0), f"hung {n}") for n in range(5)]
        await asyncio.sleep(0)
        ticket = await gate.enter(100, 7)
        assert not any(task.done() for task in waiting)
        for task in waiting:
            task.cancel()
        ticket.settle()
        ticket.leave()
        assert gate.bytes_used == 900 and gate._by_origin[7] == 0

    run_virtual(main)


def test_a_later_leader_is_not_waited_for_at_the_one_before() -> None:
    """The old one hangs; metadata has named the new one, and readers go there at once."""

    class Old(LogSource):
        def __init__(self, log: BrokerLog) -> None:
            super().__init__(log)
            self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def fetch(self, offset: int, **how: Any) -> RawFetch:
            await self.lost
            raise UpstreamLost("closed by keylane")

        def close(self) -> None:
            if not self.lost.done():
                self.lost.set_result(None)

    async def main() -> None:
        world = World()
        sources: list[LogSource] = []

        async def open_source(topic: str, topic_id: uuid.UUID, partition: int) -> LogSource:
            log = world.logs[HUNG]
            log.leader_epoch = len(sources)
            sources.append(Old(log) if not sources else LogSource(log))
            return sources[-1]

        object.__setattr__(world.fetcher._kit, "open_source", open_source)
        asking = spawn(world.fetch(HUNG, 0, 0), "client")
        await asyncio.sleep(0.1)

        world.fetcher.note_leader((IDS[HUNG], 0), 0)  # which is known
        await asyncio.sleep(0.1)
        assert not asking.done()
        world.fetcher.note_leader((IDS[HUNG], 0), 1)

        assert (await asking)[0] == 0  # sent to look for the leader, and back at once
        size_bytes, took_s = await world.fetch(HUNG, 0, 0)
        assert size_bytes > 0 and took_s < 0.5 and len(sources) == 2

    run_virtual(main)
