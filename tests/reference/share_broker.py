"""Model of a broker's share partition, offset by offset, with one session: keylane's.

Source: KIP-932, "In-flight records" and "Acknowledgement"; KIP-1222 (renewal).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from kio.schema.errors import ErrorCode

from keylane.wire.share import ACCEPT, RELEASE, RENEW, AckBatch


class State(Enum):
    """Where an offset stands."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVED = 3


FINISHED = (State.ACKNOWLEDGED, State.ARCHIVED)


@dataclass
class Entry:
    """An offset of the log; `point` None: compaction has removed its record."""

    point: int | None
    state: State = State.AVAILABLE
    count: int = 0
    saved_count: int = 0
    """Of the last state that was written; acquisitions are not."""
    lock_end_s: float = 0.0
    written_s: float = 0.0
    """Time when the write of its state ends, until when fetches pass it over."""
    outcomes: set[int] = field(default_factory=set)
    """Outcomes that have ended it."""


@dataclass
class ShareBroker:
    """The log from offset 0 on; the group begins there."""

    delivery_limit: int
    lock_s: float = 30.0
    log: list[Entry] = field(default_factory=list)

    def produce(self, points: Iterable[int | None]) -> None:
        self.log += [Entry(point) for point in points]

    def fetch(self, records_max: int, now_s: float) -> list[tuple[int, Entry]]:
        """Acquire what is available and written, lowest first."""
        self.expire(now_s, now_s)
        free = [
            (offset, entry)
            for offset, entry in enumerate(self.log)
            if entry.state is State.AVAILABLE and entry.written_s <= now_s
        ]
        for _, entry in free[:records_max]:
            entry.state, entry.lock_end_s = State.ACQUIRED, now_s + self.lock_s
            entry.saved_count, entry.count = entry.count, entry.count + 1
        return free[:records_max]

    def acknowledge(self, batches: Iterable[AckBatch], now_s: float) -> int:
        """Take all outcomes, or none."""
        self.expire(now_s, now_s)
        wanted = [
            (offset, types[(offset - first) % len(types)])
            for first, last, types in batches
            for offset in range(first, last + 1)
            if offset >= self.start_offset
        ]
        if any(offset >= len(self.log) for offset, _ in wanted):
            return ErrorCode.invalid_request
        if any(self.log[offset].state is not State.ACQUIRED for offset, _ in wanted):
            return ErrorCode.invalid_record_state
        for offset, kind in wanted:
            entry = self.log[offset]
            if kind == RENEW:
                entry.lock_end_s = now_s + self.lock_s
                continue
            entry.outcomes.add(kind)
            if kind == RELEASE:
                self._release(entry, now_s)
            else:
                entry.state = State.ACKNOWLEDGED if kind == ACCEPT else State.ARCHIVED
        return 0

    def _release(self, entry: Entry, written_s: float) -> None:
        is_over = entry.count >= self.delivery_limit
        entry.state = State.ARCHIVED if is_over else State.AVAILABLE
        entry.written_s = written_s

    def expire(self, now_s: float, written_s: float) -> None:
        """Release records whose lock is over. Gaps are not: keylane acknowledges them at once."""
        for entry in self.log:
            is_over = entry.state is State.ACQUIRED and entry.lock_end_s <= now_s
            if is_over and entry.point is not None:
                self._release(entry, written_s)

    def end_session(self, now_s: float, writes_s: Sequence[float]) -> None:
        """Release all that is acquired; one offset is written at once, the next one later."""
        for offset, entry in enumerate(self.log):
            if entry.state is State.ACQUIRED:
                self._release(entry, now_s + writes_s[offset % len(writes_s)])

    def change_leader(self, now_s: float) -> None:
        """Another broker knows what was written only."""
        for entry in self.log:
            is_unwritten = entry.state in {State.AVAILABLE, State.ARCHIVED}
            if entry.state is State.ACQUIRED or (is_unwritten and entry.written_s > now_s):
                entry.state, entry.count = State.AVAILABLE, entry.saved_count
                entry.written_s = now_s

    def is_finished(self, offset: int, now_s: float) -> bool:
        """Return whether the offset is surely not given again."""
        entry = self.log[offset]
        return entry.state in FINISHED and entry.written_s <= now_s

    def unfinished(self, now_s: float) -> list[int]:
        return [offset for offset in range(len(self.log)) if not self.is_finished(offset, now_s)]

    @property
    def start_offset(self) -> int:
        """The first offset of the window."""
        states = [entry.state for entry in self.log]
        return next((o for o, state in enumerate(states) if state not in FINISHED), len(states))
