"""Switches over HTTP: what is allowed, changed while running.

Source: docs/control-api.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import Final

from aiohttp import web

from keylane.config.topic_rules import LEGAL_TOPIC
from keylane.errors import AssignmentInvalid
from keylane.proxy.control.api import models
from keylane.proxy.control.api.assignments import CLIENT_ID
from keylane.proxy.control.api.operations import GUARDED, WRITE, ControlOperation
from keylane.proxy.control.api.problems import Problem
from keylane.proxy.control.api.requests import answer, check_version, read_body, read_name, report
from keylane.proxy.topics.settings_store import SettingsStore
from keylane.proxy.topics.switches import (
    ACCEPT_INDIVIDUAL_COMMIT,
    ACCEPT_RANGE_FETCH,
    ALLOW_INDIVIDUAL_COMMIT,
    Switches,
)

EXAMPLE: Final = {ACCEPT_INDIVIDUAL_COMMIT: True, ACCEPT_RANGE_FETCH: {"orders": False}}


class SwitchHandlers:
    """Handlers of `/switches`."""

    def __init__(self, settings: SettingsStore) -> None:
        self._settings = settings

    def operations(self) -> list[ControlOperation]:
        """Return the operations on what is allowed."""
        everything = partial(ControlOperation, path="/switches", has_version=True)
        topic = partial(ControlOperation, path="/switches/topics/{topic}", has_version=True)
        client = partial(ControlOperation, path="/switches/clients/{client_id}", has_version=True)
        return [
            everything(
                method="GET", handler=self._get_all, answer=models.SwitchesOut,
                summary="All switches that are set",
            ),
            everything(
                method="PUT", handler=self._replace, answer=models.SwitchesOut,
                body=models.SwitchesIn, problems=GUARDED, example=EXAMPLE,
                summary="Set these switches, and leave all others to the configuration",
            ),
            topic(
                method="GET", handler=self._get_topic, answer=models.TopicSwitchOut,
                problems=(HTTPStatus.BAD_REQUEST,),
                summary="Whether parts of a topic's partitions may be fetched",
            ),
            topic(
                method="PUT", handler=self._set_topic, answer=models.TopicSwitchOut,
                body=models.TopicSwitchIn, example={ACCEPT_RANGE_FETCH: True}, problems=WRITE,
                summary="Set the switch of a topic; null leaves it to the configuration",
            ),
            client(
                method="GET", handler=self._get_client, answer=models.ClientSwitchOut,
                problems=(HTTPStatus.BAD_REQUEST,),
                summary="Whether a client takes parts of partitions",
            ),
            client(
                method="PUT", handler=self._set_client, answer=models.ClientSwitchOut,
                body=models.ClientSwitchIn, example={ALLOW_INDIVIDUAL_COMMIT: False},
                problems=WRITE,
                summary="Set the switch of a client; null leaves it to the configuration",
            ),
        ]  # fmt: skip

    async def _get_all(self, _request: web.Request) -> web.Response:
        return self._answer_all()

    async def _replace(self, request: web.Request) -> web.Response:
        body = await read_body(request, models.SwitchesIn)

        def change(now: Switches) -> Switches:
            check_version(request, now.version, is_needed=not now.is_empty)
            return Switches(
                version=now.version,
                accept_individual_commit=body.accept_individual_commit,
                topics=body.accept_range_fetch,
                clients=body.allow_individual_commit,
            )

        await self._change(request, change, "all")
        return self._answer_all()

    async def _get_topic(self, request: web.Request) -> web.Response:
        return self._answer_topic(read_name(request, "topic", LEGAL_TOPIC))

    async def _set_topic(self, request: web.Request) -> web.Response:
        topic = read_name(request, "topic", LEGAL_TOPIC)
        wanted = (await read_body(request, models.TopicSwitchIn)).accept_range_fetch

        def change(now: Switches) -> Switches:
            check_version(request, now.version, is_needed=False)
            return replace(now, topics=_with(now.topics, topic, wanted=wanted))

        await self._change(request, change, f"{ACCEPT_RANGE_FETCH}:{topic}", field="topic")
        return self._answer_topic(topic)

    async def _get_client(self, request: web.Request) -> web.Response:
        return self._answer_client(read_name(request, "client_id", CLIENT_ID))

    async def _set_client(self, request: web.Request) -> web.Response:
        client_id = read_name(request, "client_id", CLIENT_ID)
        wanted = (await read_body(request, models.ClientSwitchIn)).allow_individual_commit

        def change(now: Switches) -> Switches:
            check_version(request, now.version, is_needed=False)
            return replace(now, clients=_with(now.clients, client_id, wanted=wanted))

        name = f"{ALLOW_INDIVIDUAL_COMMIT}:{client_id}"
        await self._change(request, change, name, field="client_id")
        return self._answer_client(client_id)

    async def _change(
        self,
        request: web.Request,
        change: Callable[[Switches], Switches],
        name: str,
        *,
        field: str = "",
    ) -> None:
        def decide(now: Switches) -> Switches:
            wanted = change(now)
            return now if wanted == now else replace(wanted, version=now.version + 1)

        try:
            after = await self._settings.change_switches(decide)
        except AssignmentInvalid as error:
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), field=field) from None
        report(request, "switches", after.version, [name])

    def _answer_all(self) -> web.Response:
        board = self._settings.switches
        now = board.current
        values = {
            ACCEPT_INDIVIDUAL_COMMIT: now.accept_individual_commit,
            ACCEPT_RANGE_FETCH: dict(now.topics),
            ALLOW_INDIVIDUAL_COMMIT: dict(now.clients),
            "configured": {ACCEPT_INDIVIDUAL_COMMIT: board.configured_individual_commit},
        }
        return answer(now.version, values)

    def _answer_topic(self, topic: str) -> web.Response:
        board = self._settings.switches
        is_on, is_set = board.accepts_range_fetch(topic), topic in board.current.topics
        values = {"topic": topic, ACCEPT_RANGE_FETCH: is_on, "is_set": is_set}
        return answer(board.current.version, values)

    def _answer_client(self, client_id: str) -> web.Response:
        board = self._settings.switches
        is_on, is_set = (
            board.allows_individual_commit(client_id),
            client_id in board.current.clients,
        )
        values = {"client_id": client_id, ALLOW_INDIVIDUAL_COMMIT: is_on, "is_set": is_set}
        return answer(board.current.version, values)


def _with(flags: Mapping[str, bool], name: str, *, wanted: bool | None) -> dict[str, bool]:
    """Return the flags with one set; wanted is None: without it."""
    kept = {key: value for key, value in flags.items() if key != name}
    return kept if wanted is None else {**kept, name: wanted}
