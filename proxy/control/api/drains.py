"""Drains over HTTP: a node gives its groups and clients away before it is stopped.

Source: docs/control-api.md.
"""

from __future__ import annotations

import logging
import re
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
from typing import Final, Protocol

from aiohttp import web
from pydantic import StrictBool

from keylane.proxy.control.api.actions import DRY_RUN, NoteAction
from keylane.proxy.control.api.operations import READ, ControlOperation
from keylane.proxy.control.api.problems import Problem
from keylane.proxy.control.api.requests import read_name, read_query
from keylane.proxy.control.auth import identity_of
from keylane.proxy.topics.draining import DrainReport

log = logging.getLogger("keylane.control")

NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,2}")
ELSEWHERE: Final = (*READ, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.CONFLICT)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAnswer(DrainReport):
    """A node, and what it has still to give away; of a dry run, what it would have."""

    dry_run: StrictBool


class DrainedNode(Protocol):
    """This node among the others."""

    @property
    def number(self) -> int | None:
        """None: it is the only one, and has no number."""

    def is_known(self, number: int) -> bool:
        """Return whether there is a node of this number."""

    def control_of(self, number: int) -> str | None:
        """Return the control URL of another node; None: it has none."""

    def others_serve(self) -> bool:
        """Return whether another node gets groups and clients."""

    def report(self) -> DrainReport:
        """Return what it has to give away."""

    def set_draining(self, *, is_draining: bool) -> bool:
        """Begin or end a drain; False: it is as it was."""


class DrainHandlers:
    """Handlers of `/nodes/{number}/drain`."""

    def __init__(self, node: DrainedNode, note: NoteAction) -> None:
        self._node, self._note = node, note

    def operations(self) -> list[ControlOperation]:
        """Return the operations on nodes."""
        one = partial(
            ControlOperation, path="/nodes/{number}/drain", answer=DrainAnswer, problems=ELSEWHERE
        )
        return [
            one(
                method="GET", handler=self._get,
                summary="Whether a node drains, and what it has still to give away",
            ),
            one(
                method="POST", handler=self._begin, query=(DRY_RUN,),
                summary="Have a node give its groups and clients to the others",
            ),
            one(
                method="DELETE", handler=self._end, query=(DRY_RUN,),
                summary="Have a node that drains get groups and clients again",
            ),
        ]  # fmt: skip

    async def _get(self, request: web.Request) -> web.Response:
        self._expect_here(request)
        return self._answer(is_dry=False)

    async def _begin(self, request: web.Request) -> web.Response:
        number, is_dry = self._expect_here(request), _is_dry(request)
        if not self._node.others_serve():
            raise Problem(
                HTTPStatus.CONFLICT,
                f"node {number} is the only one that serves: start another one first, or end the "
                "drain of one",
            )
        if not is_dry and self._node.set_draining(is_draining=True):
            self._publish(request, f"began to drain node {number}")
        return self._answer(is_dry=is_dry)

    async def _end(self, request: web.Request) -> web.Response:
        number, is_dry = self._expect_here(request), _is_dry(request)
        if not is_dry and self._node.set_draining(is_draining=False):
            self._publish(request, f"ended the drain of node {number}")
        return self._answer(is_dry=is_dry)

    def _expect_here(self, request: web.Request) -> int:
        """Return this node's number. Raises: Problem, where the request is of another node."""
        number = int(read_name(request, "number", NUMBER))
        if self._node.number is None:
            raise Problem(
                HTTPStatus.CONFLICT,
                "this node has no number and is the only one: stop it with SIGTERM, which answers "
                "what is under way",
            )
        if number == self._node.number:
            return number
        if not self._node.is_known(number):
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no node {number}", field="number")
        url = self._node.control_of(number)
        if url is None:
            raise Problem(
                HTTPStatus.CONFLICT, f"node {number} has no control port that is known here"
            )
        raise Problem(
            HTTPStatus.TEMPORARY_REDIRECT,
            f"node {number} answers at its own control port",
            headers={"Location": f"{url}{request.path_qs}"},
        )

    def _publish(self, request: web.Request, what: str) -> None:
        by = identity_of(request)
        log.info("drain changed by=%s what=%s", by, what)
        self._note(f"{by} {what}.", None)

    def _answer(self, *, is_dry: bool) -> web.Response:
        report = asdict(self._node.report())
        return web.json_response(asdict(DrainAnswer(dry_run=is_dry, **report)))


def _is_dry(request: web.Request) -> bool:
    return bool(read_query(request, (DRY_RUN,)).get(DRY_RUN.name, False))
