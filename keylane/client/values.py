"""Values that a consumer gives and takes: partitions, records, committed offsets."""

from __future__ import annotations

from typing import Final, NamedTuple

from keylane.keyrange.space import KeyRange
from keylane.offsets.intervals import Range

NO_TIMESTAMP: Final = -1


class TopicPartition(NamedTuple):
    """A partition by its topic's name; of a topic with lanes, a lane by its index."""

    topic: str
    partition: int


KeyRanges = tuple[KeyRange, ...]
"""Keys of a partition, by their hashes; () is the whole partition."""


class ConsumerRecord(NamedTuple):
    """One record."""

    topic: str
    partition: int
    """As it was fetched: a lane index where the topic has lanes."""
    offset: int
    timestamp_ms: int
    """Since 1970; NO_TIMESTAMP: it has none."""
    key: bytes | None
    value: bytes | None
    raw_headers: bytes = b""
    """As they stand in the batch, beginning with their count; see `headers`."""
    leader_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition that the record was fetched from."""
        return TopicPartition(self.topic, self.partition)


class Committed(NamedTuple):
    """Progress of a group in a partition, as `Consumer.committed` returns it."""

    offset: int
    """Next offset to read; below it all is done."""
    ranges: tuple[Range, ...] = ()
    """Offsets above it that are done as well, first and last inclusive, ascending."""
    stable_offset: int = -1
    """Up to and including it all members have done all; -1: not known, or nothing is."""
    metadata: str = ""
    leader_epoch: int = -1
