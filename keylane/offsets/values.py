"""The values that commits of offsets are made of: errors, positions, outcomes, and their bounds.

Source: KIP draft "Cooperative consumer processing semantic", "New Exceptions"; Kafka protocol
guide, "Error Codes".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.offsets.intervals import Range
from keylane.offsets.keyed_ranges import KeyedRange

NO_OFFSET: Final = -1
"""OffsetFetch's answer for "no commit"; the client then applies its own reset policy."""
NO_LEADER_EPOCH: Final = -1
INDIVIDUAL_COMMITS_MAX: Final = 100_000
"""Default of `max.individual.commits`: 1.6 MB of bounds; the KIP draft names no number."""
OFFSET_MAX: Final = 2**63 - 1
RANGE_LAST_MAX: Final = OFFSET_MAX - 1
"""The offset behind a committed range is a position, which has to fit into 64 bits."""
RANGES_PER_COMMIT_MAX: Final = 65_536
"""1 MiB, Kafka's default request size, by 16 bytes per range."""
POSITION_COUNT_MAX: Final = 8_192
"""Bound on intervals of the hash space: 8 times the most lanes a partition can have."""
METADATA_BYTES_MAX: Final = 4_096
"""Kafka's default of `offset.metadata.max.bytes`."""
METADATA_SUM_BYTES_MAX: Final = 512 * 1024
"""Bound of all metadata of a state, so that its journal record stays below 1 MB."""
ON_ITS_WAY_S_MAX: Final = 600
"""Of a push: as long as a broker hangs that comes back, or a connection is given up."""
WHOLE: Final = KeyRange(lo=0, hi=HASH_MAX)


class Damaged(NamedTuple):
    """A record of one of keylane's own topics that cannot be taken."""

    partition: int
    offset: int
    reason: str
    """Without anything that the record says in text."""


class OwnerEpoch(NamedTuple):
    """The producer epoch with which an owner writes to its journal partition: each has its own."""

    producer_id: int
    epoch: int


class Pusher(NamedTuple):
    """Owner and time of a push of a stable offset."""

    owner: OwnerEpoch
    at_s: int
    """Since 1970, by that owner's clock."""

    def is_overtaken(self, last: Pusher | None) -> bool:
        """Return whether the owner of `last` had taken over, when Kafka took this one behind it.

        Ids of producers are in no order. What was made long before has been kept, and put back.
        """
        return (
            last is not None
            and self.owner.producer_id == last.owner.producer_id
            and self.owner.epoch < last.owner.epoch
            and last.at_s - self.at_s <= ON_ITS_WAY_S_MAX
        )

    def is_late(self, last: Pusher | None, owner: OwnerEpoch | None, *, is_back: bool) -> bool:
        """Return whether it came behind a push of the next owner, or a later one of the same owner.

        The last two of an owner that died may change places before `owner` has pushed at all.
        Forward such a push counts. Back it is a step that had an intent, or it came late.
        """
        if self.is_overtaken(last):
            return True
        now = None if owner is None else Pusher(owner, (last or self).at_s)
        return is_back and self.is_overtaken(now)


class CommitError(Enum):
    """Reason for which a commit was not taken, and the Kafka code for a stock client."""

    NONE = (0, 0)
    TOO_OLD = (91, 0)
    """INDIVIDUAL_COMMIT_TOO_OLD; a stock client is answered with success: nothing of it is lost."""
    MAX_REACHED = (92, 27)
    """MAX_INDIVIDUAL_COMMIT_REACHED; REBALANCE_IN_PROGRESS makes stock members join again."""
    NOT_ALLOWED = (88, 42)
    """INDIVIDUAL_COMMIT_NOT_ALLOWED: the operator's switch is off."""
    INVALID = (42, 42)
    """INVALID_REQUEST: a negative offset, or a range whose end is before its start."""
    TOO_MANY_RANGES = (10, 10)
    """MESSAGE_TOO_LARGE: more than RANGES_PER_COMMIT_MAX ranges in one commit."""
    METADATA_TOO_LARGE = (12, 12)
    """OFFSET_METADATA_TOO_LARGE, as Kafka answers it."""

    def __init__(self, draft_code: int, error_code: int) -> None:
        self.draft_code = draft_code
        """Number in the KIP draft; 91 and 92 mean other things in today's Kafka."""
        self.error_code = error_code
        """Code for the ErrorCode field of a stock client."""


class Reconciled(Enum):
    """Kafka's own group offset compared with what was last pushed there."""

    EQUAL = "equal"
    FORWARD = "forward"
    BACK = "back"
    GONE = "gone"


class Position(NamedTuple):
    """Progress on an interval of the hash space. A named tuple, as each commit makes several."""

    offset: int
    """Committed offset; on an uncommitted interval the base it is assumed to start at."""
    counted: int
    """Next offset that a member has to commit: never below `offset`."""
    committed: bool
    """False: the group never committed here, so OffsetFetch must not answer a position."""
    metadata: str | None = None
    leader_epoch: int = NO_LEADER_EPOCH

    def cut_at(self, end: int) -> Position:
        """Return the position once another log goes on at `end`: what was said stays."""
        offset = self.offset if self.committed else min(self.offset, end)
        return self._replace(offset=offset, counted=max(offset, min(self.counted, end)))

    def counted_to(self, end: int) -> Position:
        """Return the position once nothing before `end` is left to be committed."""
        return self if self.counted >= end else self._replace(counted=end)

    def led_to(self, log_start_offset: int) -> Position:
        """Return the position once nothing stands before `log_start_offset`."""
        if self.counted >= log_start_offset:
            return self
        offset = self.offset if self.committed else log_start_offset
        return self._replace(offset=offset, counted=log_start_offset)


def is_below(positions: Iterable[Position], offset: int, *, reset: bool) -> bool:
    """Return whether a commit of `offset` sends what stands at `positions` back."""
    # An admin goes by `counted`, which OffsetFetch has shown, and wants all of the range from there
    # on, also where parts of it differ.
    if reset:
        return offset < max(position.counted for position in positions)
    # `offset`, not `counted`: a member goes on to commit below what was scanned ahead of it.
    return offset < min(position.offset for position in positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePosition:
    """Answer of OffsetFetch for a lane."""

    offset: int
    leader_epoch: int
    metadata: str


NOT_COMMITTED: Final = LanePosition(offset=NO_OFFSET, leader_epoch=NO_LEADER_EPOCH, metadata="")


def lane_position(pieces: Sequence[Position]) -> LanePosition:
    """Return the start of a member that takes over `pieces`; see `OffsetState.position_of`."""
    if not any(piece.committed for piece in pieces):
        return NOT_COMMITTED
    lowest = min(pieces, key=lambda piece: (piece.counted, not piece.committed))
    exact = lowest.committed and lowest.offset == lowest.counted
    return LanePosition(
        offset=lowest.counted,
        leader_epoch=lowest.leader_epoch if exact else NO_LEADER_EPOCH,
        metadata=lowest.metadata or "",
    )


class CommitOutcome(NamedTuple):
    """Outcome of one commit."""

    error: CommitError
    stable_offset: int
    """S after the commit, inclusive: the LastStableOffset field of the answer."""
    back_from: int | None = None
    """Position of a committed range that this commit sends back on purpose; None: none."""
    duplicates: tuple[Range, ...] = ()
    """Entries that were committed before: no error, worth a warning in the log."""


class Changes(NamedTuple):
    """Changes that the journal does not hold yet."""

    positions: bool
    puts: tuple[KeyedRange, ...]
    tombstones: tuple[KeyedRange, ...]

    def __bool__(self) -> bool:
        return self.positions or bool(self.puts) or bool(self.tombstones)
