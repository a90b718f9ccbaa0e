"""One partition for its lanes: slices that wait in memory, and ranges known to be empty.

Source: docs/docs/decisions/004 and 007; KIP-74 (limits), KIP-98 (aborted list).

Theory. A lane is a row of runs over offsets. A run is either *held* (a slice waits there) or a
*gap* (scanned, and the lane has nothing there). Offsets of no run are *unread*: never scanned,
evicted, or sent already. A reader that stands on one needs a read from upstream. Runs begin and end
where source batches do; an empty header may stand across two, and so may a batch that was joined.

A block is in hand between `insert` and `settle`: lanes that wait take from it, also a slice that
is larger than the cache. What is left is then offered to the cache, or dropped.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from keylane.cache.lane import NO_CLAIMS, Lane, Run
from keylane.cache.lane_values import NO_OFFSET, Block, Claim, Taken
from keylane.cache.slice_cache import SliceCache
from keylane.kernel.block import LaneSlice
from keylane.wire.primitives import Buffer

MARKER_LATER: Final = 2**63 - 1
"""Marker offset of a transaction whose abort marker lies behind the block."""


class LaneLog:
    """The lanes of one partition under one layout and isolation level. Single-threaded.

    `head` is the end of the furthest block, NO_OFFSET before the first. Lanes that had no record
    and no reader so far know the same gaps, and are one object: most of 1,024 lanes of a name that
    a client has chosen stay so.
    Invariants: those of its lanes; only held runs are in the cache; between `settle` and the
    next `insert` every held run is; `_rest` has gaps only and no claims, all others are in `_own`.
    """

    __slots__ = ("_cache", "_in_hand", "_own", "_rest", "head", "lanes")

    def __init__(self, lane_count: int, cache: SliceCache) -> None:
        self._cache = cache
        self._in_hand: list[tuple[Run, Block]] = []
        self.head = NO_OFFSET
        self._rest = Lane(cache)
        """Every lane that had neither a record nor a reader."""
        self._own: list[Lane] = []
        """The other lanes, in no order."""
        self.lanes = [self._rest] * lane_count
        """Lanes by number; not to be changed."""

    def claim(self, lane: int, cursor_id: str, offset: int, now_s: float) -> Claim:
        """Note that a client's connection reads `lane` and stands at `offset`."""
        runs = self.lanes[lane]
        if runs is self._rest:
            runs = self._part(lane)
        claim = runs.claims.get(cursor_id)
        if claim is None:
            if not runs.claims:
                runs.claims = {}
            claim = runs.claims[cursor_id] = Claim(offset, now_s)
            runs.unclaimed_s, runs.is_abandoned = None, False
        else:
            if claim.position != offset:
                claim.is_starved = False
            claim.position, claim.seen_s = offset, now_s
        return claim

    def release(self, cursor_id: str) -> None:
        """End the claims of a connection.

        Slices wait on where it was the only one, as its successor may want them; elsewhere those
        leave that all others have passed.
        """
        for lane in self._own:
            if lane.claims.pop(cursor_id, None) is not None:
                lane.forget_passed()

    def expire_claims(self, seen_before_s: float) -> None:
        """End the claims of connections that have not asked for the lane since.

        Slices that all remaining claims have passed are forgotten: an ended claim kept them.
        So are slices that wait for a lane without claims for `UNCLAIMED_S`.
        """
        for lane in self._own:
            late = [key for key, claim in lane.claims.items() if claim.seen_s < seen_before_s]
            for cursor_id in late:
                del lane.claims[cursor_id]
            if lane.claims:
                lane.forget_passed()
            else:
                lane.note_unclaimed(seen_before_s)

    def take(
        self, lane: int, claim: Claim, taken: Taken, bytes_max: int, *, at_least_one: bool
    ) -> None:
        """Add what is at hand from `taken.position` on, up to `bytes_max`; move the claim along.

        at_least_one: the first batch is taken even when it is larger than `bytes_max` (KIP-74).
        """
        runs = self.lanes[lane]
        while not taken.is_full and (run := runs.find(taken.position)) is not None:
            if run.slice is None:
                if taken.gap_start < 0:
                    taken.gap_start = taken.position
                taken.leader_epoch = run.leader_epoch
                taken.position = claim.position = run.end
                continue
            cut = None
            if bytes_max > 0 or at_least_one:
                cut = _cut(run, run.slice, taken.position, bytes_max, at_least_one=at_least_one)
            # Joined batches of two runs may overlap. librdkafka would give records out twice that
            # are twice in one answer: it looks at its position before each answer only.
            if cut is None or (taken.pieces and cut.start < taken.position):
                taken.is_full = True
                return
            self._cache.hit_count += run.is_cached
            _add(taken, run, cut)
            bytes_max -= cut.size_bytes
            at_least_one = False
            claim.position = taken.position
            runs.sent(run)

    def insert(self, block: Block) -> None:
        """Take a block in hand; `settle` must follow."""
        self.head = max(self.head, block.end)
        rest = self._rest
        if len(self._own) < len(self.lanes):
            self._insert_rest(block)
        for lane, part in zip(self.lanes, block.slices, strict=True):
            if part is None and (
                lane is rest or lane.extend_gap(block.start, block.end, block.leader_epoch)
            ):
                continue
            aborted = block.aborted if part is not None else ()
            run = Run(lane, block.start, block.end, block.leader_epoch, part, aborted)
            if lane.put(run) and part is not None:
                self._in_hand.append((run, block))

    def settle(self, *, is_reserved: bool) -> None:
        """Offer the rest of the block to the cache, and drop slices that do not stay.

        is_reserved: slices are kept for lanes (`reserve.message.value.range.fetch`); otherwise only
        gaps are remembered, and every lane reads for itself.
        """
        in_hand, self._in_hand = self._in_hand, []
        for run, block in in_hand:
            if run.lane is None:
                continue
            if is_reserved and self._is_wanted(run.lane, block):
                may_evict = self._may_evict(run.lane, block)
                # Before `put`, which may evict: it must not find this run half kept.
                if self._cache.put(run, run.cost_bytes(), may_evict=may_evict):
                    run.is_cached = True
                    continue
            run.lane.drop(run)

    def advance_log_start(self, offset: int) -> None:
        """Forget offsets before `offset`: retention has deleted them."""
        for lane in (self._rest, *self._own):
            lane.clear_below(offset)

    def reset(self) -> None:
        """Forget everything but claims: the log was cut, or is gone."""
        self.head = NO_OFFSET
        for lane in (self._rest, *self._own):
            lane.clear()
        self.lanes = [lane if lane.claims else self._rest for lane in self.lanes]
        self._own = [lane for lane in self.lanes if lane is not self._rest]

    def close(self) -> None:
        """Forget everything: the last reader has left.

        Only little memory is left of it, wherever references to the log may be.
        """
        for lane in self._own:
            lane.claims = NO_CLAIMS
        self.reset()

    def check(self) -> None:
        """Assert the invariants of the class; tests call it after every step."""
        assert all(run.slice is None for run in self._rest.runs) and not NO_CLAIMS
        assert self._rest.claims is NO_CLAIMS
        others = [lane for lane in self.lanes if lane is not self._rest]
        assert len(others) == len(self._own) and {*map(id, others)} == {*map(id, self._own)}
        for lane in (self._rest, *self._own):
            assert not (lane.is_abandoned and lane.claims)
            lane.check()
            for run in lane.runs:
                assert run.end <= self.head
                assert run.slice is not None or not run.is_cached
                assert run.slice is None or run.is_cached or self._in_hand

    def _part(self, number: int) -> Lane:
        """Give a lane of the rest an object, which knows the same so far."""
        lane = self.lanes[number] = self._rest.twin()
        self._own.append(lane)
        return lane

    def _insert_rest(self, block: Block) -> None:
        """Part the lanes of the rest that the block has slices for; note a gap of the others."""
        rest = self._rest
        for number, part in enumerate(block.slices):
            if part is not None and self.lanes[number] is rest:
                self._part(number)
        if not rest.extend_gap(block.start, block.end, block.leader_epoch):
            rest.put(Run(rest, block.start, block.end, block.leader_epoch))

    def _is_wanted(self, lane: Lane, block: Block) -> bool:
        """Return whether a reader will come for it; without claims one may, for a while."""
        if not lane.claims:
            return not lane.is_abandoned
        return any(c.position < block.end for c in lane.claims.values())

    def _may_evict(self, lane: Lane, block: Block) -> bool:
        """Return whether older slices go for it: for the next one, not for one far behind."""
        is_next = block.end >= self.head and bool(lane.claims)
        return is_next or any(block.start <= c.position < block.end for c in lane.claims.values())


class _Cut(NamedTuple):
    data: Buffer
    size_bytes: int
    start: int
    """First offset of the first batch."""
    next_offset: int
    has_records: bool


def _cut(
    run: Run, part: LaneSlice, offset: int, bytes_max: int, *, at_least_one: bool
) -> _Cut | None:
    """Return the batches that fit, from that of `offset` on; None: not even one fits."""
    base_offsets, last_offsets, ends = part.base_offsets, part.last_offsets, part.ends
    is_from_start, is_to_end = offset <= last_offsets[0], base_offsets[-1] < run.end
    if is_from_start and is_to_end and part.size_bytes <= bytes_max:
        # All of it, the common case: a lane that reads block by block.
        has_records = bool(part.last_record_offsets.max() >= offset)  # may be inside
        return _Cut(
            part.data, part.size_bytes, int(base_offsets[0]), _end_of(run, part), has_records
        )
    first = 0 if is_from_start else int(last_offsets.searchsorted(offset))
    stop = len(ends) if is_to_end else int(base_offsets.searchsorted(run.end))
    if first >= stop:
        return _Cut(b"", 0, offset, run.end, has_records=False)
    begin = int(ends[first - 1]) if first else 0
    fits = int(ends.searchsorted(begin + bytes_max, side="right"))
    limit = min(stop, max(fits, first + at_least_one))
    if limit <= first:
        return None
    next_offset = int(last_offsets[limit - 1]) + 1 if limit < stop else _end_of(run, part, limit)
    data = memoryview(part.data)[begin : ends[limit - 1]]
    has_records = bool(part.last_record_offsets[first:limit].max() >= offset)
    return _Cut(data, len(data), int(base_offsets[first]), next_offset, has_records)


def _end_of(run: Run, part: LaneSlice, limit: int = 0) -> int:
    """Return the client's next offset after the run's last batch before `limit`."""
    is_empty = part.last_record_offsets[limit - 1] < 0
    return run.end if is_empty else max(run.end, int(part.last_offsets[limit - 1]) + 1)


def _add(taken: Taken, run: Run, cut: _Cut) -> None:
    if cut.size_bytes:
        taken.pieces.append(cut.data)
        taken.size_bytes += cut.size_bytes
        taken.gap_start = NO_OFFSET
    elif taken.gap_start < 0:
        taken.gap_start = taken.position
    taken.has_records = taken.has_records or cut.has_records
    taken.position, taken.leader_epoch = cut.next_offset, run.leader_epoch
    for entry in run.aborted:
        # A transaction whose marker the client does not get must not be listed: it would take
        # the producer's next transaction for the aborted one and drop committed records.
        if entry.marker >= cut.start and entry.first_offset < cut.next_offset:
            taken.aborted[entry.producer_id, entry.first_offset] = None
