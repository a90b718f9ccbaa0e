"""Pushes of stable offsets whose outcome may look like the move of another client.

Source: docs/decisions/027.

A push goes to Kafka first, then to the journal, so a fenced member leaves no trace. A crash in
between shows as an offset that is not what the journal says was pushed. Forward that is harmless:
what lies below is raised, as all lanes had passed it, and a note beside it marks what only a scan
has led past (docs/decisions/032). Backward it is what a reset by an admin looks like, for which
all lanes go back. So a push that does not go forward is written to the journal first, as an
intent: with it, the whole state as it will be. So is each push of an admin's reset of the whole
partition, which sets lanes back also where it goes forward. So is the first push of a group on a
partition, beside a state of which nothing is committed: found there, it would pass for a commit of
all lanes.

    found in Kafka                          what it means
    state.pushed                            nothing has happened
    an intent's offset, beside its state    this push: the intent's positions are the state
    that of a push without an answer        it came late, behind a later one
    that of an owner that was replaced      `OffsetTable.recognise`: no position changes
    anything else                           another client moved it: `OffsetState.reconcile`
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from keylane.keyrange.space import KeyRange
from keylane.offsets.positions import PositionMap
from keylane.offsets.records.journal import IntentKey, IntentValue, PositionsValue, StateKey
from keylane.offsets.state import OffsetState
from keylane.offsets.values import WHOLE

LATE_S: Final = 5.0
"""Time for which a push without an answer may arrive, once Kafka's offset was seen elsewhere."""
LATE_MAX: Final = 16
"""Pushes without an answer that are remembered per state; the oldest is forgotten."""


@dataclass(slots=True)
class Unanswered:
    """Pushes without an answer, of all tables of a process: one that is loaded anew knows them."""

    late: dict[StateKey, dict[int | None, float]] = field(default_factory=dict)
    """By state, offsets that were pushed, and until when (seconds) they may arrive."""
    overtaken: dict[StateKey, set[int | None]] = field(default_factory=dict)
    """Those of them that a later push has come before."""


class Intents:
    """By state. Changed under the group's lock, as the states are.

    An intent is open from its append on, until the state is saved or the broker has refused the
    push. A push without an answer outlives that: each save of the state says anew what the state
    is should that push arrive behind it, which is the state itself.

    Invariants: what is open is stored; an open intent counts as long as the state's `pushed` is
    the intent's `before`.
    """

    def __init__(self) -> None:
        self._open: dict[StateKey, dict[int | None, IntentValue]] = {}
        self._stored: dict[StateKey, set[int | None]] = {}
        self._renewed: dict[StateKey, dict[int | None, IntentValue]] = {}
        self._unanswered = Unanswered()

    # -- the journal -----------------------------------------------------------------------

    def load(self, key: StateKey, intents: dict[int | None, IntentValue]) -> None:
        """Take over what the journal holds: pushes of an owner that is gone."""
        for offset, intent in intents.items():
            self.note_stored(key, offset)
            self.open(key, intent)
            self.note_unanswered(key, offset)

    def share(self, unanswered: Unanswered) -> None:
        """Go on with what the process knows, and add what the journal has said."""
        for key, late in self._unanswered.late.items():
            unanswered.late[key] = late | unanswered.late.get(key, {})
        self._unanswered = unanswered

    def stored(self, key: StateKey) -> list[IntentKey]:
        """Keys of the records that the journal may hold."""
        offsets = sorted(self._stored.get(key, ()), key=lambda o: -1 if o is None else o)
        return [IntentKey(key, offset) for offset in offsets]

    def is_open(self, key: StateKey, offset: int | None) -> bool:
        """Return whether a push of `offset`, or a deletion (None), may have come about."""
        return offset in self._open.get(key, {})

    def is_stored(self, key: StateKey, offset: int | None) -> bool:
        """Return whether the journal may hold this intent."""
        return offset in self._stored.get(key, ())

    def note_stored(self, key: StateKey, offset: int | None) -> None:
        """The journal may hold an intent: it was appended, whatever came of that."""
        self._stored.setdefault(key, set()).add(offset)

    def renew(
        self, key: StateKey, state: OffsetState, now_ms: int
    ) -> dict[IntentKey, IntentValue | None]:
        """Return entries for the journal beside the state's own record; None: a tombstone."""
        if key not in self._unanswered.late and key not in self._stored:
            self._renewed.pop(key, None)
            return {}  # the rule
        late = [o for o in self._unanswered.late.get(key, ()) if o != state.pushed]
        renewed = {o: intent_of(state, state, o, now_ms) for o in late}
        known = self.stored(key)
        for offset in renewed:
            self.note_stored(key, offset)
        self._renewed[key] = renewed
        places = {*known, *(IntentKey(key, offset) for offset in renewed)}
        return {place: renewed.get(place.offset) for place in places}

    def note_saved(self, key: StateKey) -> None:
        """The journal has the state's own record, and what `renew` gave beside it."""
        self._set(key, self._renewed.pop(key, {}))

    def note_withdrawn(self, key: StateKey, offset: int | None) -> None:
        """The journal has the tombstone of an intent that was refused."""
        known = self._stored.get(key, set())
        known.discard(offset)
        if not known:
            self._stored.pop(key, None)

    def forget(self, key: StateKey) -> None:
        """The state was deleted; what may still arrive there stays known."""
        self._set(key, {})
        self._renewed.pop(key, None)

    # -- pushes ----------------------------------------------------------------------------

    def may_open(self, key: StateKey, intent: IntentValue, now_s: float) -> bool:
        """Return whether no push of the same offset, with other positions, may still arrive."""
        self._expire(key, now_s)
        known = self._open.get(key, {}).get(intent.after.pushed)
        return known is None or (
            (known.before, known.after.positions) == (intent.before, intent.after.positions)
        )

    def open(self, key: StateKey, intent: IntentValue) -> None:
        """The journal has it; from now on it may come into effect."""
        self._open.setdefault(key, {})[intent.after.pushed] = intent

    def withdraw(self, key: StateKey, offset: int | None) -> None:
        """The broker has refused the push: it will never be in effect."""
        known = self._open.get(key, {})
        known.pop(offset, None)
        if not known:
            self._open.pop(key, None)

    def note_unsent(self, key: StateKey, offset: int | None) -> None:
        """A push was prepared, and will not be sent; one like it may be under way, which counts."""
        if offset not in self._unanswered.late.get(key, ()):
            self.withdraw(key, offset)

    def note_unanswered(self, key: StateKey, offset: int | None) -> None:
        """A push was sent, and its outcome is not known."""
        late = self._unanswered.late.setdefault(key, {})
        late.pop(offset, None)
        late[offset] = math.inf
        self._unanswered.overtaken.get(key, set()).discard(offset)
        if len(late) > LATE_MAX:
            self._drop_late(key, next(iter(late)))

    def note_taken(self, key: StateKey, offset: int | None, now_s: float) -> None:
        """A push was answered: others that are still to come arrive behind it."""
        if key not in self._unanswered.late:
            return  # the rule: none is to come
        self.note_seen(key, offset, now_s)
        others = {other for other in self._unanswered.late.get(key, ()) if other != offset}
        if others:
            self._unanswered.overtaken[key] = others

    def note_seen(self, key: StateKey, offset: int | None, now_s: float) -> None:
        """Kafka's own offset is this: pushes that are still to come arrive soon."""
        self._expire(key, now_s, but=offset)
        late = self._unanswered.late.get(key, {})
        for other, until_s in late.items():  # its own as well: another client may have set it since
            late[other] = min(until_s, now_s + LATE_S)

    def may_come_late(self, key: StateKey, now_s: float) -> bool:
        """Return whether a push without an answer may still arrive."""
        return any(until_s > now_s for until_s in self._unanswered.late.get(key, {}).values())

    def forget_late(self, key: StateKey) -> None:
        """Nothing may arrive there any more."""
        for offset in list(self._unanswered.late.get(key, ())):
            self._drop_late(key, offset)
            self.withdraw(key, offset)

    # -- what Kafka is found at ------------------------------------------------------------

    def recognise(
        self, key: StateKey, state: OffsetState | None, found: int | None, now_s: float
    ) -> OffsetState | None:
        """Return the state that Kafka's own offset belongs to, not to be changed; None: not known.

        It is `state` itself where nothing has happened, and another one that has to take its place
        elsewhere.
        """
        self.note_seen(key, found, now_s)
        if state is None or state.pushed == found:
            return state
        intent = self._open.get(key, {}).get(found)
        if intent is not None and state.pushed == intent.before:
            return _arrived(state, intent.after)
        is_late = found in self._unanswered.late.get(key, ())
        if not is_late or not (
            needs_intent(state, found) or found in self._unanswered.overtaken.get(key, ())
        ):
            return None
        state = state.copy()
        state.mark_pushed(found)
        return state

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        for key, known in self._open.items():
            assert known and known.keys() <= self._stored[key]
            assert all(offset == intent.after.pushed for offset, intent in known.items())
        assert all(self._stored.values()) and all(self._unanswered.late.values())

    def _set(self, key: StateKey, intents: dict[int | None, IntentValue]) -> None:
        self._open.pop(key, None)
        self._stored.pop(key, None)
        for intent in intents.values():
            self.note_stored(key, intent.after.pushed)
            self.open(key, intent)

    def _expire(self, key: StateKey, now_s: float, *, but: int | None = -1) -> None:
        late = self._unanswered.late.get(key, {})
        for offset in [o for o, until_s in late.items() if until_s <= now_s and o != but]:
            self._drop_late(key, offset)
            self.withdraw(key, offset)

    def _drop_late(self, key: StateKey, offset: int | None) -> None:
        late, overtaken = self._unanswered.late[key], self._unanswered.overtaken.get(key, set())
        late.pop(offset, None)
        overtaken.discard(offset)
        if not late:
            del self._unanswered.late[key]
        if not overtaken:
            self._unanswered.overtaken.pop(key, None)


def needs_intent(state: OffsetState, offset: int | None) -> bool:
    """Return whether a push of `offset` would be taken for another client's, were its outcome lost.

    Where nothing is pushed, a new offset would count as a commit of lanes that never committed.
    """
    return state.pushed != offset and (
        state.pushed is None or offset is None or offset < state.pushed
    )


def intent_of(
    before: OffsetState, after: OffsetState, offset: int | None, now_ms: int
) -> IntentValue:
    """Return the journal's value for a push of `offset`; `after` is the draft behind it."""
    return IntentValue(
        before=before.pushed,
        after=PositionsValue(
            timestamp_ms=now_ms,
            pushed=offset,
            topic_name=after.topic_name,
            hash_tag=after.hash_tag,
            positions=tuple((hi, position) for _, hi, position in after.positions()),
        ),
    )


def _is_reset(after: PositionsValue) -> bool:
    """Return whether all keys are to stand where Kafka's own offset is to stand.

    So they do where a member sets all lanes back at once: each has stepped back then, and its
    ranges are dropped either way.
    """
    if len(after.positions) != 1:
        return False
    position = after.positions[0][1]
    return position.committed and position.offset == position.counted == after.pushed


def _arrived(state: OffsetState, after: PositionsValue) -> OffsetState:
    """Return the state as it was intended.

    Ranges of keys that stepped back are dropped, as the step back itself did: their records are
    wanted again. Others stay: they were committed. A reset drops all.
    """
    positions = PositionMap.from_ends(after.positions)
    back = [
        KeyRange(start, end)
        for lo, hi, before in state.positions()
        for start, end, position in positions.items(lo, hi)
        if position.counted < before.counted
    ]
    if state.pushed is not None and _is_reset(after):
        back = [WHOLE]
    draft = state.copy()
    dropped = draft.drop_ranges(back)
    arrived = OffsetState.restore(
        positions=positions,
        ranges=draft.keyed_ranges(),
        pushed=state.pushed,
        topic_name=after.topic_name,
        hash_tag=after.hash_tag,
        individual_commits_max=state.individual_commits_max,
    )
    arrived.note_dropped(dropped)
    arrived.mark_pushed(after.pushed)
    return arrived
