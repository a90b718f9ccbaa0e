"""The end of finished records: marked done and committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import Any, Final, Protocol

from keylane.client.errors import PartitionLost
from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.client.workers.source import Source, TakesOutcomes
from keylane.client.workers.tallies import Tallies

MARKS_MAX: Final = 64
"""So many are marked at once at most: 0.2 ms, for which no handler goes on; 2 us for each record,
where one alone takes three times as long."""
log = logging.getLogger("keylane.workers")


class DoneLedger(Protocol):
    """Takes finished records, and makes their end last."""

    held_count: int
    """Finished records whose results are held until a commit; they count as queued."""
    commit_wanted: asyncio.Event
    """Set: the next commit does not wait for its time."""

    def done(self, record: ConsumerRecord, result: Any) -> None:
        """Take a record whose work has ended well, or whose letter is written."""

    def forget(self, places: Collection[TopicPartition]) -> None:
        """Drop what is not committed of these: they are lost."""

    def flush(self) -> None:
        """Give the source what it has to know before its next poll."""

    async def commit(self) -> None:
        """Commit what was taken. Raises what cannot be mended by another commit."""


class Marks:
    """Each record is marked done at the source; its commit covers all that are.

    Marks go in groups, before each poll and commit: one costs the source a walk through its
    partitions. Those of a share group go at once, since the next record of a key waits for them.
    """

    def __init__(self, source: Source, tallies: Tallies, *, is_prompt: bool = False) -> None:
        """is_prompt: each mark asks for a commit."""
        self._is_prompt = is_prompt
        self._source, self._tallies = source, tallies
        self._marks: list[ConsumerRecord] = []
        self._marks_max = 1 if isinstance(source, TakesOutcomes) else MARKS_MAX
        self.held_count = 0
        self.commit_wanted = asyncio.Event()
        self._is_due = False
        self._lock = asyncio.Lock()

    def done(self, record: ConsumerRecord, result: Any) -> None:  # noqa: ARG002 - exactly-once's
        """Mark a record, with those before it."""
        self._marks.append(record)
        if self._is_prompt:
            self.commit_wanted.set()
        if len(self._marks) >= self._marks_max:
            self.flush()

    def flush(self) -> None:
        """Mark what is not marked yet."""
        if self._marks:
            marks, self._marks = self._marks, []
            self._source.mark_done(*marks)
            self._is_due = True

    def forget(self, places: Collection[TopicPartition]) -> None:
        """Drop the marks of these: they may be this member's again, from an earlier offset."""
        self._marks = [each for each in self._marks if each.topic_partition not in places]

    async def commit(self) -> None:
        """Commit, if something was marked since. One that may be repeated is logged only."""
        async with self._lock:
            self.flush()
            if not self._is_due:
                return
            self._is_due = False
            is_sent = False
            try:
                await self._source.commit()
                is_sent = True
            except PartitionLost as error:
                self._tallies.commit_failures += 1
                log.info("not committed, others own it: %s", error)
            except Exception as error:
                self._tallies.commit_failures += 1
                if not getattr(error, "retriable", False):
                    raise
                log.warning("not committed, the next commit repeats it: %s", error)
            finally:
                self._is_due |= not is_sent  # also when it was cancelled
                self._tallies.commits += is_sent
