"""proxy/scans/waits.py: a commit waits for news of its position, but never in a circle."""

from __future__ import annotations

import asyncio
import uuid

import numpy as np
import pytest

from keylane.keyrange.lane import LaneLayout
from keylane.offsets.records.journal import StateKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.proxy.scans import waits as module
from keylane.proxy.scans.waits import ScanWaits
from keylane.proxy.topics.view import View
from keylane.tasks import spawn

TOPIC_ID = uuid.UUID(int=7)
VIEW = View(
    name="orders",
    topic="orders",
    view_id=TOPIC_ID,
    topic_id=TOPIC_ID,
    lanes=LaneLayout(partition_count=2, lane_count=2),
    reserve=True,
)


class Node:
    """Waits with scans of both partitions, and a count of those that have begun."""

    def __init__(self) -> None:
        self.begun = 0
        self.is_waiting = asyncio.Event()
        self.waits = ScanWaits(hurry=self._hurry)
        self.scans = [ScanIndex(VIEW.key_split(partition)) for partition in (0, 1)]
        self.table = OffsetTable(partition_count=1)

    def _hurry(self) -> None:
        self.begun += 1
        self.is_waiting.set()

    def scan_of(self, view: View, partition: int) -> ScanIndex:
        del view
        return self.scans[partition]

    def scanned(self, partition: int, start: int, end: int) -> None:
        """News of a partition."""
        scan = self.scans[partition]
        scan.add(start, end, np.full(2, -1, np.int64))
        key = VIEW.partition_split(partition)
        self.waits.note(key, scan)
        self.waits.check()

    async def commit(self, *lanes: tuple[int, int], group: str = "g") -> None:
        """Lane indexes and offsets."""
        wanted = [(VIEW, index, offset) for index, offset in lanes]
        await self.waits.until_known(group, wanted, self.table, self.scan_of)
        self.waits.check()

    async def begin(self, *lanes: tuple[int, int]) -> asyncio.Task[None]:
        """A commit that is waiting."""
        task = spawn(self.commit(*lanes), "commit")
        await self.is_waiting.wait()
        assert not task.done()
        return task


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait is given up."""
    monkeypatch.setattr(module, "WAIT_S", 60.0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody gives up at once."""
    monkeypatch.setattr(module, "WAIT_S", 0.001)


@pytest.mark.usefixtures("patient")
async def test_a_commit_goes_on_when_all_of_its_positions_are_known() -> None:
    """At the end of a region or inside; news of another partition or region do not do."""
    node = Node()
    task = await node.begin((0, 20), (1, 7))

    node.scanned(1, 0, 10)
    node.scanned(0, 0, 15)
    node.scanned(0, 21, 30)
    assert not task.done() and not node.waits._waiters.keys() - {
        (TOPIC_ID, 0, VIEW.key_split(0)),
        (TOPIC_ID, 1, VIEW.key_split(1)),
    }
    node.scanned(0, 15, 20)

    await task
    assert not node.waits._waiters


@pytest.mark.usefixtures("patient")
async def test_known_positions_do_not_wait() -> None:
    """Neither what was scanned here, nor where the group stands already, nor what is no lane."""
    node = Node()
    node.scanned(0, 10, 20)
    state = OffsetState(committed=50)
    node.table.put(StateKey("g", TOPIC_ID, 1), state)

    await node.commit((0, 10), (2, 15), (0, 20), (1, 50), (3, 40), (9, 1))

    assert not node.begun


@pytest.mark.usefixtures("hasty")
async def test_a_wait_in_vain_is_not_repeated_for_the_same_position() -> None:
    """But for another one, or by another group, it is."""
    node = Node()
    for _ in range(3):
        await node.commit((0, 20))
    assert node.begun == 1

    await node.commit((0, 21))
    await node.commit((0, 21), group="other")
    assert node.begun == 3


@pytest.mark.usefixtures("hasty")
async def test_no_commit_waits_for_a_partition_without_news() -> None:
    """After many waits in vain, until there is."""
    node = Node()
    for offset in range(module.QUIET_MAX + 5):
        await node.commit((0, 100 + offset))
    assert node.begun == module.QUIET_MAX
    await node.commit((1, 100))
    assert node.begun == module.QUIET_MAX + 1, "another partition"

    node.scanned(0, 0, 10)
    await node.commit((0, 500))

    assert node.begun == module.QUIET_MAX + 2


@pytest.mark.usefixtures("hasty")
async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest position may be waited for again."""
    monkeypatch.setattr(module, "VAIN_MAX", 2)
    monkeypatch.setattr(module, "QUIET_KEYS_MAX", 1)
    node = Node()
    for index in (0, 1, 2, 0):
        await node.commit((index, 20))

    assert node.begun == 4


@pytest.mark.usefixtures("patient")
async def test_a_commit_that_is_cancelled_waits_no_more() -> None:
    """Its connection is gone."""
    node = Node()
    task = await node.begin((0, 20))

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not node.waits._waiters
