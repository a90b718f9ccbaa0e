"""One fetch request of lanes under way: the batches it has got, and the data it waits for.

A client that knows another leader than the reader gets an error in place of records, as from a
broker. Records of a new leader would reach a client that is comparing its position with it, and
librdkafka would then drop records that it has not handed out yet (docs/decisions/026).

Source: KIP-74 (limits), KIP-227 (long polls), KIP-320 (leader epochs); `fetcher` says when a
request is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.cache.lane_values import Claim, Taken
from keylane.offsets.lineage import FRESH_S, NO_EPOCH
from keylane.proxy.lanes.fetch_request import LaneFetch, LaneFetchRequest
from keylane.proxy.lanes.reader import PartitionReader

READ_GRACE_S: Final = 5.0
"""Time beyond its `max_wait_ms` that a request waits for data that is upstream. Well below
clients' `request.timeout.ms` of 30 s."""


@dataclass(slots=True, eq=False)
class Cursor:
    """A client's connection."""

    seen_s: float
    readers: dict[PartitionReader, None] = field(default_factory=dict)
    was_empty: bool = False
    """True: its last answer held no record, so the next one must wait for data."""
    poll: LanePoll | None = None
    """Its request that waits; a connection has one at a time."""


@dataclass(slots=True, eq=False)
class Turn:
    """One lane of a request under way."""

    wanted: LaneFetch
    reader: PartitionReader
    claim: Claim
    taken: Taken
    target: int
    """Log end when the request came, -1 until it is known."""
    error_code: int = 0
    has_waited: bool = False
    """True: a read has ended without the leader that the client knows."""

    @property
    def leader_error(self) -> int:
        """Return the error of a client that knows another leader than the reader has met, or 0."""
        known, met = self.wanted.leader_epoch, self.reader.lineage.leader_epoch
        if known == met or NO_EPOCH in (known, met):
            return 0
        return ErrorCode.fenced_leader_epoch if known < met else ErrorCode.unknown_leader_epoch

    @property
    def is_caught_up(self) -> bool:
        """Return whether the lane is empty up to the log end of when the request came.

        Markers of transactions, which every lane gets, are no records: at the end of a log that
        transactions have written there is no gap behind them.
        """
        taken = self.taken
        is_empty = taken.gap_start >= 0 or not taken.has_records
        return is_empty and self.wanted.fetch_offset < self.target <= taken.position


class LanePoll:
    """One request under way: the batches its lanes have got, and the data it waits for.

    It is the `Listener` of the readers of its lanes while it waits.
    """

    def __init__(
        self,
        request: LaneFetchRequest,
        cursor: Cursor,
        turns: list[Turn],
        on_gathered: Callable[[int], None],
    ) -> None:
        self.request, self.cursor, self.turns = request, cursor, turns
        self._on_gathered = on_gathered
        self.waiting_bytes = 0
        """Bytes at hand that are not answered yet."""
        self.has_records = False
        self._left_bytes = max(1, request.max_bytes)
        self._has_bytes = False
        self._record_bytes = 0
        self._has_failed = False
        self._is_expired = request.max_wait_ms <= 0 or request.min_bytes <= 0
        self._done: asyncio.Future[None] | None = None

    def collect_at_once(self) -> bool:
        """Take what is in memory and start the reads that are needed; True: answer now."""
        for turn in self.turns:
            self._collect(turn)
        self._read_on()
        return self._is_ready()

    async def wait(self) -> None:
        """Wait until the request is to be answered."""
        loop = asyncio.get_running_loop()
        self._done = loop.create_future()
        self._note_waiting(sum(turn.taken.size_bytes for turn in self.turns))
        for turn in self.turns:
            turn.reader.listeners[self] = None
        wait_s = self.request.max_wait_ms / 1000
        timers = [
            loop.call_later(wait_s, self._expire),
            loop.call_later(wait_s + READ_GRACE_S, self._finish),
        ]
        try:
            await self._done
        finally:
            for timer in timers:
                timer.cancel()
            for turn in self.turns:
                turn.reader.listeners.pop(self, None)

    def hurry(self) -> None:
        """End the wait for data that is not there yet: another request waits for the answer."""
        self._expire()

    def press(self) -> None:
        """Answer with what is at hand: too much is being gathered in all."""
        if self._is_open and self._has_bytes:
            self._finish()

    def _note_waiting(self, added: int) -> None:
        if added:
            self.waiting_bytes += added
            self._on_gathered(added)

    def fail_all(self, error_code: int) -> None:
        """Answer an error for all lanes that have nothing."""
        for turn in self.turns:
            turn.error_code = error_code
        self._finish()

    def could_have_had(self, turn: Turn) -> bool:
        """Return whether an answer without data left the lane behind others."""
        return self._left_bytes > 0 and turn.taken.position < turn.reader.end

    # Calls of readers.
    def data_came(self, reader: PartitionReader) -> None:
        """Take the lanes' part of the block in hand."""
        if not self._is_open:
            return
        for turn in self.turns:
            if turn.reader is reader:
                self._note_target(turn)
                self._collect(turn)
        self._finish_if_ready()

    def read_ended(self, reader: PartitionReader) -> None:
        """Go on after a read ended, where data is still needed."""
        if not self._is_open:
            return
        for turn in self.turns:
            self._note_target(turn)
            if turn.reader is reader and turn.leader_error:
                # Any epoch may come from a socket: one that no leader has is not read for again.
                # The first read that ends may have begun before the request.
                self._has_failed |= turn.has_waited
                turn.has_waited = True
        self._read_on(reader)
        self._finish_if_ready()

    def read_failed(self, reader: PartitionReader, offset: int | None, error_code: int) -> None:
        """Note that the lanes at `offset`, or all of them, cannot be served."""
        for turn in self.turns:
            if turn.reader is reader and offset in (None, turn.taken.position):
                turn.error_code = error_code
                self._has_failed = True
        self._finish_if_ready()

    @property
    def _is_open(self) -> bool:
        return self._done is not None and not self._done.done()

    @staticmethod
    def _note_target(turn: Turn) -> None:
        if turn.target < 0:
            turn.target = turn.reader.end

    def _collect(self, turn: Turn) -> None:
        taken, wanted, lineage = turn.taken, turn.wanted, turn.reader.lineage
        if wanted.leader_epoch != lineage.leader_epoch and (error_code := turn.leader_error):
            self._has_failed |= error_code == ErrorCode.fenced_leader_epoch
            return  # where the client knows a later one, the next read meets it
        if lineage.is_doubtful or self._is_stale(turn.reader):
            return  # a read that begins now meets the leader, and then it is taken
        before_bytes, had_records = taken.size_bytes, taken.has_records
        room = min(self._left_bytes, wanted.partition_max_bytes - before_bytes)
        at_least_one = not self._has_bytes
        turn.reader.log.take(wanted.output, turn.claim, taken, room, at_least_one=at_least_one)
        added = taken.size_bytes - before_bytes
        if added:
            self._has_bytes = True
            self._left_bytes -= added
            if taken.has_records:
                self.has_records = True
                self._record_bytes += added if had_records else taken.size_bytes
            turn.reader.keep_ahead(taken.position)
            if self._done is not None:
                self._note_waiting(added)

    def _is_stale(self, reader: PartitionReader) -> bool:
        """Return whether the leader was silent long enough for another one to have a new log."""
        return self.cursor.seen_s - reader.known_s > FRESH_S

    def _read_on(self, reader: PartitionReader | None = None) -> None:
        """Start the reads that lanes need. A lane that has data waits without asking."""
        if self._has_failed:
            return  # answered now
        for turn in self.turns:
            taken = turn.taken
            if reader not in (None, turn.reader) or taken.is_full or self._left_bytes <= 0:
                continue
            if taken.has_records and self._has_enough and not self._is_worth_more(turn):
                continue
            error_code = turn.reader.want(taken.position, turn.wanted.partition_max_bytes)
            if error_code:
                # The log end is from a moment ago: answered when the wait is over, not in a circle.
                turn.error_code = error_code

    @property
    def _has_enough(self) -> bool:
        return self.has_records and self._record_bytes >= self.request.min_bytes

    def _is_worth_more(self, turn: Turn) -> bool:
        """Return whether to read on for a lane that has records: its next fetch wants the rest."""
        return turn.reader.is_reserved and turn.taken.position < turn.reader.end

    def _waits_for_data(self, turn: Turn) -> bool:
        return not turn.taken.is_full and turn.reader.is_reading(turn.taken.position)

    def _is_ready(self) -> bool:
        if self._has_failed:
            return True
        if any(turn.claim.is_starved and self._is_due(turn) for turn in self.turns):
            return False
        if self._has_enough:
            return True
        if self._left_bytes <= 0 or all(turn.taken.is_full for turn in self.turns):
            return True
        if not self._is_expired:
            # An empty range up to the log end is answered at once, but not twice in a row.
            return (
                not self.cursor.was_empty
                and any(turn.is_caught_up for turn in self.turns)
                and not any(self._waits_for_data(turn) for turn in self.turns)
            )
        has_moved = any(turn.taken.position > turn.wanted.fetch_offset for turn in self.turns)
        return has_moved or not any(self._waits_for_data(turn) for turn in self.turns)

    def _is_due(self, turn: Turn) -> bool:
        """Return whether a lane that was left out last time has nothing yet, but data is coming."""
        return not turn.taken.size_bytes and self._left_bytes > 0 and self._waits_for_data(turn)

    def _expire(self) -> None:
        self._is_expired = True
        self._finish_if_ready()

    def _finish_if_ready(self) -> None:
        if self._is_open and self._is_ready():
            self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(None)
