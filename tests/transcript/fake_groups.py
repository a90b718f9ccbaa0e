"""Offsets of groups in memory, with a list in the place of the journal.

In:    what handlers commit and ask.  Out: states; the records that were appended.
Pure:  no I/O.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from keylane.errors import NotCoordinator, UpstreamLost
from keylane.keyrange.key_split import KeySplit
from keylane.offsets.journal import JournalRecord, StateKey
from keylane.offsets.lane_note import apply_note, read_note
from keylane.offsets.lineage import EpochStart
from keylane.offsets.pushes import Pushes
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.proxy.commit_times import CommitTimes
from keylane.proxy.late_pushes import LatePushes
from keylane.proxy.push_journal import PushJournal
from keylane.proxy.topics import LaneView, View

Place = tuple[str, int]


class FakeGroups:
    """Implements `Groups` as `proxy.groups` does, with a list in the place of Kafka."""

    def __init__(self) -> None:
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
        self._locks: dict[str, asyncio.Lock] = {}
        self._scans: dict[tuple[uuid.UUID, int, KeySplit], ScanIndex] = {}
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

    def note_asked(self, group: str) -> None:
        """Logs are not cut here."""

    async def adopt(
        self,
        group: str,
        view: View,
        partition: int,
        kafka_committed: int | None,
        metadata: str | None = None,
    ) -> OffsetState:
        assert self._locks[group].locked(), "the group's lock is held"
        key = StateKey(group, view.topic_id, partition)
        known = self.table.get(key)
        note = read_note(metadata, view.topic_id, kafka_committed)
        is_noted = note is not None and not note.is_push
        pusher = None if note is None else note.pusher
        state = self.table.recognise(
            key, kafka_committed, self.clock(), is_noted=is_noted, pusher=pusher
        )
        if state is not None:
            return state
        if note is not None and note.is_said:
            note = None
        if kafka_committed is None and (view.topic, partition) in self.leaderless:
            raise UpstreamLost(f"topic {view.topic} partition {partition} has no leader")
        base = self.log_starts.get((view.topic, partition), 0)
        if known is None:
            state = OffsetState(committed=kafka_committed, base=base, topic_name=view.topic)
        else:
            state = known.copy()
            if note is None:
                state.reconcile(kafka_committed, base=base)
        if note is not None:
            apply_note(state, note, self.scan_of(view, partition))
            self.pushes.unsaved.add(key)
        if kafka_committed is not None or known is not None:
            self.table.put(key, state)
        return state

    def concluded_epoch(self, key: StateKey, state: OffsetState) -> EpochStart | None:
        return None

    def scan_of(self, view: View, partition: int) -> ScanIndex:
        key_split = view.key_split(partition)
        key = (view.topic_id, partition, key_split)
        return self._scans.setdefault(key, ScanIndex(key_split))

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

    def note_commits(self, group: str, view: LaneView, indexes: Sequence[int]) -> None:
        if indexes:
            self.note_used(group, view)
        self.commit_times.note(group, view.name, view.layout.index_count, indexes, 1)

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
