"""The state of one partition that a consumer reads: where it fetches, what waits, what is done."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from keylane.client.progress import PartitionProgress
from keylane.client.records import RecordList
from keylane.client.values import Committed, ConsumerRecord, KeyRanges, TopicPartition
from keylane.errors import KeylaneError
from keylane.wire.extensions import LaneRange

if TYPE_CHECKING:
    from keylane.kernel.fetched import FetchedRecords

EARLIEST: Final = -2
LATEST: Final = -1
"""Timestamps of ListOffsets that stand for the ends of the log."""
MADE_AHEAD: Final = 256
"""Records that are made at once where they are taken one by one."""
COMMITTED: Final = 0
"""In the place of a timestamp: go on where the group is, or as `auto_offset_reset` says."""


@dataclass(slots=True, eq=False)
class Chunk:
    """Records of one answer; those before `row` are given."""

    fields: FetchedRecords
    row: int = 0
    made: Sequence[ConsumerRecord] = ()
    """Records that were made before they are taken one by one, the first at row `made_from`."""
    made_from: int = 0


class Reading:
    """One partition. Its position is known when `progress` is there; `start` has to be found else.

    Invariants: chunks ascend and do not overlap. They end at `fetch_offset`, or answers up to it
    are being read.
    """

    def __init__(
        self,
        part: TopicPartition,
        key_ranges: KeyRanges = (),
        lane: LaneRange | None = None,
        *,
        start: int = COMMITTED,
    ) -> None:
        """key_ranges: `part` is the broker's partition, and these keys of it are read.

        lane: the meaning of `part`, where it is a lane index. start: COMMITTED, EARLIEST, LATEST.
        """
        self.part, self.key_ranges, self.lane = part, key_ranges, lane
        self.log = part if lane is None else TopicPartition(part.topic, lane.partition)
        """The broker's partition, under the name that it is read by."""
        self.start = start
        self.progress: PartitionProgress | None = None
        self.fetch_offset = -1
        self.life = 0
        """Counts seeks: an answer to a request from before is dropped."""
        self.is_paused = False
        self.error: KeylaneError | None = None
        """Raised by the next poll; the partition is not fetched before."""
        self.retry_at_s = 0.0
        self.waiting_bytes = 0
        """Bytes of chunks, and of answers that are being read."""
        self._chunks: deque[Chunk] = deque()
        self._expected: deque[tuple[int, int]] = deque()
        """Of each answer that is being read: the offset behind it, and its bytes."""

    def __repr__(self) -> str:
        return f"<reading {self.part.topic}-{self.part.partition} at {self.fetch_offset}>"

    # -- positions ------------------------------------------------------------------------

    def begin(self, committed: Committed) -> None:
        """Read from what the group has committed."""
        self._set(PartitionProgress(committed.offset, committed.ranges))

    def seek(self, offset: int) -> None:
        """Read from this offset, whatever is done; a commit says so before anything else.

        Also where a group has no offset yet, and be it 0: of ranges alone nothing says where the
        group began, and `auto_offset_reset` would decide once more, over records that are open.
        """
        self._set(PartitionProgress(offset, is_committed=False))

    def lose_position(self, start: int) -> None:
        """Have the position found anew."""
        self._clear()
        self.progress, self.start, self.fetch_offset = None, start, -1

    def pass_to(self, offset: int) -> None:
        """Go on at this offset where the position is below: all before is done by the group."""
        if self.fetch_offset < offset:
            self._clear()
            self.fetch_offset = offset

    def _set(self, progress: PartitionProgress) -> None:
        self._clear()
        self.progress, self.fetch_offset = progress, progress.plain_offset()

    def _clear(self) -> None:
        self.life += 1
        self.error = None
        self.retry_at_s = 0.0
        self._chunks.clear()
        self._expected.clear()
        self.waiting_bytes = 0

    # -- records --------------------------------------------------------------------------

    @property
    def has_records(self) -> bool:
        """Return whether a poll would give records, or the error that is in their place."""
        return not self.is_paused and (bool(self._chunks) or self.error is not None)

    def expect(self, fetch_offset: int, size_bytes: int) -> None:
        """Go on behind an answer whose batches are read in a thread."""
        self.fetch_offset = max(self.fetch_offset, fetch_offset)
        self._expected.append((fetch_offset, size_bytes))
        self.waiting_bytes += size_bytes

    def add(self, fields: FetchedRecords, first: int) -> None:
        """Take the records of an answer to a request for `first`, in the order of the requests.

        Those that are done already are left out.
        """
        assert self.progress is not None, "what is fetched has a position"
        end, last = fields.next_offset, fields.next_offset - 1
        is_short = False
        if self._expected:
            expected, size_bytes = self._expected.popleft()
            self.waiting_bytes -= size_bytes
            is_short = expected != end
        if last >= first:
            wanted = self.progress.wanted(first, last)
            if len(fields) and wanted != [(max(first, self.progress.next_offset), last)]:
                fields = fields.where(_mask(fields.offsets, wanted))
            self._chunks.append(Chunk(fields))
            self.waiting_bytes += fields.size_bytes
            self._pass_gaps()
        if is_short:
            self.go_back(max(first, end))
        else:
            self.fetch_offset = max(self.fetch_offset, end)

    def go_back(self, offset: int) -> None:
        """Fetch from here, as what was expected proved to be less; what is there already stays."""
        self.life += 1
        self.fetch_offset = offset
        self.waiting_bytes -= sum(size for _, size in self._expected)
        self._expected.clear()

    def take(self, count_max: int) -> RecordList | None:
        """Give up to so many records; None: there are none."""
        self._pass_gaps()
        if not self._chunks or self.progress is None:
            return None
        chunk = self._chunks[0]
        fields, start = chunk.fields, chunk.row
        offsets = fields.offsets
        stop = min(start + count_max, len(offsets))
        end = int(offsets[stop]) if stop < len(offsets) else fields.next_offset
        self.progress.given(_as_sequence(offsets[start:stop]), end)
        chunk.row = stop
        if stop == len(offsets):
            self._drop_first()
        return RecordList(self.part, fields, start, stop)

    def take_one(self) -> ConsumerRecord | None:
        """Give the next record; None: there is none."""
        self._pass_gaps()
        if not self._chunks or self.progress is None:
            return None
        chunk = self._chunks[0]
        row, count = chunk.row, len(chunk.fields)
        if not chunk.made_from <= row < chunk.made_from + len(chunk.made):
            stop = min(row + MADE_AHEAD, count)
            chunk.made, chunk.made_from = tuple(RecordList(self.part, chunk.fields, row, stop)), row
        record = chunk.made[row - chunk.made_from]
        chunk.row = row + 1
        is_last = chunk.row == count
        end = chunk.fields.next_offset if is_last else int(chunk.fields.offsets[chunk.row])
        self.progress.given(range(record.offset, record.offset + 1), end)
        if is_last:
            self._drop_first()
        return record

    def _pass_gaps(self) -> None:
        """Move past chunks that have no record left to give."""
        while self._chunks and self.progress is not None:
            chunk = self._chunks[0]
            offsets, floor = chunk.fields.offsets, self.progress.next_offset
            if chunk.row < len(offsets) and offsets[chunk.row] < floor:
                chunk.row = int(offsets.searchsorted(floor))  # passed by the stable offset
            if chunk.row < len(offsets):
                return
            self.progress.skip(floor, chunk.fields.next_offset - 1)
            self._drop_first()

    def _drop_first(self) -> None:
        self.waiting_bytes -= self._chunks.popleft().fields.size_bytes


def _mask(offsets: Any, wanted: Sequence[tuple[int, int]]) -> Any:
    mask = offsets < 0
    for first, last in wanted:
        mask[offsets.searchsorted(first) : offsets.searchsorted(last, side="right")] = True
    return mask


def _as_sequence(offsets: Any) -> Sequence[int]:
    """Return offsets as a range where none is missing: no object for each."""
    first, last = int(offsets[0]), int(offsets[-1])
    if last - first + 1 == len(offsets):
        return range(first, last + 1)
    found: list[int] = offsets.tolist()
    return found
