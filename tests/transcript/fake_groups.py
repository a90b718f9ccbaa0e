"""The real states of groups, with a list in the place of the journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from keylane.errors import NotCoordinator, UpstreamLost
from keylane.journal.lone import LoneTable
from keylane.journal.owned import Appender, GroupLock, InTime
from keylane.offsets.lineage import EpochEnd
from keylane.offsets.records.held import HeldLanes
from keylane.offsets.records.journal import JournalRecord
from keylane.offsets.scan import ScanIndex
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import INDIVIDUAL_COMMITS_MAX
from keylane.proxy.commits.group_states import GroupStates
from keylane.proxy.commits.layouts import Layouts
from keylane.proxy.commits.log_ends import SILENT, LogEnds, Question
from keylane.proxy.topics.view import View

Place = tuple[str, int]


class FakeTables(LoneTable):
    """One table, of which another node may have taken groups."""

    def __init__(self, journal: Appender) -> None:
        super().__init__(journal)
        self.of_others: set[str] = set()
        self.not_loaded: set[str] = set()
        self.locks: dict[str, GroupLock] = {}
        self.is_of_held = False
        """Lanes in hand are written without the group's lock."""

    def check(self, group: str) -> None:
        if group in self.of_others:
            raise NotCoordinator(f"group {group} is another node's")

    def hold(self, group: str, lock: GroupLock, wait_s: float | None = None) -> InTime:
        self.check(group)
        self.locks[group] = lock
        return super().hold(group, lock, wait_s)

    async def ready(self, group: str) -> None:
        self.check(group)
        self.not_loaded.discard(group)

    def lacks(self, group: str) -> bool:
        return group in self.not_loaded

    def table(self, group: str) -> OffsetTable:
        self.check(group)
        return super().table(group)

    def find(self, group: str) -> OffsetTable | None:
        return None if group in self.of_others else super().find(group)

    def changed(self, group: str) -> tuple[OffsetTable, Appender]:
        assert self.is_of_held or self.locks[group].locked(), "the group's lock is held"
        return super().changed(group)


class FakeLogEnds(LogEnds):
    """Leaders of logs without epochs."""

    def __init__(self) -> None:
        self.log_starts: dict[Place, int] = {}
        self.leaderless: set[Place] = set()

    async def ask(self, questions: Iterable[Question]) -> dict[Question, EpochEnd]:
        led = (each for each in questions if (each.topic, each.partition) not in self.leaderless)
        return dict.fromkeys(led, SILENT)

    async def offset_at(self, view: View, partition: int, timestamp: int) -> int:
        if (view.topic, partition) in self.leaderless:
            raise UpstreamLost(f"topic {view.topic} partition {partition} has no leader")
        return self.log_starts.get((view.topic, partition), 0)


class FakeGroups(GroupStates):
    """Is its own journal."""

    cuts = 0

    def __init__(self, layouts: Layouts, clock: Callable[[], float]) -> None:
        self.journal: list[JournalRecord] = []
        self.is_journal_down = False
        self.events: list[str] = []
        self.owned, ends = FakeTables(self), FakeLogEnds()
        self.of_others, self.not_loaded = self.owned.of_others, self.owned.not_loaded
        """Groups that another node serves, and those whose states are to be loaded yet."""
        self.log_starts, self.leaderless = ends.log_starts, ends.leaderless
        """Partitions' first offsets, and those whose leader cannot be asked."""
        super().__init__(
            self.owned, layouts, ends, individual_commits_max=INDIVIDUAL_COMMITS_MAX,
            clock=clock, wall_clock=lambda: 0.001,
        )  # fmt: skip
        self.owned.load(OffsetTable(partition_count=1))

    @property
    def table(self) -> OffsetTable:
        """The states of all groups, also those of another node."""
        (table,) = self.owned.tables()
        return table

    def lose(self, group: str) -> None:
        """Another node serves the group from now on."""
        self.of_others.add(group)
        self.pushes.forget_where(lambda key: key.group == group)

    def lose_leader(self, topic: str, partition: int) -> None:
        """A partition has another leader, which cannot be asked."""
        self.leaderless.add((topic, partition))
        self._checks.note_unsure(self.states())

    def scan(self, view: View, partition: int) -> ScanIndex:
        """What was scanned of a partition, to add to."""
        return self.scans.of(view.partition_split(partition))

    async def append(self, records: Sequence[JournalRecord]) -> None:
        if records:
            if self.is_journal_down:
                raise UpstreamLost("no ack from the journal")
            self.events.append("journal")
            self.journal += records

    async def save_held(self, group: str, changes: Mapping[str, HeldLanes | None]) -> None:
        before, self.owned.is_of_held = self.owned.is_of_held, True
        try:
            await super().save_held(group, changes)
        finally:
            self.owned.is_of_held = before

    def restarted(self) -> OffsetTable:
        """What a new proxy would load from the journal."""
        table = OffsetTable(partition_count=1)
        for offset, record in enumerate(self.journal):
            table.apply(record.partition, offset, record.key, record.value)
        assert table.finish_load().damaged_count == 0
        return table
