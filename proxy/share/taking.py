"""The beginning of a session: in the place of another node's, with its locks, or anew.

Source: docs/decisions/048. Nothing is handed out before each lock that was offered is confirmed by
a renewal, and the session has settled by the same proof as any other. What the former owner has
offered is so a hint at what is locked, never the word on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.cluster.partition_source import UpstreamSource
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.lanes.split_io import ReaderKit
from keylane.proxy.share.broker_session import BrokerSession, SharedPlace
from keylane.proxy.share.confirmations import Confirmations
from keylane.proxy.share.handovers import HandOvers
from keylane.proxy.share.held_bytes import HeldBytes
from keylane.proxy.share.indexing import Indexed, index_all
from keylane.share.dispatcher import Dispatcher
from keylane.share.handover import HandOver, HeldRange

log = logging.getLogger("keylane.share")

LOOK_S: Final = 0.1
"""Time between looks if the session is open yet, whose node may end it without an offer."""
LOOKS_MAX: Final = 20
"""Two seconds: that node sends the outcomes that it has, and renews its locks."""
READ_S: Final = 5.0
"""Time to read what was offered: locks may be as short as that."""


async def begin(
    cluster: Cluster, place: SharedPlace, hand_overs: HandOvers | None
) -> tuple[BrokerSession, HandOver | None]:
    """Open a session; with the offer that it goes on with, None: it holds nothing.

    hand_overs: None: no other node can have the partition. Raises: UpstreamLost, ShareRefused.
    """
    session = await BrokerSession.connect(cluster, place)
    try:
        offer = None if hand_overs is None else await _wait_for_offer(session, hand_overs)
        if hand_overs is not None and offer is not None and await _follow(session, offer):
            hand_overs.thank(place)
            return session, offer
        await session.open()
    except BaseException:
        session.close()
        raise
    return session, None


async def _wait_for_offer(session: BrokerSession, hand_overs: HandOvers) -> HandOver | None:
    """Return the offer of the session that is open; None: none is, or it is not offered."""
    for _ in range(LOOKS_MAX):
        if not await session.is_open_elsewhere():
            return None
        offer = await hand_overs.wait_for(session.place, LOOK_S)
        if offer is not None:
            return offer
    log.info("no node hands over %s", session.place)
    return None


async def _follow(session: BrokerSession, offer: HandOver) -> bool:
    if offer.leader_epoch != session.leader_epoch:
        return False
    is_followed = await session.follow(offer.session_epoch)
    if not is_followed:
        log.info("what a node has offered is over %s", session.place)
    return is_followed


class Taker:
    """Takes in what was offered, for one session; the caller does nothing else with it."""

    def __init__(
        self,
        cluster: Cluster,
        kit: ReaderKit,
        held_bytes: HeldBytes,
        dispatcher: Dispatcher,
        confirmations: Confirmations,
        clock: Callable[[], float],
    ) -> None:
        self._cluster, self._kit, self._held_bytes = cluster, kit, held_bytes
        self._dispatcher, self._confirmations, self._clock = dispatcher, confirmations, clock

    async def take(self, session: BrokerSession, offer: HandOver) -> set[int]:
        """Hold what was offered, as far as the broker confirms it; return the offsets.

        Raises: UpstreamLost, ShareRefused: then the session is of no use, as its locks are not
        known, and ends with its connection.
        """
        dispatcher = self._dispatcher
        try:
            async with asyncio.timeout(READ_S):
                await self._read(session.place, offer.ranges)
        except TimeoutError:
            raise UpstreamLost(f"hand-over: {session.place}: records are not read") from None
        dispatcher.end_offset = max(dispatcher.end_offset, offer.end_offset)
        if not await self._confirmations.renew_all(session):
            raise UpstreamLost(f"hand-over: {session.place}: locks are not confirmed")
        now_s = self._clock()
        for first, last, _, wait_ms in offer.ranges:
            if wait_ms:
                dispatcher.delay(first, last, now_s + wait_ms / 1000, now_s)
        dispatcher.quiet_until_s = now_s + offer.quiet_ms / 1000
        log.info(
            "share session goes on from another node %s records=%d",
            session.place, dispatcher.locked_count,
        )  # fmt: skip
        return {offset for first, last, *_ in offer.ranges for offset in range(first, last + 1)}

    async def _read(self, place: SharedPlace, ranges: Sequence[HeldRange]) -> None:
        """Give the records to the dispatcher. Raises: UpstreamLost, one of them is not there."""
        source = await UpstreamSource.open(self._cluster, *place[1:])
        try:
            left = list(ranges)
            while left:
                indexed = await self._fetch(source, left[0].first)
                if indexed.next_offset <= left[0].first:
                    raise UpstreamLost(f"hand-over: {place}: no records at {left[0].first}")
                left = self._acquire(place, indexed, left)
        finally:
            source.close()

    async def _fetch(self, source: UpstreamSource, offset: int) -> Indexed:
        kit = self._kit
        room = ReadRoom(kit.gates, read_bytes=kit.read_bytes_max, block_bytes=kit.plain_bytes_max)
        try:
            raw = await source.fetch(
                offset, max_wait_ms=0, max_bytes=kit.read_bytes_max, isolation_level=0, room=room
            )
            if raw.error_code:
                raise UpstreamLost(f"hand-over: {source.topic}: error {raw.error_code}")
            await room.for_records(len(raw.records))
            return await index_all(kit, raw.records, room)
        finally:
            room.leave()

    def _acquire(
        self, place: SharedPlace, indexed: Indexed, ranges: Sequence[HeldRange]
    ) -> list[HeldRange]:
        """Take what is read of ranges; return what is left. Raises: UpstreamLost."""
        now_s = self._clock()
        blocks = [(each, self._held_bytes.hold(place.group, each)) for each in indexed.blocks]
        for number, part in enumerate(ranges):
            first, end = part.first, min(part.last + 1, indexed.next_offset)
            for block, keeper in blocks:
                low, high = np.searchsorted(block.offsets, (first, end)).tolist()
                offsets, points = block.offsets[low:high].tolist(), block.points[low:high].tolist()
                if offsets and (offsets[0], offsets[-1]) == (first, first + len(offsets) - 1):
                    self._dispatcher.acquire(offsets, points, part.deliveries, now_s, keeper, low)
                    first = offsets[-1] + 1
            if first < end:
                raise UpstreamLost(f"hand-over: {place}: record {first} is not in the log")
            if end <= part.last:
                return [part._replace(first=max(part.first, end)), *ranges[number + 1 :]]
        return []
