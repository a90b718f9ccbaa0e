"""A client's meaning of a topic name and of its partitions."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from keylane.keyrange.key_split import KeySplit, PartitionSplit
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import KeyRange
from keylane.wire.batch import CODEC_NONE

UNKNOWN_TOPIC_OR_PARTITION: Final = 3
TOPIC_AUTHORIZATION_FAILED: Final = 29


class Share(NamedTuple):
    """The part of a partition that a client id has."""

    ranges: tuple[KeyRange, ...]
    key_split: KeySplit
    """The split among all owners; keys without an owner are in no output."""
    output: int
    """The client's output of this split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A topic as a client sees it: its lanes, or partitions of which the client has a share.

    The client names an index: a lane index where there are lanes, a partition elsewhere.
    """

    name: str
    """The client's name of the topic."""
    topic: str
    """The broker's name of it."""
    view_id: uuid.UUID
    """The topic id that the client knows."""
    topic_id: uuid.UUID
    """The broker's topic id."""
    lanes: LaneLayout | None = None
    """The layout; None where an index is a partition."""
    shares: Mapping[int, Share] = field(default_factory=dict)
    """The client's shares, by partition; none where there are lanes, or the topic is refused."""
    client_id: str = ""
    """The owner of the shares."""
    reserve: bool = True
    """Keep whole records for the other outputs (`reserve.message.value.range.fetch`)."""
    codec: int = CODEC_NONE
    """Codec id with which rebuilt batches are compressed."""
    unshared_code: int = TOPIC_AUTHORIZATION_FAILED
    """Kafka code that refuses a partition of which the client has no share."""
    says_ranges: bool = False
    """The client asks for offset ranges as well, where it asks for offsets."""
    error_code: int = 0
    """Kafka code that refuses every index, of a topic that cannot be resolved now; else 0."""

    @classmethod
    def of_shares(
        cls, client_id: str, topic: str, topic_id: uuid.UUID, shares: Mapping[int, Share]
    ) -> View:
        """Return the view of a client id with key ranges, under the topic's own name and id.

        It has no codec: a batch is compressed for lanes only.
        """
        return cls(
            name=topic,
            topic=topic,
            view_id=topic_id,
            topic_id=topic_id,
            shares=shares,
            client_id=client_id,
        )

    @property
    def layout(self) -> LaneLayout:
        """Return the layout of its lanes, where it is known to have lanes."""
        assert self.lanes is not None, "asked of a view without lanes"
        return self.lanes

    @property
    def is_renamed(self) -> bool:
        """Return whether the client uses a lane name in the place of the topic's own."""
        return self.lanes is not None and self.name != self.topic

    @property
    def chosen_name(self) -> str:
        """Return the lane name where the client has chosen the number of lanes, else none."""
        is_even = self.lanes is not None and self.lanes.cuts is None
        return self.name if self.is_renamed and is_even else ""

    @property
    def indexes(self) -> Collection[int]:
        """Return the indexes that the client may name."""
        return self.shares if self.lanes is None else range(self.lanes.index_count)

    def error_of(self, index: int) -> int:
        """Return the Kafka code that refuses `index`; 0: the client may name it."""
        if self.lanes is None:
            is_refused = index not in self.shares
            return (self.error_code or self.unshared_code) if is_refused else 0
        return 0 if 0 <= index < self.lanes.index_count else UNKNOWN_TOPIC_OR_PARTITION

    def partition_of(self, index: int) -> int:
        """Return the broker's partition."""
        return index if self.lanes is None else self.lanes.partition_of(index)

    def output_of(self, index: int) -> int:
        """Return the output of the partition's split that the client reads."""
        return self.shares[index].output if self.lanes is None else self.lanes.lane_of(index)

    def key_ranges(self, index: int) -> tuple[KeyRange, ...]:
        """Return the keys of the partition that `index` stands for."""
        if self.lanes is None:
            return self.shares[index].ranges
        return (self.lanes.key_range(self.lanes.partition_of(index), self.lanes.lane_of(index)),)

    def key_split(self, partition: int) -> KeySplit:
        """Return how all clients share the partition."""
        if self.lanes is None:
            return self.shares[partition].key_split
        return self.lanes.key_split(partition)

    def hash_tag(self, partition: int) -> str:
        """Return the tag of the key hash by which the partition is split."""
        return self.key_split(partition).key_hash.tag

    def partition_split(self, partition: int) -> PartitionSplit:
        """Return the key of what is known of the partition under its split."""
        return PartitionSplit(self.topic_id, partition, self.key_split(partition))
