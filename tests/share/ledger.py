"""Judgement of what share consumers report of their work: order by key, one member at a time, loss.

Members write each event at once, so that a kill -9 hides none; nanoseconds of `System.nanoTime` are
those of the machine's monotonic clock, and compare between processes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.share.member import Event

FINISHED = frozenset({"ACCEPT", "REJECT"})
WORK = frozenset({"S", "R", "E"})
"""Kinds of events of a member at work; others may come while it leaves."""
Record = tuple[int, int]
"""Partition and offset."""


@dataclass(slots=True)
class Judgement:
    """Findings; each list is empty where all promises were kept."""

    two_members: list[str] = field(default_factory=list)
    """A key at two members at once."""
    behind_nodes: list[str] = field(default_factory=list)
    """The same, of members behind a node that was killed or hung, which is no break."""
    out_of_order: list[str] = field(default_factory=list)
    """Work on a record before a lower one of its key was finished."""
    finished: dict[Record, str] = field(default_factory=dict)
    """Records, and the member that finished each first."""
    again: int = 0
    """Deliveries of records that a member had finished before."""
    released: int = 0
    deliveries: Counter[int] = field(default_factory=Counter)
    """By delivery count."""
    unfinished: set[Record] = field(default_factory=set)

    @property
    def breaks(self) -> list[str]:
        """Return all order breaks."""
        return self.two_members + self.out_of_order

    def __str__(self) -> str:
        counts = dict(sorted(self.deliveries.items()))
        return (
            f"finished {len(self.finished)}, unfinished {len(self.unfinished)}, "
            f"again {self.again}, released {self.released}, deliveries {counts}, "
            f"at two members behind a lost node {len(self.behind_nodes)}, "
            f"breaks {len(self.breaks)} {self.breaks[:5]}"
        )


def _is_start(event: Event) -> bool:
    return event.kind == "S"


def _stop_work(at_work: Mapping[tuple[int, str], dict[str, int]], event: Event) -> None:
    """Take in a renewal that failed: the member has learned that the record is not its own."""
    for (partition, _), offsets_at in at_work.items():
        if (partition, offsets_at.get(event.member)) == event.place:
            del offsets_at[event.member]


def judge(
    events: Iterable[Event],
    *,
    delivery_limit: int = 5,
    lost_nodes: Sequence[tuple[float, float]] = (),
) -> Judgement:
    """Judge the events of all members.

    A member's work ends with its last event of work, as after a kill -9.
    lost_nodes: seconds of the monotonic clock between which members may be at work behind a node
    that others have taken over.
    """
    ordered = sorted(events, key=lambda each: each.nano_ns)
    last_ns = {event.member: event.nano_ns for event in ordered if event.kind in WORK}
    found = Judgement()
    count_of: dict[Record, int] = {}
    at_work: defaultdict[tuple[int, str], dict[str, int]] = defaultdict(dict)
    """By partition and key: member, and the offset that it works on."""
    of_key: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    for event in filter(_is_start, ordered):
        of_key[event.partition, event.key].add(event.offset)
    archived: set[Record] = set()
    for event in ordered:
        key, record = (event.partition, event.key), (event.partition, event.offset)
        if event.kind == "S":
            count = int(event.text)
            found.deliveries[count] += 1
            found.again += record in found.finished
            is_lost = any(low <= event.nano_ns / 1e9 <= high for low, high in lost_nodes)
            for member, offset in at_work[key].items():
                if member != event.member and event.nano_ns <= last_ns[member]:
                    (found.behind_nodes if is_lost else found.two_members).append(
                        f"key {event.key}: {event.offset} at {event.member}, {offset} at {member}"
                    )
            for lower in of_key[key]:
                is_over = (event.partition, lower) in found.finished
                if (
                    lower < event.offset
                    and not is_over
                    and (event.partition, lower) not in archived
                ):
                    found.out_of_order.append(
                        f"key {event.key}: {event.offset} before {lower} at {event.member}"
                    )
            count_of[record] = count
            at_work[key][event.member] = event.offset
        elif event.kind == "E":
            at_work[key].pop(event.member, None)
            if event.text in FINISHED:
                found.finished.setdefault(record, event.member)
            else:
                found.released += 1
                if count_of.get(record, 0) >= delivery_limit:
                    archived.add(record)
        elif event.kind == "C" and event.text != "ok":
            _stop_work(at_work, event)
    seen = {(key[0], offset) for key, offsets in of_key.items() for offset in offsets}
    found.unfinished = seen - found.finished.keys() - archived
    return found
