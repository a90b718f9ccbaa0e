"""Lane names that groups have used: what an OffsetFetch of all topics lists for them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

GROUPS_NAMED_MAX: Final = 10_000
"""Groups whose lane names are remembered; the longest unseen are forgotten first."""
NAMES_MAX: Final = 64
"""Of one group, which goes by one name of a topic at a time (docs/decisions/024)."""


class LaneNames:
    """By group, since the start.

    Invariant: no more than GROUPS_NAMED_MAX groups, of NAMES_MAX names each; the one whose first
    use is longest ago goes first.
    """

    def __init__(self) -> None:
        self._names: OrderedDict[str, dict[str, None]] = OrderedDict()

    def note(self, group: str, name: str) -> None:
        """A group has used a lane name."""
        names = self._names.setdefault(group, {})
        if name not in names and len(names) >= NAMES_MAX:
            del names[next(iter(names))]
        names[name] = None
        self._names.move_to_end(group)
        if len(self._names) > GROUPS_NAMED_MAX:
            self._names.popitem(last=False)

    def of(self, group: str) -> tuple[str, ...]:
        """The names of a group, in the order of their first use."""
        return tuple(self._names.get(group, ()))

    def forget(self, group: str) -> None:
        """The group was deleted."""
        self._names.pop(group, None)
