"""A connection to a partition's leader, compared with the log that was read before.

Source: KIP-320, KIP-392; KIP-595 (diverging epochs in Fetch); docs/decisions/026.

Every fetch names the leader's epoch, so a broker refuses it as soon as there is another leader, or
the same broker leads anew. A leader that was cut off goes on to answer with the old epoch: what
comes of an epoch that is over is thrown away. A new connection is compared before any record comes
over it, since only then its records may stand beside those of the connection before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.errors import AnswerTooLarge, KeylaneError, UpstreamLost
from keylane.offsets.lineage import NO_EPOCH, EpochEnd, Lineage
from keylane.proxy.lanes.split_io import PartitionSource, RawFetch

log = logging.getLogger("keylane.reader")

OTHER_LEADER: Final = (ErrorCode.fenced_leader_epoch, ErrorCode.unknown_leader_epoch)


class LeaderSilent(Exception):
    """A leader that does not say where epochs end: keylane may not ask, or there are none."""


class Line:
    """A connection to the leader, opened when needed. One fetch at a time, in order."""

    def __init__(
        self,
        open_source: Callable[[], Awaitable[PartitionSource]],
        lineage: Lineage,
        on_cut: Callable[[int], None],
        on_unsure: Callable[[], None],
        on_again: Callable[[], None] = lambda: None,
    ) -> None:
        """on_cut: takes the offset from which the leader's log differs from the log that was seen.

        on_unsure: is called when the leader cannot be compared, so that its log may differ.
        on_again: is called whenever a connection replaces one that failed.
        """
        self._open_source, self._lineage = open_source, lineage
        self._on_cut, self._on_unsure, self._on_again = on_cut, on_unsure, on_again
        self._source: PartitionSource | None = None
        self.lock = asyncio.Lock()
        self.is_sure = False
        """True: the leader was compared, or there was nothing to compare."""
        self.used_s = float("-inf")
        """Time of the last request, set by the reader."""

    async def fetch(self, offset: int, **how: Any) -> RawFetch:
        """Fetch; a connection that was idle, or whose broker leads no more, gets a second chance.

        Raises: KeylaneError.
        """
        is_again = False
        if self._source is not None:
            is_again = True
            try:
                raw = await self._source.fetch(offset, **how)
            except AnswerTooLarge:
                self.close()  # it would be as large again
                raise
            except (KeylaneError, OSError) as error:
                log.debug("leader connection is opened again error=%s", error)
            else:
                if raw.error_code not in OTHER_LEADER and raw.diverging is None:
                    return raw
            self.close()
            self._on_again()
        source = self._source = await self._open_source()
        try:
            await self._compare(source, is_again=is_again)
        except BaseException:
            self.close()
            raise
        return await source.fetch(offset, **how)

    def rest(self, unused_since_s: float) -> None:
        """Drop a connection that was not used since then.

        A connection to a leader without epochs stays: its successor would look the same.
        """
        if self.is_sure and self.used_s < unused_since_s and not self.lock.locked():
            self.close()

    def close(self) -> None:
        """Drop the connection; the next fetch looks for the leader anew."""
        if self._source is not None:
            self._source.close()
            self._source = None

    def leave_leader(self, leader_epoch: int) -> None:
        """Wait for no answer of the leader before this epoch, which may hang."""
        if self._source is not None and NO_EPOCH < self._source.leader_epoch < leader_epoch:
            self.close()

    async def _compare(self, source: PartitionSource, *, is_again: bool) -> None:
        """Find the offset from which the log of a new connection differs. Raises: UpstreamLost."""
        lineage, epoch = self._lineage, source.leader_epoch
        if epoch < lineage.leader_epoch:
            raise UpstreamLost(f"leader epoch {epoch} is over, {lineage.leader_epoch} has begun")
        self.is_sure = epoch != NO_EPOCH
        if not self.is_sure:
            if is_again:
                self._on_unsure()
            return
        if epoch == lineage.leader_epoch and not is_again:
            return
        try:
            cut = await place_cut(lineage, epoch, source.end_of_epoch)
        except LeaderSilent as error:
            log.warning("leader cannot be compared: reading anew error=%s", error)
            self.is_sure, cut = False, None
            self._on_unsure()
        if epoch < lineage.leader_epoch:
            raise UpstreamLost(f"leader epoch {epoch} is over, {lineage.leader_epoch} has begun")
        lineage.leader_epoch = epoch
        if cut is not None:
            self._on_cut(cut)


async def place_cut(
    lineage: Lineage, leader_epoch: int, end_of_epoch: Callable[[int], Awaitable[EpochEnd]]
) -> int | None:
    """Return the offset from which a leader's log differs from the log that was seen, or None.

    Raises: UpstreamLost; LeaderSilent.
    """
    questions = lineage.compare(leader_epoch)
    found: EpochEnd | None = None
    while True:
        try:
            asked = next(questions) if found is None else questions.send(found)
        except StopIteration as stop:
            cut: int | None = stop.value
            return cut
        found = await end_of_epoch(asked)
        if found.epoch == NO_EPOCH:
            raise LeaderSilent(f"the end of epoch {asked} is unknown to it")
