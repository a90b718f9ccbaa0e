"""Resets of a group's offsets: the offset that each partition gets. No I/O.

Source: Kafka's kafka-consumer-groups, whose options these are (`ConsumerGroupCommand`,
`resetOffsets` and `checkOffsetsRange`); KIP-122.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Final, Literal, NamedTuple, get_args

Where = Literal["earliest", "latest", "current", "offset", "shift-by", "datetime", "duration"]
WHERE: Final[tuple[str, ...]] = get_args(Where)
WITH_VALUE: Final = frozenset({"offset", "shift-by", "datetime", "duration"})
BY_TIME: Final = frozenset({"datetime", "duration"})
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
OFFSET_MAX: Final = 2**63 - 1
TEXT_MAX: Final = 64
"""Characters of a time or a duration."""
INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
DURATION: Final = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9}(?:\.\d{1,9})?)S)?)?"
)
SECONDS: Final = (86_400, 3_600, 60, 1)
"""Of the parts of a duration."""


class ResetInvalid(ValueError):
    """A reset that cannot be: the text says what is wrong with its value, and what is expected."""


@dataclass(frozen=True, slots=True)
class ResetTo:
    """The place to which partitions are reset."""

    where: Where
    number: int = 0
    """The offset, the shift, or the time in ms since 1970."""

    @property
    def time_ms(self) -> int | None:
        """Return the time whose offset brokers have to be asked for; None: there is none."""
        return self.number if self.where in BY_TIME else None


class Wish(NamedTuple):
    """Partitions of one topic that are to be reset."""

    topic: str
    partitions: tuple[int, ...] | None
    """None: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupReset:
    """A reset that was asked for."""

    group: str
    topics: tuple[Wish, ...] | None
    """None: all topics of which the group has offsets."""
    to: ResetTo


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFacts:
    """A partition before a reset."""

    topic: str
    partition: int
    lanes: int
    """0: it has none."""
    committed: int | None
    """The stable offset, which Kafka has for the group; None: none."""
    furthest: int | None
    """The offset behind all that any lane has done."""
    log_start: int
    log_end: int
    at_time: int | None = None
    """The offset of the first record at or after a time; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReset:
    """A partition, and the offset that it gets."""

    topic: str
    partition: int
    from_offset: int | None
    """The stable offset before; None: the group had none."""
    to_offset: int
    lanes: int
    offsets_again: int
    """Offsets that some lane has done and that are read again, at most."""
    offsets_skipped: int
    """Offsets that some lane has not done and that are not read, at most."""
    is_clamped: bool
    """True: what was asked for is not in the log, and its nearest end was taken."""


def read_target(where: str, value: str | int | None, *, now_ms: int) -> ResetTo:
    """Read `to` and `value` of a request. Raises: ResetInvalid."""
    if where not in WHERE:
        raise ResetInvalid(f"expected one of {', '.join(WHERE)}")
    if where not in WITH_VALUE:
        if value is not None:
            raise ResetInvalid(f"`{where}` takes no value")
        return ResetTo(where)  # type: ignore[arg-type]  # one of WHERE
    if where in BY_TIME:
        return ResetTo(where, _read_time(where, value, now_ms=now_ms))  # type: ignore[arg-type]
    number = _read_integer(value)
    if number is None or (where == "offset" and number < 0):
        expected = "an offset from 0 on" if where == "offset" else "a number, such as -100"
        raise ResetInvalid(f"`{where}` needs {expected} as its value")
    return ResetTo(where, number)  # type: ignore[arg-type]


def plan_resets(places: Sequence[PlaceFacts], to: ResetTo) -> list[PartitionReset]:
    """Return the offset of each partition. Raises: ResetInvalid (a shift of nothing)."""
    return [_plan(place, to) for place in places]


def _plan(place: PlaceFacts, to: ResetTo) -> PartitionReset:
    wanted = _wanted(place, to)
    offset = min(max(wanted, place.log_start), max(place.log_end, place.log_start))
    again = 0 if place.furthest is None else max(0, place.furthest - offset)
    skipped = 0
    if place.committed is not None:
        skipped = max(0, offset - max(place.committed, place.log_start))
    return PartitionReset(
        topic=place.topic,
        partition=place.partition,
        from_offset=place.committed,
        to_offset=offset,
        lanes=place.lanes,
        offsets_again=again,
        offsets_skipped=skipped,
        is_clamped=offset != wanted,
    )


def _wanted(place: PlaceFacts, to: ResetTo) -> int:
    """Return the offset that is asked for, whether or not the log has it."""
    if to.where == "earliest":
        return place.log_start
    if to.where == "offset":
        return to.number
    if to.where in BY_TIME:
        return place.log_end if place.at_time is None else place.at_time
    if to.where == "current":
        return place.log_end if place.committed is None else place.committed
    if to.where == "shift-by":
        if place.committed is None:
            raise ResetInvalid(
                f"topic {place.topic} partition {place.partition} has no committed offset to shift"
            )
        return place.committed + to.number
    return place.log_end


def _read_integer(value: str | int | None) -> int | None:
    if isinstance(value, str) and INTEGER.fullmatch(value):
        value = int(value)
    if not isinstance(value, int) or abs(value) > OFFSET_MAX:
        return None
    return value


def _read_time(where: str, value: str | int | None, *, now_ms: int) -> int:
    """Return the time in ms since 1970. Raises: ResetInvalid."""
    if where == "duration":
        found = DURATION.fullmatch(value) if isinstance(value, str) else None
        if found is None or not any(found.groups()):
            raise ResetInvalid("`duration` needs a time span of ISO 8601, such as PT1H30M or P2D")
        parts = zip(found.groups(), SECONDS, strict=True)
        span_s = sum(Fraction(part) * size for part, size in parts if part)
        return max(0, now_ms - int(span_s * 1000))
    if isinstance(value, int):
        if not 0 <= value <= OFFSET_MAX:
            raise ResetInvalid("`datetime` in ms since 1970 is 0 or more")
        return value
    try:
        if not isinstance(value, str) or len(value) > TEXT_MAX:
            raise ValueError
        at = datetime.fromisoformat(value)
    except ValueError:
        raise ResetInvalid(
            "`datetime` needs a time such as 2026-01-31T08:00:00.000, of UTC unless it names its "
            "offset, or ms since 1970"
        ) from None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)  # as Kafka's own tool has it
    return max(0, (at - EPOCH) // timedelta(milliseconds=1))
