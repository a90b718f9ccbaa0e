"""Values of partitions under a split, with a bound on the outputs of all splits together."""

from __future__ import annotations

import sys
import uuid
from abc import ABC, abstractmethod
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar

from keylane.keyrange.key_split import PartitionSplit


class _Truncatable(Protocol):
    def truncate(self, end: int) -> None:
        """Forget what is at or behind `end`."""


Value = TypeVar("Value", bound=_Truncatable)


class SplitTable(ABC, Generic[Value]):
    """A value for each partition and split; event loop only. The longest unused go first.

    Invariant: `output_count` is the sum over the splits. Neither it nor the number of splits is
    above its bound, unless one split alone is.
    """

    def __init__(self, outputs_max: int, splits_max: int = sys.maxsize) -> None:
        self._outputs_max, self._splits_max = outputs_max, splits_max
        self._by_split: OrderedDict[PartitionSplit, Value] = OrderedDict()
        self.output_count = 0

    @abstractmethod
    def _make(self, key: PartitionSplit) -> Value:
        """Return the value of a split that is used for the first time."""

    def of(self, key: PartitionSplit) -> Value:
        """Return the value of a split, to add to; it counts as used now."""
        value = self._by_split.get(key)
        if value is None:
            value = self._by_split[key] = self._make(key)
            self.output_count += key.key_split.output_count
            while len(self._by_split) > 1 and (
                self.output_count > self._outputs_max or len(self._by_split) > self._splits_max
            ):
                # Of a topic that is gone, or else it fills again as it is read.
                self.forget(next(iter(self._by_split)))
        self._by_split.move_to_end(key)
        return value

    def on_truncated(self, topic_id: uuid.UUID, partition: int, end: int) -> None:
        """Forget the log from `end` on, where a new leader has cut it."""
        for key, value in self._by_split.items():
            if key.place == (topic_id, partition):
                value.truncate(end)

    def forget(self, key: PartitionSplit) -> None:
        """Forget a split without a reader, or a topic that is gone."""
        if self._by_split.pop(key, None) is not None:
            self.output_count -= key.key_split.output_count
