"""Counters of a consumer, as `Consumer.metrics` returns them."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Metrics:
    """Totals since the start; names end with their units."""

    polls: int = 0
    records: int = 0
    """Given to the application."""
    fetches: int = 0
    fetched_bytes: int = 0
    commits: int = 0
    """Requests that were answered without an error."""
    commit_failures: int = 0
    committed_ranges: int = 0
    assigned: int = 0
    revoked: int = 0
    lost: int = 0
    """Partitions."""

    def values(self) -> dict[str, float]:
        """Return them by name."""
        return {name: float(value) for name, value in asdict(self).items()}
