"""The end of a session whose records another node goes on with.

Source: docs/decisions/048. What is at members is released: it was delivered. The rest is locked,
and stays so: giving it back to the broker would count as a delivery that no member has seen.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from keylane.errors import KeylaneError
from keylane.proxy.share.broker_session import BrokerSession, SessionTaken
from keylane.proxy.share.confirmations import Confirmations
from keylane.proxy.share.handovers import HandOvers
from keylane.share.dispatcher import Dispatcher
from keylane.share.handover import HandOver, held_ranges, wait_ms_of
from keylane.share.states import OUT

log = logging.getLogger("keylane.share")

GIVE_S: Final = 2.0
"""Time for outcomes; the next owner does not wait for longer."""


async def give(
    session: BrokerSession,
    dispatcher: Dispatcher,
    confirmations: Confirmations,
    hand_overs: HandOvers,
    clock: Callable[[], float],
) -> bool:
    """Offer what is held to the next node, and give the session away; False: it is as before."""
    try:
        async with asyncio.timeout(GIVE_S):
            hand_over = await _prepare(session, dispatcher, confirmations, hand_overs, clock)
            if hand_over is None:
                return False
            await hand_overs.give(session, hand_over)
    except SessionTaken:
        raise  # another node has it
    except (KeylaneError, OSError, TimeoutError) as error:
        log.info("records are not handed over %s reason=%r", session.place, error)
        return False
    return True


async def _prepare(
    session: BrokerSession,
    dispatcher: Dispatcher,
    confirmations: Confirmations,
    hand_overs: HandOvers,
    clock: Callable[[], float],
) -> HandOver | None:
    """Send all outcomes, and renew all locks; None: there is nothing that may be handed over.

    Raises: UpstreamLost, ShareRefused.
    """
    if not dispatcher.is_settled:
        return None
    for record in dispatcher.records.values():
        if record.state == OUT:
            record.deadline_s = clock()
    dispatcher.expire(clock())
    await confirmations.send_all(session)
    if not await confirmations.renew_all(session):
        return None
    now_s = clock()
    ranges = held_ranges(dispatcher, now_s)
    if not ranges:
        return None
    return HandOver(
        at=hand_overs.noted(session.place),
        leader_epoch=session.leader_epoch,
        session_epoch=session.next_epoch,
        end_offset=dispatcher.end_offset,
        quiet_ms=wait_ms_of(dispatcher.quiet_until_s - now_s),
        ranges=ranges,
    )
