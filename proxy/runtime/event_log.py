"""The event line: what happened to groups, nodes and brokers, newest last, in plain sentences.

Parts that know of an event call `note`, once for each; nothing parses log lines. The ring is for
a look now. The log has the same for later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, Protocol

from keylane.bounded import BoundedDict

EVENTS_MAX: Final = 1_000
"""Events that are kept, some 600 bytes each."""
TEXT_CHARS_MAX: Final = 400
NAME_CHARS_MAX: Final = 255
"""Clients choose names of groups and members, of up to 32 kB each."""
GROUPS_MAX: Final = 1_000
"""Groups whose members are remembered; the longest unchanged are forgotten first."""
MEMBERS_MAX: Final = 2_000
"""Members of one group that are compared: some 300 bytes each."""
NAMED_MAX: Final = 5
"""Members that join or leave at once and get an event each; of more their number is noted."""


class Kind(StrEnum):
    """Subject of an event."""

    REBALANCE = "rebalance"
    MOVE = "move"
    JOIN = "join"
    LEAVE = "leave"
    NODE = "node"
    BROKER = "broker"
    JOURNAL = "journal"
    ACTION = "action"
    REFUSED = "refused"
    ERROR = "error"


class Severity(StrEnum):
    """Weight of an event to an operator."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One entry of the line."""

    id: int
    """Ascending, also over restarts of the node, as far as its clock does not go back."""
    at_ms: int
    """Time in ms since 1970."""
    kind: Kind
    severity: Severity
    group: str | None
    topic: str | None
    member: str | None
    text: str
    """One plain sentence."""


class NoteEvent(Protocol):
    """Publishes an event: what parts that know of one are given."""

    def __call__(
        self,
        kind: Kind,
        text: str,
        *,
        severity: Severity = Severity.INFO,
        group: str | None = None,
        topic: str | None = None,
        member: str | None = None,
    ) -> None:
        """Note that something happened just now."""


class EventLog:
    """The last events. Invariant: ids ascend by one; at most EVENTS_MAX are kept."""

    def __init__(self, now_ms: Callable[[], int], *, size_max: int = EVENTS_MAX) -> None:
        """now_ms: gives the time in ms since 1970."""
        self._now_ms = now_ms
        self._events: deque[Event] = deque(maxlen=size_max)
        self.last_id = now_ms()
        """Id of the newest event; a number that no event has, before the first one."""
        self._members: BoundedDict[str, Mapping[str, str]] = BoundedDict(GROUPS_MAX)

    def note(
        self,
        kind: Kind,
        text: str,
        *,
        severity: Severity = Severity.INFO,
        group: str | None = None,
        topic: str | None = None,
        member: str | None = None,
    ) -> None:
        """Note that something happened just now; see `NoteEvent`."""
        self.last_id += 1
        self._events.append(
            Event(
                id=self.last_id,
                at_ms=self._now_ms(),
                kind=kind,
                severity=severity,
                group=_cut(group),
                topic=_cut(topic),
                member=_cut(member),
                text=text if len(text) <= TEXT_CHARS_MAX else f"{text[: TEXT_CHARS_MAX - 1]}…",
            )
        )

    def after(self, event_id: int, *, group: str | None = None, limit: int) -> list[Event]:
        """Return the newest events with a higher id, at most `limit`, the newest last."""
        newest = (
            event
            for event in reversed(self._events)
            if event.id > event_id and group in (None, event.group)
        )
        return list(islice(newest, limit))[::-1]

    def note_members(self, group: str, members: Mapping[str, str], *, is_first: bool) -> None:
        """Note the members that a group has now: labels by identity. Those that changed are events.

        is_first: members of a group that was not noted before have joined just now; else it is
        only now that this node looks at the group.
        """
        known = self._members.get(group)
        now = dict(islice(members.items(), MEMBERS_MAX))
        if known == now:
            return
        self._members[group] = now
        if known is None and not is_first:
            return
        known = known or {}
        self._note_each(group, {k: v for k, v in now.items() if k not in known}, Kind.JOIN)
        self._note_each(group, {k: v for k, v in known.items() if k not in now}, Kind.LEAVE)

    def members_of(self, group: str) -> Mapping[str, str] | None:
        """Return the members as last noted; another object once they have changed."""
        return self._members.get(group)

    def _note_each(self, group: str, changed: Mapping[str, str], kind: Kind) -> None:
        verb = "joined" if kind is Kind.JOIN else "left"
        if len(changed) > NAMED_MAX:
            self.note(kind, f"{len(changed)} members {verb} group {_cut(group)}.", group=group)
            return
        for label in changed.values():
            text = f"{_cut(label)} {verb} group {_cut(group)}."
            self.note(kind, text, group=group, member=label)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        ids = [event.id for event in self._events]
        assert ids == list(range(self.last_id - len(ids) + 1, self.last_id + 1))
        assert len(ids) <= (self._events.maxlen or 0)


def _cut(name: str | None) -> str | None:
    return name if name is None else name[:NAME_CHARS_MAX]
