"""KIP-848 groups on lanes that this node serves, as far as memory goes. No I/O.

A group that is forgotten is met again as after a restart: members say what they own, and the
journal has what they were given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from keylane.bounded import BoundedDict, CostBoundedDict
from keylane.proxy.groups.consumer_group import ConsumerGroup
from keylane.proxy.groups.consumer_members import GroupMember

GROUPS_MAX: Final = 10_000
"""As many as the names of classic groups are kept of."""
COST_MAX: Final = 128 * 1024**2
"""Bytes of all groups: 500,000 lanes."""
LANE_COST: Final = 256
MEMBER_COST: Final = 2_048
"""Roughly what CPython takes: a lane stands in what is held, given and planned."""
PLAIN_MAX: Final = 100_000
"""Members without lanes that are known, some 15 MB; one that is forgotten says all once more."""


@dataclass(slots=True)
class _Served:
    group: ConsumerGroup | None = None
    table: object = None
    """The table of held lanes that it was begun with."""
    cost: int = 0

    def weigh(self) -> None:
        """Set the cost to what the group takes now."""
        if self.group is not None:
            lanes = sum(topic.lanes.index_count for topic in self.group.topics.values())
            self.cost = LANE_COST * lanes + MEMBER_COST * (1 + len(self.group.members))


class ConsumerGroups:
    """Groups by name; the one that was not served for longest is forgotten first."""

    def __init__(self, *, cost_max: int = COST_MAX) -> None:
        self._groups: CostBoundedDict[str, _Served] = CostBoundedDict(
            _Served, cost_max=cost_max, size_max=GROUPS_MAX
        )
        self._plain: BoundedDict[int, bool] = BoundedDict(PLAIN_MAX)
        """Hashes of group and id of members that have said all, and read no lanes.

        Clients choose both, in up to 32 KB each.
        """

    def get(self, group: str, table: object) -> ConsumerGroup | None:
        """Return a group; None: it is unknown, or was begun before its journal was loaded anew.

        table: the loaded table; another one means that another node may have served the group.
        """
        found = self._groups.get(group)
        if found is None or found.table is not table:
            return None
        self._groups.move_to_end(group)
        return found.group

    def begin(self, group: str, table: object, known: ConsumerGroup) -> None:
        """Keep a group that was met for the first time, or once more."""
        with self._groups.changed(group) as served:
            served.group, served.table = known, table
            served.weigh()

    def weigh(self, group: str) -> None:
        """Note that the group has other members or topics."""
        if group in self._groups:
            with self._groups.changed(group) as served:
                served.weigh()

    def find(self, group: str) -> ConsumerGroup | None:
        """Return a group as it was served last, to look at."""
        found = self._groups.get(group)
        return None if found is None else found.group

    def member(self, group: str, member_id: str) -> GroupMember | None:
        """Return a member by its id."""
        found = self.find(group)
        return None if found is None else found.find(member_id)

    def note_plain(self, group: str, member_id: str) -> None:
        """Note a member that has said all, and reads no lanes."""
        self._plain[hash((group, member_id))] = True

    def note_lanes(self, group: str, member_id: str) -> None:
        """Note that a member reads lanes from now on."""
        self._plain.pop(hash((group, member_id)), None)

    def is_plain(self, group: str, member_id: str) -> bool:
        """Return whether a member is known to read no lanes."""
        return self._plain.use(hash((group, member_id))) is not None

    def names(self) -> list[str]:
        """Return the groups that are known."""
        return list(self._groups)

    def forget(self, group: str) -> None:
        """Forget a group whose members are all gone, if it is known."""
        if group in self._groups:
            self._groups.drop(group)

    def forget_where(self, is_lost: Callable[[str], bool]) -> None:
        """Forget groups that another node serves."""
        for group in [group for group in self._groups if is_lost(group)]:
            self._groups.drop(group)

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        self._groups.check()
