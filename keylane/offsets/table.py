"""States that this node serves, kept in step with the journal.

Source: docs/decisions/005, 027, 038, 042.

A commit goes: copy the state, commit on the copy, append `records_before_push`, push its stable
position to Kafka, `put` the copy, append `records`, `mark_saved`. The caller holds the
group's lock from the copy on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from keylane.errors import JournalInvalid
from keylane.offsets.intents import Intents
from keylane.offsets.keyed_ranges import KeyedRange
from keylane.offsets.lineage import EpochStart
from keylane.offsets.records.held import HeldTable
from keylane.offsets.records.journal import (
    EpochKey,
    EpochValue,
    IntentKey,
    IntentValue,
    JournalRecord,
    Key,
    LayoutKey,
    LayoutValue,
    PusherKey,
    PusherValue,
    RangeKey,
    RangeValue,
    StateKey,
    ic_partition,
    read_key,
    read_layout,
    write_key,
    write_value,
)
from keylane.offsets.records.loading import Loading, LoadReport, OrphanKey
from keylane.offsets.state import OffsetState
from keylane.offsets.steps import Steps
from keylane.offsets.values import INDIVIDUAL_COMMITS_MAX, Damaged, OwnerEpoch, Pusher

DAMAGED_LOGGED_MAX: Final = 1000
"""Number of damaged records that are named; the others are counted."""


class OffsetTable:
    """States by (group, topic id, partition), and the pinned layouts of views.

    A damaged record is skipped and counted, never fatal: without its positions a state falls back
    to Kafka's own group offset, without a range the range is read again.
    Invariant: between `mark_saved` and the next `put` the journal holds exactly these states.
    """

    def __init__(
        self, *, partition_count: int, individual_commits_max: int = INDIVIDUAL_COMMITS_MAX
    ) -> None:
        """`partition_count` is that of the journal topic."""
        assert partition_count >= 1, "a journal has partitions"
        self.partition_count = partition_count
        self.individual_commits_max = individual_commits_max
        self._states: dict[str, dict[StateKey, OffsetState]] = {}
        self.intents = Intents()
        self._steps = Steps()
        self._cut_count = 0
        self._written: dict[StateKey, int] = {}
        """The highest `pushed` that the journal may say of a state; -1: none."""
        self._layouts: dict[str, dict[int, LayoutValue]] = {}
        """By view, and by the journal partition that it stands in; the newest counts."""
        self.held = HeldTable()
        """Lanes in the hands of members of KIP-848 groups."""
        self._loading: dict[StateKey, Loading] = {}
        self._orphans: set[OrphanKey] = set()
        self._epochs: dict[StateKey, EpochStart] = {}
        """By state, what the journal says of the log that it was concluded from."""
        self._new_epochs: set[StateKey] = set()
        self.owner: OwnerEpoch | None = None
        """Owner that this process writes and pushes as; None: owners cannot be distinguished."""
        self._pushers: dict[StateKey, Pusher] = {}
        self._new_pushers: set[StateKey] = set()
        self._damaged: list[Damaged] = []
        self._damaged_count = 0

    def __len__(self) -> int:
        return sum(map(len, self._states.values()))

    # -- loading ---------------------------------------------------------------------------

    def apply(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take in one journal record; those of one partition come in the order of the log."""
        try:
            self._apply(partition, offset, key, value)
        except JournalInvalid as error:
            self._note_damaged(Damaged(partition, offset, str(error)))
        except Exception as error:  # noqa: BLE001 - one record must not end a load
            reason = f"a mistake of keylane in reading it, {type(error).__name__}"
            self._note_damaged(Damaged(partition, offset, reason))

    def finish_load(self, *, is_moving: bool = False) -> LoadReport:
        """Make states of what was applied.

        is_moving: others write meanwhile, so states are there, but none is sure.
        """
        for key, loading in self._loading.items():
            self._orphans |= loading.damaged_ranges
            self._steps.note_loaded(key, loading.positions, loading.steps)
            try:
                state = loading.state(self.individual_commits_max, is_moving=is_moving)
            except JournalInvalid as error:
                # Its other steps would be positions of different moments beside each other.
                partition = ic_partition(key.group, self.partition_count)
                self._note_damaged(Damaged(partition, loading.offset, str(error)))
                self._orphans.add(key)
                state = None
            if state is None:
                self._steps.forget(key)
                self._orphans |= loading.orphans(key)
                continue
            dropped = loading.ranges - loading.known_ranges()
            self._orphans |= {RangeKey(key, *item) for item in dropped}
            if loading.epoch is not None:
                self._epochs[key] = loading.epoch
            if loading.pusher is not None:
                self._pushers[key] = loading.pusher
            self.put(key, state)
            self.intents.load(key, loading.intents)
            self._note_written(key, is_sure=True)
        self._loading.clear()
        return LoadReport(
            state_count=len(self),
            range_count=sum(state.range_count for _, state in self.items()),
            damaged_count=self._damaged_count,
            damaged=tuple(self._damaged),
            orphan_count=len(self._orphans),
        )

    def _note_damaged(self, damaged: Damaged) -> None:
        self._damaged_count += 1
        if len(self._damaged) < DAMAGED_LOGGED_MAX:
            self._damaged.append(damaged)

    def take_orphan_tombstones(self) -> list[JournalRecord]:
        """Return the records that delete what is without a state; a second call returns none."""
        # Positions first: without the steps behind them they would be those of an earlier moment.
        orphans = sorted(self._orphans, key=lambda key: not isinstance(key, StateKey))
        self._orphans = set()
        return [self._record(key, None) for key in orphans]

    # -- states ----------------------------------------------------------------------------

    def get(self, key: StateKey) -> OffsetState | None:
        """Return the state, None when the group has none there. Do not change it: copy."""
        return self._states.get(key.group, {}).get(key)

    def put(self, key: StateKey, state: OffsetState) -> None:
        """Put `state` in the place of what was there."""
        self._states.setdefault(key.group, {})[key] = state

    def recognise(
        self,
        key: StateKey,
        found: int | None,
        now_s: float,
        *,
        is_noted: bool = False,
        pusher: Pusher | None = None,
    ) -> OffsetState | None:
        """Return the state in line with Kafka's own offset, if a push of keylane explains it.

        A push of a former owner changes no position: no commit of it was acknowledged.
        is_noted: a transaction's note beside the offset explains it, and no push does.
        pusher: of what was found, as far as its note says so.
        """
        state = self.get(key)
        if is_noted:
            self.intents.note_seen(key, found, now_s)
            return None
        known = self.intents.recognise(key, state, found, now_s)
        if known is None and state is not None and pusher is not None:
            is_back = found is not None and found < (state.pushed or 0)
            if pusher.is_late(self._pushers.get(key), self.owner, is_back=is_back):
                (known := state.copy()).mark_pushed(found)
        if known is not None and known is not state:
            self.put(key, known)
        return known

    def remove(self, key: StateKey) -> None:
        """Forget a state, once the journal has its `tombstones`."""
        self._epochs.pop(key, None)
        self._new_epochs.discard(key)
        self._pushers.pop(key, None)
        self._new_pushers.discard(key)
        self.intents.forget(key)
        self._steps.forget(key)
        self._written.pop(key, None)
        of_group = self._states.get(key.group, {})
        of_group.pop(key, None)
        if not of_group:
            self._states.pop(key.group, None)

    def epoch_of(self, key: StateKey) -> EpochStart | None:
        """The leader epoch before the state's furthest conclusion; None: it is not known."""
        return self._epochs.get(key)

    def note_epoch(self, key: StateKey, seen: EpochStart) -> None:
        """The state was concluded from a log with this epoch; the next `records` say so."""
        known = self._epochs.get(key)
        if known is None or known.epoch != seen.epoch or seen.start < known.start:
            self._epochs[key] = seen
            self._new_epochs.add(key)

    def note_taken(self, key: StateKey, offset: int | None, now_s: float, at_s: int) -> None:
        """Kafka took a push of this owner, at `at_s` seconds since 1970."""
        self.intents.note_taken(key, offset, now_s)
        if self.owner is not None:
            if key not in self._pushers or self._pushers[key].owner != self.owner:
                self._new_pushers.add(key)
            self._pushers[key] = Pusher(self.owner, at_s)

    def groups(self) -> list[str]:
        """Return the groups that have a state, in no order."""
        return list(self._states)

    def of_group(self, group: str) -> dict[StateKey, OffsetState]:
        """Return the states of a group; an own dict, so that states may be removed meanwhile."""
        return dict(self._states.get(group, {}))

    def has_group(self, group: str) -> bool:
        """Return whether the group has any state."""
        return bool(self._states.get(group))

    def items(self) -> Iterator[tuple[StateKey, OffsetState]]:
        """Yield all states."""
        for of_group in self._states.values():
            yield from of_group.items()

    # -- records ---------------------------------------------------------------------------

    def records(
        self,
        key: StateKey,
        *,
        now_ms: int,
        member_id: str = "",
        leader_epoch: int = -1,
        is_whole: bool = False,
    ) -> list[JournalRecord]:
        """Return what the journal lacks of a state, in the order it has to be written in.

        A crash may cut the list anywhere. So what a reset dropped goes first, as its positions
        must not be seen with the old ranges; then puts, then epoch and pusher, which may be too new
        for positions but not too old, then positions, and last the tombstones of ranges that those
        or other ranges have swallowed, and of intents. Positions are one record, whole or a step.
        is_whole: positions are to be as any keylane can read them.
        """
        put = RangeValue(timestamp_ms=now_ms, leader_epoch=leader_epoch, member_id=member_id)
        records = self._state_records(key, put, is_whole=is_whole)
        renewed = self.intents.renew(key, self._states[key.group][key], now_ms)
        return records + [
            self._record(place, None if intent is None else write_value(intent))
            for place, intent in renewed.items()
        ]

    def _state_records(
        self, key: StateKey, put: RangeValue, *, is_whole: bool
    ) -> list[JournalRecord]:
        """Return all but the intents. put: the value of new ranges, with the time of all."""
        state, now_ms = self._states[key.group][key], put.timestamp_ms
        changes = state.unsaved()
        swallowed = [bounds for bounds in changes.tombstones if state.is_committed(*bounds)]
        dropped = [bounds for bounds in changes.tombstones if not state.is_committed(*bounds)]
        records = self._ranges(key, dropped, None)
        if changes.puts:
            records += self._ranges(key, changes.puts, write_value(put))
        if key in self._new_epochs:
            seen = EpochValue(timestamp_ms=now_ms, seen=self._epochs[key])
            records.append(self._record(EpochKey(key), write_value(seen)))
        if key in self._new_pushers:
            owner, at_s = self._pushers[key]
            pusher = PusherValue(timestamp_ms=1000 * at_s, owner=owner)
            records.append(self._record(PusherKey(key), write_value(pusher)))
        if changes.positions:
            entries = self._steps.entries(key, state, now_ms=now_ms, is_whole=is_whole)
            records += [self._record(place, value) for place, value in entries]
            self._note_written(key, is_sure=False)
        return records + self._ranges(key, swallowed, None)

    def records_before_push(
        self, key: StateKey, intent: IntentValue | None, *, now_ms: int
    ) -> list[JournalRecord]:
        """Return what the journal has to hold before a push is sent.

        What it lacks of the state, then the intent. Other intents stay: theirs may have come about.
        """
        records = self._state_records(key, RangeValue(timestamp_ms=now_ms), is_whole=True)
        if intent is not None:
            records.append(self._record(IntentKey(key, intent.after.pushed), write_value(intent)))
        return records

    def lacks_before_push(self, key: StateKey, offset: int) -> bool:
        """Return whether a push of `offset` would look like a step back from the journal's."""
        state = self.get(key)
        return state is not None and offset < self._written.get(key, -1) and bool(state.unsaved())

    def mark_saved(self, key: StateKey) -> None:
        """Note that the last `records` of the state were acknowledged."""
        self._new_epochs.discard(key)
        self._new_pushers.discard(key)
        self.intents.note_saved(key)
        self.mark_written(key)

    def mark_written(self, key: StateKey) -> None:
        """Note that the last `records_before_push` were acknowledged."""
        self._steps.mark_saved(key)
        self._states[key.group][key].mark_saved()
        self._note_written(key, is_sure=True)

    def _note_written(self, key: StateKey, *, is_sure: bool) -> None:
        pushed = self._states[key.group][key].pushed
        written = -1 if pushed is None else pushed
        self._written[key] = written if is_sure else max(written, self._written.get(key, -1))

    def tombstones(self, key: StateKey) -> list[JournalRecord]:
        """Return the records that delete a state from the journal; none when there is none.

        Positions go behind the rest: ranges that a crash leaves behind without them are dropped on
        load, positions that it leaves are merely there still. Steps go last: without the last of
        them positions would be those of an earlier moment.
        """
        state = self.get(key)
        if state is None:
            return []
        rest = self._ranges(key, state.ranges_held(), None)
        rest += [self.tombstone(place) for place in self.intents.stored(key)]
        if key in self._epochs:
            rest.append(self._record(EpochKey(key), None))
        if key in self._pushers:
            rest.append(self._record(PusherKey(key), None))
        rest.append(self._record(key, None))
        return rest + [self._record(step, None) for step in self._steps.given_up(key)]

    def note_cuts(self, count: int) -> None:
        """The journal did not go on where it was left so many times: next records are whole."""
        if count != self._cut_count:
            self._cut_count = count
            self._steps.note_cut()

    def whole_records(self, *, now_ms: int) -> list[JournalRecord]:
        """Return records in the place of those that an older keylane cannot read.

        They count as written: where they cannot be, the table has to be loaded anew.
        """
        found: list[JournalRecord] = []
        for key in self._steps.based():
            state = self._states[key.group][key]
            entries = self._steps.entries(key, state, now_ms=now_ms, is_whole=True)
            found += [self._record(place, value) for place, value in entries]
            self._steps.mark_saved(key)
        return found

    def tombstone(self, place: IntentKey) -> JournalRecord:
        """Return the record that deletes an intent."""
        return self._record(place, None)

    # -- layouts ---------------------------------------------------------------------------

    def layouts(self) -> dict[str, LayoutValue]:
        """Return all pinned layouts by view name; an own dict."""
        return {
            view: max(found.items(), key=lambda item: (item[1].timestamp_ms, item[0]))[1]
            for view, found in self._layouts.items()
        }

    def pin_layout(
        self, view: str, layout: LayoutValue | None, *, partition: int | None = None
    ) -> list[JournalRecord]:
        """Pin a view to a layout, or unpin it with None; return what to append.

        partition: place of the record, for an owner of some partitions only. None: by the view's
        name, as the only node of a cluster keeps it.
        """
        if partition is None:
            partition = ic_partition(view, self.partition_count)
        self._put_layout(view, partition, layout)
        value = None if layout is None else write_value(layout)
        return [JournalRecord(partition, write_key(LayoutKey(view)), value)]

    def unpin_layout(self, view: str) -> list[JournalRecord]:
        """Unpin a view wherever it stands; return what to append."""
        return [
            record
            for partition in list(self._layouts.get(view, ()))
            for record in self.pin_layout(view, None, partition=partition)
        ]

    def layout_records(self, views: Iterable[str]) -> list[JournalRecord]:
        """Return the records of these views once more, of those that are pinned."""
        return [
            JournalRecord(partition, write_key(LayoutKey(view)), write_value(layout))
            for view in views
            for partition, layout in self._layouts.get(view, {}).items()
        ]

    def check(self) -> None:
        """Assert the invariants of the class; tests call it after every step."""
        self.intents.check()
        for group, of_group in self._states.items():
            assert of_group, "an empty group is removed"
            for key, state in of_group.items():
                assert key.group == group
                state.check()

    def _apply(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        if key is None:
            raise JournalInvalid("journal: a record without a key")
        decoded = read_key(key)
        if decoded is None:
            self.held.apply(key, value)
            return
        if isinstance(decoded, LayoutKey):  # in any partition: a node pins it where it may write
            self._put_layout(decoded.view, partition, None)
            if value is not None:
                self._put_layout(decoded.view, partition, read_layout(value))
            return
        if ic_partition(_group_of(decoded), self.partition_count) != partition:
            raise JournalInvalid("journal: belongs to another partition")
        state = decoded if isinstance(decoded, StateKey) else decoded.state
        self._loading.setdefault(state, Loading()).take(decoded, value, offset)

    def _put_layout(self, view: str, partition: int, layout: LayoutValue | None) -> None:
        found = self._layouts.setdefault(view, {})
        found.pop(partition, None)
        if layout is not None:
            found[partition] = layout
        if not found:
            del self._layouts[view]

    def _ranges(
        self, key: StateKey, ranges: Iterable[KeyedRange], value: bytes | None
    ) -> list[JournalRecord]:
        return [self._record(RangeKey(key, *bounds), value) for bounds in ranges]

    def _record(self, key: Key, value: bytes | None) -> JournalRecord:
        partition = ic_partition(_group_of(key), self.partition_count)
        return JournalRecord(partition, write_key(key), value)


def _group_of(key: Key) -> str:
    """Return the group whose hash gives the partition."""
    assert not isinstance(key, LayoutKey), "a layout is of no group"
    return key.group if isinstance(key, StateKey) else key.state.group
