"""Partitions that a consumer was asked to give up, in two steps, while it goes on processing.

What is asked back stays until the next poll begins, and for one poll more each time that the
application delays it. So the group rebalances while records of these partitions are finished.
A unit is a partition, a lane index, or keys of a partition; `by_ranges` turns the first two into
the last.
Source: KIP-983 ("Full speed async processing during rebalance"), KIP-429 (cooperative rebalance).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from keylane.client.values import KeyRanges, TopicPartition
from keylane.keyrange.space import merge_ranges
from keylane.wire.extensions import LaneRange

Unit = TypeVar("Unit")


class Revocations(Generic[Unit]):
    """Units on their way out.

        asked for --request--> to_be_revoked --begin_poll--> complete: the caller releases it
                                 |     ^
                           delay |     | begin_poll
                                 v     |
                               thereafter
        any of both --lose--> lost --begin_poll--> gone

    Invariant: the three sets are disjoint.
    """

    def __init__(self) -> None:
        self._next: set[Unit] = set()
        self._thereafter: set[Unit] = set()
        self._lost: set[Unit] = set()

    @property
    def to_be_revoked(self) -> frozenset[Unit]:
        """Units that are given up as the next poll begins."""
        return frozenset(self._next)

    @property
    def lost(self) -> frozenset[Unit]:
        """Units that went without a release, since this poll began."""
        return frozenset(self._lost)

    @property
    def pending(self) -> frozenset[Unit]:
        """Units that are asked for and still owned."""
        return frozenset(self._next | self._thereafter)

    def begin_poll(self) -> frozenset[Unit]:
        """Return the units whose revocation is complete; the caller releases them."""
        complete = frozenset(self._next)
        self._next, self._thereafter = self._thereafter, set()
        self._lost.clear()
        return complete

    def request(self, units: Iterable[Unit]) -> None:
        """Note that the group asks for these; those that are delayed already stay delayed."""
        for unit in units:
            self._lost.discard(unit)  # it came back after the loss, and is asked for again
            if unit not in self._thereafter:
                self._next.add(unit)

    def lose(self, units: Iterable[Unit]) -> None:
        """Note that these have no owner here any more, whether they were asked for or not."""
        for unit in units:
            self._next.discard(unit)
            self._thereafter.discard(unit)
            self._lost.add(unit)

    def delay(self, units: Iterable[Unit]) -> bool:
        """Keep these for one poll more. False: one of them is lost, and the others are delayed.

        A unit that was not asked for stays as it is.
        """
        wanted = set(units)
        delayed = wanted & self._next
        self._next -= delayed
        self._thereafter |= delayed
        return not wanted & self._lost

    def drop(self, units: Iterable[Unit]) -> None:
        """Forget units that were released before their poll began, or given up with the group."""
        gone = set(units)
        self._next -= gone
        self._thereafter -= gone
        self._lost -= gone

    def check(self) -> None:
        """Fail where the invariant does not hold."""
        total = len(self._next) + len(self._thereafter) + len(self._lost)
        assert len(self._next | self._thereafter | self._lost) == total


def by_ranges(
    parts: Iterable[TopicPartition], ranges: Mapping[TopicPartition, LaneRange | None]
) -> dict[TopicPartition, KeyRanges]:
    """Return the broker's partitions behind these, each with its keys, merged and ascending.

    ranges: the meaning of each lane index; None, or no entry: it is a whole partition, which has
    no key ranges. The topic keeps the name that it was subscribed by.
    """
    found: dict[TopicPartition, list[LaneRange]] = {}
    whole: set[TopicPartition] = set()
    for part in parts:
        lane = ranges.get(part)
        if lane is None:
            whole.add(part)
        else:
            found.setdefault(TopicPartition(part.topic, lane.partition), []).append(lane)
    merged = {
        part: merge_ranges(lane.key_range for lane in lanes)
        for part, lanes in found.items()
        if part not in whole
    }
    return merged | dict.fromkeys(whole, ())


def parts_within(
    wanted: Mapping[TopicPartition, KeyRanges],
    ranges: Mapping[TopicPartition, LaneRange | None],
) -> frozenset[TopicPartition]:
    """Return the parts of `ranges` whose keys all are among those wanted.

    wanted: keys of the broker's partitions; () is all keys of one. The inverse of `by_ranges`.
    """
    merged = {part: merge_ranges(keys) for part, keys in wanted.items()}
    return frozenset(part for part, lane in ranges.items() if _is_within(part, lane, merged))


def _is_within(
    part: TopicPartition, lane: LaneRange | None, wanted: Mapping[TopicPartition, KeyRanges]
) -> bool:
    if lane is None:
        return wanted.get(part) == ()
    keys = wanted.get(TopicPartition(part.topic, lane.partition))
    if keys is None:
        return False
    lo, hi = lane.key_range.lo, lane.key_range.hi
    return not keys or any(each.lo <= lo and hi <= each.hi for each in keys)
