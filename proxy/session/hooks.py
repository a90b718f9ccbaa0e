"""Calls of a session to its node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from keylane.proxy.session.closing_log import ClosingLines

Session = TypeVar("Session")


def _nothing(_session: object) -> None:
    """Nothing is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionHooks(Generic[Session]):
    """Of all sessions of a node; without one, nothing is bounded."""

    admit: Callable[[Session], str | None] = _nothing
    """Once it is connected."""
    admit_principal: Callable[[str], str | None] = lambda _principal: None
    """Once a broker has taken its login."""
    on_received: Callable[[Session], None] = _nothing
    """Whenever the client has sent something before `on_proven`."""
    on_proven: Callable[[Session], None] = _nothing
    """Its login is over; where none is required, its first request was answered."""
    on_held: Callable[[Session, int], None] = lambda _session, _held: None
    """It holds so many bytes in buffers, or is about to; may close this session or others."""
    on_closed: Callable[[Session], None] = _nothing
    """Its connections are closed."""
    lines: ClosingLines = field(default_factory=ClosingLines)
