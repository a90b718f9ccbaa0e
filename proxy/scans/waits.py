"""Commits that wait a moment for the scan of another node.

Source: docs/decisions/021.

The node that reads a partition is not always the one that a group commits to. A commit may so be
faster than the news of the block that it is about, and when it is the group's last one, the stable
offset would stand in front of that block for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from keylane.bounded import BoundedDict
from keylane.keyrange.key_split import PartitionSplit
from keylane.offsets.records.journal import StateKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.table import OffsetTable
from keylane.proxy.topics.view import View

WAIT_S: Final = 0.25
"""Time of a wait: scans take some 10 ms, and up to 150 from a node that reads all the time."""
VAIN_MAX: Final = 10_000
"""Positions whose wait was in vain, and which are not waited for again."""
QUIET_MAX: Final = 32
"""Waits in vain in a row for one partition; after that no commit waits for its readers."""
QUIET_KEYS_MAX: Final = 10_000

LaneKey = tuple[str, PartitionSplit, int]
"""Group, place, output."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """The positions that one commit waits for."""

    positions: dict[LaneKey, int]
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, key: PartitionSplit, scan: ScanIndex) -> None:
        """Note that offsets of a partition were scanned."""
        known = [lane for lane, at in self.positions.items() if lane[1] == key and scan.knows(at)]
        for lane in known:
            del self.positions[lane]
        if not self.positions:
            self.done.set()


class ScanWaits:
    """Commits that wait for scans of a partition; event loop only.

    Invariants: every waiter is listed under the partitions of its positions; VAIN_MAX and
    QUIET_KEYS_MAX bound what is remembered.
    """

    def __init__(self, hurry: Callable[[], None] = lambda: None) -> None:
        """hurry: is called when a commit begins to wait."""
        self._hurry = hurry
        self._waiters: dict[PartitionSplit, list[_Waiter]] = {}
        self._vain: BoundedDict[LaneKey, int] = BoundedDict(VAIN_MAX)
        self._quiet: BoundedDict[PartitionSplit, int] = BoundedDict(QUIET_KEYS_MAX)

    def note(self, key: PartitionSplit, scan: ScanIndex) -> None:
        """Note a scan of this node or another one. Costs nothing where no commit waits."""
        if self._quiet:
            self._quiet.pop(key, None)
        for waiter in self._waiters.get(key, ()):
            waiter.take(key, scan)

    async def until_known(
        self,
        group: str,
        lanes: Iterable[tuple[View, int, int]],
        table: OffsetTable | None,
        scan_of: Callable[[View, int], ScanIndex],
    ) -> None:
        """Wait until the position of every lane is in or at the end of a scanned region.

        lanes: view, index and the offset to be committed. table: the group's states, if any are
        loaded; a lane that stands there already does not wait. Returns after WAIT_S in any case.
        """
        positions: dict[LaneKey, int] = {}
        for view, index, offset in lanes:
            if view.error_of(index):
                continue
            partition = view.partition_of(index)
            key = view.partition_split(partition)
            lane = (group, key, view.output_of(index))
            is_vain = self._vain.get(lane) == offset or self._quiet.get(key, 0) >= QUIET_MAX
            if scan_of(view, partition).knows(offset) or is_vain:
                continue
            state = (
                table.get(StateKey(group, view.topic_id, partition)) if table is not None else None
            )
            if state is None or state.position_of(*view.key_ranges(index)).offset < offset:
                positions[lane] = offset
        if positions:
            await self._wait(positions)

    def check(self) -> None:
        """Assert the invariants; tests call it."""
        assert len(self._vain) <= VAIN_MAX and len(self._quiet) <= QUIET_KEYS_MAX
        assert all(self._waiters.values())

    async def _wait(self, positions: dict[LaneKey, int]) -> None:
        waiter = _Waiter(positions)
        keys = {key for _, key, _ in positions}
        for key in keys:
            self._waiters.setdefault(key, []).append(waiter)
        self._hurry()
        try:
            async with asyncio.timeout(WAIT_S):
                await waiter.done.wait()
        except TimeoutError:
            self._note_vain(waiter.positions)
        finally:
            for key in keys:
                waiters = self._waiters[key]
                waiters.remove(waiter)
                if not waiters:
                    del self._waiters[key]

    def _note_vain(self, positions: dict[LaneKey, int]) -> None:
        for lane, offset in positions.items():
            self._vain[lane] = offset
        for key in {key for _, key, _ in positions}:
            self._quiet[key] = self._quiet.get(key, 0) + 1
