"""Dead letters of one partition, written beside its session at the broker.

Source: docs/decisions/048.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from keylane.errors import UpstreamLost
from keylane.proxy.share.broker_session import SharedPlace
from keylane.proxy.share.dead_letters import LIMIT_REACHED, REJECTED, Letter, LetterWriter
from keylane.share.dispatcher import Dispatcher
from keylane.share.held import HeldRecord
from keylane.tasks import spawn
from keylane.wire.share import REJECT

log = logging.getLogger("keylane.share")

AGAIN_S: Final = 2.0


class Copies:
    """Writes letters, one set after the other; the records wait, locked, and so do their keys."""

    def __init__(
        self,
        place: SharedPlace,
        topic: str | None,
        dispatcher: Dispatcher,
        letters: LetterWriter,
        clock: Callable[[], float],
        on_written: Callable[[], None],
    ) -> None:
        self._place, self._topic, self._dispatcher = place, topic, dispatcher
        self._letters, self._clock, self._on_written = letters, clock, on_written
        self.written = 0
        self._pending: list[tuple[HeldRecord, Letter]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def has_pending(self) -> bool:
        """Return whether letters are to be written yet."""
        return bool(self._pending)

    def start(self) -> None:
        """Take what the dispatcher wants to be written, with the bytes, which it may drop."""
        records, self._dispatcher.to_copy = self._dispatcher.to_copy, []
        self._pending += [(record, self._letter_of(record)) for record in records]
        if self._pending and self._task is None:
            self._task = spawn(self._write_all(), f"dead letters {self._place}")
            self._task.add_done_callback(self._over)

    def _letter_of(self, record: HeldRecord) -> Letter:
        is_rejected = record.outcome == REJECT and record.ticket is not None
        reason = REJECTED if is_rejected else LIMIT_REACHED
        batch = record.block.records.pick([record.row])
        return Letter(record.offset, record.count, reason, batch)

    def _over(self, _task: asyncio.Task[None]) -> None:
        self._task = None

    async def _write_all(self) -> None:
        is_lost = False
        while self._pending:
            pending = tuple(self._pending)
            try:
                await self._write([letter for _, letter in pending])
            except UpstreamLost as error:
                if not is_lost:
                    log.warning("%s; their keys wait %s", error, self._place)
                is_lost = True
                await asyncio.sleep(AGAIN_S)
                continue
            is_lost = False
            del self._pending[: len(pending)]
            self.written += len(pending)
            for record, _ in pending:
                self._dispatcher.copied(record, self._clock())
            self._on_written()

    async def _write(self, letters: Sequence[Letter]) -> None:
        assert self._topic is not None, "only rules with a topic have letters"
        await self._letters.write(self._topic, self._place, letters)

    def close(self) -> None:
        """Stop; records whose letters are not written come again."""
        if self._task is not None:
            self._task.cancel()
