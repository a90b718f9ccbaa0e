"""Records that stand in another partition than Kafka's default partitioner puts their key into.

Lanes by murmur2 promise that a key's lane index is its partition in a topic of as many partitions.
Producers with another partitioner break that promise: joins with such a topic miss records, without
an error anywhere. Source: docs/decisions/044.
"""

from __future__ import annotations

import logging
import uuid
from typing import Final

from keylane.bounded import BoundedDict
from keylane.proxy.runtime.stats import ProxyStats

log = logging.getLogger("keylane.lanes")

PARTITIONS_MAX: Final = 10_000
"""Partitions that are remembered; of one beyond, the next record is logged once more."""


class MisplacedRecords:
    """By topic id and partition the first such record that a reader has met."""

    def __init__(self, stats: ProxyStats) -> None:
        self._stats = stats
        self._first: BoundedDict[tuple[uuid.UUID, int], int] = BoundedDict(PARTITIONS_MAX)

    def note(self, topic: str, topic_id: uuid.UUID, partition: int, offset: int) -> None:
        """Note the first such record of a block; of each partition one is logged, without a key."""
        self._stats.blocks_misplaced += 1
        if (topic_id, partition) in self._first:
            return
        self._first[topic_id, partition] = offset
        log.warning(
            "key stands in another partition than Kafka's default partitioner has for it: lanes "
            "are not co-partitioned with other topics topic=%s partition=%d offset=%d "
            "remedy=let all producers of the topic use the default partitioner (librdkafka: "
            "partitioner=murmur2_random), or take hash: murmur2 out of its lane rule",
            topic, partition, offset,
        )  # fmt: skip

    def of(self, topic_id: uuid.UUID) -> dict[int, int]:
        """Return offsets by partition, ascending; none: no reader has met such a record."""
        found = {
            partition: offset for (known, partition), offset in self._first.items()
            if known == topic_id
        }  # fmt: skip
        return dict(sorted(found.items()))
