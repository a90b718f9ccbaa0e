"""The wait of a member's request for the broker's word on its acknowledgements.

Source: KIP-932; docs/decisions/048: an outcome is answered when a broker has written it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from kio.schema.errors import ErrorCode

from keylane.share.held import AckTicket

CONFIRM_S: Final = 25.0
"""Below the clients' `request.timeout.ms` of 30 s."""


class Outcome:
    """The broker's word on what a member has acknowledged."""

    __slots__ = ("_code", "_future", "is_early")

    def __init__(self, *, is_early: bool = False) -> None:
        """is_early: a poll is answered before it is there."""
        self.is_early = is_early
        self._code: int | None = None
        self._future: asyncio.Future[None] | None = None

    def over(self, ticket: AckTicket) -> None:
        """Note that the broker has confirmed, or refused, all records."""
        self._code = ticket.error_code
        self._end()

    async def wait(self) -> int:
        """Return the error code; UNKNOWN_SERVER_ERROR after `CONFIRM_S`."""
        if self._code is None:
            loop = asyncio.get_running_loop()
            self._future = loop.create_future()
            timer = loop.call_later(CONFIRM_S, self._end)
            try:
                await self._future
            finally:
                timer.cancel()
        return ErrorCode.unknown_server_error if self._code is None else self._code

    def _end(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
