"""Records of one partition, fetched from its broker and given to the dispatcher.

Source: KIP-932; docs/decisions/048.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from kio.schema.errors import ErrorCode

from keylane.errors import ShareRefused, UpstreamLost
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.lanes.split_io import ReaderKit
from keylane.proxy.share.broker_session import BrokerSession, SharedPlace
from keylane.proxy.share.confirmations import LOCK_LOST, MOVED, Confirmations
from keylane.proxy.share.held_bytes import HeldBytes
from keylane.proxy.share.indexing import Indexed, index_all
from keylane.share.dispatcher import Dispatcher
from keylane.wire.share import AckBatch, Acquired, ShareAnswer

log = logging.getLogger("keylane.share")

IDLE_WAIT_MS: Final = 500
"""Wait of a broker for records while none are held, so that no outcome can come meanwhile."""
POLL_S: Final = 0.5
"""Time until a broker that had nothing is asked again, if nothing has happened."""
GONE_POLL_S: Final = 0.1
NOT_YET_S: Final = 0.2

Hole = tuple[int, int]
"""Offsets that a broker has passed over, both ends included."""


class BatchUnreadable(UpstreamLost):
    """A batch of the log cannot be read: its records cannot be handed out, nor passed over."""

    error_code = 2  # CORRUPT_MESSAGE


class Intake:
    """Fetches over one session at a time; the caller does nothing else with it meanwhile."""

    def __init__(
        self,
        place: SharedPlace,
        dispatcher: Dispatcher,
        confirmations: Confirmations,
        kit: ReaderKit,
        held_bytes: HeldBytes,
        clock: Callable[[], float],
    ) -> None:
        self._place, self._dispatcher, self._confirmations = place, dispatcher, confirmations
        self._kit, self._held_bytes, self._clock = kit, held_bytes, clock
        self.fetch_s = 0.0
        """Time from which the broker is asked for records."""
        self.is_at_end = False
        """The broker has no more records."""
        self.locks_max: int | None = None
        """The broker's bound of offsets, from the first that is not finished; None: not known."""
        self._highest = -1
        """Highest offset that this session has acquired: of a log that was cut it may be lower than
        what was acquired before."""
        self.acks_go_apart = False
        """Outcomes of the last fetch were refused: the next ones are sent without a fetch."""
        self.holes_elsewhere = 0
        """Offsets that were passed over, and that keylane does not hold."""

    async def fetch(
        self, session: BrokerSession, wanted: int, acks: Sequence[AckBatch] = ()
    ) -> list[Hole]:
        """Fetch once, with outcomes; return what the broker has passed over.

        Raises: UpstreamLost, ShareRefused, BatchUnreadable.
        """
        kit, dispatcher = self._kit, self._dispatcher
        may_wait = dispatcher.is_settled and not dispatcher.records and not acks
        room = ReadRoom(kit.gates, read_bytes=kit.read_bytes_max, block_bytes=kit.plain_bytes_max)
        sent_s = self._clock()
        try:
            answer = await session.fetch(
                records_max=wanted,
                bytes_max=kit.read_bytes_max,
                wait_ms=IDLE_WAIT_MS if may_wait else 0,
                room=room,
                acks=acks,
            )
            code, message = answer.ack_error_code, answer.ack_error_message
            if code in LOCK_LOST:
                # Not in parts now: this fetch may have locked such a record anew, and a part would
                # end it at the broker before it is taken in.
                dispatcher.unsend(acks)
                self.acks_go_apart = True
            elif acks:
                await self._confirmations.judge(session, acks, code, message)
            if self._has_nothing_yet(answer):
                return []
            records = memoryview(b"".join(answer.records or ()))
            await room.for_records(len(records))
            indexed = await index_all(kit, records, room)
        finally:
            room.leave()
        dispatcher.lock_s = session.lock_s or dispatcher.lock_s
        if session.is_throttled and dispatcher.gone:
            # The broker has acquired records for an answer that a quota has emptied.
            raise UpstreamLost(f"share fetch: {self._place}: throttled by a quota")
        return self._take_in(answer, indexed, sent_s)

    @property
    def room(self) -> int:
        """Return the offsets that the broker locks beyond those that it has locked."""
        if self.locks_max is None:
            return sys.maxsize
        lowest, _ = self._dispatcher.bounds()
        return self.locks_max - max(0, self._highest - lowest + 1)

    def begin(self, highest: int) -> None:
        """Note that a session begins. highest: the last offset that it holds already; -1: none."""
        self._highest = highest

    def _has_nothing_yet(self, answer: ShareAnswer) -> bool:
        """Return whether the broker has no state of the partition yet.

        Raises: UpstreamLost, ShareRefused.
        """
        code = answer.error_code
        if code in MOVED:
            raise UpstreamLost(f"share fetch: {self._place}: {ErrorCode(code).name}")
        if code == ErrorCode.topic_authorization_failed:
            raise ShareRefused(f"{self._place}: keylane may not READ the topic")
        if code:
            self.fetch_s = self._clock() + NOT_YET_S
        return bool(code)

    def _take_in(self, answer: ShareAnswer, indexed: Indexed, sent_s: float) -> list[Hole]:
        dispatcher, now_s = self._dispatcher, self._clock()
        was_settled, was_blank = dispatcher.is_settled, dispatcher.end_offset < 0
        holes = self._acquire(answer.acquired, indexed, now_s)
        if was_settled and (holes or (was_blank and dispatcher.end_offset >= 0)):
            dispatcher.is_settled = False  # until it is known what lies before
        highest = max((acquired.last for acquired in answer.acquired), default=None)
        self._highest = max(self._highest, -1 if highest is None else highest)
        for record in dispatcher.fetched(sent_s, highest, now_s):
            log.warning(
                "record is archived, its deliveries are used up %s offset=%d deliveries=%d",
                self._place, record.offset, record.count,
            )  # fmt: skip
        self.is_at_end = highest is None and self.room > 0
        self.fetch_s = 0.0
        if highest is None:
            self.fetch_s = now_s + (GONE_POLL_S if dispatcher.gone else POLL_S)
        return holes if was_settled else []

    def _acquire(self, ranges: Sequence[Acquired], indexed: Indexed, now_s: float) -> list[Hole]:
        """Give acquired records to the dispatcher. Raises: BatchUnreadable."""
        dispatcher = self._dispatcher
        blocks = [
            (block, self._held_bytes.hold(self._place.group, block)) for block in indexed.blocks
        ]
        holes = []
        for first, last, count in ranges:
            end = dispatcher.end_offset
            if 0 <= end < first - 1:
                holes.append((end + 1, first - 1))
            expected = first
            for block, keeper in blocks:
                low, high = np.searchsorted(block.offsets, (first, last + 1)).tolist()
                if low == high:
                    continue
                offsets = block.offsets[low:high].tolist()
                points = block.points[low:high].tolist()
                if offsets[0] != expected or offsets[-1] - offsets[0] + 1 != len(offsets):
                    self._acquire_gaps(expected, offsets)
                dispatcher.acquire(offsets, points, count, now_s, keeper, low)
                expected = offsets[-1] + 1
            if expected <= last:
                if indexed.error is not None:
                    raise self._unreadable(max(expected, indexed.next_offset), indexed.error)
                dispatcher.acquire_gap(expected, last)
        return holes

    def _acquire_gaps(self, expected: int, offsets: Sequence[int]) -> None:
        """Note offsets without a record, which compaction or a transaction has left."""
        for offset in offsets:
            if offset > expected:
                self._dispatcher.acquire_gap(expected, offset - 1)
            expected = offset + 1

    def _unreadable(self, offset: int, error: Exception) -> BatchUnreadable:
        return BatchUnreadable(f"bad batch: {self._place} offset={offset}: {error}")
