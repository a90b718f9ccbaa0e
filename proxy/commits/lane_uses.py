"""Uses of lanes by groups since this process runs: their names, and when each was committed."""

from __future__ import annotations

import uuid
from array import array
from collections import OrderedDict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from typing import Final

from keylane.bounded import BoundedDict

BYTES_MAX: Final = 16 * 1024**2
"""Bound for all groups together, 8 for each lane; the group that is idle longest goes first."""
TOPIC_BYTES: Final = 512
"""Objects around the lanes of one topic, which are a few in most groups: 330 were measured."""

GROUPS_NAMED_MAX: Final = 10_000
"""Groups whose lane names are remembered; the longest unseen are forgotten first."""
NAMES_MAX: Final = 64
"""Lane names of one group, which goes by one name of a topic at a time (docs/decisions/024)."""

Topic = tuple[uuid.UUID, str]
"""Id, and the name under which the client commits."""


@dataclass(slots=True)
class CommitTimes:
    """Times of last commits in ms since 1970; used by the event loop alone.

    Invariant: `size_bytes` is the sum over the groups' topics, and at most BYTES_MAX unless one
    group alone has more; each group has a topic.
    """

    size_bytes: int = 0
    _times: OrderedDict[str, dict[Topic, array[int]]] = field(default_factory=OrderedDict)

    def note(
        self, group: str, topic: Topic, index_count: int, indexes: Iterable[int], now_ms: int
    ) -> None:
        """Lanes (indexes) of a topic with `index_count` lanes were committed."""
        topics = self._times.setdefault(group, {})
        times = topics.get(topic)
        if times is None or len(times) != index_count:
            self.size_bytes -= 0 if times is None else _size_bytes(times)
            times = topics[topic] = array("q", bytes(8 * index_count))
            self.size_bytes += _size_bytes(times)
        for index in indexes:
            times[index] = now_ms
        self._times.move_to_end(group)
        while self.size_bytes > BYTES_MAX and len(self._times) > 1:
            _, forgotten = self._times.popitem(last=False)
            self.size_bytes -= sum(map(_size_bytes, forgotten.values()))

    def keep(self, group: str, topic_ids: Container[uuid.UUID]) -> None:
        """Forget the group's other topics: it has no states on them any more."""
        topics = self._times.get(group, {})
        for topic in [topic for topic in topics if topic[0] not in topic_ids]:
            self.size_bytes -= _size_bytes(topics.pop(topic))
        if not topics:
            self._times.pop(group, None)

    def last_ms(self, group: str, topic: Topic, index: int) -> int | None:
        """Return when a lane was last committed; None: not since the start, or forgotten."""
        times = self._times.get(group, {}).get(topic)
        return times[index] or None if times is not None and index < len(times) else None


def _size_bytes(times: array[int]) -> int:
    return TOPIC_BYTES + 8 * len(times)


class LaneNames:
    """Lane names that each group has used: an OffsetFetch of all topics lists them."""

    def __init__(self) -> None:
        self._names: BoundedDict[str, BoundedDict[str, None]] = BoundedDict(GROUPS_NAMED_MAX)

    def note(self, group: str, name: str) -> None:
        """A group has used a lane name."""
        names = self._names.get(group) or BoundedDict(NAMES_MAX)
        if name not in names:
            names[name] = None
        self._names[group] = names

    def of(self, group: str) -> tuple[str, ...]:
        """Return the names of a group, in the order of their first use."""
        return tuple(self._names.get(group, ()))

    def forget(self, group: str) -> None:
        """The group was deleted."""
        self._names.pop(group, None)
