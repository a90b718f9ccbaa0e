"""Room for the batches of each lane of a block, so that those of each can be freed alone.

In:    how many bytes each lane gets.  Out: addresses for the kernel, then the bytes of each lane.

A slice that waits must not keep other lanes' bytes. A buffer per lane is an array and a view of it:
nothing beside a large slice, but several times a small one, of which a cache may hold 100,000. So
small ones stand in one buffer while they are written, and are copied out of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from keylane.kernel.buffers import COPY_SLACK_BYTES
from keylane.kernel.library import address_of

SMALL_BYTES_MAX: Final = 2048
"""Size up to which bytes are copied: it takes less time than to make a buffer and a view."""


class LaneRoom:
    """Use: have the kernel write at `addresses`, then `take` once."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """sizes: bytes by lane; 0 for lanes that get nothing."""
        self._sizes = sizes
        self._large: dict[int, NDArray[np.uint8]] = {}
        self._starts: dict[int, int] = {}
        """Of small ones, in their buffer."""
        total = 0
        for lane, size in enumerate(sizes):
            if size > SMALL_BYTES_MAX:
                self._large[lane] = np.empty(size + COPY_SLACK_BYTES, np.uint8)
            elif size:
                self._starts[lane] = total
                total += size + COPY_SLACK_BYTES
        self._small = np.empty(total, np.uint8)
        small = address_of(self._small) if total else 0
        self.addresses = [0] * len(sizes)
        """By lane: room for its bytes and COPY_SLACK_BYTES."""
        for lane, start in self._starts.items():
            self.addresses[lane] = small + start
        for lane, buffer in self._large.items():
            self.addresses[lane] = address_of(buffer)

    def take(self) -> list[bytes | memoryview | None]:
        """Return the bytes that were written, by lane; None for nothing."""
        found: list[bytes | memoryview | None] = [None] * len(self._sizes)
        small = self._small.tobytes()
        for lane, start in self._starts.items():
            found[lane] = small[start : start + self._sizes[lane]]
        for lane, buffer in self._large.items():
            found[lane] = buffer.data[: self._sizes[lane]]
        return found
