"""States of groups on lanes, as commits, scans and cut logs change them.

Source: docs/decisions/005, 022, 026, 027, 030.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from keylane.errors import KeylaneError
from keylane.journal.lone import LoneTable
from keylane.journal.owned import GroupLock, OwnedTables, PreparedLock
from keylane.offsets.intents import Unanswered
from keylane.offsets.lineage import EpochStart, Lineages, PartitionKey
from keylane.offsets.pushes import Pushes
from keylane.offsets.records.held import HeldLanes, HeldTable
from keylane.offsets.records.journal import LayoutValue, StateKey, ic_partition, state_key
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.proxy.commits.adoption import Adoption
from keylane.proxy.commits.lane_uses import CommitTimes, LaneNames
from keylane.proxy.commits.late_pushes import LatePushes
from keylane.proxy.commits.layouts import Layouts
from keylane.proxy.commits.log_checks import LogChecks
from keylane.proxy.commits.log_ends import EARLIEST, LATEST, LogEnds
from keylane.proxy.commits.push_journal import PushJournal
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.scans.known_scans import Scans
from keylane.proxy.scans.waits import ScanWaits
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.groups")

LOCK_WAIT_S: Final = 10.0
"""Bound on one answer of a broker under the lock; clients give up later (30 s)."""


class GroupStates:
    """Offsets of groups; the journal and the leaders are given.

    Invariant: a state in a table is changed under its group's lock only, by putting another
    in its place.
    """

    def __init__(
        self,
        tables: OwnedTables | LoneTable,
        layouts: Layouts,
        log_ends: LogEnds,
        *,
        individual_commits_max: int,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """wall_clock: gives seconds since 1970, for the timestamps of journal records."""
        self.tables, self._log_ends = tables, log_ends
        self.layouts = layouts
        """Names of lanes that groups have offsets by."""
        self.clock, self._wall_clock = clock, wall_clock
        self.writes_steps = True
        """True: the journal may have steps, which an older keylane cannot read."""
        self.sees_ends = True
        """True: the end of each transaction passes this node, as there is no other."""
        self.pushes = Pushes()
        """Offsets of Kafka that a transaction may be about to change."""
        self.late = LatePushes()
        """Stable offsets that could stand further, were it known what lies behind them."""
        self.commit_times = CommitTimes()
        self.lineages = Lineages()
        self.scans = Scans(self.lineages)
        self.scan_waits: ScanWaits | None = None
        """Set where there are other nodes."""
        self._locks: WeakValueDictionary[str, GroupLock] = WeakValueDictionary()
        self._checks = LogChecks(log_ends.ask, self.lineages, clock=clock)
        self._lane_names = LaneNames()
        self._unanswered = Unanswered()
        self._adoption = Adoption(
            table_of=self._table_of, log_start=self.log_start, checks=self._checks,
            scans=self.scans, pushes=self.pushes, late=self.late,
            individual_commits_max=individual_commits_max,
        )  # fmt: skip

    # News from readers.
    def on_scanned(self, block: ScannedBlock) -> None:
        """A reader has looked at a block of a partition."""
        key, place = block.at, block.at.place
        if self.scans.contradicts(block):
            # The place of the cut is not known: scans begin anew, states ask the leader.
            self.scans.on_truncated(*place, 0)
            self._checks.note_unsure(self._states_at(place))
            self.pushes.note_cut(*place)  # what was pushed may be of the log before
        self.scans.note(block)
        scan = self.scans.known(key)
        if self.late:
            self.late.note_scanned(key, scan, self.scans.log_start_of(place))
        if self.scan_waits is not None:
            self.scan_waits.note(key, scan)

    def note_leader(self, place: PartitionKey, leader_epoch: int) -> None:
        """A partition has a later leader epoch than was known."""
        self._checks.note_leader(place, leader_epoch)
        self.scans.note_leader(place, leader_epoch)

    def on_truncated(self, topic_id: uuid.UUID, partition: int, end: int) -> None:
        """A partition's log was cut at `end` by a new leader."""
        self.scans.on_truncated(topic_id, partition, end)
        # Put right when the group's lock is held next, before they answer a client.
        cut = [key for key, _ in self._states_at((topic_id, partition))]
        # A first commit that is under way is in no table yet.
        busy = [group for group, lock in self._locks.items() if lock.locked()]
        self._checks.note_cut([*cut, *(StateKey(g, topic_id, partition) for g in busy)], end)
        self.pushes.note_cut(topic_id, partition)

    def lock(self, group: str, wait_s: float | None = LOCK_WAIT_S) -> PreparedLock:
        """Return the lock under which offsets of a group are read or changed: in order.

        Entering it loads what is not loaded, and brings states in line with logs that were cut.
        wait_s: for the lock, and for a load; GroupBusy then. Raises: NotCoordinator, UpstreamLost.
        """
        lock = self._locks.get(group) or self._locks.setdefault(group, GroupLock())
        return PreparedLock(self.tables.hold(group, lock, wait_s), partial(self.repair, group))

    async def ready(self, group: str) -> None:
        """Load the states of a group that is looked at without its lock.

        Raises: NotCoordinator, UpstreamLost.
        """
        await self.tables.ready(group)

    def lacks(self, group: str) -> bool:
        """Return whether the group is this node's, and its next call would load it."""
        return self.tables.lacks(group)

    async def repair(self, group: str) -> None:
        """Bring states in line with cut logs; the lock is held. Raises: NotCoordinator."""
        self._checks.note_led(self.states())
        if self._checks.waits(group):
            await self._checks.repair(group, self._table_of(group))
            for key, state in self.states_of(group).items():
                self.late.note_loaded(key, state)

    def note_asked(self, group: str) -> None:
        """A client is about to be answered where the group's lanes stand; the lock comes next."""
        table = self.tables.find(group)
        if table is not None:  # what is not loaded yet is compared with its log then
            self._checks.note_asked(group, table)

    def check_ownership(self, group: str) -> None:
        """Call right before something that was made of a state is sent to the broker.

        Raises: NotCoordinator, when another node may have changed the state since.
        """
        self.tables.check(group)

    def state_of(self, group: str, view: View, partition: int) -> OffsetState | None:
        """Return the state of a group on a partition; do not change it, copy it. None: none.

        Raises: NotCoordinator.
        """
        table, key = self._table_of(group), state_key(group, view.topic_id, partition)
        state = table.get(key)
        if state is None or state.hash_tag == view.hash_tag(partition):
            return state
        state = state.copy()
        state.rehash(view.hash_tag(partition))
        table.put(key, state)
        log.warning(
            "lanes begin again at the stable offset, as the hash of keys has changed "
            "group=%s topic=%s partition=%d offset=%d",
            group, view.topic, partition, state.stable_position,
        )  # fmt: skip
        return state

    def has_state(self, key: StateKey) -> bool:
        """Return whether the group has one, if this node serves the group and has loaded it."""
        table = self.tables.find(key.group)
        return table is not None and table.get(key) is not None

    def is_unsure(self, group: str, view: View, partition: int) -> bool:
        """Return whether the leader was away: only offsets that members sent are of its log."""
        return self._checks.is_unchecked(StateKey(group, view.topic_id, partition))

    async def adopt(
        self,
        group: str,
        view: View,
        partition: int,
        kafka_committed: int | None,
        metadata: str | None = None,
    ) -> OffsetState:
        """The state, brought in line with Kafka's own group offset; not to be changed.

        metadata: of that offset; what a transaction committed of lanes stands there.
        Raises: UpstreamLost, when the partition's leader has to be asked, and does not answer;
        NotCoordinator.
        """
        self.state_of(group, view, partition)  # what a note says is of the hash as it is now
        state = await self._adoption.adopt(group, view, partition, kafka_committed, metadata)
        if state.hash_tag == view.hash_tag(partition):
            return state
        # A push from before the change of the hash has arrived, and is in the table.
        return self.state_of(group, view, partition) or state

    def states(self) -> Iterator[tuple[StateKey, OffsetState]]:
        """Yield the loaded states of all groups; not to be changed."""
        for table in self.tables.tables():
            yield from table.items()

    def scan_of(self, view: View, partition: int) -> ScanIndex:
        """Return the scanned part of a partition's log; not to be added to."""
        return self.scans.known(view.partition_split(partition))

    def sure_scan(self, key: StateKey, view: View) -> ScanIndex:
        """Return the scans that are of a state's log: none, until its leader has been asked."""
        scan = self.scan_of(view, key.partition)
        return ScanIndex(scan.key_split) if self._checks.is_unchecked(key) else scan

    def lead_on(self, state: OffsetState, key: StateKey, view: View) -> None:
        """Move a state by all that is known: where the log begins, and what was scanned."""
        self.scans.raise_to_log_start((key.topic_id, key.partition), state, state)
        state.settle(self.sure_scan(key, view))

    async def wait_scanned(self, group: str, lanes: Iterable[tuple[View, int, int]]) -> None:
        """Wait a moment for other nodes' scans of what is being committed; alone, not at all.

        lanes: view, index, and the offset to be committed.
        """
        if self.scan_waits is not None:
            table = self.tables.find(group)
            await self.scan_waits.until_known(group, lanes, table, self.scan_of)

    async def save(self, group: str, states: Sequence[tuple[View, int, OffsetState]]) -> None:
        """Put states in place, write what is new to the journal and wait for the ack.

        Raises: UpstreamLost; the states are in place all the same, and saved with the next ones.
        Among many nodes their partition is loaded anew then, as it is after NotCoordinator.
        """
        now_ms, is_whole = self.now_ms(), not self.writes_steps
        records, keys = [], []
        table, journal = self.tables.changed(group)
        table.note_cuts(cuts := journal.cuts)
        layouts: dict[str, LayoutValue] = {}
        for view, partition, state in states:
            key = state_key(group, view.topic_id, partition)
            self.scans.raise_to_log_start((view.topic_id, partition), state, table.get(key))
            table.put(key, state)
            if (seen := self.concluded_epoch(key, state)) is not None:
                table.note_epoch(key, seen)
            layouts |= self.layouts.unpinned(view, now_ms)
            records += table.records(key, now_ms=now_ms, is_whole=is_whole)
            keys.append(key)
        by_group = self.tables.pins_by_group
        seat = ic_partition(group, table.partition_count) if by_group else None
        pins = self.layouts.pin(table, layouts, seat)
        try:
            await journal.append([*pins, *records])
            if journal.cuts != cuts:  # their base may be gone: whole records need none
                table.note_cuts(journal.cuts)
                each = (table.records(key, now_ms=now_ms, is_whole=is_whole) for key in keys)
                await journal.append([record for records in each for record in records])
        except KeylaneError:
            self.layouts.unpin(layouts)
            raise
        except BaseException:  # cancelled: the client is gone, and may have been the last to commit
            for key, (_, _, state) in zip(keys, states, strict=True):
                self.late.note_loaded(key, state)
            raise
        for key in keys:
            table.mark_saved(key)
            self.pushes.unsaved.discard(key)

    def held_table(self, group: str) -> HeldTable:
        """Return the lanes in the hands of members of KIP-848 groups. Raises: NotCoordinator."""
        return self._table_of(group).held

    async def save_held(self, group: str, changes: Mapping[str, HeldLanes | None]) -> None:
        """Write lanes in the hands of members, by identity, and wait for the ack.

        Raises: UpstreamLost; NotCoordinator.
        """
        if changes:
            table, journal = self.tables.changed(group)
            now_ms = self.now_ms()
            await journal.append(table.held.changed(group, changes, table.partition_count, now_ms))

    def now_ms(self) -> int:
        """Return the time in ms since 1970."""
        return int(self._wall_clock() * 1000)

    def concluded_epoch(self, key: StateKey, state: OffsetState) -> EpochStart | None:
        """Return the leader epoch before the furthest conclusion of a state; None: not known.

        One older than the last batch would be cut for nothing: its end is below the position.

        Raises: NotCoordinator.
        """
        seen = None
        if not self._checks.is_unchecked(key):
            seen = self.lineages.of((key.topic_id, key.partition)).before(state.concluded_end)
        return self._table_of(key.group).epoch_of(key) if seen is None else seen

    def may_come_late(self, key: StateKey) -> bool:
        """Return whether a push without an answer may still take effect. Raises: NotCoordinator."""
        return self._table_of(key.group).intents.may_come_late(key, self.clock())

    def push_journal(self, group: str) -> PushJournal:
        """For pushes to Kafka's own offsets; the group's lock is held. Raises: NotCoordinator."""
        changed = self.tables.changed(group)
        return PushJournal(*changed, self.concluded_epoch, self._wall_clock, self.clock)

    def note_used(self, group: str, view: View) -> None:
        """The broker has taken a commit of the group under this name."""
        if view.is_renamed:
            self._lane_names.note(group, view.name)

    def note_commits(self, group: str, view: View, indexes: Sequence[int]) -> None:
        """Lanes were committed just now: for descriptions of the group."""
        if indexes:
            self.note_used(group, view)
        topic, now_ms = (view.topic_id, view.name), self.now_ms()
        self.commit_times.note(group, topic, view.layout.index_count, indexes, now_ms)

    async def drop(self, group: str, places: Sequence[tuple[View, int]]) -> None:
        """Delete the group's states on partitions. Raises: UpstreamLost, NotCoordinator."""
        keys = [StateKey(group, view.topic_id, part) for view, part in places]
        await self.drop_states(group, keys)

    async def drop_group(self, group: str) -> None:
        """Delete all states of a group. Raises: UpstreamLost, NotCoordinator."""
        self._lane_names.forget(group)
        table, _ = self.tables.changed(group)
        await self.drop_states(group, list(table.of_group(group)))
        await self.save_held(group, dict.fromkeys(table.held.of_group(group)))

    async def drop_states(self, group: str, keys: Sequence[StateKey]) -> None:
        """Delete states. Raises: UpstreamLost, NotCoordinator."""
        table, journal = self.tables.changed(group)
        await journal.append([record for key in keys for record in table.tombstones(key)])
        for key in keys:
            table.remove(key)
            self.pushes.forget(key)
            self.late.forget(key)
            self._checks.forget(key)
        self.commit_times.keep(group, {key.topic_id for key in table.of_group(group)})

    def states_of(self, group: str) -> Mapping[StateKey, OffsetState]:
        """Return all states of a group; not to be changed. Raises: NotCoordinator."""
        return self._table_of(group).of_group(group)

    def topics_of(self, group: str) -> set[str]:
        """Topics, by their own names, of `states_of`. Raises: NotCoordinator."""
        return {state.topic_name for state in self.states_of(group).values()}

    def has_offsets(self, group: str) -> bool:
        """Return whether the group has offsets of lanes. Raises: NotCoordinator."""
        return self._table_of(group).has_group(group)

    def still_has_offsets(self, group: str) -> bool:
        """Do what `has_offsets` does; False if another node serves the group."""
        table = self.tables.find(group)
        return table is not None and table.has_group(group)

    def lane_names_of(self, group: str) -> Sequence[str]:
        """Lane names that the group has used since the start."""
        return self._lane_names.of(group)

    async def log_start(self, view: View, partition: int) -> int:
        """Return the partition's first offset, of its leader. Raises: UpstreamLost."""
        return await self._log_ends.offset_at(view, partition, EARLIEST)

    async def log_end(self, view: View, partition: int) -> int:
        """Return the partition's high watermark, of its leader. Raises: UpstreamLost."""
        return await self._log_ends.offset_at(view, partition, LATEST)

    def load(self, table: OffsetTable) -> None:
        """Serve what the journal holds, as the only table."""
        assert isinstance(self.tables, LoneTable), "owned tables load themselves"
        self.tables.load(table)
        self._note_loaded(table)

    def _note_loaded(self, table: OffsetTable) -> None:
        """Have states checked, and take in layouts that other nodes pinned since the start."""
        self._checks.note_unsure(table.items())
        table.intents.share(self._unanswered)
        for key, state in table.items():
            self.late.note_loaded(key, state)
            if table.intents.may_come_late(key, self.clock()):
                self.late.note_unanswered(key)
        self.layouts.note_loaded(table)

    def _table_of(self, group: str) -> OffsetTable:
        """Return the table of the group's states. Raises: NotCoordinator."""
        return self.tables.table(group)

    def _states_at(self, place: PartitionKey) -> list[tuple[StateKey, OffsetState]]:
        return [item for item in self.states() if (item[0].topic_id, item[0].partition) == place]
