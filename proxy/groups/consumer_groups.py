"""KIP-848 groups on lanes that this node serves, as far as memory goes. No I/O.

A group that is forgotten is met again as after a restart: members say what they own, and the
journal has what they were given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from keylane.bounded import BoundedDict
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_members import GroupMember

GROUPS_MAX: Final = 10_000
"""As many as the names of classic groups are kept of."""


class ConsumerGroups:
    """Groups by name, each with the table of held lanes that it was begun with."""

    def __init__(self) -> None:
        self._groups: BoundedDict[str, tuple[ConsumerGroup, object]] = BoundedDict(GROUPS_MAX)

    def get(self, group: str, table: object) -> ConsumerGroup | None:
        """Return a group; None: it is unknown, or was begun before its journal was loaded anew.

        table: the loaded table; another one means that another node may have served the group.
        """
        found = self._groups.use(group)
        return found[0] if found is not None and found[1] is table else None

    def begin(self, group: str, table: object, known: ConsumerGroup) -> None:
        """Keep a group that was met for the first time, or once more."""
        self._groups[group] = known, table

    def find(self, group: str) -> ConsumerGroup | None:
        """Return a group as it was served last, to look at."""
        found = self._groups.get(group)
        return None if found is None else found[0]

    def member(self, group: str, member_id: str) -> GroupMember | None:
        """Return a member by its id."""
        found = self.find(group)
        return None if found is None else found.find(member_id)

    def names(self) -> list[str]:
        """Return the groups that are known."""
        return list(self._groups)

    def forget_where(self, is_lost: Callable[[str], bool]) -> None:
        """Forget groups that another node serves."""
        for group in [group for group in self._groups if is_lost(group)]:
            del self._groups[group]
