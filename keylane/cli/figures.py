"""Figures of reports as text in tables: a dash for what is not known, `~` before an estimate."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from keylane.cli.columns import Painted

DASH: Final = "-"
ESTIMATE: Final = "~"
BAD: Final = "red"
BEHIND_S: Final = 60.0
"""Lag in seconds from which a table shows it in colour."""


def whole(value: float | None) -> str:
    """Return a number without a fraction."""
    return DASH if value is None else f"{value:.0f}"


def lag(value: int | None, *, is_exact: bool) -> str:
    """Return a number of records."""
    return DASH if value is None else f"{'' if is_exact else ESTIMATE}{value}"


def lag_time(seconds: float | None, *, is_exact: bool) -> str:
    """Return how long the oldest record waits."""
    if seconds is None:
        return DASH
    text = f"{'' if is_exact else ESTIMATE}{age(seconds)}"
    return Painted(text, BAD) if seconds >= BEHIND_S else text


def moment(at_ms: int | None) -> str:
    """Return a time of day in UTC."""
    if at_ms is None:
        return DASH
    return datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def age(seconds: float | None) -> str:
    """Return a duration in one or two units: 0.4s, 12s, 3m20s, 2h05m."""
    if seconds is None:
        return DASH
    if seconds < 10:
        return f"{seconds:.1f}s"
    whole_s = round(seconds)
    if whole_s < 60:
        return f"{whole_s}s"
    minutes, rest = divmod(whole_s, 60)
    return f"{minutes}m{rest:02}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02}m"
