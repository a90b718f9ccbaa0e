"""Records of an audit topic: what a consumer reports of each record that it has processed.

Two forms, both JSON; `k` says which. Hashes are decimal strings, since numbers beyond 2^53 do
not survive every JSON reader.

    record      k=r  p, o, h, m, g, s, lo, hi, t    one processed record
    assignment  k=a  m, g, s, t, l=[[p, lo, hi]]    the member owns these ranges from here on
    commit      k=c  m, g, t, l=[[p, lo, hi, o]]    the group confirmed offset o (the next one)

p partition, o offset, h key hash, m member, g generation (-1 unknown), s session of the member
(its n-th assignment of that range), lo and hi its key range, t microseconds since 1970.

All records of a key go to one audit partition (`audit_partition`), so the order of the audit
partition is the order of processing and no clock is believed. The reporter names the partition,
since default partitioners of client libraries differ. Assignments and commits go to every
audit partition, each at its place among the records.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from keylane.keyrange.hash import key_hash, offset_hash
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import KeyRange

FORMAT_VERSION: Final = 1
GENERATION_UNKNOWN: Final = -1
BUCKET_SHIFT: Final = 51
"""The hash space in 4,096 buckets, as in a load profile; a bucket has one audit partition."""
PARTITION_STEP: Final = 31
"""Spreads the same bucket of different partitions; any odd number does."""


class Message(NamedTuple):
    """A Kafka record to write, with its partition."""

    partition: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """A partition as a consumer sees it: one key range of a physical partition."""

    partition: int
    key_range: KeyRange


PlaceOf = Callable[[int], Place]
"""From the partition number that a client sees to what it stands for."""


def lane_places(layout: LaneLayout) -> PlaceOf:
    """Places of a topic's lanes; a layout of one lane for a consumer without keylane."""
    places = [
        Place(partition, layout.key_range(partition, layout.lane_of(index)))
        for index in range(layout.index_count)
        for partition in (layout.partition_of(index),)
    ]

    def place_of(index: int) -> Place:
        if not 0 <= index < len(places):
            raise ValueError(f"no lane {index} of {len(places)}")
        return places[index]

    return place_of


def audit_partition(partition: int, hash_of_key: int, audit_partition_count: int) -> int:
    """The audit partition that holds all records of a key of a source partition."""
    bucket = hash_of_key >> BUCKET_SHIFT
    return (partition * PARTITION_STEP + bucket) % audit_partition_count


class ReportBook:
    """Reports of one member; the messages must be written in the order of the calls.

    A lane that was given up keeps its session: a member that goes on all the same is what an
    audit must see.
    """

    def __init__(self, *, member: str, place_of: PlaceOf, audit_partition_count: int) -> None:
        """`member` must be this process's alone: a restarted one has another."""
        if audit_partition_count < 1:
            raise ValueError("an audit topic has at least one partition")
        self.generation = GENERATION_UNKNOWN
        self._member = json.dumps(member)
        self._place_of = place_of
        self._count = audit_partition_count
        self._session = 0
        self._sessions: dict[int, int] = {}

    def assigned(
        self, lanes: Iterable[int], *, now_us: int, generation: int = GENERATION_UNKNOWN
    ) -> list[Message]:
        """The member owns `lanes` from now on, beside those that it had and was not asked for."""
        self.generation = generation
        taken = sorted(lanes)
        if not taken:
            return []
        self._session += 1
        self._sessions.update(dict.fromkeys(taken, self._session))
        places = [self._place_of(lane) for lane in taken]
        ranges = [_range_of(place) for place in places]
        return self._mark("a", ranges, now_us, f'"s":{self._session},')

    def processed(self, lane: int, offset: int, key: bytes | None, *, now_us: int) -> Message:
        """One record was processed."""
        partition, key_range = (place := self._place_of(lane)).partition, place.key_range
        hashed = offset_hash(offset) if key is None else key_hash(key)
        session = self._sessions.get(lane, 0)
        value = (
            f'{{"v":{FORMAT_VERSION},"k":"r","p":{partition},"o":{offset},"h":"{hashed}",'
            f'"m":{self._member},"g":{self.generation},"s":{session},'
            f'"lo":"{key_range.lo}","hi":"{key_range.hi}","t":{now_us}}}'
        )
        where = audit_partition(partition, hashed, self._count)
        return Message(where, b"%d:%d" % (partition, hashed), value.encode())

    def committed(self, positions: Mapping[int, int], *, now_us: int) -> list[Message]:
        """The group confirmed these positions (offset of the next record), by lane."""
        if not positions:
            return []
        rows = [[*_range_of(self._place_of(lane)), at] for lane, at in sorted(positions.items())]
        return self._mark("c", rows, now_us)

    def _mark(
        self, kind: str, rows: list[list[int | str]], now_us: int, more: str = ""
    ) -> list[Message]:
        listed = json.dumps(rows, separators=(",", ":"))
        value = (
            f'{{"v":{FORMAT_VERSION},"k":"{kind}","m":{self._member},"g":{self.generation},'
            f'{more}"t":{now_us},"l":{listed}}}'
        ).encode()
        return [Message(where, kind.encode(), value) for where in range(self._count)]


def _range_of(place: Place) -> list[int | str]:
    return [place.partition, str(place.key_range.lo), str(place.key_range.hi)]
