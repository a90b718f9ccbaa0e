"""The nodes that were there lately: which of them are away, and what became of their partitions.

In:    each agreement of the nodes. Out: nodes that are away, and events. No I/O.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from keylane.proxy.runtime.event_log import Kind, NoteEvent, Severity
from keylane.proxy.topics.node_values import NO_NODE, Membership, NodeInfo

AWAY_KEPT_MS: Final = 3_600_000
"""Time for which a node that went is shown as away: one that was stopped for good looks alike."""


@dataclass(frozen=True, slots=True)
class AwayNode:
    """A node that was there, and is not among the nodes of the last agreement."""

    info: NodeInfo
    since_ms: int


class NodeRoll:
    """Nodes of the last agreement, and those that went since."""

    def __init__(self, now_ms: Callable[[], int], note_event: NoteEvent) -> None:
        """now_ms: gives the time in ms since 1970."""
        self._now_ms, self._note_event = now_ms, note_event
        self._last: Membership | None = None
        self._away: dict[int, AwayNode] = {}

    def update(self, membership: Membership) -> None:
        """Take in an agreement."""
        before, self._last = self._last, membership
        now = {node.number: node for node in membership.nodes}
        owned = Counter(membership.owners)
        if before is None:
            return
        known = {node.number: node for node in before.nodes}
        for number, node in now.items():
            away = self._away.pop(number, None)
            if number not in known:
                back = "is back" if away is not None else "joined"
                self._note_event(
                    Kind.NODE,
                    f"Node {number} at {node.place} {back}; it serves {owned[number]} of "
                    f"{len(membership.owners)} partitions of the journal.",
                )
        gone = sorted(known.keys() - now.keys())
        for number in gone:
            self._away[number] = AwayNode(known[number], self._now_ms())
            self._note_gone(known[number], before, membership)
        if owned[NO_NODE]:
            self._note_event(
                Kind.JOURNAL,
                f"No node serves {owned[NO_NODE]} of {len(membership.owners)} partitions of the "
                "journal; groups there wait.",
                severity=Severity.ERROR,
            )

    def _note_gone(self, node: NodeInfo, before: Membership, now: Membership) -> None:
        takers = Counter(
            now.owners[partition]
            for partition in before.owned_by(node.number)
            if partition < len(now.owners) and now.owners[partition] != NO_NODE
        )
        taken = ", ".join(f"node {taker} took over {n}" for taker, n in sorted(takers.items()))
        self._note_event(
            Kind.NODE,
            f"Node {node.number} at {node.place} went"
            + (f"; of its partitions of the journal {taken}." if taken else "."),
            severity=Severity.WARNING,
        )

    def away(self) -> list[AwayNode]:
        """Return nodes that went lately, ascending by number."""
        oldest_ms = self._now_ms() - AWAY_KEPT_MS
        self._away = {k: v for k, v in self._away.items() if v.since_ms >= oldest_ms}
        return [self._away[number] for number in sorted(self._away)]
