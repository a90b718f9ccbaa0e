"""Reads of one partition that are under way, and the offsets that they will bring."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from keylane.offsets.lineage import NO_EPOCH
from keylane.proxy.lanes.leader_line import Line

SPAN_UNKNOWN: Final = 2**62


@dataclass(slots=True, eq=False)
class Read:
    """One read, from request to the last block."""

    start: int
    is_long_poll: bool
    line: Line
    bytes_max: int
    generation: int
    sequence: int
    reached: int
    """End of the blocks that were handed out."""
    task: asyncio.Task[None] | None = None
    scanned_end: int = -1
    """End of what any node had read of the partition when the request was sent."""
    leader_epoch: int = NO_EPOCH
    """Epoch of the leader that answered."""
    has_line: bool = True
    """True: it holds the line, or waits for it."""

    def is_about_to_pass(self, offset: int, span: int) -> bool:
        """Return whether the read will likely bring `offset`, and has not done so already.

        By start and span alone a lane at its end would join a read that brings it nothing.
        """
        return self.reached <= offset < self.start + span


class Reads(set[Read]):
    """The reads that are under way."""

    span = SPAN_UNKNOWN
    """Offsets in the last answer; before the first one any number may come."""

    def will_bring(self, offset: int) -> bool:
        """Return whether to wait for one of them: it starts at `offset`, or is about to pass it.

        A long poll does not pass: an offset beyond the log end would wait behind it without end.
        """
        for read in self:
            if read.reached == offset:
                return True
            if not read.is_long_poll and read.is_about_to_pass(offset, self.span):
                return True
        return False

    def hold(self, line: Line) -> bool:
        """Return whether a read holds the line, or waits for it."""
        return any(read.has_line and read.line is line for read in self)
