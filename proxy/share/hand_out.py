"""Records that are handed out, as a member's answer has them.

Source: KIP-932; `ShareCompletedFetch` of Apache Kafka 4.3: a Java member walks records and acquired
offsets side by side. One that is not in order would be acknowledged as a gap, and be lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from keylane.share.held import Held
from keylane.wire.share import Acquired


def pick_records(records: Sequence[Held]) -> list[bytes]:
    """Return batches with these records, in their order. records: ascending by offset.

    A batch that was read twice may stand in two blocks, whose records alternate. Then a batch
    begins below the end of the one before, and the records in them ascend all the same.
    """
    pieces: list[bytes] = []
    start = 0
    for index in range(1, len(records) + 1):
        if index == len(records) or records[index].block is not records[start].block:
            rows = [record.row for record in records[start:index]]
            pieces.append(records[start].block.records.pick(rows))
            start = index
    return pieces


def acquired_of(records: Sequence[Held]) -> tuple[Acquired, ...]:
    """Return the ranges of records that are handed out: neighbours of one count go together."""
    ranges: list[Acquired] = []
    for record in records:
        if ranges:
            first, last, count = ranges[-1]
            if last + 1 == record.offset and count == record.count:
                ranges[-1] = Acquired(first, record.offset, count)
                continue
        ranges.append(Acquired(record.offset, record.offset, record.count))
    return tuple(ranges)
