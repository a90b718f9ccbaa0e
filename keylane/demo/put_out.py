"""Sessions that end by the group going on without the member, found in its own reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from keylane.demo.events import (
    CommitFailed,
    Ended,
    Event,
    LanesAssigned,
    LanesCommitted,
    LanesReleased,
    RecordsCommitted,
    SessionEnd,
)

REFUSED: Final = frozenset({"CommitFailedError", "UNKNOWN_MEMBER_ID", "ILLEGAL_GENERATION"})
"""Reasons of a failed commit that mean that the group goes on without the member: the error of
aiokafka and kafka-python, and Kafka's codes as confluent-kafka names them."""


class SessionStart(NamedTuple):
    """Start of a member's session on a lane."""

    member: int
    lane: int
    at_ns: int


def find_put_out(events: Iterable[Event]) -> frozenset[SessionStart]:
    """Return the sessions that end by the member being put out, of events in order of time.

    The member says so; or its last commit is refused, where its library has no word for it; or its
    process ends without a word since another member was given the lane. One that stalls beyond its
    session time-out, and is killed then, never gets to say anything.
    """
    finder = _Finder()
    for event in events:
        finder.apply(event)
    return frozenset(finder.found)


class _Finder:
    """`_taken` has, for running sessions only, when another member was given the lane."""

    def __init__(self) -> None:
        self.found: set[SessionStart] = set()
        self._running: dict[tuple[int, int], SessionStart] = {}
        """By member and lane."""
        self._taken: dict[tuple[int, int], int] = {}
        self._refused: set[int] = set()
        """Members whose last commit with an answer was refused: a group puts out whole members."""
        self._said: dict[int, int] = {}
        """Time of each member's last event."""

    def apply(self, event: Event) -> None:
        member = event.member
        match event:
            case LanesAssigned(at_ns=at_ns, lanes=lanes):
                self._refused.discard(member)
                for lane in lanes:
                    self._assign(SessionStart(member, lane, at_ns))
            case RecordsCommitted() | LanesCommitted():
                self._refused.discard(member)
            case CommitFailed(reason=reason) if reason in REFUSED:
                self._refused.add(member)
            case LanesReleased(lanes=lanes, end=end):
                for lane in lanes:
                    self._end(member, lane, is_put_out=end is SessionEnd.LOST)
            case Ended():
                for lane in [lane for owner, lane in self._running if owner == member]:
                    taken_ns = self._taken.get((member, lane))
                    is_silent = taken_ns is not None and self._said[member] < taken_ns
                    self._end(member, lane, is_put_out=is_silent)
        self._said[member] = event.at_ns

    def _assign(self, start: SessionStart) -> None:
        for owner, lane in self._running:
            if lane == start.lane and owner != start.member:
                self._taken.setdefault((owner, lane), start.at_ns)
        self._running[start.member, start.lane] = start
        self._taken.pop((start.member, start.lane), None)

    def _end(self, member: int, lane: int, *, is_put_out: bool) -> None:
        start = self._running.pop((member, lane), None)
        self._taken.pop((member, lane), None)
        if start is not None and (is_put_out or member in self._refused):
            self.found.add(start)
