"""The cluster, its groups, and what happened lately, over HTTP.

Source: docs/control-api.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Final

from aiohttp import web
from pydantic import Field

from keylane.proxy.control.api import models
from keylane.proxy.control.api.operations import ControlOperation, QueryParameter
from keylane.proxy.control.api.problems import Problem
from keylane.proxy.control.api.requests import fields_of, read_query
from keylane.proxy.control.cluster_report import ClusterDescriber, ClusterReport
from keylane.proxy.control.group_list import GroupLister
from keylane.proxy.control.watch.history import History, HistoryReport
from keylane.proxy.control.watch.summary import GroupsReport
from keylane.proxy.runtime.event_log import EVENTS_MAX, Event, EventLog

EXACT_INT_MAX: Final = 2**53 - 1
EVENTS: Final = (
    QueryParameter(
        name="after",
        kind=Annotated[int, Field(ge=0, le=EXACT_INT_MAX)],
        description="Id of the last event that the caller has; only later ones are returned.",
    ),
    QueryParameter(name="group", kind=models.GroupName, description="Only events of this group."),
    QueryParameter(
        name="limit",
        kind=Annotated[int, Field(ge=1, le=EVENTS_MAX)],
        description="Events at most, the newest ones; all by default.",
    ),
)
HISTORY: Final = (
    QueryParameter(name="group", kind=models.GroupName, description="A group."),
    QueryParameter(name="topic", kind=models.Topic, description="A topic."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsReport:
    """Events, the newest last."""

    events: tuple[Event, ...]
    last_id: int
    """Id of the newest event of all, for `after`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The parts that know."""

    cluster: ClusterDescriber
    groups: GroupLister
    history: History
    event_log: EventLog
    now_ms: Callable[[], int]


class OverviewHandlers:
    """Handlers of `/cluster`, `/groups`, `/history` and `/events`."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    def operations(self) -> list[ControlOperation]:
        """Return the operations, which change nothing."""
        get = partial(ControlOperation, method="GET")
        return [
            get(
                path="/cluster", handler=self._cluster, answer=ClusterReport,
                summary="Brokers, nodes and the journal, and what is wrong with them",
            ),
            get(
                path="/groups", handler=self._groups, answer=GroupsReport,
                summary="All groups of the cluster, with lag and pace of those on lanes",
            ),
            get(
                path="/history", handler=self._history, answer=HistoryReport, query=HISTORY,
                summary="The last ten minutes of a group and its members, or of a topic",
                problems=(HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY),
            ),
            get(
                path="/events", handler=self._events, answer=EventsReport, query=EVENTS,
                summary="Rebalances, moves of lanes, nodes, brokers and actions of late",
                problems=(HTTPStatus.BAD_REQUEST,),
            ),
        ]  # fmt: skip

    async def _cluster(self, _request: web.Request) -> web.Response:
        return web.json_response(asdict(self._overview.cluster.describe()))

    async def _groups(self, _request: web.Request) -> web.Response:
        return web.json_response(asdict(await self._overview.groups.list()))

    async def _history(self, request: web.Request) -> web.Response:
        asked = read_query(request, HISTORY)
        if not asked:
            raise Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, "name a group, a topic, or both", field="group"
            )
        found = self._overview.history.find(self._overview.now_ms(), **asked)
        return web.json_response(found, dumps=partial(json.dumps, default=fields_of))

    async def _events(self, request: web.Request) -> web.Response:
        asked = read_query(request, EVENTS)
        log = self._overview.event_log
        events = log.after(
            asked.get("after", 0), group=asked.get("group"), limit=asked.get("limit", EVENTS_MAX)
        )
        report = EventsReport(events=tuple(events), last_id=log.last_id)
        return web.json_response(asdict(report))
