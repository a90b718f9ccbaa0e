"""Hand-overs of partitions between nodes: those of others, and this node's silent sessions.

Source: docs/decisions/048.

```
    former owner                     nodes' topic       next owner
    outcomes sent, locks renewed
    offer ──────────────────────────────▶ ─────────────▶ waits for it, if a session is open
    session silent, connection open                      follows the session, confirms the locks
    closed ◀───────────────────────────── ◀───────────── thanks
```

A session that no node has followed ends with its connection, which releases all: nothing is locked
for longer than `SILENT_S`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from keylane.errors import KeylaneError, ScansInvalid
from keylane.proxy.share.broker_session import BrokerSession, SharedPlace
from keylane.proxy.share.tallies import FOLLOWED, OFFERED, TAKEN
from keylane.share.handover import (
    THANKS,
    HandOver,
    NotedPlace,
    Thanks,
    read_head,
    read_note,
    write_note,
)
from keylane.share.sessions import Place
from keylane.tasks import spawn
from keylane.wire.primitives import Buffer

log = logging.getLogger("keylane.share")

SILENT_S: Final = 5.0
"""Time for which a session is kept that no node has followed: members come in it as a rule."""
FRESH_S: Final = SILENT_S
"""Time for which an offer is worth a try."""
OFFERS_BYTES_MAX: Final = 64 << 20
"""Bytes of offers that are remembered: all nodes read those of a whole node that stops."""

Key = tuple[str, Place]
"""Group, topic id and partition."""


def key_of(place: SharedPlace) -> Key:
    """Return the name of a partition of a group."""
    return place.group, (place.topic_id.bytes, place.partition)


class _Offer(NamedTuple):
    """An offer of another node, as it came: few of all are for this node."""

    place: SharedPlace
    note: bytes
    since_s: float


class _Silent(NamedTuple):
    """A session of this node that is to be followed."""

    session: BrokerSession
    hand_over: HandOver
    timer: asyncio.TimerHandle


class HandOvers:
    """Offers by partition. Event loop only; `OFFERS_BYTES_MAX` bounds those that are remembered."""

    def __init__(
        self,
        number: int,
        publish: Callable[[bytes], Awaitable[None]],
        *,
        has_others: Callable[[], bool],
        clock: Callable[[], float],
    ) -> None:
        """number: this node's. has_others: returns whether there are other nodes at this moment.

        publish: returns when the other nodes can read a note, or raises a KeylaneError.
        """
        self.number = number
        self._publish, self._clock = publish, clock
        self.has_others = has_others
        self.count: Callable[[str], None] = lambda _step: None
        """Called with each step of a hand-over."""
        self.on_offer: Callable[[SharedPlace], None] = lambda _place: None
        """Called with a partition that another node has offered."""
        self._offers: OrderedDict[Key, _Offer] = OrderedDict()
        """The oldest first."""
        self._offered_bytes = 0
        self._silent: dict[Key, _Silent] = {}
        self._arrived: dict[Key, asyncio.Event] = {}
        """Of partitions for whose offer this node waits."""
        self._all_closed = asyncio.Event()
        self._all_closed.set()

    def noted(self, place: SharedPlace) -> NotedPlace:
        """Return a partition as this node publishes it."""
        return NotedPlace(
            number=self.number,
            group=place.group,
            topic=place.topic,
            topic_id=place.topic_id,
            partition=place.partition,
        )

    # The former owner.
    async def give(self, session: BrokerSession, hand_over: HandOver) -> None:
        """Offer a partition, and keep its session, which sends nothing more, for a while.

        Raises: KeylaneError, it cannot be published: the session is the caller's as before.
        """
        await self._publish(write_note(hand_over))
        key = key_of(session.place)
        self._end_silent(key)
        loop = asyncio.get_running_loop()
        timer = loop.call_later(SILENT_S, self._end_silent, key)
        self._silent[key] = _Silent(session, hand_over, timer)
        self._all_closed.clear()
        self.count(OFFERED)
        log.info(
            "share session is offered to the next node %s records=%d",
            session.place, sum(last - first + 1 for first, last, *_ in hand_over.ranges),
        )  # fmt: skip

    def _end_silent(self, key: Key) -> None:
        silent = self._silent.pop(key, None)
        if silent is not None:
            silent.timer.cancel()
            silent.session.close()
        if not self._silent:
            self._all_closed.set()

    async def stop(self) -> None:
        """Wait until silent sessions are followed, or their time is over."""
        await self._all_closed.wait()

    # The next owner.
    def take_in(self, data: Buffer) -> None:
        """Note what another node has published. Raises: ScansInvalid."""
        kind, at = read_head(data)
        if at.number == self.number:
            return
        place = SharedPlace(at.group, at.topic, at.topic_id, at.partition)
        key = key_of(place)
        if kind == THANKS:
            if key in self._silent:
                self.count(FOLLOWED)
            self._end_silent(key)
            return
        self._forget(key)
        self._offers[key] = _Offer(place, bytes(data), self._clock())
        self._offered_bytes += len(data)
        self._forget_old()
        if key in self._arrived:
            self._arrived[key].set()
        self.on_offer(place)

    def offered(self) -> Iterable[SharedPlace]:
        """Return partitions whose offers are worth a try."""
        self._forget_old()
        return [offer.place for offer in self._offers.values()]

    def _forget(self, key: Key) -> _Offer | None:
        offer = self._offers.pop(key, None)
        if offer is not None:
            self._offered_bytes -= len(offer.note)
        return offer

    def _forget_old(self) -> None:
        """Forget offers whose sessions are over by now, and the oldest beyond the bound."""
        stale_s = self._clock() - FRESH_S
        while self._offers:
            key, offer = next(iter(self._offers.items()))
            if offer.since_s > stale_s and self._offered_bytes <= OFFERS_BYTES_MAX:
                break
            self._forget(key)

    async def wait_for(self, place: SharedPlace, wait_s: float) -> HandOver | None:
        """Return the offer of a partition, which is given once; None: it has not come in time."""
        key = key_of(place)
        own = self._silent.get(key)
        if own is not None:  # the partition has come back
            return own.hand_over
        offer = self._take(key)
        if offer is None:
            arrived = self._arrived[key] = asyncio.Event()
            try:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await arrived.wait()
            finally:
                self._arrived.pop(key, None)
            offer = self._take(key)
        return offer

    def _take(self, key: Key) -> HandOver | None:
        self._forget_old()
        offer = self._forget(key)
        try:
            note = None if offer is None else read_note(offer.note)
        except ScansInvalid as error:
            log.warning(
                "what another node has offered cannot be read, and is passed over %s reason=%s",
                offer and offer.place, error,
            )  # fmt: skip
            note = None
        return note if isinstance(note, HandOver) else None

    def thank(self, place: SharedPlace) -> None:
        """Publish that the locks are this node's: the former owner closes its session."""
        self._end_silent(key_of(place))
        self.count(TAKEN)
        spawn(self._thank(place), f"thanks {place}")

    async def _thank(self, place: SharedPlace) -> None:
        try:
            await self._publish(write_note(Thanks(self.noted(place))))
        except KeylaneError as error:
            log.debug("the former owner waits its time %s reason=%s", place, error)
