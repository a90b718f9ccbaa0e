"""The journal of a node beside others that it does not see: it owns all, and fences no other.

Source: docs/decisions/022, 030.
"""

from __future__ import annotations

from collections.abc import Iterator

from keylane.journal.owned import Appender, GroupLock, Holding, InTime
from keylane.offsets.table import OffsetTable


class LoneTable:
    """Stand-in for `OwnedTables`, with one table that is loaded once, by `load`."""

    pins_by_group = False
    """True: a layout is pinned in the partition of the group that uses it; False: in its own."""

    def __init__(self, journal: Appender) -> None:
        self._journal = journal
        self._table: OffsetTable | None = None

    def load(self, table: OffsetTable) -> None:
        """Serve what was read from the journal."""
        self._table = table

    @property
    def partition_count(self) -> int:
        """Partition count of the journal."""
        return self.table("").partition_count

    def hold(self, group: str, lock: GroupLock, wait_s: float | None = None) -> InTime:
        """The group's lock. Entering it raises GroupBusy."""
        del group
        return InTime(lock, wait_s)

    async def ready(self, group: str) -> None:
        """Nothing is left to load."""

    def check(self, group: str) -> None:
        """No other node serves the group."""

    def lacks(self, group: str) -> bool:
        """Nothing is left to load."""
        del group
        return False

    def table(self, group: str) -> OffsetTable:
        """The table with the group's states."""
        del group
        assert self._table is not None, "start comes first"
        return self._table

    def find(self, group: str) -> OffsetTable | None:
        """Same as `table`; None before the start."""
        del group
        return self._table

    def changed(self, group: str) -> tuple[OffsetTable, Appender]:
        """Return the table, and the journal that its changes go to."""
        return self.table(group), self._journal

    def tables(self) -> Iterator[OffsetTable]:
        """The table, once it is loaded."""
        if self._table is not None:
            yield self._table

    def holdings(self) -> list[Holding]:
        """Return none: unseen nodes may change what this one has."""
        return []

    def drop_lost(self) -> None:
        """Nothing is ever lost."""

    async def stop(self) -> None:
        """The journal is closed by the caller."""
