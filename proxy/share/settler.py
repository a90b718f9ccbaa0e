"""Search for records that a session does not hold yet, before anything is handed out.

Source: docs/decisions/048; `SharePartitionManager`, `DelayedShareFetch` of Apache Kafka 4.3: a
fetch that waits goes on after its connection, and acquires records in keylane's name, of which no
node learns. They are found by releasing what is not held. Of a group without a written state
nothing can be proved. If some of its records were delivered before, it is made to have one: the
broker writes one thing after the other, so that with the release of one record all is written that
has to be written before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.share.broker_session import BrokerSession, SharedPlace
from keylane.proxy.share.confirmations import Confirmations
from keylane.proxy.share.intake import Intake
from keylane.proxy.share.settling import UNKNOWN, Progress, ask_progress, holds_all
from keylane.share.acks import ranges_without
from keylane.share.dispatcher import Dispatcher
from keylane.wire.share import RELEASE, AckBatch

log = logging.getLogger("keylane.share")

SETTLE_S_MAX: Final = 3.0
PROVE_S_MAX: Final = 1.0
"""Members wait meanwhile, once for a group; it takes 0.1 s where no member is beside keylane."""
POLL_S: Final = 0.05
"""Between two questions to a coordinator: no event says that it has written or read something."""
EMPTY_S: Final = 0.1
"""Time after which a group without a written state and without records counts as new."""
FRESH_S: Final = 0.3
"""Time after which a group without a written state counts as new, if nothing of it was delivered
before; else it is made to have one."""
LOST_S: Final = 0.7
"""Time after which records of lost answers are looked for: such a fetch waits 500 ms at most."""
ASKED_PART: Final = 2
"""Part of a lock's duration for which a coordinator that does not answer is asked again."""
QUESTIONS_MAX: Final = 64
"""Releases that are tried in a search; each costs a question to the broker."""
DELIVERIES_MIN: Final = 3
"""Limit of deliveries from which one of them may be given for a written state."""


class Settler:
    """Works on one session at a time; the caller does nothing else with it meanwhile."""

    def __init__(
        self,
        cluster: Cluster,
        place: SharedPlace,
        dispatcher: Dispatcher,
        intake: Intake,
        confirmations: Confirmations,
        clock: Callable[[], float],
    ) -> None:
        self._cluster, self._place, self._dispatcher = cluster, place, dispatcher
        self._intake, self._confirmations, self._clock = intake, confirmations, clock
        self.delivery_limit: int | None = None
        """The group's limit of deliveries; None: it is not known."""
        self.released: set[int] = set()
        """Offsets that were released for a written state: no other process has had them."""
        self.is_proven = False
        """The coordinator has said that all is held, or that it is not."""

    async def settle(
        self, session: BrokerSession, look_ahead: int, is_over: Callable[[], bool]
    ) -> bool:
        """Fetch until all that is not finished is locked, or `is_over` says that it is in vain.

        Return False where it was not proved in time: members beside keylane hold records, or a
        transaction is open. Raises: UpstreamLost.
        """
        dispatcher, began_s = self._dispatcher, self._clock()
        asks_until_s = began_s + dispatcher.lock_s / ASKED_PART
        dispatcher.is_settled = has_looked = self.is_proven = False
        while not is_over():
            await self._intake.fetch(session, max(1, look_ahead - dispatcher.locked_count))
            log_end = await session.log_end()
            progress, vain_s = await self._ask(asks_until_s)
            began_s += vain_s
            if self._holds_all(progress, log_end):
                self.is_proven = True
                return True
            passed_s, is_new = self._clock() - began_s, progress.start_offset == UNKNOWN
            if is_new and self._is_fresh(passed_s):
                return True
            if not has_looked and passed_s >= (FRESH_S if is_new else LOST_S):
                has_looked = True
                if is_new:
                    await self._have_it_written(session)
                else:
                    await self._look_for_lost(session, progress.start_offset)
            if passed_s > SETTLE_S_MAX:
                self.is_proven = not is_new
                return is_new and not dispatcher.gone
            await asyncio.sleep(POLL_S)
        return True

    async def prove(self, session: BrokerSession) -> bool:
        """Return whether all is held, of a group that had no written state when it settled.

        To be asked when outcomes were written, and none is under way: the coordinator says a moment
        later that they are finished. Raises: UpstreamLost.
        """
        until_s = self._clock() + PROVE_S_MAX
        while True:
            log_end, asked_s = await session.log_end(), self._clock()
            progress = await ask_progress(self._cluster, self._place)
            is_alone = self._holds_all(progress, log_end)
            if is_alone or asked_s >= until_s:  # the first answer may take longer than that
                self.is_proven = progress.start_offset != UNKNOWN
                return is_alone or not self.is_proven
            await asyncio.sleep(POLL_S)

    async def _ask(self, until_s: float) -> tuple[Progress, float]:
        """Return the coordinator's numbers, and the time of questions in vain.

        Its silence ends no session, since that would count as a delivery of all that is locked.
        Raises: UpstreamLost, at `until_s`.
        """
        began_s = asked_s = self._clock()
        while True:
            try:
                return await ask_progress(self._cluster, self._place), asked_s - began_s
            except UpstreamLost as error:
                if self._clock() >= until_s:
                    raise
                log.debug("share coordinator is asked again %s reason=%s", self._place, error)
            await asyncio.sleep(POLL_S)
            asked_s = self._clock()

    def _holds_all(self, progress: Progress, log_end: int) -> bool:
        dispatcher = self._dispatcher
        if dispatcher.end_offset >= 0:
            return holds_all(progress, dispatcher.locked_count, dispatcher.end_offset, log_end)
        if progress.start_offset == UNKNOWN or progress.lag > 0:
            return False
        dispatcher.end_offset = log_end - 1  # all before it is finished; what is passed over is not
        return True

    def _is_fresh(self, passed_s: float) -> bool:
        """Return whether a group without a written state has begun with what is held."""
        if self._dispatcher.gone:
            return False  # what is finished is written: the broker has yet to give these again
        if self._dispatcher.end_offset < 0:
            return passed_s >= EMPTY_S  # with the first records it is settled once more
        is_first = all(record.count == 1 for record in self._dispatcher.records.values())
        return is_first and passed_s >= FRESH_S

    async def _have_it_written(self, session: BrokerSession) -> None:
        """Release the last record: the broker writes the start offset of the group with that."""
        if self.delivery_limit is None or self.delivery_limit < DELIVERIES_MIN:
            return
        last = max(self._dispatcher.records, default=-1)
        if last >= 0 and await self._confirmations.release(session, last, last):
            released = AckBatch(last, last, bytes((RELEASE,)))
            self._dispatcher.lose([released], self._clock())
            self.released.add(last)

    async def _look_for_lost(self, session: BrokerSession, start_offset: int) -> None:
        """Release what a fetch of a former session has acquired, whose answer was lost."""
        dispatcher = self._dispatcher
        locked = [record.offset for record in dispatcher.records.values() if record.is_locked]
        left = ranges_without(locked, start_offset, dispatcher.end_offset)
        for _ in range(QUESTIONS_MAX):
            if not left:
                break
            first, last = left.pop()
            if await self._confirmations.release(session, first, last):
                log.info("records come again %s offsets=%d-%d", self._place, first, last)
            elif first < last:
                middle = (first + last) // 2
                left += [(first, middle), (middle + 1, last)]
