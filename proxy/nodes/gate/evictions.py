"""Puts members out of the nodes' group that did not prove to be nodes, and says so.

Source: KIP-345 (LeaveGroup of other members); docs/decisions/033.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from keylane.errors import UpstreamLost
from keylane.proxy.nodes.coordinator import Coordinator

log = logging.getLogger("keylane.nodes")

LOGGED_MAX: Final = 20
"""Lines in `LOG_WINDOW_S`; a member that comes back has another id each time."""
LOG_WINDOW_S: Final = 60.0
AT_ONCE_MAX: Final = 1_000
REMEDY: Final = (
    "kafka-acls --add --deny-principal User:NAME --operation Read --operation Delete "
    "--group __keylane_nodes"
)
"""The cure that keeps a stranger out for good: brokers refuse it before it is a member."""


class Evictions:
    """Use: `report` for members that are ignored, `put_out` for those that are to go."""

    def __init__(self, group: str, on_stranger: Callable[[], None]) -> None:
        """`on_stranger` is called once for each member."""
        self._group, self._on_stranger = group, on_stranger
        self._logged: dict[str, None] = {}
        self._window_s, self._lines, self._unlogged = float("-inf"), 0, 0

    def report(
        self, strangers: Iterable[str], described: Any, reasons: Mapping[str, str], now_s: float
    ) -> None:
        """Log and count members that are seen for the first time."""
        members = {str(member.member_id): member for member in described.members}
        for member_id in strangers:
            if member_id in self._logged:
                continue
            self._logged[member_id] = None
            if len(self._logged) > AT_ONCE_MAX:
                del self._logged[next(iter(self._logged))]
            self._on_stranger()
            if self._has_room(now_s):
                self._log_eviction(member_id, members.get(member_id), reasons.get(member_id))

    async def put_out(
        self, member_ids: Iterable[str], coordinator: Coordinator, *, timeout_s: float
    ) -> int:
        """End these memberships in one step; how many. Raises: UpstreamLost."""
        # In one request: those that are left would have time to take over what the others had.
        going = list(member_ids)[:AT_ONCE_MAX]
        if not going:
            return 0
        if refused := await coordinator.leave(*going, timeout_s=timeout_s):
            raise UpstreamLost(f"group {self._group}: LeaveGroup: {refused[0].name}")
        log.info("strangers were put out group=%s members=%d", self._group, len(going))
        return len(going)

    def _log_eviction(self, member_id: str, member: Any, reason: str | None) -> None:
        shown = ("?", "?") if member is None else (member.client_id, member.client_host)
        log.warning(
            "member of the nodes' group is no node, it is ignored and put out member_id=%s "
            "client_id=%s host=%s reason=%s remedy=%s",
            member_id, *shown, reason or "it does not speak keylane-nodes", REMEDY,
        )  # fmt: skip

    def _has_room(self, now_s: float) -> bool:
        if now_s > self._window_s + LOG_WINDOW_S:
            if self._unlogged:
                log.warning("more members were no nodes, not named members=%d", self._unlogged)
            self._window_s, self._lines, self._unlogged = now_s, 0, 0
        self._lines += 1
        if self._lines > LOGGED_MAX:
            self._unlogged += 1
            return False
        return True
