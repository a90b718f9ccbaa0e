"""The hours of a profile, in a time zone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from keylane.errors import ConfigInvalid


@dataclass(frozen=True, slots=True)
class HourIndex:
    """The hours that are looked at, the same for all partitions."""

    starts: tuple[int, ...]
    """In seconds since 1970, ascending."""
    zone: str
    """In which an hour begins at the full hour, and a day at midnight."""
    is_cut: bool = False
    """There are older hours, which are left out."""

    def days(self) -> dict[str, list[int]]:
        """The hours of each day, both in order of time."""
        days: dict[str, list[int]] = {}
        for start in self.starts:
            days.setdefault(self.day(start), []).append(start)
        return days

    def day(self, start: int) -> str:
        """The day of an hour, such as 2026-11-20."""
        return self.time(start).date().isoformat()

    def label(self, start: int) -> str:
        """An hour, such as 2026-11-20T18:00."""
        return self.time(start).isoformat(timespec="minutes")[:16]

    def time(self, start: int) -> datetime:
        """An hour on the zone's clock."""
        return datetime.fromtimestamp(start, read_zone(self.zone))


def read_zone(name: str) -> tzinfo:
    """A time zone by its name. Raises: ConfigInvalid."""
    try:
        # A machine without a database of zones knows at least UTC.
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigInvalid(
            f"--zone {name[:80]}: no such time zone (Europe/Paris is one)"
        ) from None
