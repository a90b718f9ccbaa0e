"""The live page's question which rights its browser has here.

A page shows its buttons by it. The guard decides again when one of them is used.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from keylane.proxy.control.auth import IDENTITY, ControlGuard, Role

READS: Final = (
    "This login only reads. Changes need the token of control_token_file, or a certificate that"
    " control_admins names."
)


class CallerHandler:
    """Handler of `/page/caller`."""

    def __init__(self, guard: ControlGuard) -> None:
        self._guard = guard

    def routes(self) -> list[web.RouteDef]:
        """Return what the control port adds; before `/page/{name}`."""
        return [web.get("/page/caller", self._answer)]

    async def _answer(self, request: web.Request) -> web.Response:
        may_write = self._guard.role_of(request) is Role.ADMIN
        answer = {
            "name": request[IDENTITY] if self._guard.needs_role else None,
            "may_write": may_write,
            "reason": None if may_write else READS,
        }
        return web.json_response(answer)
