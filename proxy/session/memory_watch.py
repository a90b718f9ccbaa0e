"""Closes connections that hold more than there is room for, at the moment that they would.

Source: docs/decisions/035.
"""

from __future__ import annotations

from keylane.config.node import ProxyConfig
from keylane.proxy.net.holdings import HoldingBounds, Holdings
from keylane.proxy.runtime.memory_plan import MemoryPlan
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.session.session import ClientSession


class MemoryWatch:
    """Bytes that all sessions hold, and their bounds."""

    def __init__(self, config: ProxyConfig, plan: MemoryPlan, stats: ProxyStats) -> None:
        """`config` is the one that the plan has made."""
        self._stats = stats
        self._holdings: Holdings[ClientSession] = Holdings(
            HoldingBounds(
                in_all_max=config.buffered_bytes_max,
                per_principal_max=config.buffered_bytes_per_principal_max,
                logins_max=plan.login_bytes_max,
            )
        )
        stats.memory_max_bytes, stats.batch_bytes_max = plan.memory_max, config.batch_bytes_max
        stats.buffered_bytes_max = config.buffered_bytes_max
        stats.login_bytes_max = plan.login_bytes_max

    def note(self, session: ClientSession, held_bytes: int) -> None:
        """A session holds so much, or is about to: what is too much for it is closed first."""
        heavy = self._holdings.change(
            session, held_bytes, session.principal, is_logged_in=session.is_logged_in
        )
        for each, reason in heavy:
            self._stats.sessions_heavy += 1
            each.close(reason, warn=True)
        self._publish()

    def leave(self, session: ClientSession) -> None:
        """A session has ended."""
        self._holdings.leave(session)
        self._publish()

    def _publish(self) -> None:
        self._stats.buffered_bytes = self._holdings.bytes_used
        self._stats.login_bytes = self._holdings.login_bytes_used
