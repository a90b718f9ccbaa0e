"""Requests of a connection that wait behind the one that is served."""

from __future__ import annotations

from collections import deque

from keylane.proxy.net.framing import Frame
from keylane.wire.header import ApiKey


class Backlog(deque[Frame]):
    """Whole frames, in the order in which they came."""

    @property
    def has_other_than_fetch(self) -> bool:
        """Return whether a request waits for which a fetch should not wait for new data.

        Another fetch is none: two of a client that keeps several on their way would end each
        other's wait again and again.
        """
        # The key follows the frame's length.
        return bool(self) and any(int.from_bytes(each[4:6]) != ApiKey.FETCH for each in self)
