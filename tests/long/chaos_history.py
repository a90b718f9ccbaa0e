"""What happened to groups in a run of chaos, as values of one clock.

In:    what members published, what went over the wire, what producers wrote and Kafka kept.
Next:  `chaos_judge` compares them.
Pure:  no I/O, no clock. All times are seconds of the machine's monotonic clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Final, NamedTuple, TypeVar

REFUSALS: Final = frozenset({22, 25, 27})
"""Commits answered with these have not been taken: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
REBALANCE_IN_PROGRESS. Any other error leaves open whether they have."""


class Place(NamedTuple):
    """One lane as a group's clients see it."""

    topic: str
    """Kafka's own name, whatever clients call it."""
    lane: int
    """Its index: the partition is `lane % partitions`."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One lane of an OffsetCommit, seen between the client and keylane."""

    member: str
    place: Place
    offset: int
    generation: int
    asked_s: float
    answered_s: float = inf
    """inf: no answer came."""
    error: int = 0

    @property
    def is_acknowledged(self) -> bool:
        """Whether the client knows that it was taken."""
        return self.answered_s < inf and self.error == 0

    @property
    def is_refused(self) -> bool:
        """Whether it is known that it was not taken."""
        return self.error in REFUSALS


@dataclass(frozen=True, slots=True)
class Answer:
    """What OffsetFetch answered for one lane, without an error; -1: no offset."""

    member: str
    place: Place
    offset: int
    asked_s: float
    answered_s: float


@dataclass(frozen=True, slots=True)
class Fetched:
    """A member's first Fetch of a lane after it learnt a position, or one that goes back."""

    member: str
    place: Place
    offset: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Reset:
    """A member asked where the log of a lane starts or ends (ListOffsets), to go on there."""

    member: str
    place: Place
    at_s: float


@dataclass(frozen=True, slots=True)
class OutOfRange:
    """A Fetch of a lane was answered OFFSET_OUT_OF_RANGE."""

    member: str
    place: Place
    offset: int
    at_s: float


@dataclass(frozen=True, slots=True)
class Held:
    """A member was assigned a lane, or gave it back."""

    member: str
    place: Place
    at_s: float
    is_held: bool


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record that a member's application was handed."""

    member: str
    place: Place
    offset: int
    key: str
    number: int
    """Of the key's values."""
    at_s: float


Event = Commit | Answer | Fetched | Reset | OutOfRange | Held | Delivery
Of = TypeVar("Of", bound=Event)


@dataclass(frozen=True, slots=True)
class Produced:
    """A record that a producer was told is written."""

    topic: str
    partition: int
    offset: int
    key: str
    number: int
    at_s: float
    """When its producer learnt that."""


@dataclass(frozen=True, slots=True)
class Log:
    """What a partition holds when the run is over, as a direct consumer reads it."""

    start: int
    records: Mapping[int, tuple[str, int]]
    """(key, number) by offset."""


@dataclass(frozen=True, slots=True)
class Hit:
    """Something was done to the cluster; Kafka may have cut logs in that time."""

    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Cut:
    """A log lost all from `offset` on, at some time of a hit."""

    offset: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class ClusterHistory:
    """What producers wrote and what Kafka kept of it."""

    produced: Sequence[Produced]
    logs: Mapping[tuple[str, int], Log]
    hits: Sequence[Hit]
    """Ascending, one after the other."""
    safe_topics: frozenset[str]
    """Whose acknowledged records no hit may cost."""
    seen: Sequence[Produced] = ()
    """Records of other topics that members were handed, and when: some were never acknowledged."""

    @cached_property
    def born_s(self) -> dict[tuple[str, int, int], float]:
        """When a record of the logs was acknowledged to its producer."""
        found = {}
        for each in self.produced:
            log = self.logs[each.topic, each.partition]
            if log.records.get(each.offset) == (each.key, each.number):
                found[each.topic, each.partition, each.offset] = each.at_s
        return found

    @cached_property
    def lost(self) -> list[Produced]:
        """Acknowledged records that the logs do not hold, though none began behind them."""
        return list(filter(self._is_lost, self.produced))

    def _is_lost(self, each: Produced) -> bool:
        log = self.logs[each.topic, each.partition]
        is_there = log.records.get(each.offset) == (each.key, each.number)
        return each.offset >= log.start and not is_there

    @cached_property
    def cuts(self) -> dict[tuple[str, int], list[Cut]]:
        """By partition, ascending by time: where logs were cut, by what they have lost.

        A record that is lost was lost in the first hit that ended after it was written, or in
        a later one. The first is taken: that only lowers what is asked of answers.
        """
        lowest: dict[tuple[str, int, int], int] = {}
        for each in [*self.lost, *filter(self._is_lost, self.seen)]:
            number = next((n for n, hit in enumerate(self.hits) if hit.end_s > each.at_s), -1)
            place = each.topic, each.partition, number
            lowest[place] = min(each.offset, lowest.get(place, each.offset))
        found: dict[tuple[str, int], list[Cut]] = defaultdict(list)
        for (topic, partition, number), offset in sorted(lowest.items()):
            hit = self.hits[number] if number >= 0 else Hit(-inf, inf)
            found[topic, partition].append(Cut(offset, hit.begin_s, hit.end_s))
        return dict(found)


@dataclass(slots=True, kw_only=True)
class GroupHistory:
    """What one group did."""

    group: str
    partitions: Mapping[str, int]
    """Of each topic; a lane index leads to its partition by it."""
    lane_of: Callable[[str, int, str], int]
    """(topic, partition, key) -> lane index in this group's view."""
    events: list[Event] = field(default_factory=list)
    """In any order."""

    def of(self, kind: type[Of]) -> list[Of]:
        """All events of one kind."""
        return [each for each in self.events if type(each) is kind]

    def partition_of(self, place: Place) -> tuple[str, int]:
        """Kafka's partition that a lane belongs to."""
        return place.topic, place.lane % self.partitions[place.topic]
