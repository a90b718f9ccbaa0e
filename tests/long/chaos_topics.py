"""Topics and lanes of a run of chaos.

In:    nothing.  Out: names, counts, and where keys belong.

`safe` (three replicas, two in sync, no unclean election): nothing acknowledged is ever lost.
`weak` (two replicas, one in sync, unclean election) and `lone` (one replica): Kafka itself loses
what chaos makes it lose. `quiet` (as safe): written once, and then hardly ever.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from keylane.keyrange.hash import key_hash
from keylane.keyrange.key_split import even_split
from tests.long.chaos_history import GroupHistory

PARTITIONS: Final[Mapping[str, int]] = {"safe": 2, "weak": 2, "lone": 1, "quiet": 2}
OWN_LANES: Final = 4
NAME_LANES: Final = 3
KEYS: Final = tuple(f"key-{number}" for number in range(48))
SAFE: Final = frozenset({"safe", "quiet"})
BUSY: Final = ("safe", "weak", "lone")


def topic_of(name: str) -> str | None:
    """Kafka's own name of what a client calls a topic; None: not one of the run's."""
    found = name.partition(".lanes-")[0]
    return found if found in PARTITIONS else None


class Lanes:
    """Where keys belong in a view of so many lanes, computed as decision 015 says."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._cuts = even_split(count).cuts
        self._of = {key: bisect_right(self._cuts, key_hash(key.encode())) for key in KEYS}

    def index(self, topic: str, partition: int, key: str) -> int:
        """The lane index of a key's records in a partition."""
        return self._of[key] * PARTITIONS[topic] + partition


LANES: Final[Mapping[str, Lanes]] = {
    "own": Lanes(OWN_LANES),
    "lane": Lanes(NAME_LANES),
    "still": Lanes(OWN_LANES),
}
"""Lanes by group."""
TOPICS: Final[Mapping[str, tuple[str, ...]]] = {"own": BUSY, "lane": BUSY, "still": ("quiet",)}
"""Kafka's own names, by group."""


def empty_history(group: str) -> GroupHistory:
    """Return a group's history, to be filled in."""
    return GroupHistory(
        group=group,
        partitions={topic: PARTITIONS[topic] for topic in TOPICS[group]},
        lane_of=LANES[group].index,
    )
