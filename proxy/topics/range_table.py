"""Key ranges of each client id in each partition, set by a standalone assign call.

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
from keylane.keyrange.space import HASH_MAX, KeyRange

CLIENTS_MAX: Final = 10_000
CLIENT_ID_MAX: Final = 249
"""Characters of a client id; the bound of topic names."""
RANGES_MAX: Final = 50_000
"""Ranges of the whole table: some 10 MB of memory, and a fifth of a second to check a change."""
PARTITION_RANGES_MAX: Final = 10_000
"""Ranges that one client may have of one partition."""
TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[a-zA-Z0-9._-]{1,249}")
"""Names of topics that Kafka accepts."""
WHOLE: Final = (KeyRange(0, HASH_MAX),)
"""Every key of a partition; an empty list of ranges means the same."""

Assignment = Mapping[str, Mapping[int, Sequence[KeyRange]]]
"""Key ranges by topic and partition; no range is the whole partition."""
Ranges = tuple[KeyRange, ...]
Parts = Mapping[str, Mapping[int, Ranges]]
"""An `Assignment` with ranges sorted, disjoint and merged."""
Owners = tuple[tuple[str, Ranges], ...]


@dataclass(frozen=True, slots=True)
class RangeTable:
    """Assignments of all clients in one version.

    Invariant: no two clients have a hash of a partition in common.
    """

    version: int = 0
    clients: Mapping[str, Parts] = field(default_factory=dict)
    """Assignments by client id. A client with an empty one is in it, and reads nothing ranged."""
    _owners: Mapping[tuple[str, int], Owners] = field(default_factory=dict, repr=False)

    def ranges_of(self, client_id: str, topic: str) -> Mapping[int, Ranges] | None:
        """Return a client's ranges by partition; None: it reads the topic plain."""
        parts = self.clients.get(client_id)
        return None if parts is None else parts.get(topic)

    def owners(self, topic: str, partition: int) -> Owners:
        """Return the owners of a partition's ranges, by client id; () for none."""
        return self._owners.get((topic, partition), ())

    def topics(self) -> frozenset[str]:
        """Return the topics that have ranges."""
        return frozenset(topic for topic, _ in self._owners)

    def with_clients(
        self, changes: Mapping[str, Assignment | None], *, version: int | None = None
    ) -> RangeTable:
        """Set the assignments of all these clients at once, and delete where None stands.

        version: of the new table; by default the next one.

        Raises:
            AssignmentInvalid: a name, a number or a count is out of bounds.
            RangesOverlap: two clients would read the same keys of a partition.
        """
        clients = dict(self.clients)
        for client_id, assignment in changes.items():
            clients.pop(client_id, None)
            if assignment is not None:
                clients[client_id] = _read(client_id, assignment)
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
        """Return the part of changes, which may contradict each other, that `with_clients` takes.

        The last change counts before the one before it. One that does not fit beside those, or
        beside clients that stay, is a deletion; each client of `changes` is in the answer.
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
                parts = _read(client_id, assignment)
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
    """Holder of the newest table. A request takes `table` once, and sees one version."""

    table: RangeTable = field(default_factory=RangeTable)


def merge_ranges(ranges: Sequence[KeyRange]) -> Ranges:
    """Sort ranges, and join those that overlap or touch; none is the whole partition."""
    if not ranges:
        return WHOLE
    merged: list[KeyRange] = []
    for part in sorted(ranges):
        if merged and part.lo <= merged[-1].hi + 1:
            merged[-1] = KeyRange(merged[-1].lo, max(merged[-1].hi, part.hi))
        else:
            merged.append(part)
    return tuple(merged)


def check_client_id(client_id: str) -> None:
    """Check a client id. Raises: AssignmentInvalid."""
    if not 0 < len(client_id) <= CLIENT_ID_MAX or not client_id.isprintable():
        raise AssignmentInvalid(
            f"a client id has 1 to {CLIENT_ID_MAX} printable characters", client_id=client_id
        )


def check_assignment(client_id: str, assignment: Assignment) -> None:
    """Check an assignment by itself. Raises: AssignmentInvalid."""
    _read(client_id, assignment)


def _read(client_id: str, assignment: Assignment) -> Parts:
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
                {number: merge_ranges(ranges) for number, ranges in sorted(partitions.items())}
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
        if one not in changes:  # the later one is to blame
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
    """Add ranges that fit to those of their places, ascending; return their number."""
    count = 0
    for topic, partitions in parts.items():
        for partition, ranges in partitions.items():
            listed = placed.setdefault((topic, partition), [])
            for part in ranges:
                insort(listed, part)
            count += len(ranges)
    return count


def _has_room(placed: Mapping[tuple[str, int], list[KeyRange]], parts: Parts) -> bool:
    """Return whether no range of a client meets a placed range."""
    return not any(
        _meets(placed.get((topic, partition), []), part)
        for topic, partitions in parts.items()
        for partition, ranges in partitions.items()
        for part in ranges
    )


def _meets(listed: Sequence[KeyRange], part: KeyRange) -> bool:
    """Return whether a range shares a hash with one of these, which are disjoint, ascending."""
    at = bisect_right(listed, part.hi, key=lambda each: each.lo)
    return at > 0 and listed[at - 1].hi >= part.lo
