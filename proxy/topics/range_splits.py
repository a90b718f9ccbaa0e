"""Key ranges that fetches name themselves: which of them share a split, and so a reader.

Source: docs/decisions/015 (a split is one reader for all its outputs). The theory is greedy
interval colouring: what overlaps cannot be in one split, all else should be.

A fetch names ranges of a partition. Ranges without a hash in common become outputs of one split,
so that the partition is read and decompressed once for all of them. Ranges that overlap others in
use go to another split.
A split never changes: with a newcomer its clients get another one at their next fetch, and
fetches that wait go on under the split that they have. Each change is a reader that begins anew. So
the newcomers of a moment share one change, and while changes go on the moments grow longer: a group
whose members come one by one would otherwise cost a reader for each of them.
Ranges that are not asked for any more, such as those before a rebalance, give way to newcomers that
overlap them, and are dropped after a while. Two splits whose ranges no longer overlap are merged.
"""

from __future__ import annotations

import logging
import math
import uuid
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from keylane.keyrange.hash import XXH64, KeyHash
from keylane.keyrange.key_split import KeySplit, PartitionSplit, owners_split
from keylane.keyrange.space import LANE_COUNT_MAX, KeyRange
from keylane.proxy.topics.view import Share

log = logging.getLogger("keylane.ranges")

IDLE_S: Final = 10.0
"""Ranges without a fetch in this time give way: 20 times the wait of a client's poll."""
UNUSED_S: Final = 120.0
"""Ranges without a fetch in this time are dropped; their readers are closed long before."""
PAUSE_S: Final = 0.1
"""Shortest time between two changes of a partition's splits."""
PAUSE_S_MAX: Final = 1.6
"""The longest, after a row of changes. Clients take it for a slow answer: they wait for 30 s."""
TIDY_S: Final = 30.0
"""Interval in which a partition with several splits is looked at for two that can be merged."""
SPLITS_MAX: Final = 8
"""Splits of one partition: as many readers at least, and as many ranges that overlap each other."""
SHARES_MAX: Final = LANE_COUNT_MAX
"""Clients' ranges of one partition, of all its splits: more than any group has members."""
RANGES_MAX: Final = 50_000
"""Single ranges of the node; the same as those of assignments (`range_table`)."""
TOPIC_SHARE: Final = 3, 4
"""Part of these that one topic may have, so that clients of another find room."""
LOG_INTERVAL_S: Final = 60.0

Ranges = tuple[KeyRange, ...]
"""Sorted, disjoint and merged; at least one."""
Key = tuple[uuid.UUID, int, KeyHash]
"""Topic id, partition, and the hash that the ranges are of."""


class PlacedRanges(NamedTuple):
    """The answer to a fetch that names key ranges."""

    share: Share | None
    """Output to read; None: nothing now."""
    wait_s: float = 0.0
    """Time after which to ask again; 0 without a share: there is no room."""


class _Room:
    """Ranges that are taken: disjoint, ascending."""

    def __init__(self, taken: Iterable[Ranges] = ()) -> None:
        self._taken: list[KeyRange] = sorted(part for ranges in taken for part in ranges)

    def has_room(self, ranges: Ranges) -> bool:
        return not any(map(self._meets, ranges))

    def take(self, ranges: Ranges) -> None:
        for part in ranges:
            insort(self._taken, part)

    def _meets(self, part: KeyRange) -> bool:
        at = bisect_right(self._taken, part.hi, key=_lo)
        return at > 0 and self._taken[at - 1].hi >= part.lo


@dataclass(slots=True, eq=False)
class _Split:
    """One split, and the ranges that are its outputs."""

    used_s: dict[Ranges, float] = field(default_factory=dict)
    """Time of the last fetch, by ranges; of all that are in use or may be again."""
    shares: Mapping[Ranges, Share] = field(default_factory=dict)
    """Outputs that clients read. A newcomer has none until `rebuild`."""
    key_split: KeySplit | None = None
    """The split that has these outputs; None before the first `rebuild`."""

    def active(self, now_s: float) -> Iterator[Ranges]:
        return (ranges for ranges, used_s in self.used_s.items() if now_s - used_s <= IDLE_S)

    def rebuild(self, now_s: float, key_hash: KeyHash) -> list[Ranges]:
        """Make the split anew for what is in use; return what is not."""
        kept = dict.fromkeys(self.active(now_s))
        dropped = [ranges for ranges in self.used_s if ranges not in kept]
        for ranges in dropped:
            del self.used_s[ranges]
        key_split = self.key_split = owners_split(list(kept), key_hash)
        self.shares = {
            ranges: Share(ranges, key_split, output) for output, ranges in enumerate(kept)
        }
        return dropped


@dataclass(slots=True, eq=False)
class _Part:
    """One partition.

    Invariants: the ranges of a split are disjoint; no ranges are in two splits, or wait as well;
    nothing waits for longer than `due_s`, if it is asked for again then.
    """

    splits: list[_Split] = field(default_factory=list)
    waiting: dict[Ranges, float] = field(default_factory=dict)
    """Newcomers, with the time of their last fetch."""
    due_s: float = -math.inf
    """Time of the next change."""
    pause_s: float = PAUSE_S
    tidy_s: float = math.inf

    def key_splits(self) -> set[KeySplit]:
        return {split.key_split for split in self.splits if split.key_split is not None}

    def find(self, ranges: Ranges, now_s: float) -> Share | None:
        for split in self.splits:
            share = split.shares.get(ranges)
            if share is not None and ranges in split.used_s:
                split.used_s[ranges] = now_s
                return share
        return None

    def settle(self, now_s: float, key_hash: KeyHash) -> list[Ranges]:
        """Place all that wait, and merge what fits together; return all that is dropped."""
        newcomers, self.waiting = self.waiting, {}
        dropped = self.drop_idle_splits(now_s)
        rooms = [_Room(split.active(now_s)) for split in self.splits]
        changed: set[int] = set()
        for ranges, asked_s in newcomers.items():
            place = next((n for n, room in enumerate(rooms) if room.has_room(ranges)), len(rooms))
            if place == SPLITS_MAX:
                dropped.append(ranges)
                continue
            if place == len(rooms):
                rooms.append(_Room())
                self.splits.append(_Split())
            # What gives way to it is idle, and so goes with `rebuild`.
            self.splits[place].used_s[ranges] = asked_s
            rooms[place].take(ranges)
            changed.add(place)
        changed |= self._merge(now_s, rooms, dropped)
        for place in changed:
            if next(self.splits[place].active(now_s), None) is not None:
                dropped += self.splits[place].rebuild(now_s, key_hash)
        dropped += self.drop_idle_splits(now_s)
        if newcomers:  # also where all were refused: looking for room takes time
            if now_s - self.due_s > IDLE_S:
                self.pause_s = PAUSE_S
            elif changed:
                self.pause_s = min(2 * self.pause_s, PAUSE_S_MAX)
            self.due_s = now_s + self.pause_s
        self.tidy_s = now_s + TIDY_S if len(self.splits) > 1 else math.inf
        return dropped

    def drop_idle_splits(self, now_s: float, idle_s: float = IDLE_S) -> list[Ranges]:
        """Drop splits of which nothing was asked for in this time; return their ranges."""
        dropped: list[Ranges] = []
        for split in list(self.splits):
            if all(now_s - used_s > idle_s for used_s in split.used_s.values()):
                dropped += split.used_s
                self.splits.remove(split)
        return dropped

    def drop_unused(self, now_s: float, unused_s: float) -> list[Ranges]:
        """Drop ranges of which nothing was asked for in this time; the splits stay as they are."""
        dropped = self.drop_idle_splits(now_s, unused_s)
        for known in (self.waiting, *(split.used_s for split in self.splits)):
            gone = [ranges for ranges, used_s in known.items() if now_s - used_s > unused_s]
            for ranges in gone:
                del known[ranges]
            dropped += gone
        return dropped

    def _merge(self, now_s: float, rooms: list[_Room], dropped: list[Ranges]) -> set[int]:
        """Move what is in use of a split to an earlier one with room for all of it."""
        changed: set[int] = set()
        for source in range(len(rooms) - 1, 0, -1):
            moved = list(self.splits[source].active(now_s))
            for target in range(source):
                if moved and all(map(rooms[target].has_room, moved)):
                    used_s = self.splits[source].used_s
                    for ranges in moved:
                        rooms[target].take(ranges)
                        self.splits[target].used_s[ranges] = used_s.pop(ranges)
                    dropped += used_s
                    used_s.clear()
                    changed.add(target)
                    break
        return changed


class RangeSplits:
    """All ranges in use, by partition. Times are of one clock that does not go back.

    Invariants: those of `_Part`; the counts are those of single ranges, and within their bounds.
    """

    def __init__(
        self,
        on_replaced: Callable[[PartitionSplit], None] = lambda _at: None,
        *,
        ranges_max: int = RANGES_MAX,
        shares_max: int = SHARES_MAX,
    ) -> None:
        """on_replaced: is called with a split that no fetch will be given any more."""
        self._on_replaced = on_replaced
        self._ranges_max, self._shares_max = ranges_max, shares_max
        self._of_topic_max = ranges_max * TOPIC_SHARE[0] // TOPIC_SHARE[1]
        self._parts: dict[Key, _Part] = {}
        self._of_topic: Counter[uuid.UUID] = Counter()
        self._swept_s = self._logged_s = -math.inf
        self._unlogged = 0
        self.range_count = 0
        """Single ranges of all partitions."""
        self.refused = 0
        """Fetches that found no room, since the start."""

    def place(
        self,
        topic_id: uuid.UUID,
        partition: int,
        ranges: Ranges,
        now_s: float,
        *,
        key_hash: KeyHash = XXH64,
    ) -> PlacedRanges:
        """Return what a fetch of these ranges reads; or after which time to ask again."""
        self._maybe_sweep(now_s, TIDY_S, UNUSED_S)
        key = topic_id, partition, key_hash
        part = self._parts.get(key) or _Part()
        has_waited = ranges in part.waiting
        if has_waited:
            part.waiting[ranges] = now_s
        if now_s >= part.tidy_s or (part.waiting and now_s >= part.due_s):
            self._settle(key, part, now_s)
        share = part.find(ranges, now_s)
        if share is not None:
            return PlacedRanges(share)
        if has_waited and ranges not in part.waiting:
            return self._refuse(key, now_s)
        if ranges not in part.waiting and not self._enter(key, part, ranges, now_s):
            return self._refuse(key, now_s)
        part.waiting[ranges] = now_s
        if now_s < part.due_s:
            return PlacedRanges(None, part.due_s - now_s)
        self._settle(key, part, now_s)
        share = part.find(ranges, now_s)
        return self._refuse(key, now_s) if share is None else PlacedRanges(share)

    def sweep(self, now_s: float, unused_s: float = UNUSED_S) -> None:
        """Drop what was not asked for in this time."""
        self._swept_s = now_s
        for key, part in list(self._parts.items()):
            self._leave(key, part.drop_unused(now_s, unused_s))
            if not part.splits and not part.waiting:
                del self._parts[key]

    def check(self) -> None:
        """Assert the invariants; tests call it after every step."""
        of_topic: Counter[uuid.UUID] = Counter()
        for key, part in self._parts.items():
            known = [*part.waiting, *(each for split in part.splits for each in split.used_s)]
            assert len(set(known)) == len(known) <= self._shares_max
            assert len(part.splits) <= SPLITS_MAX
            assert all(split.used_s.keys() <= split.shares.keys() for split in part.splits)
            of_topic[key[0]] += sum(map(len, known))
        assert of_topic == +self._of_topic
        assert self.range_count == of_topic.total() <= self._ranges_max
        assert all(count <= self._of_topic_max for count in of_topic.values())

    # Inside.
    def _settle(self, key: Key, part: _Part, now_s: float) -> None:
        before = part.key_splits()
        self._leave(key, part.settle(now_s, key[2]))
        for key_split in before - part.key_splits():
            self._on_replaced(PartitionSplit(key[0], key[1], key_split))

    def _enter(self, key: Key, part: _Part, ranges: Ranges, now_s: float) -> bool:
        """Count newcomers, if there is room for them."""
        if not self._has_room(key, part, ranges):
            self._maybe_sweep(now_s, PAUSE_S_MAX, IDLE_S)
            if not self._has_room(key, part, ranges):
                return False
        self._parts[key] = part
        self.range_count += len(ranges)
        self._of_topic[key[0]] += len(ranges)
        return True

    def _has_room(self, key: Key, part: _Part, ranges: Ranges) -> bool:
        shares = len(part.waiting) + sum(len(split.used_s) for split in part.splits)
        return (
            shares < self._shares_max
            and self.range_count + len(ranges) <= self._ranges_max
            and self._of_topic[key[0]] + len(ranges) <= self._of_topic_max
        )

    def _leave(self, key: Key, dropped: Iterable[Ranges]) -> None:
        count = sum(map(len, dropped))
        self.range_count -= count
        self._of_topic[key[0]] -= count
        if not self._of_topic[key[0]]:
            del self._of_topic[key[0]]

    def _maybe_sweep(self, now_s: float, interval_s: float, unused_s: float) -> None:
        if now_s - self._swept_s >= interval_s:
            self.sweep(now_s, unused_s)

    def _refuse(self, key: Key, now_s: float) -> PlacedRanges:
        self.refused += 1
        self._unlogged += 1
        if now_s - self._logged_s >= LOG_INTERVAL_S:
            log.warning(
                "fetch of key ranges refused: clients retry topic_id=%s partition=%d ranges=%d"
                " count=%d bounds=%d ranges of a node, %d of a topic, %d clients of a partition,"
                " of which %d overlap",
                key[0], key[1], self.range_count, self._unlogged, self._ranges_max,
                self._of_topic_max, self._shares_max, SPLITS_MAX,
            )  # fmt: skip
            self._logged_s, self._unlogged = now_s, 0
        return PlacedRanges(None)


def _lo(part: KeyRange) -> int:
    return part.lo
