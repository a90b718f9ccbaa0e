"""The log line of a closed connection; not of all strangers, since they can cause any number.

In:    which connection, why.  Out: a line of the logger `keylane.session`.
"""

from __future__ import annotations

import logging
from typing import Final

from keylane.proxy.runtime.log_pace import LogPace

log = logging.getLogger("keylane.session")

LINES_MAX: Final = 10
INTERVAL_S: Final = 10.0
"""So many lines in so many seconds about clients that had not logged in."""


class ClosingLines:
    """Of all connections of a node."""

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
