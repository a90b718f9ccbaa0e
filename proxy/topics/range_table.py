"""Key ranges that each client id reads of each partition, set by a standalone assign call.

Source: docs/decisions/015, 019.
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Final

from keylane.errors import AssignmentInvalid, RangesOverlap
from keylane.keyrange.space import WHOLE, KeyRange, merge_ranges

CLIENTS_MAX: Final = 10_000
CLIENT_ID_MAX: Final = 249
"""Characters of a client id; the same limit as topic names."""
RANGES_MAX: Final = 50_000
"""Ranges of the whole table: some 10 MB of memory, and a fifth of a second to check a change."""
PARTITION_RANGES_MAX: Final = 10_000
"""Ranges that one client may have of one partition."""
TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
"""A topic's name as Kafka accepts it."""

Assignment = Mapping[str, Mapping[int, Sequence[KeyRange]]]
"""Key ranges by topic and partition; no range is the whole partition."""
Ranges = tuple[KeyRange, ...]
Parts = Mapping[str, Mapping[int, Ranges]]
"""Same as `Assignment`, with ranges sorted, disjoint and merged."""
Owners = tuple[tuple[str, Ranges], ...]


@dataclass(frozen=True, slots=True)
class RangeTable:
    """The assignments of all clients in one version.

    Invariant: no two clients have a hash of a partition in common.
    """

    version: int = 0
    clients: Mapping[str, Parts] = field(default_factory=dict)
    """By client id. A client with an empty assignment stands in it, and reads nothing ranged."""
    _owners: Mapping[tuple[str, int], Owners] = field(default_factory=dict, repr=False)

    def ranges_of(self, client_id: str, topic: str) -> Mapping[int, Ranges] | None:
        """Return a client's ranges by partition; None: it has none, and reads the topic plain."""
        parts = self.clients.get(client_id)
        return None if parts is None else parts.get(topic)

    def owners(self, topic: str, partition: int) -> Owners:
        """Return the ranges of a partition by client id; () where no client has any."""
        return self._owners.get((topic, partition), ())

    def topics(self) -> frozenset[str]:
        """Return the topics of which a client has ranges."""
        return frozenset(topic for topic, _ in self._owners)

    def with_clients(
        self, changes: Mapping[str, Assignment | None], *, version: int | None = None
    ) -> RangeTable:
        """Set the assignments of all these clients at once, and delete where None stands.

        version: of the new table; by default the next one.
        Raises: AssignmentInvalid (a name, a number or a count is out of bounds), RangesOverlap.
        """
        clients = dict(self.clients)
        for client_id, assignment in changes.items():
            clients.pop(client_id, None)
            if assignment is not None:
                clients[client_id] = read_parts(client_id, assignment)
        if len(clients) > CLIENTS_MAX:
            raise AssignmentInvalid(f"{len(clients)} clients, at most {CLIENTS_MAX} have room")
        clients = dict(sorted(clients.items()))
        owners: dict[tuple[str, int], list[tuple[str, Ranges]]] = {}
        for client_id, parts in clients.items():
            for topic, partitions in parts.items():
                for partition, ranges in partitions.items():
                    owners.setdefault((topic, partition), []).append((client_id, ranges))
        count = sum(len(ranges) for listed in owners.values() for _, ranges in listed)
        if count > RANGES_MAX:
            raise AssignmentInvalid(f"{count} key ranges, at most {RANGES_MAX} have room")
        for (topic, partition), listed in sorted(owners.items()):
            _check_disjoint(topic, partition, listed, changes)
        return RangeTable(
            version=self.version + 1 if version is None else version,
            clients=MappingProxyType(clients),
            _owners=MappingProxyType({place: tuple(listed) for place, listed in owners.items()}),
        )

    def fitting(self, changes: Mapping[str, Assignment | None]) -> dict[str, Assignment | None]:
        """Return changes that fit together, out of changes that may contradict each other.

        A later change counts before an earlier one. A change that does not fit beside those, and
        beside clients that stay, becomes a deletion.
        """
        placed: dict[tuple[str, int], list[KeyRange]] = {}
        kept = {name: parts for name, parts in self.clients.items() if name not in changes}
        count = sum(_place(placed, parts) for parts in kept.values())
        client_count = len(kept)
        found: dict[str, Assignment | None] = dict.fromkeys(changes)
        for client_id, assignment in reversed(list(changes.items())):
            if assignment is None or client_count >= CLIENTS_MAX:
                continue
            try:
                parts = read_parts(client_id, assignment)
            except AssignmentInvalid:
                continue
            size = sum(len(ranges) for by in parts.values() for ranges in by.values())
            if count + size > RANGES_MAX or not _has_room(placed, parts):
                continue
            count += _place(placed, parts)
            client_count += 1
            found[client_id] = assignment
        return found


@dataclass(slots=True)
class RangeTableHolder:
    """Place where the newest table hangs. A request takes `table` once, and sees one version."""

    table: RangeTable = field(default_factory=RangeTable)


def check_client_id(client_id: str) -> None:
    """Raises: AssignmentInvalid."""
    if not 0 < len(client_id) <= CLIENT_ID_MAX or not client_id.isprintable():
        raise AssignmentInvalid(
            f"a client id has 1 to {CLIENT_ID_MAX} printable characters", client_id=client_id
        )


def read_parts(client_id: str, assignment: Assignment) -> Parts:
    """Return an assignment with its ranges merged. Raises: AssignmentInvalid."""
    check_client_id(client_id)
    parts: dict[str, Mapping[int, Ranges]] = {}
    for topic, partitions in sorted(assignment.items()):
        if not TOPIC_NAME.fullmatch(topic):
            raise AssignmentInvalid("no name of a topic", client_id=client_id, topic=topic)
        for partition, ranges in partitions.items():
            invalid = partial(
                AssignmentInvalid, client_id=client_id, topic=topic, partition=partition
            )
            if not 0 <= partition < 2**31:
                raise invalid("a partition is 0 to 2^31-1")
            if len(ranges) > PARTITION_RANGES_MAX:
                reason = f"{len(ranges)} key ranges, at most {PARTITION_RANGES_MAX} per partition"
                raise invalid(reason)
        if partitions:
            parts[topic] = MappingProxyType(
                {at: merge_ranges(ranges) or WHOLE for at, ranges in sorted(partitions.items())}
            )
    return MappingProxyType(parts)


def _check_disjoint(
    topic: str, partition: int, listed: Sequence[tuple[str, Ranges]], changes: Mapping[str, object]
) -> None:
    """Compare neighbours: ranges of one client are disjoint, so these are of two clients."""
    placed = sorted((part, client_id) for client_id, ranges in listed for part in ranges)
    for (before, one), (after, other) in pairwise(placed):
        if after.lo > before.hi:
            continue
        mine, theirs = (one, before), (other, after)
        if one not in changes:  # the one to blame is the one that came last
            mine, theirs = theirs, mine
        raise RangesOverlap(
            client_id=mine[0],
            key_range=(mine[1].lo, mine[1].hi),
            other_client_id=theirs[0],
            other_range=(theirs[1].lo, theirs[1].hi),
            topic=topic,
            partition=partition,
        )


def _place(placed: dict[tuple[str, int], list[KeyRange]], parts: Parts) -> int:
    """Add ranges that fit to those of their places, ascending; how many they are."""
    count = 0
    for topic, partitions in parts.items():
        for partition, ranges in partitions.items():
            listed = placed.setdefault((topic, partition), [])
            for part in ranges:
                insort(listed, part)
            count += len(ranges)
    return count


def _has_room(placed: Mapping[tuple[str, int], list[KeyRange]], parts: Parts) -> bool:
    """Return whether no range of a client meets one that is placed."""
    return not any(
        _meets(placed.get((topic, partition), []), part)
        for topic, partitions in parts.items()
        for partition, ranges in partitions.items()
        for part in ranges
    )


def _meets(listed: Sequence[KeyRange], part: KeyRange) -> bool:
    """Return whether a range has a hash in common with one of these: disjoint, ascending."""
    at = bisect_right(listed, part.hi, key=lambda each: each.lo)
    return at > 0 and listed[at - 1].hi >= part.lo
