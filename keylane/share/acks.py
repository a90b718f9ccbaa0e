"""Acknowledgements in batches: their form is checked, and runs of offsets are merged.

Source: KIP-932, ShareAcknowledge; `KafkaApis.validateAcknowledgementBatches` of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.share.held import HeldRecord
from keylane.wire.share import ACCEPT, GAP, RENEW, AckBatch

OFFSETS_MAX: Final = 1 << 20
"""Offsets that one request may acknowledge of a partition; windows have 10,000 at most."""


def check_batches(batches: Sequence[AckBatch]) -> int:
    """Return INVALID_REQUEST for batches that no broker takes, else 0.

    They ascend without an overlap, and have one type for all offsets or one for each.
    """
    previous, total = -1, 0
    for first, last, types in batches:
        size = last - first + 1
        total += size
        if first <= previous or size < 1 or total > OFFSETS_MAX:
            return ErrorCode.invalid_request
        if len(types) not in (1, size) or max(types) > RENEW:
            return ErrorCode.invalid_request
        previous = last
    return 0


def sort_acks(
    batches: Sequence[AckBatch],
    held: Mapping[int, HeldRecord],
    bounds_of: Callable[[], tuple[int, int]],
) -> tuple[list[tuple[HeldRecord, int]], list[HeldRecord], int]:
    """Return decided records with their types, renewed ones, and the error code of all.

    batches: see `check_batches`. held: the member's records by offset. bounds_of: gives the bounds
    of the window, in which each offset has to be the member's; those below are finished.
    """
    if error_code := check_batches(batches):
        return [], [], error_code
    bounds: tuple[int, int] | None = None
    decided: list[tuple[HeldRecord, int]] = []
    renewed: list[HeldRecord] = []
    for first, last, types in batches:
        is_each, kind = len(types) > 1, types[0]
        for offset in range(first, last + 1):
            record = held.get(offset)
            if record is None:
                bounds = bounds_of() if bounds is None else bounds
                if offset > bounds[1]:
                    return [], [], ErrorCode.invalid_request
                if offset >= bounds[0]:
                    return [], [], ErrorCode.invalid_record_state
                continue
            kind = types[offset - first] if is_each else kind
            if kind == RENEW:
                renewed.append(record)
            else:
                decided.append((record, kind))
    return decided, renewed, 0


def has_renewals(batches: Iterable[AckBatch]) -> bool:
    """Return whether any offset is to be renewed."""
    return any(RENEW in types for _, _, types in batches)


def is_accepted(batches: Iterable[AckBatch]) -> bool:
    """Return whether all offsets are accepted."""
    return all(set(types) == {ACCEPT} for _, _, types in batches)


def halves_of(batches: Sequence[AckBatch]) -> tuple[list[AckBatch], list[AckBatch]]:
    """Split batches with one type each into two parts of as many offsets, as far as may be."""
    half = sum(last - first + 1 for first, last, _ in batches) // 2
    lower: list[AckBatch] = []
    upper: list[AckBatch] = []
    for first, last, types in batches:
        middle = first + min(half, last - first + 1)
        half -= middle - first
        if middle > first:
            lower.append(AckBatch(first, middle - 1, types))
        if middle <= last:
            upper.append(AckBatch(middle, last, types))
    return lower, upper


def runs_of(acks: Iterable[tuple[int, int]], gaps: Iterable[tuple[int, int]]) -> list[AckBatch]:
    """Return batches, ascending: neighbours with one type go together.

    acks: (offset, type). gaps: (first, last) of offsets without a record.
    """
    ranges = [(offset, offset, kind) for offset, kind in acks]
    ranges += [(first, last, GAP) for first, last in gaps]
    ranges.sort()
    batches: list[AckBatch] = []
    for first, last, kind in ranges:
        if batches:
            before = batches[-1]
            if before.last + 1 == first and before.types[0] == kind:
                batches[-1] = AckBatch(before.first, last, before.types)
                continue
        batches.append(AckBatch(first, last, bytes((kind,))))
    return batches


def ranges_without(offsets: Iterable[int], first: int, last: int) -> list[tuple[int, int]]:
    """Return the ranges from `first` to `last`, both included, that have none of the offsets."""
    ranges = []
    for offset in sorted(offsets):
        if offset > last:
            break
        if first < offset:
            ranges.append((first, offset - 1))
        first = max(first, offset + 1)
    if first <= last:
        ranges.append((first, last))
    return ranges
