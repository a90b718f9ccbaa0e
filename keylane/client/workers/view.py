"""Counts of the workers at a moment: for the progress line and the metrics."""

from __future__ import annotations

from typing import NamedTuple


class WorkersView(NamedTuple):
    """Counts of now."""

    in_flight: int
    """Records at work."""
    queued: int
    """Records that wait, for whatever reason."""
    keys_waiting: int
    """Keys with records behind one that is not finished."""
    retries_waiting: int
    """Records that wait for a further attempt."""
    held_bytes: int
    paused: int
    """Partitions that give no records, since queues are full."""
    lag: float | None
    """Records behind the end of the log; None: not known."""
