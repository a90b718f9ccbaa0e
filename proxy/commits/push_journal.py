"""Records of the journal before and after Kafka's own group offset is pushed.

Source: docs/decisions/027, 042.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from keylane.errors import UpstreamLost
from keylane.journal.owned import Appender
from keylane.offsets.intents import intent_of, needs_intent
from keylane.offsets.lineage import EpochStart
from keylane.offsets.records.journal import IntentKey, JournalRecord, StateKey
from keylane.offsets.state import OffsetState
from keylane.offsets.table import OffsetTable
from keylane.offsets.values import Pusher

log = logging.getLogger("keylane.offsets")


class Pushing(NamedTuple):
    """A push that is about to be sent, or was."""

    key: StateKey
    draft: OffsetState
    """The state as it will be, but for `pushed`."""
    offset: int | None
    """Kafka's own offset as it will be; None: it will be deleted."""
    begun: OffsetState | None = None
    """The state before the draft, where the table has none yet: nothing is committed."""
    is_reset: bool = False
    """An admin sets all lanes: were the outcome lost, the offset alone would not say so."""

    def needs_intent(self, state: OffsetState) -> bool:
        """Return whether the journal has to hold the push before it is sent."""
        if self.is_reset and self.offset != state.pushed:
            return True
        return needs_intent(state, self.offset)


@dataclass(frozen=True, slots=True)
class PushJournal:
    """For one group, whose lock is held. Use: `prepare`, send, then one of the other three.

    A push that goes forward costs nothing here.
    """

    table: OffsetTable
    journal: Appender
    concluded: Callable[[StateKey, OffsetState], EpochStart | None]
    """The leader epoch before the furthest conclusion of a state; None: not known."""
    wall_clock: Callable[[], float]
    """Seconds since 1970, for timestamps of records."""
    clock: Callable[[], float]

    async def prepare(self, pushes: Sequence[Pushing]) -> set[StateKey]:
        """Write what the journal has to hold before pushes are sent; return those that must wait.

        Raises: UpstreamLost, NotCoordinator: none of the pushes may be sent.
        """
        now_ms = int(self.wall_clock() * 1000)
        records: list[JournalRecord] = []
        intents, written, waiting = [], [], set()
        for push in pushes:
            state, intent = self.table.get(push.key), None
            if state is None and push.offset is not None:
                state = push.begun
            if state is not None and push.needs_intent(state):
                intent = intent_of(state, push.draft, push.offset, now_ms)
                if not self.table.intents.may_open(push.key, intent, self.clock()):
                    waiting.add(push.key)
                    continue
                self._ready(push, state)
                intents.append((push.key, intent))
            elif push.offset is None or not self.table.lacks_before_push(push.key, push.offset):
                continue
            written.append(push.key)
            records += self.table.records_before_push(push.key, intent, now_ms=now_ms)
        for key, intent in intents:  # it may be there whatever comes of the append
            self.table.intents.note_stored(key, intent.after.pushed)
        if records:
            await self.journal.append(records)
        for key in written:
            self.table.mark_written(key)
        for key, intent in intents:
            self.table.intents.open(key, intent)
        return waiting

    def note_taken(self, pushes: Collection[Pushing]) -> None:
        """The broker took these pushes."""
        at_s = int(self.wall_clock())
        for push in pushes:
            self.table.note_taken(push.key, push.offset, self.clock(), at_s)

    @property
    def pusher(self) -> Pusher | None:
        """Maker of a push that is made now; None: nodes cannot be distinguished."""
        owner = self.table.owner
        return None if owner is None else Pusher(owner, int(self.wall_clock()))

    def note_unsent(self, pushes: Collection[Pushing]) -> None:
        """These were prepared and not sent: they hold up no other push of the same offset."""
        for push in pushes:
            self.table.intents.note_unsent(push.key, push.offset)

    def note_unanswered(self, pushes: Collection[Pushing]) -> None:
        """These were sent, and their outcome is not known, and will not be."""
        for push in pushes:
            self.table.intents.note_unanswered(push.key, push.offset)

    def is_deleting(self, key: StateKey) -> bool:
        """Return whether a deletion of Kafka's own offset was begun, and may have come about."""
        return self.table.intents.is_open(key, None)

    def may_arrive_at_none(self, key: StateKey) -> bool:
        """Return whether a push may still come about where Kafka has just shown no offset."""
        self.table.intents.note_seen(key, None, self.clock())
        may_arrive = self.table.intents.may_come_late(key, self.clock())
        if not may_arrive:
            self.table.intents.forget_late(key)
        return may_arrive

    async def withdraw(self, pushes: Collection[Pushing]) -> None:
        """The broker has refused these. Raises: NotCoordinator."""
        intents, records = self.table.intents, []
        refused = [push for push in pushes if intents.is_stored(push.key, push.offset)]
        for push in refused:
            intents.withdraw(push.key, push.offset)
            if self._is_begun(push):
                records += self.table.tombstones(push.key)
            else:
                records.append(self.table.tombstone(IntentKey(push.key, push.offset)))
        if not records:
            return
        try:
            await self.journal.append(records)
        except UpstreamLost as error:
            # The next record of the state deletes it; it has no effect until then.
            log.warning("intent of a refused push stays until the next save reason=%s", error)
            return
        for push in refused:
            intents.note_withdrawn(push.key, push.offset)
            if self._is_begun(push):
                self.table.remove(push.key)

    def _ready(self, push: Pushing, state: OffsetState) -> None:
        """Have the table hold what an intent stands beside: a state, and the log that it is of."""
        if state is push.begun:
            self.table.put(push.key, state)
        seen = self.concluded(push.key, push.draft)
        if seen is not None:
            self.table.note_epoch(push.key, seen)

    def _is_begun(self, push: Pushing) -> bool:
        """Return whether the state is there for this push alone."""
        return push.begun is not None and self.table.get(push.key) is push.begun
