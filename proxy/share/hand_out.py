"""Records that are handed out, as a member's answer has them.

Source: KIP-932; `ShareCompletedFetch` of Apache Kafka 4.3: a Java member walks records and acquired
offsets side by side. One that is not in order would be acknowledged as a gap, and be lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from keylane.kernel.pick import RecordBlock
from keylane.share.held import HeldRecord
from keylane.wire.share import Acquired


class Picks(NamedTuple):
    """Records of an answer by their blocks, in their order."""

    parts: list[tuple[RecordBlock, list[int]]]
    """Blocks, and rows of them."""
    largest_bytes: int
    """Bytes of the records at most."""

    def write(self) -> list[bytes]:
        """Return batches with these records.

        A batch that was read twice may stand in two blocks, whose records alternate. Then a batch
        begins below the end of the one before, and the records in them ascend all the same.
        """
        return [block.pick(rows) for block, rows in self.parts]


def plan_picks(records: Sequence[HeldRecord], poll_max: int) -> Picks:
    """Return where the bytes of records are, which these keep; ascending by offset.

    poll_max: records of one poll. A batch begins with each of them, since a Java member gives its
    application whole batches.
    """
    parts: list[tuple[RecordBlock, list[int]]] = []
    block, largest_bytes = None, 0
    for number, record in enumerate(records):
        if record.block is not block or number % poll_max == 0:
            block = record.block
            parts.append((block.records, []))
        parts[-1][1].append(record.row)
        largest_bytes += block.largest_bytes
    return Picks(parts, largest_bytes)


def acquired_of(records: Sequence[HeldRecord]) -> tuple[Acquired, ...]:
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
