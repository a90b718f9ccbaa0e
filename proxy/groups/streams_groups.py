"""Groups of Kafka Streams: those that were refused, with the reason.

Source: docs/decisions/046.
"""

from __future__ import annotations

from typing import Final

from keylane.bounded import BoundedDict

GROUPS_MAX: Final = 10_000
"""Groups that are remembered, as in `group_names`; the longest unseen are forgotten first."""


class StreamsGroups:
    """Groups whose JoinGroup was of Streams, and the last refusal of each group."""

    def __init__(self, *, groups_max: int = GROUPS_MAX) -> None:
        self._seen: BoundedDict[str, None] = BoundedDict(groups_max)
        self._refusals: BoundedDict[str, str] = BoundedDict(groups_max)

    def __contains__(self, group: str) -> bool:
        return group in self._seen

    def note_joined(self, group: str) -> None:
        """Note a group with a member of Streams."""
        self._seen[group] = None

    def note_refused(self, group: str, reason: str) -> bool:
        """Note a refusal; return whether it is new, since the group was last let in."""
        is_new = self._refusals.get(group) != reason
        self._refusals[group] = reason
        return is_new

    def note_let_in(self, group: str) -> None:
        """Note that nothing is wrong with the group's last plan."""
        self._refusals.pop(group, None)

    def refusal_of(self, group: str) -> str | None:
        """Return the reason to refuse the group's last plan; None: it was let in, or is unknown."""
        return self._refusals.get(group)
