"""Keys of which a record may be handed out: lowest first, and those that wait after a release."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heappop, heappush
from typing import Final

from keylane.share.held import HeldRecord, KeyQueue
from keylane.share.states import HELD

CHAIN_PARTS: Final = 2
"""Times a member's part of the window, in records, for all turns of a key."""
PASSED_MAX: Final = 16
"""Keys that are passed over for one member; they are lower than those that come after them."""


def no_pause(_count: int) -> float:
    """Return 0: a released record may be handed out as soon as it has come again."""
    return 0.0


class ReadyQueue:
    """First records of keys that have nothing else than records HELD.

    Entries of heaps stay when a record is not ready any more, and are passed over later.
    """

    def __init__(
        self, records: Mapping[int, HeldRecord], long_queues: Collection[KeyQueue] = ()
    ) -> None:
        """records: all of the window, by offset. long_queues: see `KeyQueues`."""
        self._records, self._long_queues = records, long_queues
        self._ready: list[int] = []
        self._delayed: list[tuple[float, int]] = []
        self.count = 0

    def look_at(self, key: KeyQueue, now_s: float) -> None:
        """Make the first record of a key ready if it may be handed out."""
        head = key.records[0]
        if key.busy or head.is_ready:
            return
        if head.not_before_s > now_s:
            heappush(self._delayed, (head.not_before_s, head.offset))
            return
        head.is_ready = True
        self.count += 1
        heappush(self._ready, head.offset)

    def unready(self, record: HeldRecord) -> None:
        """Note that a record may not be handed out."""
        self.count -= record.is_ready
        record.is_ready = False

    def delay(self, records: Iterable[HeldRecord], until_s: float, now_s: float) -> None:
        """Have records wait that are held; a key waits when one is its first."""
        for record in records:
            if record.state == HELD:
                record.not_before_s = max(record.not_before_s, until_s)
                self.unready(record)
                self.look_at(record.key, now_s)

    def choose(self, room: int, several: int, turns: int, now_s: float) -> list[HeldRecord]:
        """Return records for one member, ascending, `room` at most; they are not ready then.

        A key waits until its member has worked off what it got together with it. So of a key of
        which many records wait no more than `turns` go with them all, one after the other: else
        the window is full before they have had their turns. A key of still more goes alone, and
        before all others if it alone has more than a member's part of the window: the window
        moves on as fast as that key does. several: records of one key.
        """
        taken: list[HeldRecord] = []
        passed: list[HeldRecord] = []
        first = self._take_longest(turns) if room > 0 else None
        while room > len(taken):
            record, first = first or self._pop(), None
            if record is None:
                break
            waiting = len(record.key.records)
            if taken and waiting * (len(taken) + 1) > turns:
                passed.append(record)
                if len(passed) == PASSED_MAX:
                    break
                continue
            room = min(room, max(several, turns // waiting))
            for follower in record.key.records[: min(several, room - len(taken))]:
                if follower.state != HELD or follower.not_before_s > now_s:
                    break
                taken.append(follower)
        for record in passed:
            self.look_at(record.key, now_s)
        taken.sort(key=lambda each: each.offset)
        return taken

    def _take_longest(self, turns: int) -> HeldRecord | None:
        """Return the first record of the longest queue, if it bounds all others, and is ready."""
        head, most = None, 0
        for key in self._long_queues:
            size, found = len(key.records), key.records[0]
            if head is None or size > most or (size == most and found.offset < head.offset):
                head, most = found, size
        if head is None or not head.is_ready or CHAIN_PARTS * most <= turns:
            return None
        self.unready(head)
        return head

    def _pop(self) -> HeldRecord | None:
        """Return the lowest one, which is not ready then; None: there is none."""
        while self._ready:
            record = self._records.get(heappop(self._ready))
            if record is not None and record.is_ready:
                record.is_ready = False
                self.count -= 1
                return record
        return None

    def wake(self, now_s: float) -> None:
        """Look at the keys whose wait is over."""
        while self._delayed and self._delayed[0][0] <= now_s:
            record = self._records.get(heappop(self._delayed)[1])
            if record is not None:
                self.look_at(record.key, now_s)

    @property
    def next_wake_s(self) -> float | None:
        """Time when a wait is over; None: no key waits."""
        return self._delayed[0][0] if self._delayed else None
