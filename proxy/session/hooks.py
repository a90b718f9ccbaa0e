"""What a node is asked, and told, of each session.

In:    a session.  Out: why it is closed again, if it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keylane.proxy.session.closing_log import ClosingLines

if TYPE_CHECKING:
    from keylane.proxy.session.session import ClientSession


def _nothing(_session: ClientSession) -> None:
    """Nothing is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHooks:
    """Of all sessions of a node; without one, nothing is bounded."""

    admit: Callable[[ClientSession], str | None] = _nothing
    """Once it is connected."""
    admit_principal: Callable[[str], str | None] = lambda _principal: None
    """Once a broker has taken its login."""
    on_received: Callable[[ClientSession], None] = _nothing
    """Whenever the client has sent something before `on_proven`."""
    on_proven: Callable[[ClientSession], None] = _nothing
    """Its login is over; where none is required, its first request was answered."""
    on_held: Callable[[ClientSession, int], None] = lambda _session, _held: None
    """It holds so many bytes in buffers, or is about to; may close this session or others."""
    lines: ClosingLines = field(default_factory=ClosingLines)
