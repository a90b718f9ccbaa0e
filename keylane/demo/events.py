"""Events that a member of the demo's group reports to its parent, one JSON line each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Final, NamedTuple

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


class OrderBatch(NamedTuple):
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
class LanesCommitted:
    """The group confirmed these positions (offset of the next record), by lane."""

    member: int
    at_ns: int
    positions: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RecordsCommitted:
    """The group confirmed these records, by lane and offset, in whatever order they were done."""

    member: int
    at_ns: int
    records: tuple[tuple[int, tuple[int, ...]], ...]


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


Event = (
    LanesAssigned
    | LanesReleased
    | Delivered
    | LanesCommitted
    | RecordsCommitted
    | CommitFailed
    | Ended
)


def write_event(event: Event) -> str:
    """One line of JSON without line end; `member` is left out, the pipe says whose it is."""
    _member, at_ns, *body = (getattr(event, each.name) for each in fields(event))
    return json.dumps([type(event).__name__, at_ns, *body], separators=(",", ":"))


def read_event(member: int, line: str | bytes) -> Event:
    """Read back one line of `member`.

    Raises:
        ValueError: not a line of `write_event`, such as the last words of a killed process.
    """
    try:
        name, at_ns, *body = json.loads(line)
        kind, readers = _FORMS[name]
        values = (read(value) for read, value in zip(readers, body, strict=True))
        return kind(member, at_ns, *values)
    except (TypeError, KeyError) as error:
        raise ValueError(f"not an event of member {member}") from error


def _read_batches(body: Any) -> tuple[OrderBatch, ...]:
    return tuple(
        OrderBatch(lane, first, last, tuple(OrderRun(*run) for run in runs))
        for lane, first, last, runs in body
    )


def _read_positions(body: Any) -> tuple[tuple[int, int], ...]:
    return tuple((lane, position) for lane, position in body)


def _read_offsets(body: Any) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return tuple((lane, tuple(offsets)) for lane, offsets in body)


_FORMS: Final[Mapping[str, tuple[type[Event], tuple[Callable[[Any], Any], ...]]]] = {
    "LanesAssigned": (LanesAssigned, (tuple,)),
    "LanesReleased": (LanesReleased, (tuple, SessionEnd)),
    "Delivered": (Delivered, (_read_batches,)),
    "LanesCommitted": (LanesCommitted, (_read_positions,)),
    "RecordsCommitted": (RecordsCommitted, (_read_offsets,)),
    "CommitFailed": (CommitFailed, (tuple, str)),
    "Ended": (Ended, (SessionEnd,)),
}
"""Events by name, with what reads each field after `at_ns`."""
