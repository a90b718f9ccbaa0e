"""Committed progress of one group in one partition: positions of key ranges, and offset ranges.

Source: KIP draft "Cooperative consumer processing semantic", "Individual Commit", "Offset Commit",
"Offset Fetch".

Theory. A stock member commits a position: all records of its key range before it are done. A
member that commits offset ranges says that the records of its keys in them are done. Both meet in
one structure: a position for every key hash, and above it ranges, each for a key range. Inside,
positions follow Kafka (the next offset to read); the KIP draft's stable offset S is inclusive, so
S = stable_position - 1.

A position has two numbers. `offset` is what the member said, `counted` is where it counts as
standing after the ranges and the scanned gaps above it. They are kept apart since a member goes on
to commit the lower one, and that must not look like a move back on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from keylane.keyrange.space import KeyRange
from keylane.offsets.intervals import Range, merge_sorted
from keylane.offsets.keyed_ranges import (
    KeyedEdit,
    KeyedRange,
    covers_all,
)
from keylane.offsets.limits import too_large
from keylane.offsets.positions import PositionMap, move_to
from keylane.offsets.progress import CommittedProgress
from keylane.offsets.scan import ScanIndex
from keylane.offsets.values import (
    INDIVIDUAL_COMMITS_MAX,
    NO_LEADER_EPOCH,
    RANGE_LAST_MAX,
    RANGES_PER_COMMIT_MAX,
    WHOLE,
    Changes,
    CommitError,
    CommitOutcome,
    Position,
    Reconciled,
    is_below,
)


class OffsetState(CommittedProgress):
    """Committed progress of one (group, topic id, partition).

    Use: copy, commit and settle on the copy, push its `stable_position` to Kafka with the caller's
    member id and generation, and only when Kafka took it `mark_pushed`, put the copy in the
    state's place and append its `unsaved()` to the journal. A refused push leaves no trace. When
    the append fails the copy stays: Kafka has its stable offset, and the next append repeats it.
    """

    __slots__ = ("hash_tag", "individual_commits_max", "pushed", "topic_name")

    def __init__(
        self,
        *,
        committed: int | None,
        base: int = 0,
        topic_name: str = "",
        individual_commits_max: int = INDIVIDUAL_COMMITS_MAX,
        hash_tag: str = "",
    ) -> None:
        """Start from Kafka's own group offset.

        committed: Kafka's committed offset; None: the group has none there.
        base: without a commit, where members are assumed to start. The log start offset is always
        right; a higher one must be known to be where the lowest member starts.
        hash_tag: of the `KeyHash` by which keys have positions.
        """
        start = base if committed is None else committed
        self.topic_name, self.hash_tag = topic_name, hash_tag
        self.individual_commits_max = individual_commits_max
        self.pushed = committed
        """Kafka's own group offset as last seen or set; None: none there."""
        super().__init__(Position(start, start, committed=committed is not None))

    @classmethod
    def restore(
        cls,
        *,
        positions: PositionMap,
        ranges: Iterable[KeyedRange],
        pushed: int | None,
        topic_name: str = "",
        individual_commits_max: int = INDIVIDUAL_COMMITS_MAX,
        hash_tag: str = "",
        knows_keys: bool = False,
    ) -> OffsetState:
        """Rebuild a state from journal records.

        Ranges that the stable offset has passed, or that a crash left beside their merged form,
        become tombstones of `unsaved()`.
        knows_keys: the record of positions says that there are ranges of some keys only.
        """
        state = cls(
            committed=pushed,
            topic_name=topic_name,
            individual_commits_max=individual_commits_max,
            hash_tag=hash_tag,
        )
        state._positions = positions.copy()
        state._unsaved.positions = False
        if knows_keys:
            state._unsaved.note_has_keys()
        for item in sorted(set(ranges)):
            # A stored range counts as saved: only its difference to the merged form does not.
            edit = state._unsaved.note(state._ranges.add(item.first, item.last, item.key_range))
            state._unsaved.note_stored(item, is_held=item in edit.added)
        state._raise_and_prune()
        return state

    def drop_ranges(self, key_ranges: Iterable[KeyRange]) -> tuple[KeyedRange, ...]:
        """Drop and return the ranges of these keys, at any offset."""
        return self._unsaved.note(self._ranges.remove_from(0, key_ranges)).removed

    def note_dropped(self, stored: Iterable[KeyedRange]) -> None:
        """Note while loading ranges that the journal holds, and that do not count any more."""
        for item in stored:
            self._unsaved.note_stored(item, is_held=False)

    def copy(self) -> OffsetState:
        """Return an independent copy: positions and ranges are shared until one side changes."""
        other: OffsetState = OffsetState.__new__(OffsetState)
        other.topic_name, other.pushed = self.topic_name, self.pushed
        other.hash_tag = self.hash_tag
        other.individual_commits_max = self.individual_commits_max
        other._positions, other._ranges = self._positions.copy(), self._ranges.copy()
        other._unsaved, other._stable_position = self._unsaved.copy(), self._stable_position
        return other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetState) and (
            (self.topic_name, self.hash_tag, self.pushed, self._positions, self._ranges)
            == (other.topic_name, other.hash_tag, other.pushed, other._positions, other._ranges)
        )

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return (
            f"OffsetState(stable_offset={self.stable_offset}, pushed={self.pushed}, "
            f"positions={len(self._positions)}, ranges={len(self._ranges)})"
        )

    # -- commits -------------------------------------------------------------------------

    def commit_keys(
        self,
        key_ranges: Sequence[KeyRange],
        offset: int,
        metadata: str | None = None,
        leader_epoch: int = NO_LEADER_EPOCH,
        scan: ScanIndex | None = None,
        *,
        reset: bool = False,
    ) -> CommitOutcome:
        """Take a plain commit: all records of `key_ranges` before `offset` are done.

        A member that goes back below everything that was said for its range before does so on
        purpose: offset ranges from there on are dropped, as their offsets are wanted again. A
        commit between the positions of a range's parts raises the parts behind it, and leaves
        those ahead: after a change of lanes their records are merely read a second time.
        reset: the commit comes from no member (generation -1, empty member id), so it is an
        admin's, and means all of the range: parts of it that are ahead go back as well.
        """
        if offset < 0:
            return CommitOutcome(CommitError.INVALID, self.stable_offset)
        error = too_large(self._positions, key_ranges, metadata)
        if error is not None:
            return CommitOutcome(error, self.stable_offset)
        pieces = self._pieces(key_ranges)
        goes_back = is_below(pieces, offset, reset=reset)
        was_committed = any(piece.committed for piece in pieces)
        back_from = min(p.counted for p in pieces) if goes_back and was_committed else None
        here = Position(
            offset, offset, committed=True, metadata=metadata, leader_epoch=leader_epoch
        )

        def moved(_lo: int, _hi: int, old: Position) -> Position:
            if goes_back or (not old.committed and offset < old.offset):
                return here
            if old.committed and offset < old.offset:
                return old
            return here if old.counted <= offset else here._replace(counted=old.counted)

        if goes_back:
            self._unsaved.note(self._ranges.remove_from(offset, key_ranges))
        for key_range in key_ranges:
            self._update(key_range.lo, key_range.hi, moved)
            if scan is not None or self._ranges:
                self._settle(key_range, scan)
        self._prune()
        return CommitOutcome(CommitError.NONE, self.stable_offset, back_from=back_from)

    def commit_ranges(
        self,
        ranges: Sequence[Range],
        key_ranges: Sequence[KeyRange] = (WHOLE,),
        scan: ScanIndex | None = None,
    ) -> CommitOutcome:
        """Take a commit of inclusive offset ranges: their records of these keys are done.

        An entry wholly behind S is answered with TOO_OLD, and the others are taken all the same.
        An entry that was committed before is ignored and reported in `duplicates`. One behind the
        positions of its keys is ignored: whether it was committed, or has no record of them, is
        not known any more.
        TOO_MANY_RANGES: also of fewer ranges of many key ranges, which keep them one by one.
        MAX_REACHED: nothing is taken, there would be more ranges than `individual_commits_max`, or
        too many key ranges that have some.
        """
        kept_max = max(RANGES_PER_COMMIT_MAX, self.individual_commits_max)
        if len(ranges) > RANGES_PER_COMMIT_MAX or len(ranges) * len(key_ranges) > kept_max:
            return CommitOutcome(CommitError.TOO_MANY_RANGES, self.stable_offset)
        if any(not 0 <= first <= last <= RANGE_LAST_MAX for first, last in ranges):
            return CommitOutcome(CommitError.INVALID, self.stable_offset)
        error = too_large(self._positions, key_ranges, None)
        if error is not None:
            return CommitOutcome(error, self.stable_offset)
        stable_before = self.stable_position
        cells, fresh, duplicates = list(self._cells(key_ranges)), list[Range](), list[Range]()
        lowest = min((here for here, _ in cells), default=stable_before)
        for first, last in ranges:
            if last < lowest:
                continue
            if all(covers_all(sets, max(first, here), last) for here, sets in cells):
                duplicates.append((first, last))
            else:
                fresh.append((max(first, stable_before), last))
        if not self._take_ranges(merge_sorted(sorted(fresh)), key_ranges, scan):
            return CommitOutcome(CommitError.MAX_REACHED, self.stable_offset)
        too_old = any(last < stable_before for _, last in ranges)
        error = CommitError.TOO_OLD if too_old else CommitError.NONE
        return CommitOutcome(error, self.stable_offset, duplicates=tuple(duplicates))

    def _take_ranges(
        self, fresh: Sequence[Range], key_ranges: Sequence[KeyRange], scan: ScanIndex | None
    ) -> bool:
        """Add ranges, and lead positions through them; False: there would be too many."""
        draft, edits, passed_count = self._ranges.copy(), list[KeyedEdit](), 0
        for key_range in key_ranges:
            edits.append(draft.add_all(fresh, key_range))
            start = min(piece.counted for piece in self._pieces((key_range,)))
            of_keys = draft.of(key_range)
            passed_count += of_keys is not None and of_keys.skip(start) > start
        if len(draft) - passed_count > max(self.individual_commits_max, len(self._ranges)):
            return False
        if not draft.is_bounded:
            return False
        self._ranges = draft
        for edit in edits:
            self._unsaved.note(edit)

        for key_range in key_ranges:
            self._settle(key_range, scan, says=True)
        self._prune()
        return True

    def rehash(self, hash_tag: str) -> None:
        """Go over to another key hash: all keys begin again at the stable position."""
        start, committed = self.stable_position, self._positions.is_committed
        self.hash_tag, self._unsaved.positions = hash_tag, True
        self._move(move_to(Position(start, start, committed=committed)))

    # -- Kafka's own offset, deletions, retention -------------------------------------------

    def reconcile(self, kafka_committed: int | None, *, base: int = 0) -> Reconciled:
        """Take over what Kafka's own group offset says when another client has moved it.

        Forward: a direct consumer committed, or a push was not journaled before a crash; what is
        below moves up. Back: a reset, everything starts there again. Gone: expired or deleted,
        nothing is committed any more and `base` is assumed, as in the constructor.
        """
        if kafka_committed == self.pushed:
            return Reconciled.EQUAL
        before, self.pushed = self.pushed, kafka_committed
        self._unsaved.positions = True
        if kafka_committed is None:
            self._restart(base, committed=False)
            return Reconciled.GONE
        if before is not None and kafka_committed < before:
            self._restart(kafka_committed, committed=True)
            return Reconciled.BACK
        self.raise_to(Position(kafka_committed, kafka_committed, committed=True))
        return Reconciled.FORWARD

    def reset(self, offset: int) -> None:
        """Let an admin set all keys to `offset`, those ahead of it as well; ranges are dropped."""
        self._restart(offset, committed=True)

    def raise_to(self, here: Position, key_range: KeyRange = WHOLE) -> None:
        """Take in that Kafka has `key_range` committed up to `here`; what is beyond stays."""

        def raised(_lo: int, _hi: int, old: Position) -> Position:
            if not old.committed:  # an assumed base gives way, also when it is higher
                return here
            return old if old.offset >= here.offset else here.counted_to(old.counted)

        self._move(raised, key_range)

    def assume(self, key_range: KeyRange, base: int) -> None:
        """Let the uncommitted part of `key_range` start at `base`: its member is known to."""
        here = Position(base, base, committed=False)
        self._move(lambda _lo, _hi, old: old if old.committed else here, key_range)

    def delete_lane(self, key_range: KeyRange, *, base: int) -> None:
        """Forget the commit of a lane (OffsetDelete); it is assumed to start again at `base`."""
        self._unsaved.note(self._ranges.remove_from(base, (key_range,)))
        self._move(move_to(Position(base, base, committed=False)), key_range)

    def cut(self, end: int) -> bool:
        """Another log goes on at `end`: what was concluded beyond it counts no more.

        What members said stays, as it does at Kafka: their clients find out that their offset is
        of another log, and begin where `auto.offset.reset` says. True when something moved.
        """
        dropped = self._unsaved.note(self._ranges.remove_from(end, (WHOLE,)))
        return self._move(lambda _lo, _hi, old: old.cut_at(end)) or bool(dropped.removed)

    def advance_log_start(self, log_start_offset: int) -> bool:
        """Move everything below the log start up to it; True when something moved."""
        return self._move(lambda _lo, _hi, old: old.led_to(log_start_offset))

    def conclude(self, end: int) -> None:
        """Let everything count up to `end`; what was said, or is assumed, stays."""
        self._move(lambda _lo, _hi, old: old.counted_to(end))

    # -- bookkeeping ------------------------------------------------------------------------

    def mark_pushed(self, position: int | None) -> None:
        """Remember that Kafka's own group offset now is `position`; None: there is none."""
        if position != self.pushed:
            self.pushed = position
            self._unsaved.positions = True

    def unsaved(self) -> Changes:
        """Return what the journal lacks, which may be written from now on; see `mark_saved`."""
        return self._unsaved.report(has_keys=self.has_key_ranges)

    def ranges_held(self) -> list[KeyedRange]:
        """Return every range that the journal may hold a record of, to delete them all."""
        return sorted(self._unsaved.held(self._ranges))

    def mark_saved(self) -> None:
        """Remember that the journal holds everything that `unsaved()` has returned.

        Nothing may have changed in between: the caller holds the group's lock.
        """
        self._unsaved.saved()
