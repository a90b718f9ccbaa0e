"""Values that pass between a partition's log and readers of its lanes.

Source: KIP-98 (aborted list).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple

from keylane.kernel.block import LaneSlice
from keylane.wire.batch import (
    OFFSET_DELTA_MAX,
    drop_empty_batches,
    write_empty_batch,
    write_passed_batch,
)
from keylane.wire.primitives import Buffer

NO_OFFSET: Final = -1
empty_batch: Final = lru_cache(maxsize=256)(write_empty_batch)
"""Empty headers that are kept: lanes that wait together have the same gap, 15 of 16 share one."""


class GapForm(Enum):
    """The form in which an answer moves its client past offsets without a record of the lane."""

    EMPTY = "empty batches, wherever there is a gap"
    CONTROL = "an answer without a record is one empty control batch"
    PASSED = "no empty batch: an answer without a record has one from before the offset asked for"


class Aborted(NamedTuple):
    """An aborted transaction, as far as a block shows it."""

    producer_id: int
    first_offset: int
    marker: int
    """Offset of its abort marker, MARKER_LATER when that lies behind the block."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A scanned region `[start, end)` of the partition, split."""

    start: int
    end: int
    leader_epoch: int
    slices: Sequence[LaneSlice | None]
    """One per lane; None: the lane has neither a record nor a control batch here."""
    aborted: tuple[Aborted, ...] = ()


@dataclass(slots=True, eq=False)
class Claim:
    """A reader of a lane: the position of a client's connection."""

    position: int
    seen_s: float
    is_starved: bool = False
    """True: its last answer had nothing for the lane although there was data upstream."""


class Taken:
    """The coming answer of a lane.

    Written out, not a dataclass: one is made per lane and poll, in half of the time.
    """

    __slots__ = (
        "aborted", "gap_start", "has_records", "is_full", "leader_epoch", "pieces", "position",
        "size_bytes", "start",
    )  # fmt: skip

    def __init__(self, position: int) -> None:
        self.start = position
        """Offset that the client asked for."""
        self.position = position
        """Next offset that the client will ask for."""
        self.pieces: list[Buffer] = []
        self.size_bytes = 0
        self.has_records = False
        self.is_full = False
        """True: a limit was reached, and the next batch does not fit this answer."""
        self.aborted: dict[tuple[int, int], None] = {}
        self.gap_start = NO_OFFSET
        """The pieces end here, if any; nothing of the lane comes before `position`."""
        self.leader_epoch = -1

    def records(self, gap_form: GapForm = GapForm.EMPTY) -> tuple[Buffer, ...]:
        """Return the pieces; a trailing gap is one empty header, so that the client moves past it.

        It must never be dropped: a client without a batch does not advance, and a Spark query fails
        after 120 s.
        gap_form: CONTROL and PASSED may stand for transaction markers too: they end only what is
        aborted in the same answer. With PASSED the next answer begins at the trailing gap.
        """
        if gap_form is not GapForm.EMPTY and not self.has_records and self.position > self.start:
            return (self._gap(is_control=gap_form is GapForm.CONTROL),)
        if gap_form is GapForm.PASSED:
            return tuple(kept for piece in self.pieces for kept in drop_empty_batches(piece))
        if self.gap_start < 0:
            return tuple(self.pieces)
        last_offset = min(self.position - 1, self.gap_start + OFFSET_DELTA_MAX)
        return (*self.pieces, empty_batch(self.gap_start, last_offset, self.leader_epoch))

    def _gap(self, *, is_control: bool) -> bytes:
        """Return the one batch of an answer without a record."""
        start, last_offset = self.start, self.position - 1
        if is_control or start == 0:  # nothing is before offset 0: see `write_passed_batch`
            last_offset = min(last_offset, start + OFFSET_DELTA_MAX)
            return empty_batch(start, last_offset, self.leader_epoch, is_control=is_control)
        last_offset = min(last_offset, start - 1 + OFFSET_DELTA_MAX)
        return write_passed_batch(start - 1, last_offset, self.leader_epoch)
