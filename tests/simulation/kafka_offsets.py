"""Kafka's own offsets of groups on safe topics: none goes back unless a client asks for it.

In:    commits that brokers take, in order.  Out: breaches in words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from keylane.offsets.txn_metadata import read_note

if TYPE_CHECKING:
    from keylane.offsets.values import Pusher
    from tests.simulation.cluster import Cluster, Committed

Key = tuple[str, str, int]
"""Group, topic, partition."""


class KafkaOffsets:
    """Kafka's own offsets in one run.

    A commit that was answered as failed, and written after that, may be gone again with the next
    one, as with a coordinator whose write timed out: unless an OffsetFetch has shown it, the next
    committer cannot know of it. A push of a node that was replaced may come late; what stood
    before it counts on. One that its owner has not answered may be gone again with the next owner,
    where an earlier push of the same offset was answered as failed: nothing says which of the two
    it is.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._stands: dict[Key, int] = {}
        self._stood: dict[Key, int] = {}
        """Before that."""
        self._pushers: dict[Key, Pusher] = {}
        """The last pusher of each place."""
        self.back: list[str] = []

    def take(self, key: Key, what: Committed, *, is_back_wanted: bool) -> None:
        """A broker has taken an offset."""
        last, pusher = self._pushers.get(key), self._pusher_of(key, what)
        if pusher is not None:
            if pusher.is_overtaken(last):
                return
            self._pushers[key] = pusher
        is_failed = key in self._cluster.unacknowledged
        failed, stands = self._cluster.failed[key], self._stands.get(key, -1)
        if not is_failed and stands in failed:
            # Once its owner has pushed another one it was answered, and counts.
            failed.remove(stands)
            is_failed = last is not None and last.is_overtaken(pusher)
        stood = self._stood[key] = self._stood.get(key, -1) if is_failed else stands
        self._stands[key] = what.offset
        if what.offset < stood and not is_back_wanted:
            group, topic, partition = key
            self.back.append(f"back: {group}: {topic}-{partition} from {stood} to {what.offset}")

    def _pusher_of(self, key: Key, what: Committed) -> Pusher | None:
        _, topic, _ = key
        note = read_note(what.metadata, self._cluster.topics[topic].topic_id, what.offset)
        return None if note is None else note.pusher
