"""Places of a log that a sample is read from: spread over all of it, so that no hour decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

SPANS: Final = 16
"""Places of each partition; a power of two."""
QUOTA_MIN: Final = 160
"""Records of a partition that are read however little of the topic it has, if all get as many."""
SPAN_MIN: Final = 64
"""Records of a place: fewer are not worth a request."""


class OffsetSpan(NamedTuple):
    """Offsets to read, the last one exclusive."""

    start: int
    end: int


def share_out(offsets: Mapping[int, int], records_max: int) -> dict[int, int]:
    """Return the records to read of each partition, by its part of all offsets."""
    total = sum(offsets.values())
    least = max(1, min(QUOTA_MIN, records_max // max(1, len(offsets))))
    return {
        part: min(count, max(least, -(-records_max * count // total)))
        for part, count in offsets.items()
        if count
    }


def plan_spans(start: int, end: int, wanted: int) -> list[OffsetSpan]:
    """Return spans of a log that have `wanted` offsets in sum, the newest first, then the oldest.

    They come in an order in which any number of them is spread over the log, so that reading may
    end at any time. A log with few more offsets than are wanted is read whole.
    """
    count = end - start
    if count <= 0 or wanted <= 0:
        return []
    spans = min(SPANS, max(1, min(wanted, count) // SPAN_MIN))
    width = -(-min(wanted, count) // spans)
    if width * spans >= count:
        edges = [start + count * number // spans for number in range(spans + 1)]
        found = [OffsetSpan(edges[number], edges[number + 1]) for number in range(spans)]
    else:
        ends = [end - (count - width) * number // max(1, spans - 1) for number in range(spans)]
        found = [OffsetSpan(each - width, each) for each in reversed(ends)]
    last = found.pop()
    bits = (SPANS - 1).bit_length()
    order = sorted(range(len(found)), key=lambda number: int(f"{number:0{bits}b}"[::-1], 2))
    return [last, *(found[number] for number in order)]
