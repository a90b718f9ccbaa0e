"""Outcomes and renewals of one partition, sent to its broker and judged.

Source: KIP-932, KIP-1222; `SharePartition.acknowledge` of Apache Kafka 4.3: of a partition all
acknowledgements of a request hold, or none. So one lost lock refuses them all, and the others are
found by halves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.errors import ShareRefused, UpstreamLost
from keylane.proxy.share.broker_session import BrokerSession
from keylane.share.acks import halves_of
from keylane.share.dispatcher import Dispatcher
from keylane.wire.share import RELEASE, AckBatch

MOVED: Final = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_topic_id,
    ErrorCode.fenced_state_epoch,
)
"""The partition, or its state, is elsewhere: the session is opened anew."""
LOCK_LOST: Final = (ErrorCode.invalid_record_state, ErrorCode.invalid_request)
NO_RENEWAL: Final = "not enabled"
"""In the message of a broker whose group has `share.renew.acknowledge.enable` off."""
AGAIN_S: Final = 0.2
FAILURES_MAX: Final = 25
"""Writes of the share coordinator that fail in a row before the session is opened anew."""
CHECKS_PER_LOCK: Final = 30
PROMPT_S: Final = 1.0
"""Time for which outcomes may be answered before any of them is confirmed."""


class Confirmations:
    """Sends to one session at a time; the caller does nothing else with it meanwhile."""

    def __init__(self, dispatcher: Dispatcher, clock: Callable[[], float]) -> None:
        self._dispatcher, self._clock = dispatcher, clock
        self._failures = 0
        self._confirmed_s = 0.0
        self.acks_s = 0.0
        """Time from which outcomes are sent."""
        self.has_written = False
        """The broker has confirmed outcomes."""
        self.renew_s = 0.0
        """Time when locks are looked at next."""

    def are_prompt(self, now_s: float) -> bool:
        """Return whether the broker has confirmed outcomes of late, or had none to confirm."""
        if not self._dispatcher.freed_count:
            self._confirmed_s = now_s
        return now_s - self._confirmed_s <= PROMPT_S

    async def send(self, session: BrokerSession, acks: Sequence[AckBatch]) -> None:
        """Send outcomes. Raises: UpstreamLost."""
        answer = await session.acknowledge(acks)
        await self.judge(session, acks, answer.error_code, answer.error_message)

    async def send_all(self, session: BrokerSession) -> None:
        """Send outcomes until none is left. Raises: UpstreamLost."""
        while self._dispatcher.has_acks:
            # After a failure a coordinator is not asked at once, and says nothing when it is ready.
            await asyncio.sleep(max(0.0, self.acks_s - self._clock()))
            await self.send(session, self._dispatcher.next_acks())

    async def judge(
        self, session: BrokerSession, acks: Sequence[AckBatch], code: int, message: str | None
    ) -> None:
        """Take in the answer to outcomes. Raises: UpstreamLost."""
        now_s = self._clock()
        if code == 0:
            self._failures, self._confirmed_s, self.has_written = 0, now_s, True
            self._dispatcher.acked(acks, now_s)
        elif code in LOCK_LOST:
            lower, upper = halves_of(acks)
            if not lower:
                self._dispatcher.refused(upper, ErrorCode.invalid_record_state, now_s)
                return
            await self.send(session, lower)
            await self.send(session, upper)
        else:
            self._dispatcher.unsend(acks)
            self._failures += 1
            self.acks_s = now_s + AGAIN_S
            if code in MOVED or self._failures > FAILURES_MAX:
                self._failures = 0
                raise UpstreamLost(f"acknowledgement: {session.place}: error {code} {message}")

    async def renew_due(self, session: BrokerSession) -> bool:
        """Renew locks that are due; False: none is. Raises: UpstreamLost, ShareRefused."""
        now_s = self._clock()
        self.renew_s = now_s + self._dispatcher.lock_s / CHECKS_PER_LOCK
        due = self._dispatcher.renewals(now_s)
        if due:
            await self._renew(session, due)
        return bool(due)

    async def renew_all(self, session: BrokerSession) -> bool:
        """Renew all locks; those that were lost are noted. False: the broker has not said of all.

        Raises: UpstreamLost, ShareRefused.
        """
        due = self._dispatcher.renewals(inf)
        return not due or await self._renew(session, due)

    async def _renew(self, session: BrokerSession, due: Sequence[AckBatch]) -> bool:
        """Renew locks; return whether it is known of each if it was lost."""
        answer = await session.acknowledge(due, is_renewal=True)
        now_s = self._clock()
        if answer.error_code == 0:
            self._dispatcher.renewed(due, now_s)
            return True
        if answer.error_code in LOCK_LOST:
            if NO_RENEWAL in (answer.error_message or ""):
                raise ShareRefused(
                    f"{session.place}: order by key renews locks, and "
                    "share.renew.acknowledge.enable of the group is false"
                )
            lower, upper = halves_of(due)
            if lower:
                is_known = await self._renew(session, lower)
                return await self._renew(session, upper) and is_known
            self._dispatcher.lose(upper, now_s)
            return True
        if answer.error_code in MOVED:
            raise UpstreamLost(f"renewal: {session.place}: error {answer.error_code}")
        return False

    async def release(self, session: BrokerSession, first: int, last: int) -> bool:
        """Release offsets that no dispatcher has; return whether the session had them.

        Raises: UpstreamLost, also where the broker cannot write it: whether it had them is open.
        """
        answer = await session.acknowledge([AckBatch(first, last, bytes((RELEASE,)))])
        code, message = answer.error_code, answer.error_message
        if code and code not in LOCK_LOST:
            raise UpstreamLost(f"release: {session.place}: error {code} {message}")
        return code == 0
