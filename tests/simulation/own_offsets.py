"""Kafka's own offsets of groups on safe topics: none goes back unless somebody wants it.

In:    what brokers take, in its order.  Out: breaches in words.
Next:  `judgement` adds them to the others.
Pure:  no I/O.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.offsets.lane_note import read_note

if TYPE_CHECKING:
    from keylane.offsets.values import Pusher
    from tests.simulation.cluster import Cluster, Committed

Of = tuple[str, str, int]
"""Group, topic, partition."""


class OwnOffsets:
    """Of one run.

    A commit that was answered as failed, and written after that, may be gone again with the next
    one, as with a coordinator whose write timed out: unless an OffsetFetch has told of it, who
    commits next cannot know of it. A push of a node that was replaced may come late; what stood
    before it counts on. One that its owner has not answered may be gone again with the next owner,
    where an earlier push of the same offset was answered as failed: which of the two it is nothing
    says.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stands: dict[Of, int] = {}
        self._stood: dict[Of, int] = {}
        """Before that."""
        self._pushers: dict[Of, Pusher] = {}
        """Of each place the last one."""
        self.back: list[str] = []

    def take(self, of: Of, what: Committed, *, is_back_wanted: bool) -> None:
        """A broker has taken an offset."""
        last = self._pushers.get(of)
        if self._is_overtaken(of, what):
            return
        is_failed = of in self._cluster.unacknowledged or self._is_alike(of, last)
        known = self._stood if is_failed else self._stands
        stood = self._stood[of] = known.get(of, -1)
        self._stands[of] = what.offset
        if what.offset < stood and not is_back_wanted:
            group, topic, partition = of
            self.back.append(f"back: {group}: {topic}-{partition} from {stood} to {what.offset}")

    def _is_overtaken(self, of: Of, what: Committed) -> bool:
        """Whether the next owner of the group has pushed already."""
        note = read_note(what.metadata, self._cluster.topics[of[1]].topic_id, what.offset)
        if note is None or note.pusher is None:
            return False
        if note.pusher.is_overtaken(self._pushers.get(of)):
            return True
        self._pushers[of] = note.pusher
        return False

    def _is_alike(self, of: Of, last: Pusher | None) -> bool:
        """Whether the first push of a next owner comes after an offset that had failed before.

        Once its owner has pushed another one it was answered, and counts.
        """
        stands = self._stands.get(of, -1)
        if stands not in (failed := self._cluster.failed[of]):
            return False
        failed.remove(stands)
        return last is not None and last.is_overtaken(self._pushers.get(of))
