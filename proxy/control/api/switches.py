"""Switches over HTTP: what is allowed, changed while running.

Source: docs/control-api.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from aiohttp import web

from keylane.errors import AssignmentInvalid
from keylane.proxy.control.api.assignments import CLIENT_ID
from keylane.proxy.control.api.models import ClientSwitchIn, SwitchesIn, TopicSwitchIn
from keylane.proxy.control.api.problems import Problem
from keylane.proxy.control.api.requests import check_version, entity_tag, read_body, read_name
from keylane.proxy.control.api.settings import Settings, report
from keylane.proxy.topics.switches import (
    ACCEPT_INDIVIDUAL_COMMIT,
    ACCEPT_RANGE_FETCH,
    ALLOW_INDIVIDUAL_COMMIT,
    Switches,
)

TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class SwitchHandlers:
    """Handlers of `/switches`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def get_all(self, _request: web.Request) -> web.Response:
        """All switches that are set."""
        return self._answer_all()

    async def replace(self, request: web.Request) -> web.Response:
        """Set these, and all others as configured."""
        body = await read_body(request, SwitchesIn)

        def change(now: Switches) -> Switches:
            check_version(request, now.version, is_needed=not now.is_empty)
            return Switches(
                version=now.version,
                accept_individual_commit=body.accept_individual_commit,
                topics=body.accept_range_fetch,
                clients=body.allow_individual_commit,
            )

        await self._change(request, change, ["all"])
        return self._answer_all()

    async def get_topic(self, request: web.Request) -> web.Response:
        """The switch of one topic as it stands."""
        return self._answer_topic(read_name(request, "topic", TOPIC))

    async def set_topic(self, request: web.Request) -> web.Response:
        """Set the switch of one topic, or leave it to the configuration."""
        topic = read_name(request, "topic", TOPIC)
        wanted = (await read_body(request, TopicSwitchIn)).accept_range_fetch

        def change(now: Switches) -> Switches:
            check_version(request, now.version, is_needed=False)
            return replace(now, topics=_with(now.topics, topic, wanted=wanted))

        await self._change(request, change, [f"{ACCEPT_RANGE_FETCH}:{topic}"], field="topic")
        return self._answer_topic(topic)

    async def get_client(self, request: web.Request) -> web.Response:
        """The switch of one client as it stands."""
        return self._answer_client(read_name(request, "client_id", CLIENT_ID))

    async def set_client(self, request: web.Request) -> web.Response:
        """Set the switch of one client, or leave it to the configuration."""
        client_id = read_name(request, "client_id", CLIENT_ID)
        wanted = (await read_body(request, ClientSwitchIn)).allow_individual_commit

        def change(now: Switches) -> Switches:
            check_version(request, now.version, is_needed=False)
            return replace(now, clients=_with(now.clients, client_id, wanted=wanted))

        names = [f"{ALLOW_INDIVIDUAL_COMMIT}:{client_id}"]
        await self._change(request, change, names, field="client_id")
        return self._answer_client(client_id)

    async def _change(
        self,
        request: web.Request,
        change: Callable[[Switches], Switches],
        names: Sequence[str],
        *,
        field: str = "",
    ) -> None:
        def decide(now: Switches) -> Switches:
            wanted = change(now)
            return now if wanted == now else replace(wanted, version=now.version + 1)

        try:
            after = await self._settings.store.change_switches(decide)
        except AssignmentInvalid as error:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), field=field) from None
        report(request, "switches", after.version, names)

    def _answer_all(self) -> web.Response:
        board = self._settings.switches
        now = board.current
        document = {
            "version": now.version,
            ACCEPT_INDIVIDUAL_COMMIT: now.accept_individual_commit,
            ACCEPT_RANGE_FETCH: dict(now.topics),
            ALLOW_INDIVIDUAL_COMMIT: dict(now.clients),
            "configured": {ACCEPT_INDIVIDUAL_COMMIT: board.configured_individual_commit},
        }
        return web.json_response(document, headers={"ETag": entity_tag(now.version)})

    def _answer_topic(self, topic: str) -> web.Response:
        board = self._settings.switches
        document = {
            "version": board.current.version,
            "topic": topic,
            ACCEPT_RANGE_FETCH: board.accepts_range_fetch(topic),
            "is_set": topic in board.current.topics,
        }
        return web.json_response(document, headers={"ETag": entity_tag(board.current.version)})

    def _answer_client(self, client_id: str) -> web.Response:
        board = self._settings.switches
        document = {
            "version": board.current.version,
            "client_id": client_id,
            ALLOW_INDIVIDUAL_COMMIT: board.allows_individual_commit(client_id),
            "is_set": client_id in board.current.clients,
        }
        return web.json_response(document, headers={"ETag": entity_tag(board.current.version)})


def _with(flags: Mapping[str, bool], name: str, *, wanted: bool | None) -> dict[str, bool]:
    """The flags with one set, or None: without it."""
    kept = {key: value for key, value in flags.items() if key != name}
    return kept if wanted is None else {**kept, name: wanted}
