"""Answers leave a connection in the order of their requests.

Source: Kafka protocol guide, "Network": the server keeps request order per connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

Buffers = Sequence[bytes | bytearray | memoryview]


class Slot:
    """The place of one answer in the order of its connection."""

    __slots__ = ("buffers",)

    def __init__(self) -> None:
        self.buffers: Buffers | None = None


class ResponseOrder:
    """Holds answers back until those of earlier requests have left.

    Invariant: the first slot, if any, is not filled (else it would have left).
    """

    def __init__(self) -> None:
        self._slots: deque[Slot] = deque()

    def __len__(self) -> int:
        return len(self._slots)

    def open(self) -> Slot:
        """Take the next place."""
        slot = Slot()
        self._slots.append(slot)
        return slot

    def fill(self, slot: Slot, buffers: Buffers) -> list[bytes | bytearray | memoryview]:
        """Give the slot its answer (empty: the request has none); return what may leave."""
        assert slot.buffers is None, "a request is answered once"
        slot.buffers = buffers
        ready: list[bytes | bytearray | memoryview] = []
        while self._slots and self._slots[0].buffers is not None:
            ready.extend(self._slots.popleft().buffers or ())
        return ready

    def check(self) -> None:
        """Raise AssertionError when the invariant does not hold."""
        assert not self._slots or self._slots[0].buffers is None
