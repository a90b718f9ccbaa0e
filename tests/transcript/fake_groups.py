"""Offsets of groups in memory, with a list in the place of the journal.

In:    what handlers commit and ask.  Out: states; the records that were appended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from keylane.errors import NotCoordinator, UpstreamLost
from keylane.offsets.lineage import EpochEnd, EpochStart, Lineages
from keylane.offsets.pushes import Pushes
from keylane.offsets.records.journal import JournalRecord, StateKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import INDIVIDUAL_COMMITS_MAX
from keylane.proxy.commits.adoption import Adoption
from keylane.proxy.commits.commit_times import CommitTimes
from keylane.proxy.commits.late_pushes import LatePushes
from keylane.proxy.commits.layouts import Layouts
from keylane.proxy.commits.log_checks import LogChecks
from keylane.proxy.commits.log_ends import Question
from keylane.proxy.commits.push_journal import PushJournal
from keylane.proxy.scans.known_scans import Scans
from keylane.proxy.topics.view import View

Place = tuple[str, int]


class FakeGroups:
    """Implements `Groups` as `GroupOffsets` does, with a list in the place of Kafka."""

    def __init__(self, layouts: Layouts) -> None:
        self.layouts = layouts
        self.table = OffsetTable(partition_count=1)
        self.pushes = Pushes()
        self.late = LatePushes()
        self.commit_times = CommitTimes()
        self.journal: list[JournalRecord] = []
        self.log_starts: dict[Place, int] = {}
        self.leaderless: set[Place] = set()
        """Partitions whose leader cannot be asked."""
        self.is_journal_down = False
        self.events: list[str] = []
        self.sees_ends = True
        self.clock: Callable[[], float] = lambda: 1000.0
        self.of_others: set[str] = set()
        """Groups that another node serves."""
        self.not_loaded: set[str] = set()
        """Groups of this node whose states are to be loaded yet."""
        self._locks: dict[str, asyncio.Lock] = {}
        lineages = Lineages()
        self.scans = Scans(lineages)
        self._adoption = Adoption(
            self._table_of, self._log_start,
            checks=LogChecks(self._ask_none, lineages, clock=lambda: 0.0),
            scans=self.scans, pushes=self.pushes, late=self.late,
            clock=lambda: self.clock(),  # noqa: PLW0108 - tests set it later
            individual_commits_max=INDIVIDUAL_COMMITS_MAX,
        )  # fmt: skip
        self.unsure: set[Place] = set()
        """Partitions whose leader was away when states of them were opened."""
        self._names: dict[str, dict[str, None]] = {}

    def lock(self, group: str, wait_s: float | None = None) -> AbstractAsyncContextManager[Any]:
        del wait_s
        lock = self._locks.setdefault(group, asyncio.Lock())
        return self._refused(group) if group in self.of_others else lock

    @asynccontextmanager
    async def _refused(self, group: str) -> AsyncIterator[None]:
        self.check_tenure(group)
        yield

    def check_tenure(self, group: str) -> None:
        if group in self.of_others:
            raise NotCoordinator(f"group {group} is another node's")

    def lose(self, group: str) -> None:
        """Another node serves the group from now on."""
        self.of_others.add(group)
        self.pushes.forget_where(lambda key: key.group == group)

    def has_state(self, key: StateKey) -> bool:
        return self.table.get(key) is not None

    def state_of(self, group: str, view: View, partition: int) -> OffsetState | None:
        self.check_tenure(group)
        return self.table.get(StateKey(group, view.topic_id, partition))

    def is_unsure(self, group: str, view: View, partition: int) -> bool:
        return (view.topic, partition) in self.unsure

    def may_come_late(self, key: StateKey) -> bool:
        return self._table_of(key.group).intents.may_come_late(key, self.clock())

    def lacks(self, group: str) -> bool:
        return group in self.not_loaded

    async def ready(self, group: str) -> None:
        self.check_tenure(group)
        self.not_loaded.discard(group)

    def note_asked(self, group: str) -> None:
        """Logs are not cut here."""

    async def repair(self, group: str) -> None:
        """As above."""

    async def adopt(
        self,
        group: str,
        view: View,
        partition: int,
        kafka_committed: int | None,
        metadata: str | None = None,
    ) -> OffsetState:
        assert self._locks[group].locked(), "the group's lock is held"
        return await self._adoption.adopt(group, view, partition, kafka_committed, metadata)

    async def _ask_none(self, questions: Iterable[Question]) -> dict[Question, EpochEnd]:
        """No leader says where epochs end."""
        return {}

    async def _log_start(self, view: View, partition: int) -> int:
        if (view.topic, partition) in self.leaderless:
            raise UpstreamLost(f"topic {view.topic} partition {partition} has no leader")
        return self.log_starts.get((view.topic, partition), 0)

    def _table_of(self, group: str) -> OffsetTable:
        self.check_tenure(group)
        return self.table

    def concluded_epoch(self, key: StateKey, state: OffsetState) -> EpochStart | None:
        return None

    def scan_of(self, view: View, partition: int) -> ScanIndex:
        return self.scans.of(view.partition_split(partition))

    def sure_scan(self, key: StateKey, view: View) -> ScanIndex:
        return self.scan_of(view, key.partition)

    def lead_on(self, state: OffsetState, key: StateKey, view: View) -> None:
        self.scans.raise_to_log_start((view.topic_id, key.partition), state, state)
        state.settle(self.sure_scan(key, view))

    async def wait_scanned(self, group: str, lanes: Iterable[tuple[View, int, int]]) -> None:
        """There are no other nodes."""

    async def save(self, group: str, states: Sequence[tuple[View, int, OffsetState]]) -> None:
        assert self._locks[group].locked(), "the group's lock is held"
        self.check_tenure(group)
        keys = [StateKey(group, view.topic_id, partition) for view, partition, _ in states]
        records: list[JournalRecord] = []
        for key, (_, _, state) in zip(keys, states, strict=True):
            self.table.put(key, state)
            records += self.table.records(key, now_ms=1)
        await self.append(records)
        for key in keys:
            self.table.mark_saved(key)
            self.pushes.unsaved.discard(key)

    async def drop(self, group: str, places: Sequence[tuple[View, int]]) -> None:
        await self._drop([StateKey(group, view.topic_id, part) for view, part in places])

    def push_journal(self, group: str) -> PushJournal:
        assert self._locks[group].locked(), "the group's lock is held"
        self.check_tenure(group)
        return PushJournal(
            self.table, self, self.concluded_epoch, wall_clock=lambda: 0.001, clock=self.clock
        )

    def note_commits(self, group: str, view: View, indexes: Sequence[int]) -> None:
        if indexes:
            self.note_used(group, view)
        topic = view.topic_id, view.name
        self.commit_times.note(group, topic, view.layout.index_count, indexes, 1)

    def note_used(self, group: str, view: View) -> None:
        if view.is_renamed:
            self._names.setdefault(group, {})[view.name] = None

    async def drop_group(self, group: str) -> None:
        self._names.pop(group, None)
        await self._drop(list(self.table.of_group(group)))

    def lane_names_of(self, group: str) -> Sequence[str]:
        return tuple(self._names.get(group, ()))

    def has_offsets(self, group: str) -> bool:
        self.check_tenure(group)
        return self.table.has_group(group)

    def states_of(self, group: str) -> Mapping[StateKey, OffsetState]:
        self.check_tenure(group)
        return self.table.of_group(group)

    def topics_of(self, group: str) -> set[str]:
        return {state.topic_name for state in self.states_of(group).values()}

    async def _drop(self, keys: Sequence[StateKey]) -> None:
        await self.append([record for key in keys for record in self.table.tombstones(key)])
        for key in keys:
            self.table.remove(key)
            self.pushes.forget(key)
            self.late.forget(key)

    cuts = 0

    async def append(self, records: Sequence[JournalRecord]) -> None:
        if records:
            if self.is_journal_down:
                raise UpstreamLost("no ack from the journal")
            self.events.append("journal")
            self.journal += records

    def restarted(self) -> OffsetTable:
        """What a new proxy would load from the journal."""
        table = OffsetTable(partition_count=1)
        for offset, record in enumerate(self.journal):
            table.apply(record.partition, offset, record.key, record.value)
        assert table.finish_load().damaged_count == 0
        return table
