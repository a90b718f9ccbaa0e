"""Offsets of groups on lanes: states in memory, in step with the journal in Kafka.

In:    what handlers commit and ask, what readers have scanned.  Out: `OffsetState`s.
Source: docs/decisions/005, 022, 026, 027, 030.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

from keylane.config.node import ProxyConfig
from keylane.errors import NotCoordinator, UpstreamLost
from keylane.journal.openings import make_journal, opened_at_start
from keylane.journal.owned import (
    GroupLock,
    Holding,
    InTime,
    Journal,
    Open,
    OwnedTables,
    PreparedLock,
)
from keylane.journal.ownership import Alone, Tenure
from keylane.journal.set_aside import SetAside
from keylane.journal.store import APPEND_TIMEOUT_S, JournalStore
from keylane.offsets.intents import Unanswered
from keylane.offsets.lineage import EpochStart, Lineages, Place
from keylane.offsets.pushes import Pushes
from keylane.offsets.records.journal import FORMAT, LayoutValue, StateKey, ic_partition, state_key
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.adoption import Adoption
from keylane.proxy.commits.commit_times import CommitTimes
from keylane.proxy.commits.lane_names import LaneNames
from keylane.proxy.commits.late_pushes import LatePushes
from keylane.proxy.commits.layouts import Layouts
from keylane.proxy.commits.log_checks import LogChecks
from keylane.proxy.commits.log_ends import EARLIEST, LATEST, LogEnds
from keylane.proxy.commits.push_journal import PushJournal
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.nodes.lone_seat import SEAT_COUNT, LoneSeat
from keylane.proxy.scans.known_scans import Scans
from keylane.proxy.scans.waits import ScanWaits
from keylane.proxy.topics.registry import LaneView, View

log = logging.getLogger("keylane.groups")

ALONE: Final = Alone()
LOCK_WAIT_S: Final = 10.0
"""One answer of a broker may take so long under the lock; clients give up later (30 s)."""


class GroupOffsets:
    """Implements `apis.context.Groups`.

    The only node of a cluster has all states in one table, as long as it is the only one. One
    among many has those of the journal partitions that it owns, each in a table of its own, and
    only while it owns them.
    Invariant: a state in a table is changed under its group's lock only, by putting another
    in its place.
    """

    def __init__(
        self,
        config: ProxyConfig,
        cluster: Cluster,
        *,
        wall_clock: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        tenure: Tenure = ALONE,
        append_timeout_s: float = APPEND_TIMEOUT_S,
        on_append: Callable[[int, float, bool], None] = lambda *_: None,
        set_aside: SetAside | None = None,
    ) -> None:
        """Nothing is asked of Kafka before `start`.

        wall_clock: gives seconds since 1970, for the timestamps of journal records.
        tenure: which groups this node may serve at a moment; `Alone`: all, as the only node.
        on_append: called after each write to the journal with its records, seconds, and success.
        set_aside: keeps the journal's damaged records.
        """
        self._config, self._cluster, self.clock = config, cluster, clock
        self._store, self._opener = make_journal(
            config, cluster, options=cluster.links.client_options, wall_clock=wall_clock,
            append_timeout_s=append_timeout_s, on_append=on_append, set_aside=set_aside,
            writes_steps=lambda: self.writes_steps,
        )  # fmt: skip
        self.writes_steps = not config.journal_whole and config.node is None
        """Whether the journal may have what a keylane from before steps cannot read."""
        self._tenure = tenure
        self._wall_clock = wall_clock
        self._table: OffsetTable | None = None
        self._owned: OwnedTables | None = None
        self._held_back: str | None = None
        self.layouts = Layouts(config, cluster.registry)
        self.pushes = Pushes()
        self.commit_times = CommitTimes()
        self._locks: WeakValueDictionary[str, GroupLock] = WeakValueDictionary()
        self.lineages = Lineages()
        self.scans = Scans(self.lineages)
        self._log_ends = LogEnds(cluster)
        self._checks = LogChecks(self._log_ends.ask, self.lineages, clock=time.monotonic)
        cluster.on_leader.append(self._note_leader)
        self._lane_names = LaneNames()
        self._unanswered = Unanswered()
        self.late = LatePushes()
        self.scan_waits: ScanWaits | None = None
        """Set where there are other nodes."""
        self._adoption = Adoption(
            self._table_of, self.log_start, checks=self._checks, scans=self.scans,
            pushes=self.pushes, late=self.late, clock=clock,
            individual_commits_max=config.individual_commits_max,
        )  # fmt: skip

    async def start(self) -> None:
        """Load the journal, creating it if need be; pin layouts.

        One node of many reads all of it for the layouts only: states are loaded with the partitions
        that it owns, when they are asked for. The only node owns them as one.
        Raises: UpstreamLost; ConfigInvalid, when lanes changed under groups that have offsets.
        """
        commits_max = self._config.individual_commits_max
        if isinstance(self._tenure, Alone):
            self._table = await self._store.start(individual_commits_max=commits_max)
            self._note_loaded(self._table)
            self.layouts.start(self._table)
            return
        if isinstance(self._tenure, LoneSeat):
            await self._start_lone()
            return
        table = await self._store.read(individual_commits_max=commits_max)
        self.layouts.start(table)
        count = table.partition_count
        self._owned = self._make_owned(
            lambda partition: self._opener.open_one(partition, partition_count=count), count
        )

    def hold_back(self, reason: str) -> None:
        """Refuse all groups on lanes until `start` has ended well; for the only node."""
        self._held_back = reason
        self._owned = self._make_owned(lambda _seat: self._opener.open_all(0), SEAT_COUNT)

    async def _start_lone(self) -> None:
        """Open the journal as one, and load it now."""
        count = await self._store.prepare()
        self._owned = self._make_owned(lambda _seat: self._opener.open_all(count), SEAT_COUNT)
        self.layouts.start((await opened_at_start(self._owned)).table)
        self._held_back = None

    def _make_owned(self, open_partition: Open, count: int) -> OwnedTables:
        return OwnedTables(
            self._tenure,
            open_partition,
            partition_count=count,
            on_loaded=self._note_loaded,
            on_dropped=self._forget_partition,
        )

    @property
    def partition_count(self) -> int:
        """Of the journal."""
        return (self._owned or self._loaded).partition_count

    async def stop(self) -> None:
        """Flush and close."""
        if self._owned is not None:
            await self._owned.stop()
        await self._store.stop()

    # What readers have seen.
    def on_scanned(self, block: ScannedBlock) -> None:
        """A reader has looked at a block of a partition."""
        place = (block.topic_id, block.partition)
        if self.scans.contradicts(block):
            # Where it was cut is not known: scans begin anew, states ask the leader.
            self.scans.truncate(*place, 0)
            self._checks.note_unsure(self._states_at(place))
            self.pushes.note_cut(*place)  # what was pushed may be of the log before
        self.scans.note(block)
        key = (*place, block.key_split)
        scan = self.scans.known(key)
        if self.late:
            self.late.note_scanned(key, scan, self.scans.log_start_of(place))
        if self.scan_waits is not None:
            self.scan_waits.note(key, scan)

    def _note_leader(self, place: Place, leader_epoch: int) -> None:
        self._checks.note_leader(place, leader_epoch)
        self.scans.note_leader(place, leader_epoch)

    def on_truncated(self, topic_id: uuid.UUID, partition: int, end: int) -> None:
        """A partition's log was cut at `end` by a new leader."""
        self.scans.truncate(topic_id, partition, end)
        # Put right when the group's lock is held next, before anybody is answered by them.
        cut = [key for key, _ in self._states_at((topic_id, partition))]
        # A first commit that is under way is in no table yet.
        busy = [group for group, lock in self._locks.items() if lock.locked()]
        self._checks.note_cut([*cut, *(StateKey(g, topic_id, partition) for g in busy)], end)
        self.pushes.note_cut(topic_id, partition)

    def lock(self, group: str, wait_s: float | None = LOCK_WAIT_S) -> PreparedLock:
        """Held while offsets of a group are read or changed: one at a time, in order.

        Entering it loads what is not loaded, and brings states in line with logs that were cut.
        wait_s: for the lock, and for a load; GroupBusy then. Raises: NotCoordinator, UpstreamLost.
        """
        if self._held_back is not None:
            raise NotCoordinator(self._held_back)
        lock = self._locks.get(group) or self._locks.setdefault(group, GroupLock())
        owned = self._owned
        held = InTime(lock, wait_s) if owned is None else owned.hold(group, lock, wait_s)
        return PreparedLock(held, partial(self.repair, group))

    async def repair(self, group: str) -> None:
        """Bring states in line with cut logs; the lock is held. Raises: NotCoordinator."""
        self._checks.note_led(self.states())
        if self._checks.waits(group):
            await self._checks.repair(group, self._table_of(group))
            for key, state in self.states_of(group).items():
                self.late.note_loaded(key, state)

    async def ready(self, group: str) -> None:
        """For who looks at a group without its lock: its states can be asked for on return.

        Raises: NotCoordinator, UpstreamLost.
        """
        if self._held_back is not None:
            raise NotCoordinator(self._held_back)
        if self._owned is not None:
            await self._owned.ready(group)

    def lacks(self, group: str) -> bool:
        """Whether the group's states are this node's, and would be loaded with its next call."""
        owned = self._owned if self._held_back is None else None
        return owned is not None and owned.lacks(group)

    def note_asked(self, group: str) -> None:
        """A client is about to be answered where the group's lanes stand; the lock comes next."""
        table = self._table if self._owned is None else self._owned.find(group)
        if table is not None:  # what is not loaded yet is compared with its log then
            self._checks.note_asked(group, table)

    @property
    def sees_ends(self) -> bool:
        """Whether the end of each transaction passes this node: there is no other."""
        return self._owned is None or isinstance(self._tenure, LoneSeat)

    def check_tenure(self, group: str) -> None:
        """Right before something of a state is sent. Raises: NotCoordinator."""
        if self._owned is not None:
            self._owned.check(group)

    def note_readers(self, formats: Iterable[int]) -> None:
        """Nodes have said which format of the journal each can read (`journal.FORMAT`)."""
        self.writes_steps = not self._config.journal_whole and min(formats) >= FORMAT

    def drop_lost(self) -> None:
        """Nodes have dealt out the journal anew: forget at once what others may change now."""
        if self._owned is not None:
            self._owned.drop_lost()

    def state_of(self, group: str, view: View, partition: int) -> OffsetState | None:
        """The state of a group on a partition; not to be changed, copy it. None: it has none.

        Raises: NotCoordinator.
        """
        return self._table_of(group).get(state_key(group, view.topic_id, partition))

    def has_state(self, key: StateKey) -> bool:
        """Whether the group has one, as far as this node serves it and has loaded it."""
        table = self._loaded if self._owned is None else self._owned.find(key.group)
        return table is not None and table.get(key) is not None

    def is_unsure(self, group: str, view: View, partition: int) -> bool:
        """Whether the leader was away, and only what members said is known to be of its log."""
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
        return await self._adoption.adopt(group, view, partition, kafka_committed, metadata)

    def states(self) -> Iterator[tuple[StateKey, OffsetState]]:
        """All states that are loaded, of all groups; not to be changed."""
        if self._owned is not None:
            for table in self._owned.tables():
                yield from table.items()
        elif self._table is not None:
            yield from self._table.items()

    def holdings(self) -> list[Holding]:
        """What this node owns and has loaded; none beside others that are not seen."""
        return [] if self._owned is None else self._owned.holdings()

    def scan_of(self, view: View, partition: int) -> ScanIndex:
        """What has been scanned of a partition's log; not to be added to."""
        return self.scans.known((view.topic_id, partition, view.key_split(partition)))

    def sure_scan(self, key: StateKey, view: View) -> ScanIndex:
        """What is sure to be of a state's log: nothing, until its leader has been asked."""
        scan = self.scan_of(view, key.partition)
        return ScanIndex(scan.key_split) if self._checks.is_unchecked(key) else scan

    def lead_on(self, state: OffsetState, key: StateKey, view: View) -> None:
        """Move a state by all that is known: where the log begins, and what was scanned."""
        self.scans.raise_to_log_start((key.topic_id, key.partition), state, state)
        state.settle(self.sure_scan(key, view))

    async def wait_scanned(self, group: str, lanes: Iterable[tuple[View, int, int]]) -> None:
        """Wait a moment for scans by other nodes of what is being committed; alone, not at all.

        lanes: view, index, and the offset to be committed.
        """
        if self.scan_waits is not None:
            table = self._table if self._owned is None else self._owned.find(group)
            await self.scan_waits.until_known(group, lanes, table, self.scan_of)

    async def save(self, group: str, states: Sequence[tuple[View, int, OffsetState]]) -> None:
        """Put states in place, write what is new to the journal and wait for the ack.

        Raises: UpstreamLost; the states are in place all the same, and saved with the next ones.
        Among many nodes their partition is loaded anew then, as it is after NotCoordinator.
        """
        now_ms, is_whole = int(self._wall_clock() * 1000), not self.writes_steps
        records, keys = [], []
        table, journal = self._changed(group)
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
        seat = None if self._owned is None else ic_partition(group, table.partition_count)
        pins = self.layouts.pin(table, layouts, seat)
        try:
            await journal.append([*pins, *records])
            if journal.cuts != cuts:  # what these go on from may be gone: whole they stand alone
                table.note_cuts(journal.cuts)
                each = (table.records(key, now_ms=now_ms, is_whole=is_whole) for key in keys)
                await journal.append([record for records in each for record in records])
        except (UpstreamLost, NotCoordinator):
            self.layouts.unpin(layouts)
            raise
        except asyncio.CancelledError:  # the client is gone, and may have been the last to commit
            for key, (_, _, state) in zip(keys, states, strict=True):
                self.late.note_loaded(key, state)
            raise
        for key in keys:
            table.mark_saved(key)
            self.pushes.unsaved.discard(key)

    def concluded_epoch(self, key: StateKey, state: OffsetState) -> EpochStart | None:
        """The leader epoch before the furthest conclusion of a state; None: it is not known.

        Raises: NotCoordinator.
        """
        seen = None
        if not self._checks.is_unchecked(key):
            seen = self.lineages.of((key.topic_id, key.partition)).before(state.concluded_end)
        return self._table_of(key.group).epoch_of(key) if seen is None else seen

    def may_come_late(self, key: StateKey) -> bool:
        """Whether a push without an answer may still come into effect. Raises: NotCoordinator."""
        return self._table_of(key.group).intents.may_come_late(key, self.clock())

    def push_journal(self, group: str) -> PushJournal:
        """For pushes to Kafka's own offsets; the group's lock is held. Raises: NotCoordinator."""
        return PushJournal(
            *self._changed(group),
            self.concluded_epoch,
            wall_clock=self._wall_clock,
            clock=self.clock,
        )

    def note_used(self, group: str, view: View) -> None:
        """The broker has taken a commit of the group under this name."""
        if view.is_renamed:
            self._lane_names.note(group, view.name)

    def note_commits(self, group: str, view: LaneView, indexes: Sequence[int]) -> None:
        """Lanes were committed just now: for who looks at the group."""
        if indexes:
            self.note_used(group, view)
        topic, now_ms = (view.topic_id, view.name), int(self._wall_clock() * 1000)
        self.commit_times.note(group, topic, view.layout.index_count, indexes, now_ms)

    async def drop(self, group: str, places: Sequence[tuple[View, int]]) -> None:
        """Delete the group's states on partitions. Raises: UpstreamLost, NotCoordinator."""
        keys = [StateKey(group, view.topic_id, part) for view, part in places]
        await self.drop_states(group, keys)

    async def drop_group(self, group: str) -> None:
        """Delete all states of a group. Raises: UpstreamLost, NotCoordinator."""
        self._lane_names.forget(group)
        table, _ = self._changed(group)
        await self.drop_states(group, list(table.of_group(group)))

    async def drop_states(self, group: str, keys: Sequence[StateKey]) -> None:
        """Delete states. Raises: UpstreamLost, NotCoordinator."""
        table, journal = self._changed(group)
        await journal.append([record for key in keys for record in table.tombstones(key)])
        for key in keys:
            table.remove(key)
            self.pushes.forget(key)
            self.late.forget(key)
            self._checks.forget(key)
        self.commit_times.keep(group, {key.topic_id for key in table.of_group(group)})

    def states_of(self, group: str) -> Mapping[StateKey, OffsetState]:
        """All states of a group; not to be changed. Raises: NotCoordinator."""
        return self._table_of(group).of_group(group)

    def topics_of(self, group: str) -> set[str]:
        """Topics, by their own names, of `states_of`. Raises: NotCoordinator."""
        return {state.topic_name for state in self.states_of(group).values()}

    def has_offsets(self, group: str) -> bool:
        """Whether the group has offsets of lanes anywhere."""
        return self._table_of(group).has_group(group)

    def still_has_offsets(self, group: str) -> bool:
        """As `has_offsets`; not where another node serves the group."""
        table = self._table if self._owned is None else self._owned.find(group)
        return table is not None and table.has_group(group)

    def lane_names_of(self, group: str) -> Sequence[str]:
        """Lane names that the group has used since the start."""
        return self._lane_names.of(group)

    async def log_start(self, view: View, partition: int) -> int:
        """The partition's first offset, of its leader. Raises: UpstreamLost."""
        return await self._log_ends.offset_at(view, partition, EARLIEST)

    async def log_end(self, view: View, partition: int) -> int:
        """The partition's high watermark, of its leader. Raises: UpstreamLost."""
        return await self._log_ends.offset_at(view, partition, LATEST)

    # What is loaded.
    def _note_loaded(self, table: OffsetTable) -> None:
        """States are to be checked, and other nodes may have pinned layouts since the start."""
        self._checks.note_unsure(table.items())
        table.intents.share(self._unanswered)
        for key, state in table.items():
            self.late.note_loaded(key, state)
            if table.intents.may_come_late(key, self.clock()):
                self.late.note_unanswered(key)
        self.layouts.note_loaded(table)

    def _forget_partition(self, partition: int) -> None:
        owned = self._owned
        assert owned is not None, "start comes first"
        count = owned.partition_count
        self.pushes.forget_where(lambda key: ic_partition(key.group, count) == partition)
        for each in (self._checks, self.late):
            each.forget_where(lambda group: ic_partition(group, count) == partition)

    # Inside.
    @property
    def _loaded(self) -> OffsetTable:
        assert self._table is not None, "start comes first"
        return self._table

    def _table_of(self, group: str) -> OffsetTable:
        """Where the group's states are. Raises: NotCoordinator."""
        return self._loaded if self._owned is None else self._owned.table(group)

    def _changed(self, group: str) -> tuple[OffsetTable, Journal | JournalStore]:
        """Where changes go that were begun in time. Raises: NotCoordinator."""
        if self._owned is None:
            return self._loaded, self._store
        holding = self._owned.changed(group)
        return holding.table, holding.journal

    def _states_at(self, place: Place) -> list[tuple[StateKey, OffsetState]]:
        return [item for item in self.states() if (item[0].topic_id, item[0].partition) == place]
