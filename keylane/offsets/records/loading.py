"""Records of one state that a load has read so far, in any order, and findings of all.

Source: docs/decisions/005, 038.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from keylane.errors import JournalInvalid
from keylane.offsets.keyed_ranges import KeyedRange
from keylane.offsets.lineage import EpochStart
from keylane.offsets.records.journal import (
    EpochKey,
    IntentKey,
    IntentValue,
    PositionsValue,
    PusherKey,
    RangeKey,
    StateKey,
    StepKey,
    read_epoch,
    read_intent,
    read_positions,
    read_pusher,
    read_range,
)
from keylane.offsets.state import OffsetState
from keylane.offsets.steps import StepValue, read_step, walked
from keylane.offsets.values import Damaged, Pusher

OrphanKey = StateKey | RangeKey | EpochKey | StepKey | PusherKey
"""Of records that are to be deleted, as they are of no state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """Findings of a load."""

    state_count: int
    range_count: int
    damaged_count: int
    damaged: tuple[Damaged, ...]
    """The first of them, with their places."""
    orphan_count: int
    """Ranges without a state: a crash before the first positions record, or a damaged one."""


@dataclass(slots=True)
class Loading:
    """Of each key the last record, as it would be after a compaction."""

    positions: PositionsValue | None = None
    offset: int = 0
    """Of the last record of positions."""
    steps: dict[int, StepValue | None] = field(default_factory=dict)
    """By number; None: it is damaged."""
    ranges: set[KeyedRange] = field(default_factory=set)
    damaged_ranges: set[RangeKey] = field(default_factory=set)
    epoch: EpochStart | None = None
    pusher: Pusher | None = None
    intents: dict[int | None, IntentValue] = field(default_factory=dict)

    def take(self, key: OrphanKey | IntentKey, value: bytes | None, offset: int) -> None:
        """Take in a record that stands at `offset`. Raises: JournalInvalid, and it is not there."""
        match key:
            case StateKey():
                self.positions, self.offset = None, offset
                if value is not None:
                    self.positions = read_positions(value)
            case StepKey():
                self._take_step(key, value)
            case RangeKey():
                self._take_range(key, value)
            case EpochKey():
                self.epoch = None
                if value is not None:
                    self.epoch = read_epoch(value).seen
            case PusherKey():
                self.pusher = None
                if value is not None:
                    found = read_pusher(value)
                    self.pusher = Pusher(found.owner, found.timestamp_ms // 1000)
            case IntentKey():
                self._take_intent(key, value)

    def state(self, individual_commits_max: int, *, is_moving: bool) -> OffsetState | None:
        """Make the state; None: it has no positions. Raises: JournalInvalid."""
        if self.positions is None:
            return None
        positions, pushed = walked(self.positions, self.steps, is_moving=is_moving)
        return OffsetState.restore(
            positions=positions,
            ranges=self.known_ranges(),
            pushed=pushed,
            topic_name=self.positions.topic_name,
            hash_tag=self.positions.hash_tag,
            individual_commits_max=individual_commits_max,
            knows_keys=self.positions.has_key_ranges,
        )

    def known_ranges(self) -> set[KeyedRange]:
        """Return ranges that the positions stand beside.

        Positions without a word of key ranges were written by a keylane that does not know them,
        under which the group may have been reset: what is of some keys only is dropped then.
        """
        if self.positions is None:
            return set()
        if self.positions.has_key_ranges:
            return self.ranges
        return {item for item in self.ranges if item.is_whole}

    def orphans(self, key: StateKey) -> set[OrphanKey]:
        """Return entries without positions to stand beside."""
        found: set[OrphanKey] = {RangeKey(key, *item) for item in self.ranges}
        found |= {StepKey(key, number) for number in self.steps}
        if self.epoch is not None:
            found.add(EpochKey(key))
        if self.pusher is not None:
            found.add(PusherKey(key))
        return found

    def _take_step(self, key: StepKey, value: bytes | None) -> None:
        self.steps.pop(key.number, None)
        if value is not None:
            self.steps[key.number] = None
            self.steps[key.number] = read_step(value)

    def _take_range(self, key: RangeKey, value: bytes | None) -> None:
        self.ranges.discard(key.range)
        self.damaged_ranges.discard(key)
        if value is None:
            return
        try:
            read_range(value)
        except JournalInvalid:
            self.damaged_ranges.add(key)
            raise
        self.ranges.add(key.range)

    def _take_intent(self, key: IntentKey, value: bytes | None) -> None:
        self.intents.pop(key.offset, None)
        if value is None:
            return
        intent = read_intent(value)
        if intent.after.pushed != key.offset:
            raise JournalInvalid("journal: an intent of another offset")
        self.intents[key.offset] = intent
