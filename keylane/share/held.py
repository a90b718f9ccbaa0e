"""Records that keylane has acquired, the queue of each key, and a member's acknowledgement.

Source: docs/decisions/048.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from keylane.share.states import DONE, GONE, HELD, OUT, STATE_NAMES
from keylane.wire.share import REJECT, RELEASE, AckBatch

NO_KEY: Final = -1
"""Point of a record without a key: it is a key for itself."""

LONG: Final = 8
"""Records of a key from which on it may be looked at first."""
STRIKES_MAX: Final = 2
"""Fetches that bring later records, or none, before a released record counts as archived."""
ARCHIVED_AFTER_S: Final = 2.0
"""Such a fetch is sent this time after the release, or later: a broker does not give a record while
the end of its lock is being written."""


class AckTicket:
    """One member's acknowledgement of a partition: it is over when the broker has confirmed all.

    Not sent to the broker as one request: acknowledgements of members are merged.
    """

    __slots__ = ("error_code", "left", "on_over")

    def __init__(self, left: int, on_over: Callable[[AckTicket], None]) -> None:
        """left: records that are to be confirmed."""
        self.left, self.error_code, self.on_over = left, 0, on_over

    def confirm(self, error_code: int = 0) -> None:
        """Note the outcome of one record."""
        self.error_code = self.error_code or error_code
        self.left -= 1
        if self.left == 0:
            self.on_over(self)


class HeldRecord:
    """A record of the window. One object per record: each is acknowledged for itself."""

    __slots__ = (
        "block",
        "count",
        "deadline_s",
        "gone_s",
        "is_copied",
        "is_copying",
        "is_finished",
        "is_free",
        "is_locked",
        "is_ready",
        "is_sent",
        "key",
        "locked_s",
        "member",
        "not_before_s",
        "offset",
        "outcome",
        "row",
        "since_s",
        "state",
        "strikes",
        "ticket",
    )

    def __init__(self, offset: int, key: KeyQueue, count: int, now_s: float) -> None:
        self.offset, self.key, self.count = offset, key, count
        self.block: Any = None
        """Block that has its bytes; `row` is its place there."""
        self.row = 0
        self.state = HELD
        self.is_locked = True
        self.locked_s = self.since_s = now_s
        self.is_ready = False
        self.member: Any = None
        self.not_before_s = 0.0
        """Time before which it is not handed out again."""
        self.is_sent = False
        self.is_free = False
        """Its key goes on without it: it is finished, and the broker may not know it yet."""
        self.is_finished = False
        """The broker has finished it, and its member or its dead letter has not."""
        self.is_copying = self.is_copied = False
        """A dead letter is being written for it; was written for it."""
        self.ticket: AckTicket | None = None

    # Set with the state that they belong to; a hundred thousand are made in a second.
    deadline_s: float
    """OUT: the end of the member's time."""
    outcome: int
    """DONE: the type of acknowledgement."""
    gone_s: float
    """GONE: time when its lock ended, or its release was confirmed."""
    strikes: int
    """GONE: fetches since then that should have brought it."""

    def copying(self) -> HeldRecord:
        """Return the record, of which a dead letter is being written from now on."""
        self.is_copying = True
        return self

    def is_another(self, point: int, block: Any, row: int) -> bool:
        """Return whether the log was cut, and has another record at this offset now."""
        if self.key.point != point:
            return True
        if self.block is None or block is None or self.state not in (OUT, DONE):
            return False
        return bool(self.block.epoch_of(self.row) != block.epoch_of(row))

    def is_last(self, last: int | None) -> bool:
        """Return whether it is not delivered again. last: the last delivery; None: not known."""
        is_over = last is not None and self.count >= last
        return self.outcome == REJECT or (self.outcome == RELEASE and is_over)

    def strike(self, sent_s: float, highest: int | None) -> bool:
        """Count a fetch that should have brought it; return whether it is archived."""
        is_late = sent_s >= self.gone_s + ARCHIVED_AFTER_S
        self.strikes += is_late and (highest is None or highest > self.offset)
        return self.strikes >= STRIKES_MAX

    def __repr__(self) -> str:
        lock = "" if self.is_locked else ", not locked"
        return f"Held({self.offset}, {STATE_NAMES[self.state]}{lock})"


class KeyQueue:
    """Records of one key in the window, by offset. `busy`: those that are not HELD."""

    __slots__ = ("_long", "busy", "point", "records")

    def __init__(self, point: int, long: dict[int, KeyQueue]) -> None:
        """long: queues with `LONG` records or more, this one among them while it is."""
        self.point, self._long = point, long
        self.records: list[HeldRecord] = []
        self.busy = 0

    def insert(self, record: HeldRecord) -> bool:
        """Put a record in its place; return whether it is the first now."""
        records = self.records
        if not records or records[-1].offset < record.offset:
            at = len(records)
            records.append(record)
        else:
            at = self._find(record.offset)
            records.insert(at, record)
        if len(records) == LONG:
            self._long[self.point] = self
        return at == 0

    def remove(self, record: HeldRecord) -> None:
        """Take a record out."""
        if self.records[0] is record:
            self.records.pop(0)
        else:
            del self.records[self._find(record.offset)]
        if len(self.records) == LONG - 1:
            del self._long[self.point]

    def _find(self, offset: int) -> int:
        return bisect_left(self.records, offset, key=lambda each: each.offset)


class KeyQueues:
    """The queues that have records."""

    def __init__(self) -> None:
        self._queues: dict[int, KeyQueue] = {}
        self._long: dict[int, KeyQueue] = {}

    @property
    def long(self) -> Collection[KeyQueue]:
        """Queues with `LONG` records or more, as they are at any time."""
        return self._long.values()

    def of(self, point: int) -> KeyQueue:
        """Return the queue of a key, which is to be given a record."""
        if point == NO_KEY:
            return KeyQueue(point, self._long)
        queue = self._queues.get(point)
        if queue is None:
            queue = self._queues[point] = KeyQueue(point, self._long)
        return queue

    def forget(self, queue: KeyQueue) -> None:
        """Forget a queue that has no records."""
        if queue.point != NO_KEY:
            del self._queues[queue.point]


def records_in(records: Mapping[int, HeldRecord], batches: Iterable[AckBatch]) -> list[HeldRecord]:
    """Return the records of which batches name the offsets."""
    found = []
    for first, last, _ in batches:
        for offset in range(first, last + 1):
            record = records.get(offset)
            if record is not None:
                found.append(record)
    return found


def abandon(records: Iterable[HeldRecord], error_code: int) -> None:
    """Answer all outcomes that wait with a code; the records are of no window any more."""
    for record in records:
        ticket, record.ticket = record.ticket, None
        record.state, record.member = GONE, None
        if ticket is not None:
            ticket.confirm(error_code)
