"""In the place of a group's lock, as long as nobody knows where groups stood.

In:    why.  Out: UpstreamLost, which clients are told as an error that they retry.
Pure:  no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from keylane.errors import UpstreamLost


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A lock that cannot be had."""

    reason: str

    async def __aenter__(self) -> None:
        """Raises: UpstreamLost."""
        raise UpstreamLost(self.reason)

    async def __aexit__(self, *_: object) -> None:
        """Never reached."""
