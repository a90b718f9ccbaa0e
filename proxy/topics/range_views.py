"""Views of client ids with key ranges: the broker's partitions, and the client's own keys of them.

Source: docs/decisions/015.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from keylane.keyrange.hash import XXH64, KeyHash
from keylane.keyrange.key_split import KeySplit, owners_split
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.proxy.topics.range_table import RangeTable, RangeTableHolder
from keylane.proxy.topics.registry import PhysicalTopic
from keylane.proxy.topics.view import Share, View

log = logging.getLogger("keylane.ranges")

LOGGED_MAX: Final = 1000
"""Refusals that are logged per table; further ones say nothing new."""


def view_of_cuts(
    topic: PhysicalTopic, partition: int, cuts: Sequence[int], key_hash: KeyHash = XXH64
) -> View:
    """Return the view of a partition cut at these hashes, for a read by keylane itself.

    It has no lanes, so that a commit by it pins no layout.
    """
    share = Share((KeyRange(0, HASH_MAX),), KeySplit(cuts, key_hash=key_hash), 0)
    return View.of_shares("", topic.name, topic.topic_id, {partition: share})


class RangeViews:
    """The views of all client ids, made when they are asked for.

    Invariant: all remembered views are of `_table`.
    """

    def __init__(self, holder: RangeTableHolder) -> None:
        self._holder = holder
        self._table: RangeTable = holder.table
        self._views: dict[tuple[str, uuid.UUID], View | None] = {}
        self._splits: dict[tuple[str, int], tuple[KeySplit, Mapping[str, int]]] = {}
        self._logged: set[tuple[str, str, int]] = set()

    def has_ranges(self, client_id: str | None) -> bool:
        """Return whether a client id has ranges of anything. A look into two dicts."""
        return bool(self._holder.table.clients.get(client_id or ""))

    def view(self, client_id: str, topic: PhysicalTopic) -> View | None:
        """Return the view of a topic for a client id; None: no ranges there, it is read plain."""
        self._follow()
        key = client_id, topic.topic_id
        if key not in self._views:
            self._views[key] = self._make(client_id, topic)
        return self._views[key]

    def refused(self, client_id: str, lanes: View) -> View | None:
        """Return a view that refuses, for ranges of a topic whose own name means lanes; else None.

        An index that it names is then a lane, and no partition of its assignment: all are refused.
        """
        self._follow()
        if lanes.is_renamed or self._table.ranges_of(client_id, lanes.topic) is None:
            return None
        return View.of_shares(client_id, lanes.topic, lanes.topic_id, {})

    def is_current(self, view: View) -> bool:
        """Return whether a request would be given this view now."""
        topic = PhysicalTopic(name=view.topic, topic_id=view.topic_id, partition_count=0)
        return self.view(view.client_id, topic) == view

    def log_refusal(self, view: View, partition: int) -> None:
        """Log a refused partition, once for each table."""
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
            "partition refused to a client id with key ranges client_id=%s topic=%s "
            "partition=%d reason=%s",
            view.client_id, view.topic, partition, reason,
        )  # fmt: skip

    def _follow(self) -> None:
        if self._holder.table is not self._table:
            self._table = self._holder.table
            self._views.clear()
            self._splits.clear()
            self._logged.clear()

    def _make(self, client_id: str, topic: PhysicalTopic) -> View | None:
        parts = self._table.ranges_of(client_id, topic.name)
        if parts is None:
            return None
        shares: dict[int, Share] = {}
        for partition, ranges in parts.items():
            key_split, outputs = self._split(topic.name, partition)
            shares[partition] = Share(ranges, key_split, outputs[client_id])
        return View.of_shares(client_id, topic.name, topic.topic_id, shares)

    def _split(self, topic: str, partition: int) -> tuple[KeySplit, Mapping[str, int]]:
        """Return how its owners share a partition, and the output of each client id."""
        split = self._splits.get((topic, partition))
        if split is None:
            owners = self._table.owners(topic, partition)
            split = self._splits[topic, partition] = (
                owners_split([ranges for _, ranges in owners]),
                {client_id: number for number, (client_id, _) in enumerate(owners)},
            )
        return split
