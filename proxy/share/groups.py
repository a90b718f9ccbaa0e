"""Ordered share groups of this node: their partitions, and the sessions of their members.

Source: docs/decisions/048.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from keylane.bounded import BoundedDict
from keylane.config.share_rules import ShareRule
from keylane.errors import UpstreamLost
from keylane.proxy.net.upstream import ServiceLink
from keylane.proxy.share.broker_session import SharedPlace, lacking
from keylane.proxy.share.group_config import NO_RENEWALS, ask_group_config
from keylane.proxy.share.handovers import key_of
from keylane.proxy.share.held_bytes import HeldBytes
from keylane.proxy.share.kit import ShareKit
from keylane.proxy.share.partition import OrderedPartition
from keylane.proxy.share.tallies import ShareTallies
from keylane.share.held import HeldRecord
from keylane.share.pace import part_of_rest
from keylane.share.sessions import Place, ShareSession, ShareSessions
from keylane.tasks import spawn

log = logging.getLogger("keylane.share")

SESSIONS_MAX: Final = 10_000
NAMES_MAX: Final = 10_000
LINGER_S: Final = 60.0
"""Time for which a partition's records stay locked after its last member has gone.

Giving records back counts as a delivery. A member that is started again and again would use up the
deliveries of records that it has never seen.
"""
FORGOTTEN_S: Final = 0.5
"""Time between two looks whether a session still holds records of a partition it has forgotten."""


class HandedOut(NamedTuple):
    """Records of one partition that are handed out in one answer."""

    partition: OrderedPartition
    records: Sequence[HeldRecord]


class OrderedGroups:
    """All ordered share groups that have members here."""

    def __init__(
        self, kit: ShareKit, rules: Sequence[ShareRule], *, linger_s: float = LINGER_S
    ) -> None:
        self._kit, self._rules, self._linger_s = kit, rules, linger_s
        self.sessions = ShareSessions(SESSIONS_MAX)
        self.tallies = ShareTallies()
        self._partitions: dict[tuple[str, Place], OrderedPartition] = {}
        """By group, topic id and partition."""
        self._lingering: dict[tuple[str, Place], asyncio.TimerHandle] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._known_groups: BoundedDict[str, bool] = BoundedDict(NAMES_MAX)
        self._is_able = False
        """Brokers have what it takes."""
        self._is_draining = self._is_leaving = False
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def held_bytes(self) -> HeldBytes:
        """Return the memory of records that are held."""
        return self._kit.held_bytes

    @property
    def has_rules(self) -> bool:
        """Return whether any share group may be ordered."""
        return bool(self._rules)

    def has_group(self, group: str) -> bool:
        """Return whether topics of a group may be ordered."""
        known = self._known_groups.get(group)
        if known is None:
            known = any(rule.matches_group(group) for rule in self._rules)
            self._known_groups[group] = known
        return known

    def rule_of(self, group: str, topic: str) -> ShareRule | None:
        """Return the rule of a group's topic; None: the broker serves it."""
        return next((rule for rule in self._rules if rule.matches(group, topic)), None)

    async def lacking(self, group: str) -> str | None:
        """Return the reason why brokers cannot serve an ordered group; None: they can.

        Raises: UpstreamLost.
        """
        if not self._is_able:
            reason = await self._kit.cluster.links.ask_any(_lacking_at)
            self._is_able = reason is None
            if reason:
                return str(reason)
        try:
            config = await ask_group_config(self._kit.cluster, group)
        except UpstreamLost as error:  # keylane may not ask; a renewal will show it
            log.debug("configuration of a group is not known reason=%s", error)
            return None
        return None if config.has_renewals else NO_RENEWALS.format(group=group)

    def partitions(self) -> Iterable[OrderedPartition]:
        """Return all partitions that are open."""
        return self._partitions.values()

    def find(self, group: str, place: Place) -> OrderedPartition | None:
        """Return a partition that is open."""
        return self._partitions.get((group, place))

    def join(
        self, session: ShareSession, place: SharedPlace, rule: ShareRule, records_max: int
    ) -> None:
        """Note that a member's session has a partition; it is opened if it is not."""
        key = place.group, (place.topic_id.bytes, place.partition)
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._open(key, place, rule)
        timer = self._lingering.pop(key, None)
        if timer is not None:
            timer.cancel()
        partition.join(session, records_max)
        session.forgotten.discard(key[1])
        session.add((key[1],))

    def _open(
        self, key: tuple[str, Place], place: SharedPlace, rule: ShareRule
    ) -> OrderedPartition:
        partition = self._partitions[key] = OrderedPartition(self._kit, place, rule)
        if self._is_draining:
            partition.drain()
        if self._is_leaving:
            self._leave_node((partition,))
        return partition

    def take_offers(self) -> None:
        """Open all that other nodes have offered of late, as places have changed."""
        if self._kit.hand_overs is not None:
            for place in self._kit.hand_overs.offered():
                self.take_offer(place)

    def take_offer(self, place: SharedPlace) -> None:
        """Open what another node hands over, if it is placed here by now: members come soon."""
        key, rule = key_of(place), self.rule_of(place.group, place.topic)
        if self._is_draining or rule is None or key in self._partitions:
            return
        if self._kit.is_known(place.topic) and self._kit.is_here(place):
            self._open(key, place, rule)
            self._linger(key)

    def forget(self, session: ShareSession, place: Place) -> None:
        """Give a session no more of a partition; what it holds stays its own, as at a broker."""
        partition = self.find(session.key.group, place)
        if session.drop((place,)) and partition is not None:
            partition.forget(session)
            session.forgotten.add(place)
            self._leave_when_done(session, place)

    def is_busy(self, session: ShareSession) -> bool:
        """Return whether a session holds records of its partitions."""
        found = (self.find(session.key.group, place) for place in session.places)
        return any(each is not None and each.is_busy(session) for each in found)

    def _leave_when_done(self, session: ShareSession, place: Place) -> None:
        partition = self.find(session.key.group, place)
        if place not in session.forgotten or partition is None:
            return
        if partition.is_busy(session):
            loop = asyncio.get_running_loop()
            loop.call_later(FORGOTTEN_S, self._leave_when_done, session, place)
        else:
            self._leave(session, place)

    def _leave(self, session: ShareSession, place: Place) -> None:
        """Release what a session holds of a partition, which closes some time after its last."""
        session.drop((place,))
        session.forgotten.discard(place)
        key = session.key.group, place
        partition = self._partitions.get(key)
        if partition is None:
            return
        partition.leave(session)
        if not partition.has_members and key not in self._lingering:
            self._linger(key)

    def _linger(self, key: tuple[str, Place]) -> None:
        loop = asyncio.get_running_loop()
        self._lingering[key] = loop.call_later(self._linger_s, self._close, key)

    def end(self, session: ShareSession) -> None:
        """Release all that a closed session holds."""
        for place in [*session.places, *session.forgotten]:
            self._leave(session, place)

    def connection_closed(self, connection: str) -> None:
        """End the sessions that a client's connection has opened."""
        for session in self.sessions.close_connection(connection):
            self.end(session)

    async def close_idle(self, group: str) -> None:
        """Close a group's sessions at brokers that have no members: its offsets are changed."""
        closing = []
        for key, timer in list(self._lingering.items()):
            if key[0] == group:
                timer.cancel()
                closing.append(self._close(key))
        if closing:
            await asyncio.wait(closing, timeout=STOP_S)

    def _close(self, key: tuple[str, Place]) -> asyncio.Task[None]:
        self._lingering.pop(key, None)
        partition = self._partitions.pop(key)
        task = spawn(partition.close(), f"close share {partition.place}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def drain(self) -> None:
        """Hand out nothing more, as the node stops; members acknowledge what they have."""
        self._is_draining = True
        for partition in self._partitions.values():
            partition.drain()

    async def hand_over(self) -> None:
        """Give all partitions to the next nodes, if there are any, for a few seconds at most."""
        hand_overs = self._kit.hand_overs
        if hand_overs is not None and hand_overs.has_others():
            self._is_leaving = True
            leaving = self._leave_node(self._partitions.values())
            if leaving:
                await asyncio.wait(leaving, timeout=HAND_OVER_S)

    def _leave_node(self, partitions: Iterable[OrderedPartition]) -> list[asyncio.Task[None]]:
        """Have partitions leave; the tasks are over when they have."""
        tasks = [spawn(each.leave_node(), f"leave share {each.place}") for each in partitions]
        self._leaving.update(tasks)
        return tasks

    async def stop(self) -> None:
        """Close all sessions at brokers, but those that other nodes take over."""
        for task in self._leaving:
            task.cancel()
        for timer in self._lingering.values():
            timer.cancel()
        for key in list(self._partitions):
            self._close(key)
        if self._closing:
            _, late = await asyncio.wait(self._closing, timeout=STOP_S)
            for task in late:
                task.cancel()
        if self._kit.hand_overs is not None:
            await self._kit.hand_overs.stop()
        await self._kit.letters.stop()


async def _lacking_at(link: ServiceLink) -> str | None:
    return lacking(link.version_max)


STOP_S: Final = 5.0
HAND_OVER_S: Final = 4.0
"""Longer than the time for outcomes and that for an offer."""


class Collector:
    """A member's request for records, at once or as soon as there are some."""

    def __init__(
        self,
        session: ShareSession,
        partitions: Sequence[OrderedPartition],
        *,
        poll_max: int,
        records_max: int,
        bytes_max: int,
        clock: Callable[[], float],
    ) -> None:
        """poll_max: records of one poll; it gets up to `records_max` while there are more."""
        self._session, self._partitions, self._clock = session, partitions, clock
        self._poll_max, self._records_max, self._bytes_max = poll_max, records_max, bytes_max
        self._found: asyncio.Future[list[HandedOut]] = asyncio.get_running_loop().create_future()

    def collect(self) -> list[HandedOut]:
        """Take records now, of one partition after the other, within the request's bounds."""
        taken: list[HandedOut] = []
        room, room_bytes = self._records_max, self._bytes_max
        now_s = self._clock()
        for partition in self._partitions:
            if room <= 0 or (taken and room_bytes <= 0):
                break
            if not partition.has_member(self._session):
                continue  # its session was replaced while it waited
            if not partition.may_hand_out:
                continue
            dispatcher = partition.dispatcher
            bound, ready, members = room, dispatcher.ready_count, dispatcher.member_count
            if partition.is_at_end and ready < members * self._poll_max:
                part = part_of_rest(ready, dispatcher.out_count, members)
                several = partition.rule.several_per_key
                bound = min(room, max(several, min(part, self._poll_max)))
            records = dispatcher.take(self._session, bound, now_s)
            fitting, size_bytes = _fitting(records, room_bytes, is_first=not taken)
            dispatcher.put_back(self._session, records[fitting:], now_s)
            if fitting:
                taken.append(HandedOut(partition, records[:fitting]))
                room, room_bytes = room - fitting, room_bytes - size_bytes
        return taken

    def offer(self) -> bool:
        """See `Waiter`."""
        if self._found.done():
            return False
        taken = self.collect()
        if taken:
            self._found.set_result(taken)
        return False

    async def wait(self, wait_s: float) -> list[HandedOut]:
        """Return records as soon as there are some; none after `wait_s`."""
        for partition in self._partitions:
            partition.wait(self)
        try:
            # A future under `asyncio.timeout` may have its result, and time out all the same.
            await asyncio.wait({self._found}, timeout=wait_s)
        except asyncio.CancelledError:
            if self._found.done():
                self.give_back(self._found.result())
            raise
        finally:
            for partition in self._partitions:
                partition.stop_waiting(self)
        if self._found.done():
            return self._found.result()
        self._found.cancel()
        return []

    def give_back(self, taken: Sequence[HandedOut]) -> None:
        """Put back records that were not sent."""
        for partition, records in taken:
            partition.dispatcher.put_back(self._session, records, self._clock())
            partition.wake()


def _fitting(records: Sequence[HeldRecord], room_bytes: int, *, is_first: bool) -> tuple[int, int]:
    """Return how many of the records fit, one at least if they are the first; and their bytes."""
    largest = sum(record.block.largest_bytes for record in records)
    if largest <= room_bytes:
        return len(records), largest
    used = 0
    for number, record in enumerate(records):
        size_bytes = int(record.block.records.sizes[record.row])
        if used + size_bytes > room_bytes and not (is_first and number == 0):
            return number, used
        used += size_bytes
    return len(records), used
