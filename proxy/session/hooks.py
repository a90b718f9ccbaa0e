"""Calls of a session to its node, and the log line of a closed connection."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from keylane.proxy.runtime.log_pace import LogPace

log = logging.getLogger("keylane.session")

LINES_MAX: Final = 10
INTERVAL_S: Final = 10.0
"""So many lines in so many seconds about clients that had not logged in, which can be any number.
"""

Session = TypeVar("Session")


class ClosingLines:
    """Log lines about closed connections of a node."""

    def __init__(self) -> None:
        self._pace = LogPace(lines_max=LINES_MAX, interval_s=INTERVAL_S)

    def write(
        self, session_id: str, peer: str, reason: str, *, warn: bool, is_proven: bool, now_s: float
    ) -> None:
        """warn: it is the client's or the broker's doing; is_proven: the client had logged in."""
        left_out: int | None = 0
        if warn and not is_proven:
            left_out = self._pace.let(now_s)
        level = logging.WARNING if warn and left_out is not None else logging.DEBUG
        more = f" lines_left_out={left_out}" if left_out else ""
        log.log(level, "closed session_id=%s peer=%s reason=%s%s", session_id, peer, reason, more)


def _nothing(*_of: object) -> None:
    """Nothing is bounded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHooks(Generic[Session]):
    """Calls of each session of a node; those that are left out do nothing."""

    admit: Callable[[Session], str | None] = _nothing
    """For a session that is connected; returns why it is refused."""
    admit_principal: Callable[[str], str | None] = _nothing
    """For a principal whose login a broker has taken; returns why it is refused."""
    on_received: Callable[[Session], None] = _nothing
    """For each time that a client sends something before `on_proven`."""
    on_proven: Callable[[Session], None] = _nothing
    """For a login that is over; without a required login, for the first answered request."""
    on_held: Callable[[Session, int], None] = _nothing
    """For the bytes that a session holds, or is about to; may close this session or others."""
    on_closed: Callable[[Session], None] = _nothing
    """For a session whose connections are closed."""
    lines: ClosingLines = field(default_factory=ClosingLines)
