"""The window of a partition in numbers, for people that look at it.

Source: docs/decisions/048.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import nlargest
from typing import Final

from keylane.share.dispatcher import Dispatcher
from keylane.share.held import NO_KEY, KeyQueue
from keylane.share.states import DONE, HELD, OUT

KEYS_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key with records that wait behind each other; it is named by its hash, never by itself."""

    point: int
    """XXH64 of the key, in the hash space of lanes."""
    records: int
    oldest_offset: int
    held_s: float
    """Seconds since its oldest record was acquired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSummary:
    """Counts of the records that keylane holds of a partition."""

    records: int
    ready: int
    """May be handed out now."""
    in_flight: int
    """At members."""
    waiting: int
    """Behind another record of their key, or until a pause after a release is over."""
    unconfirmed: int
    """Decided by a member, and not confirmed by the broker."""
    released: int
    """Not locked: they come again, or are archived."""
    last_attempts: int
    """Held records that are not delivered again; 0 where the limit is not known."""
    oldest_offset: int
    """-1: none is held."""
    oldest_s: float
    """Seconds since it was acquired first."""
    end_offset: int
    """Highest offset that was acquired; -1: none."""
    span: int
    """Offsets from the oldest to the highest, which brokers bound."""
    members: int
    handed_out: int
    redelivered: int
    is_settled: bool
    hottest: tuple[HotKey, ...]
    """Keys with most records, `KEYS_SHOWN` at most; those with one are left out."""


def summarise(dispatcher: Dispatcher, now_s: float, delivery_limit: int | None) -> WindowSummary:
    """Count. Cost: one pass over the held records. delivery_limit: None: it is not known."""
    states = [0, 0, 0, 0]
    last_attempts, oldest = 0, None
    keys: dict[int, KeyQueue] = {}
    for offset, record in dispatcher.records.items():
        states[record.state] += 1
        last_attempts += delivery_limit is not None and record.count >= delivery_limit
        if oldest is None or offset < oldest.offset:
            oldest = record
        if record.key.point != NO_KEY and len(record.key.records) > 1:
            keys[record.key.point] = record.key
    hottest = nlargest(KEYS_SHOWN, keys.values(), key=lambda key: len(key.records))
    end = dispatcher.end_offset
    return WindowSummary(
        records=len(dispatcher.records),
        ready=dispatcher.ready_count,
        in_flight=states[OUT],
        waiting=states[HELD] - dispatcher.ready_count,
        unconfirmed=states[DONE],
        released=len(dispatcher.gone),
        last_attempts=last_attempts,
        oldest_offset=-1 if oldest is None else oldest.offset,
        oldest_s=0.0 if oldest is None else now_s - oldest.since_s,
        end_offset=end,
        span=0 if oldest is None else end - oldest.offset + 1,
        members=dispatcher.member_count,
        handed_out=dispatcher.handed_out,
        redelivered=dispatcher.redelivered,
        is_settled=dispatcher.is_settled,
        hottest=tuple(
            HotKey(
                point=key.point,
                records=len(key.records),
                oldest_offset=key.records[0].offset,
                held_s=now_s - key.records[0].since_s,
            )
            for key in hottest
        ),
    )
