"""Mistakes about share groups in the order of keys.

Source: docs/share-groups.md and docs/decisions/048 name the promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

from keylane.proxy.share.confirmations import Confirmations
from keylane.proxy.share.partition import OrderedPartition
from keylane.proxy.startup import build
from keylane.share.dispatcher import Dispatcher
from keylane.share.held import HeldRecord
from keylane.share.states import HELD, OUT
from keylane.wire.share import ACCEPT, RELEASE
from tests.simulation.mutation import Mutation, patch


async def _settle_at_once(self: OrderedPartition, session: Any, _offer: Any = None) -> None:
    """What the first fetch has brought is taken for all that is not finished."""
    await self._intake.fetch(session, self.rule.look_ahead)
    self.dispatcher.settle(self._clock())


def _settle_offers_at_once() -> Sequence[Any]:
    """What the former owner has offered is taken for all that is not finished."""
    before = OrderedPartition._settle

    async def settle(self: OrderedPartition, session: Any, offer: Any = None) -> None:
        if offer is None:
            await before(self, session)
        else:
            await self._taker.take(session, offer)
            self.dispatcher.settle(self._clock())

    return [mock.patch.object(OrderedPartition, "_settle", settle)]


def _free_early() -> Sequence[Any]:
    """A key goes on when its member has decided, while the broker is still to write that."""
    before = Dispatcher._decide

    def decide(
        self: Dispatcher, record: HeldRecord, outcome: int, ticket: Any, now_s: float, **how: Any
    ) -> None:
        before(self, record, outcome, ticket, now_s, **how)
        if outcome != RELEASE:
            self._end(record, now_s)

    return [mock.patch.object(Dispatcher, "_decide", decide)]


def _take_any(self: Dispatcher, member: Any, records_max: int, now_s: float) -> list[HeldRecord]:
    """Any record is handed out, whatever its key is at."""
    found = [each for each in self.records.values() if each.state == HELD and each.is_locked]
    found = sorted(found, key=lambda each: each.offset)[:records_max] if self.is_settled else []
    for record in found:
        self._ready.unready(record)
        self._hand_out(record, member, now_s)
    return found


def _end_the_released() -> Sequence[Any]:
    """A record that was released is taken for archived."""

    def release(self: Dispatcher, record: HeldRecord, now_s: float, _code: int = 0) -> None:
        self._end(record, now_s)

    return [mock.patch.object(Dispatcher, "_release", release)]


async def _renew_nothing(self: Confirmations, _session: Any) -> bool:
    """Locks at the broker end."""
    self.renew_s = self._clock() + 1.0
    return False


def _take_for_any_member() -> Sequence[Any]:
    """An outcome counts, whichever member has the record by now."""
    before = Dispatcher.acknowledge

    def acknowledge(
        self: Dispatcher, member: Any, batches: Sequence[Any], *args: Any
    ) -> int | None:
        for first, last, _ in batches:
            for offset in range(first, last + 1):
                record = self.records.get(offset)
                if record is not None and record.state == OUT and record.member != member:
                    self._at_member.get(record.member, {}).pop(offset, None)
                    record.member = member
                    self._at_member.setdefault(member, {})[offset] = record
        return before(self, member, batches, *args)

    return [mock.patch.object(Dispatcher, "acknowledge", acknowledge)]


def _take_for_a_gap() -> Sequence[Any]:
    """The last record of several is taken for an offset without a record."""
    before = Dispatcher.acquire

    def acquire(
        self: Dispatcher, offsets: Sequence[int], points: Sequence[int], *args: Any
    ) -> None:
        if len(offsets) > 1:
            self.acquire_gap(offsets[-1], offsets[-1])
            offsets, points = offsets[:-1], points[:-1]
        before(self, offsets, points, *args)

    return [mock.patch.object(Dispatcher, "acquire", acquire)]


def _accept_the_released() -> Sequence[Any]:
    """A release is sent as an end."""
    before = Dispatcher._decide

    def decide(self: Dispatcher, record: HeldRecord, outcome: int, *args: Any, **how: Any) -> None:
        before(self, record, ACCEPT if outcome == RELEASE else outcome, *args, **how)

    return [mock.patch.object(Dispatcher, "_decide", decide)]


def _forget_a_member(self: Dispatcher, member: Any, _now_s: float) -> None:
    """Records of a member that has gone stay at it."""
    self._at_member.pop(member, None)


SHARES: Sequence[Mutation] = (
    Mutation(
        "records are handed out before the session has settled",
        "a key's records are in order over sessions",
        patch(OrderedPartition, "_settle", _settle_at_once),
    ),
    Mutation(
        "a key is free before the broker has confirmed",
        "what is answered is written",
        _free_early,
    ),
    Mutation(
        "records of a key go to two members",
        "a key is at one member",
        patch(Dispatcher, "take", _take_any),
    ),
    Mutation(
        "a released record counts as archived",
        "a released record comes before the next of its key",
        _end_the_released,
    ),
    Mutation(
        "locks are not renewed",
        "waiting costs no delivery",
        patch(Confirmations, "renew_due", _renew_nothing),
    ),
    Mutation(
        "a member's deadline releases nothing",
        "a member that hangs holds up a key for a lock at most",
        patch(Dispatcher, "expire", lambda *_: 0),
    ),
    Mutation(
        "an outcome counts under another member's lock",
        "a key is at one member",
        _take_for_any_member,
    ),
    Mutation("a record is taken for a gap", "nothing is lost", _take_for_a_gap),
    Mutation("a release ends the record", "nothing is lost", _accept_the_released),
    Mutation(
        "records of a member whose connection ends are forgotten",
        "a member that dies holds up no key",
        patch(Dispatcher, "leave", _forget_a_member),
    ),
    Mutation(
        "offered records are handed out before the session has settled",
        "a key's records are in order over sessions",
        _settle_offers_at_once,
    ),
    Mutation(
        "a node goes on with partitions of another node",
        "one node at a time acquires",
        patch(build, "is_placed_here", lambda *_: True),
    ),
)
