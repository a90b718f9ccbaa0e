"""Events of groups in a run of chaos, with times of one clock.

All times are seconds of the machine's monotonic clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple, TypeVar

REFUSALS: Final = frozenset({22, 25, 27, 113})
"""Commits answered with these have not been taken: ILLEGAL_GENERATION, UNKNOWN_MEMBER_ID,
REBALANCE_IN_PROGRESS, STALE_MEMBER_EPOCH. Any other error leaves open whether they have."""


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
        """Return whether the client knows that it was taken."""
        return self.answered_s < inf and self.error == 0

    @property
    def is_refused(self) -> bool:
        """Return whether it is known that it was not taken."""
        return self.error in REFUSALS


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of OffsetFetch for one lane, without an error; -1: no offset."""

    member: str
    place: Place
    offset: int
    asked_s: float
    answered_s: float


@dataclass(frozen=True, slots=True)
class Fetched:
    """A Fetch of a lane by a member: the first after it learnt a position, or one that goes back.

    Of lanes whose logs may be cut all that fetch from another offset than the one before.
    """

    member: str
    place: Place
    offset: int
    at_s: float
    is_first: bool = True
    """The first Fetch after a position; otherwise one that goes back."""
    asked_s: float = inf
    """When the answer that led there was asked for; inf: it is not known."""


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
    """The record's number among the key's values."""
    at_s: float


Event = Commit | Answer | Fetched | Reset | OutOfRange | Held | Delivery
Of = TypeVar("Of", bound=Event)


@dataclass(frozen=True, slots=True)
class Produced:
    """A record whose write was acknowledged to its producer."""

    topic: str
    partition: int
    offset: int
    key: str
    number: int
    at_s: float
    """Time at which the producer learnt that."""


@dataclass(frozen=True, slots=True)
class Log:
    """A partition's records when the run is over, read by a direct consumer."""

    start: int
    records: Mapping[int, tuple[str, int]]
    """(key, number) by offset."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A log lost all from `offset` on, at some moment of that time."""

    offset: int
    begin_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class ClusterHistory:
    """Records that producers wrote, and those that Kafka kept."""

    produced: Sequence[Produced]
    logs: Mapping[tuple[str, int], Log]
    safe_topics: frozenset[str]
    """Topics whose acknowledged records Kafka must keep, whatever is done to it."""
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
        """Return the cuts of logs by partition, in order of time, from the records written next.

        A producer with one request under way is given ascending offsets, until a log is cut:
        the first record behind a cut is where the log was cut. What a member was handed and no
        producer was answered may be all that was lost: it shows a cut at its own offset.
        """
        written: dict[tuple[str, int], list[Produced]] = defaultdict(list)
        for each in sorted(self.produced, key=lambda each: each.at_s):
            written[each.topic, each.partition].append(each)
        found: dict[tuple[str, int], list[Cut]] = defaultdict(list)
        for place, records in written.items():
            found[place] = [
                Cut(after.offset, before.at_s, after.at_s)
                for before, after in pairwise(records)
                if after.offset <= before.offset
            ]
        for each in filter(self._is_lost, self.seen):
            place = each.topic, each.partition
            if not any(cut.offset <= each.offset and cut.end_s > each.at_s for cut in found[place]):
                later = (
                    other.at_s
                    for other in written[place]
                    if other.at_s > each.at_s and other.offset >= each.offset
                )
                found[place].append(Cut(each.offset, each.at_s, next(later, inf)))
        return {
            place: sorted(cuts, key=lambda cut: cut.begin_s)
            for place, cuts in found.items()
            if cuts
        }


@dataclass(slots=True, kw_only=True)
class GroupHistory:
    """Events of one group."""

    group: str
    partitions: Mapping[str, int]
    """Partition count of each topic, which gives a lane index its partition."""
    lane_of: Callable[[str, int, str], int]
    """(topic, partition, key) -> lane index in this group's view."""
    events: list[Event] = field(default_factory=list)
    """Events, in any order."""

    def of(self, kind: type[Of]) -> list[Of]:
        """Return all events of one kind."""
        return [each for each in self.events if type(each) is kind]

    def partition_of(self, place: Place) -> tuple[str, int]:
        """Kafka's partition that a lane belongs to."""
        return place.topic, place.lane % self.partitions[place.topic]
