"""Events that a member of the demo's group reports to its parent, one JSON line each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, assert_never

from keylane.demo.orders import OrderRun


class SessionEnd(StrEnum):
    """Ways in which a member ceases to own a lane."""

    REVOKED = "revoked"
    """In order: it could commit before."""
    LOST = "lost"
    """The group went on without it."""
    KILLED = "killed"
    """kill -9."""
    LEFT = "left"
    """Its process ended by itself."""


@dataclass(frozen=True, slots=True)
class LanesAssigned:
    """The member owns these lanes from now on."""

    member: int
    at_ns: int
    lanes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LanesReleased:
    """The member owns these lanes no longer."""

    member: int
    at_ns: int
    lanes: tuple[int, ...]
    end: SessionEnd


@dataclass(frozen=True, slots=True)
class OrderBatch:
    """Records of one lane that were processed together, in order."""

    lane: int
    first_offset: int
    last_offset: int
    runs: tuple[OrderRun, ...]


@dataclass(frozen=True, slots=True)
class Delivered:
    """Records were processed; reported before their offsets are committed."""

    member: int
    at_ns: int
    batches: tuple[OrderBatch, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """The group confirmed these positions (offset of the next record), by lane."""

    member: int
    at_ns: int
    positions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """A commit of these lanes was refused, or its outcome is not known."""

    member: int
    at_ns: int
    lanes: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The member's process is gone; the parent reports it."""

    member: int
    at_ns: int
    end: SessionEnd


Event = LanesAssigned | LanesReleased | Delivered | Committed | CommitFailed | Ended


def write_event(event: Event) -> str:
    """One line of JSON without line end; `member` is left out, the pipe says whose it is."""
    return json.dumps([type(event).__name__, event.at_ns, *_body(event)], separators=(",", ":"))


def read_event(member: int, line: str | bytes) -> Event:
    """Read back one line of `member`.

    Raises:
        ValueError: not a line of `write_event`, such as the last words of a killed process.
    """
    try:
        name, at_ns, *body = json.loads(line)
        return _build(name, member, at_ns, body)
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"not an event of member {member}") from error


def _body(event: Event) -> list[Any]:
    match event:
        case LanesAssigned(lanes=lanes):
            return [lanes]
        case LanesReleased(lanes=lanes, end=end):
            return [lanes, end]
        case Delivered(batches=batches):
            return [[[b.lane, b.first_offset, b.last_offset, b.runs] for b in batches]]
        case Committed(positions=positions):
            return [positions]
        case CommitFailed(lanes=lanes, reason=reason):
            return [lanes, reason]
        case Ended(end=end):
            return [end]
        case _:
            assert_never(event)


def _build(name: str, member: int, at_ns: int, body: list[Any]) -> Event:
    match name:
        case "LanesAssigned":
            return LanesAssigned(member, at_ns, tuple(body[0]))
        case "LanesReleased":
            return LanesReleased(member, at_ns, tuple(body[0]), SessionEnd(body[1]))
        case "Delivered":
            batches = (
                OrderBatch(lane, first, last, tuple(OrderRun(*run) for run in runs))
                for lane, first, last, runs in body[0]
            )
            return Delivered(member, at_ns, tuple(batches))
        case "Committed":
            positions = tuple((lane, position) for lane, position in body[0])
            return Committed(member, at_ns, positions)
        case "CommitFailed":
            return CommitFailed(member, at_ns, tuple(body[0]), body[1])
        case "Ended":
            return Ended(member, at_ns, SessionEnd(body[0]))
        case _:
            raise ValueError(f"unknown event {name!r}")
