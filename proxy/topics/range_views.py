"""A topic as a client id with key ranges sees it: physical partitions, and its own keys of them.

In:    the table of assignments, a client id, a topic.  Out: `RangeView`, or None: it reads plain.
Source: docs/decisions/015.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.keyrange.key_split import KeySplit, owners_split
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.proxy.topics.range_table import Ranges, RangeTable, RangeTableHolder
from keylane.proxy.topics.registry import LaneView, PhysicalTopic
from keylane.wire.batch import CODEC_NONE

log = logging.getLogger("keylane.ranges")

LOGGED_MAX: Final = 1000
"""Refusals that are logged per table; more say nothing new."""


@dataclass(frozen=True, slots=True)
class _Shares:
    """How the owners of one partition share it."""

    key_split: KeySplit
    outputs: Mapping[str, int]
    """By client id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeView:
    """Implements `topics.View`: an index is a partition, of which the client has some ranges."""

    client_id: str
    topic: str
    topic_id: uuid.UUID
    parts: Mapping[int, Ranges]
    """The client's ranges by partition; empty where it is refused the topic."""
    shares: Mapping[int, _Shares]
    """Of the same partitions."""

    @property
    def name(self) -> str:
        """The topic's own."""
        return self.topic

    @property
    def view_id(self) -> uuid.UUID:
        """The broker's."""
        return self.topic_id

    @property
    def reserve(self) -> bool:
        """The other owners will want what one read brings."""
        return True

    @property
    def codec(self) -> int:
        """Batches are sent as they are: compression is set for lanes only."""
        return CODEC_NONE

    @property
    def is_renamed(self) -> bool:
        """It is the topic under its own name."""
        return False

    @property
    def layout(self) -> None:
        """There are no lanes."""
        return

    @property
    def indexes(self) -> Sequence[int]:
        """The partitions that the client has ranges of."""
        return tuple(self.parts)

    def error_of(self, index: int) -> int:
        """TOPIC_AUTHORIZATION_FAILED for a partition that the client was not given."""
        return 0 if index in self.parts else ErrorCode.topic_authorization_failed

    def partition_of(self, index: int) -> int:
        """The same."""
        return index

    def output_of(self, index: int) -> int:
        """The client among the owners of the partition."""
        return self.shares[index].outputs[self.client_id]

    def key_ranges(self, index: int) -> tuple[KeyRange, ...]:
        """The client's own ranges."""
        return self.parts[index]

    def key_split(self, partition: int) -> KeySplit:
        """How all owners share the partition; what none of them owns is for no output."""
        return self.shares[partition].key_split


def view_of_cuts(topic: PhysicalTopic, partition: int, cuts: Sequence[int]) -> RangeView:
    """A partition whose keys are cut at these hashes, for a read of keylane's own.

    It has no lanes, so that a commit by it pins no layout.
    """
    shares = _Shares(KeySplit(cuts), {"": 0})
    return RangeView(
        client_id="",
        topic=topic.name,
        topic_id=topic.topic_id,
        parts={partition: (KeyRange(0, HASH_MAX),)},
        shares={partition: shares},
    )


class RangeViews:
    """The views of all client ids, made when they are asked for.

    Invariant: whatever is remembered is of `_table`.
    """

    def __init__(self, holder: RangeTableHolder) -> None:
        self._holder = holder
        self._table: RangeTable = holder.table
        self._views: dict[tuple[str, uuid.UUID], RangeView | None] = {}
        self._shares: dict[tuple[str, int], _Shares] = {}
        self._logged: set[tuple[str, str, int]] = set()

    def has_ranges(self, client_id: str | None) -> bool:
        """Whether a client id has ranges of anything. A look into two dicts."""
        return bool(self._holder.table.clients.get(client_id or ""))

    def view(self, client_id: str, topic: PhysicalTopic) -> RangeView | None:
        """What a topic is to a client id; None: it has no ranges there, and reads it plain."""
        self._follow()
        key = client_id, topic.topic_id
        if key not in self._views:
            self._views[key] = self._make(client_id, topic)
        return self._views[key]

    def refused(self, client_id: str, lanes: LaneView) -> RangeView | None:
        """None unless a client id has ranges of a topic whose own name means lanes.

        A partition that it names is then a lane, and not what it was given: all are refused.
        """
        self._follow()
        if lanes.is_renamed or self._table.ranges_of(client_id, lanes.topic) is None:
            return None
        return RangeView(
            client_id=client_id, topic=lanes.topic, topic_id=lanes.topic_id, parts={}, shares={}
        )

    def is_current(self, view: RangeView) -> bool:
        """Whether the view is what a request would be given now."""
        topic = PhysicalTopic(name=view.topic, topic_id=view.topic_id, partition_count=0)
        return self.view(view.client_id, topic) == view

    def log_refusal(self, view: RangeView, partition: int) -> None:
        """Log why a partition is refused, once for each table."""
        self._follow()
        key = view.client_id, view.topic, partition
        if key in self._logged or len(self._logged) >= LOGGED_MAX:
            return
        self._logged.add(key)
        given = sorted(self._table.ranges_of(view.client_id, view.topic) or ())
        reason = f"it was given partitions {given}"
        if partition in given:
            reason = "lanes are configured under the topic's own name"
        log.warning(
            "partition is refused to a client id with key ranges client_id=%s topic=%s "
            "partition=%d reason=%s",
            view.client_id, view.topic, partition, reason,
        )  # fmt: skip

    def _follow(self) -> None:
        if self._holder.table is not self._table:
            self._table = self._holder.table
            self._views.clear()
            self._shares.clear()
            self._logged.clear()

    def _make(self, client_id: str, topic: PhysicalTopic) -> RangeView | None:
        parts = self._table.ranges_of(client_id, topic.name)
        if parts is None:
            return None
        return RangeView(
            client_id=client_id,
            topic=topic.name,
            topic_id=topic.topic_id,
            parts=parts,
            shares={partition: self._share(topic.name, partition) for partition in parts},
        )

    def _share(self, topic: str, partition: int) -> _Shares:
        shares = self._shares.get((topic, partition))
        if shares is None:
            owners = self._table.owners(topic, partition)
            shares = self._shares[topic, partition] = _Shares(
                owners_split([ranges for _, ranges in owners]),
                {client_id: number for number, (client_id, _) in enumerate(owners)},
            )
        return shares
