"""Outcomes that are to be sent to the broker: of records, and of offsets without a record."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from keylane.share.acks import runs_of
from keylane.share.held import HeldRecord
from keylane.wire.share import GAP, RENEW, AckBatch

RENEWED_PART: Final = 3
"""A lock is renewed when this part of its duration is over."""


class Outgoing:
    """Invariant: its records are decided, locked, and not sent."""

    def __init__(self) -> None:
        self.records: list[HeldRecord] = []
        self._gaps: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self.records or self._gaps)

    @property
    def gap_count(self) -> int:
        """Offsets without a record."""
        return sum(last - first + 1 for first, last in self._gaps)

    def add(self, record: HeldRecord) -> None:
        """Have the outcome of a record sent."""
        self.records.append(record)

    def add_gap(self, first: int, last: int) -> None:
        """Have the broker learn that there is no record."""
        self._gaps.append((first, last))

    def add_gaps(self, batches: Iterable[AckBatch], has_record: Callable[[int], bool]) -> None:
        """Take gaps back; members, too, may say of a record that there is none."""
        for first, last, types in batches:
            if types[0] == GAP:
                offsets = range(first, last + 1)
                self._gaps += [(each, each) for each in offsets if not has_record(each)]

    def discard(self, record: HeldRecord) -> None:
        """Take a record out."""
        self.records = [each for each in self.records if each is not record]

    def keep_locked(self) -> None:
        """Take out records without a lock."""
        self.records = [record for record in self.records if record.is_locked]

    def clear(self) -> None:
        """Take all out."""
        self.records, self._gaps = [], []

    def take(self) -> list[AckBatch]:
        """Return all as batches, ascending; the records are sent."""
        acks = []
        for record in self.records:
            record.is_sent = True
            acks.append((record.offset, record.outcome))
        batches = runs_of(acks, self._gaps)
        self.clear()
        return batches


def renewals_of(records: Iterable[HeldRecord], now_s: float, lock_s: float) -> list[AckBatch]:
    """Return renewals of locks of which a third is over. lock_s: their duration."""
    due_s = now_s - lock_s / RENEWED_PART
    due = [
        (record.offset, RENEW)
        for record in records
        if record.is_locked and record.locked_s <= due_s and not record.is_sent
    ]
    return runs_of(due, ())
