"""What a broker does with the sequences of one producer at one partition.

Source: ProducerAppendInfo.checkSequence, ProducerStateEntry.findDuplicateBatch of Kafka 4.3.
"""

from __future__ import annotations

from collections import deque

OUT_OF_ORDER, INVALID_EPOCH = 45, 47
SEQUENCE_LIMIT = 2**31


class BrokerPartition:
    """Keeps what was appended; remembers the last 5 batches of the current epoch."""

    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []
        self.epoch = -1
        self.next = 0
        self.recent: deque[tuple[int, int]] = deque(maxlen=5)

    def append(self, epoch: int, base: int, count: int, batch: tuple[int, int]) -> int:
        """The error code of an append."""
        if epoch < self.epoch:
            return INVALID_EPOCH
        if epoch == self.epoch and (base, count) in self.recent:
            return 0
        if epoch != self.epoch:
            if self.epoch != -1 and base != 0:
                return OUT_OF_ORDER
            self.recent.clear()
        elif base != self.next:
            return OUT_OF_ORDER
        self.epoch, self.next = epoch, (base + count) % SEQUENCE_LIMIT
        self.recent.append((base, count))
        self.log.append(batch)
        return 0
