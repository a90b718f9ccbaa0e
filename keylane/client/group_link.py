"""Between the group's membership and what the consumer reads: parts that come and go.

`Assignments` is what the membership calls; the consumer works its notes off in its next poll.
Source: KIP-429 and KIP-848 (what is revoked stays until it is given up), KIP-983 (delayed revoke).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from keylane.client import errors as e
from keylane.client.fetcher import Fetcher
from keylane.client.metrics import Metrics
from keylane.client.offset_calls import CommitMember
from keylane.client.reading import Reading
from keylane.client.revocation import Revocations, by_ranges
from keylane.client.values import TopicPartition
from keylane.errors import KeylaneError
from keylane.keyrange.space import WHOLE
from keylane.wire.extensions import LaneRange

LaneRanges = dict[TopicPartition, LaneRange | None]


class Group(Protocol):
    """The membership, as the consumer uses it (`group.membership.GroupMembership`)."""

    async def start(self) -> None:
        """Join."""

    async def leave(self) -> None:
        """Give everything up, and leave."""

    def subscribe(self, topics: Collection[str], pattern: str | None) -> None:
        """Want these topics from now on."""

    def release(self, parts: Collection[TopicPartition]) -> None:
        """Give these up: they are processed and committed."""

    def note_poll(self) -> None:
        """Note that the application polled."""

    async def rejoin(self) -> None:
        """Join anew, after an error that another call met."""

    async def give_way(self) -> None:
        """Lose all, leave and join anew, so that another member may go on."""

    @property
    def member(self) -> CommitMember:
        """The member as requests name it now."""


class Assignments:
    """The parts of this consumer, in step with the group.

    Invariant: every part of `fetcher.readings` has its meaning in `lanes`. A part that is asked
    back is in `revocations` until it is released; its records are not given any more.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        metrics: Metrics,
        on_change: Callable[[], None],
        *,
        allow_ranges: bool,
    ) -> None:
        """on_change: readings came or went; the positions of new ones are to be found."""
        self.lanes: LaneRanges = {}
        self.revocations: Revocations[TopicPartition] = Revocations()
        self.gone: set[TopicPartition] = set()
        """Parts that this consumer had and has not now."""
        self.requests = 0
        """Count of the times that the group has asked for something back."""
        self.fatal: KeylaneError | None = None
        self._fetcher, self._metrics, self._on_change = fetcher, metrics, on_change
        self._allow_ranges = allow_ranges
        self.lost_lanes: LaneRanges = {}
        """Parts that were lost since the poll began, with their meaning."""
        self._new: LaneRanges = {}
        self._lost: LaneRanges = {}
        self._parts_since_s: float | None = None

    # -- what the membership calls --------------------------------------------------------

    def on_assigned(self, parts: Mapping[TopicPartition, LaneRange | None]) -> None:
        """Begin to read these."""
        for part, lane in parts.items():
            self.gone.discard(part)
            self.lanes[part] = self._new[part] = lane
            self._fetcher.readings[part] = Reading(part, lane=lane)
        self._metrics.assigned += len(parts)
        self._on_change()
        self._fetcher.arrived.set()

    def on_revoke_requested(self, parts: Collection[TopicPartition], deadline_s: float) -> None:
        """Have these given up; the membership takes them away at the deadline."""
        del deadline_s  # the membership keeps it
        self.revocations.request(part for part in parts if part in self.lanes)
        self.requests += 1
        self._fetcher.arrived.set()

    def on_lost(self, parts: Collection[TopicPartition]) -> None:
        """Stop reading these; nothing of them can be committed."""
        lost = {part: self.lanes[part] for part in parts if part in self.lanes}
        self.revocations.lose(lost)
        self.lost_lanes |= lost
        self.remove(lost)
        for part, lane in lost.items():
            if part in self._new:  # one that was not announced is not missed
                del self._new[part]
            else:
                self._lost[part] = lane
        self._metrics.lost += len(lost)
        self._fetcher.arrived.set()

    def on_group_error(self, error: KeylaneError) -> None:
        """Have the next poll raise this."""
        self.fatal = error
        self._fetcher.arrived.set()

    # -- what the consumer calls ----------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """The listener has something to be notified of."""
        return bool(self._lost) or bool(self._new and self._ready())

    def _ready(self) -> LaneRanges:
        """Return what is assigned and can be announced: none while it is not known what all mean.

        A consumer that takes no parts waits for the rest of a partition; others go on meanwhile.
        """
        if not all(map(self._is_known, self._new)):
            return {}
        parts = set() if self._allow_ranges else self._parts_of_partitions()
        return {part: lane for part, lane in self._new.items() if part not in parts}

    def _is_known(self, part: TopicPartition) -> bool:
        """Return whether it is known what a part stands for: its offsets were asked for."""
        reading = self._fetcher.readings.get(part)
        if self._new[part] is not None or reading is None:
            return True
        return reading.progress is not None or reading.error is not None

    def _parts_of_partitions(self) -> set[TopicPartition]:
        """Return lanes whose partition is not whole here: others of it are with other members."""
        ranges = by_ranges(self.lanes, self.lanes)
        return {
            part
            for part, lane in self.lanes.items()
            if lane is not None
            and ranges[TopicPartition(part.topic, lane.partition)] not in ((), WHOLE)
        }

    def refuse_parts(self, now_s: float, wait_s: float) -> None:
        """Have the poll raise where a consumer that takes no parts has had some for `wait_s`.

        They come one by one where a partition goes from members that shared it to this one.
        """
        parts = set() if self._allow_ranges else self._parts_of_partitions()
        if not parts:
            self._parts_since_s = None
            return
        if self._parts_since_s is None:
            self._parts_since_s = now_s
        if now_s - self._parts_since_s > wait_s:
            names = ", ".join(sorted({part.topic for part in parts}))
            text = "the group assigns ranges of keys, and allow_individual_commit is False"
            self.on_group_error(e.RangeFetchNotAccepted(f"topics {names}: {text}"))

    def note_lanes(self, lanes: Mapping[TopicPartition, LaneRange]) -> None:
        """Take what lane indexes stand for, where the group's coordinator did not say it."""
        for part, lane in lanes.items():
            if part in self.lanes:
                self.lanes[part] = lane
            if part in self._new:
                self._new[part] = lane

    def begin_poll(self) -> Collection[TopicPartition]:
        """Return what is revoked now, and forget what was lost before."""
        self.lost_lanes.clear()
        return self.revocations.begin_poll()

    def hidden(self) -> Collection[TopicPartition]:
        """Return the parts whose records are not given: asked back, or not announced yet."""
        pending = self.revocations.pending
        return pending.union(self._new) if pending or self._new else ()

    def announced(self, parts: Collection[TopicPartition]) -> LaneRanges:
        """Return those of `parts` that are here and that the listener knows; forget other news."""
        known = {part: self.lanes[part] for part in parts if part in self.lanes}
        unknown = [part for part in known if part in self._new]
        for part in unknown:
            del self._new[part], known[part]
        return known

    def take_new(self) -> LaneRanges:
        """Return what was assigned since the last call and is still here, once all is known."""
        found = self._ready()
        for part in found:
            del self._new[part]
        return found

    def take_lost(self) -> LaneRanges:
        """Return what was lost since the last call."""
        lost, self._lost = self._lost, {}
        return lost

    def remove(self, parts: Collection[TopicPartition]) -> None:
        """Stop reading these."""
        for part in parts:
            self.lanes.pop(part, None)
            if self._fetcher.readings.pop(part, None) is not None:
                self.gone.add(part)
        self._on_change()
