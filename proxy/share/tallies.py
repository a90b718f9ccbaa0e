"""Records that members of ordered share groups have got, and hand-overs between nodes.

They are counted since the start of the node.

Source: docs/decisions/018. A window counts its records too, until it is closed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from keylane.proxy.share.broker_session import SharedPlace
from keylane.wire.share import Acquired

PAIRS_MAX: Final = 100
"""Pairs of group and topic that are counted one by one; the others share one."""
GROUP_CHARS_MAX: Final = 249
"""Kafka's bound of a topic name; a group id may be longer, and is cut."""
OTHERS: Final = "(others)"
"""A label that is no name of a topic."""

OFFERED: Final = "offered"
FOLLOWED: Final = "followed"
TAKEN: Final = "taken"
"""Steps of a hand-over between nodes: this node has offered a partition, another one has followed,
or this one has taken a partition of another."""

Pair = tuple[str, str]
"""Group and topic."""


class ShareTallies:
    """Counters. Invariant: both by group and topic have the same pairs, `PAIRS_MAX` and one."""

    def __init__(self) -> None:
        self.handed_out: Counter[Pair] = Counter()
        self.redelivered: Counter[Pair] = Counter()
        """Of those, records that had been delivered before."""
        self.hand_overs: Counter[str] = Counter({OFFERED: 0, FOLLOWED: 0, TAKEN: 0})

    def note_hand_over(self, step: str) -> None:
        """Count a step of a hand-over."""
        self.hand_overs[step] += 1

    def note(self, place: SharedPlace, acquired: Iterable[Acquired]) -> None:
        """Count what an answer hands out of a partition."""
        pair = place.group[:GROUP_CHARS_MAX], place.topic
        if pair not in self.handed_out and len(self.handed_out) >= PAIRS_MAX:
            pair = OTHERS, OTHERS
        total = again = 0
        for first, last, count in acquired:
            size = last - first + 1
            total += size
            again += size if count > 1 else 0
        self.handed_out[pair] += total
        self.redelivered[pair] += again
