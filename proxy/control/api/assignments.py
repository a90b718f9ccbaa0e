"""Assignments over HTTP: key ranges of client ids without a group.

Source: docs/control-api.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from keylane.errors import AssignmentInvalid, RangesOverlap
from keylane.keyrange.space import HASH_MAX, WHOLE, KeyRange, merge_ranges
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.control.api import models
from keylane.proxy.control.api.models import Part
from keylane.proxy.control.api.operations import DELETE, GUARDED, READ, ControlOperation
from keylane.proxy.control.api.problems import Problem, pointer
from keylane.proxy.control.api.requests import (
    answer,
    answer_deleted,
    check_version,
    read_body,
    read_name,
    report,
)
from keylane.proxy.topics.range_table import (
    CLIENT_ID_MAX,
    Assignment,
    Parts,
    RangeTable,
)
from keylane.proxy.topics.settings_store import SettingsStore
from keylane.proxy.topics.switches import ACCEPT_RANGE_FETCH, ALLOW_INDIVIDUAL_COMMIT

CLIENT_ID: Final = re.compile(rf"(?s).{{1,{CLIENT_ID_MAX}}}")
PART: Final = {"topic": "orders", "partition": 0, "ranges": [["0", "4611686018427387902"]]}
Place = tuple[str | int, ...]
"""Place where something stands in the body."""


class ClusterTopics:
    """Topics as the cluster has them: what is known is believed, what is not is asked."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def partition_count(self, topic: str, *, at_least: int) -> int | None:
        """Return the partition count of a topic; None: there is no such topic.

        at_least: a count that is known is asked again when it is less. Raises: UpstreamLost.
        """
        known = self._known(topic)
        if known is None or known < at_least:
            await self._cluster.refresh_topic(topic)
            known = self._known(topic)
        return known

    def is_lane_name(self, topic: str) -> bool:
        """Return whether the name stands for lanes of another topic."""
        return self._cluster.registry.physical_name(topic) != topic

    def _known(self, topic: str) -> int | None:
        registry = self._cluster.registry
        found = registry.topics.get(topic)
        # Lanes keep to the count that they began with; key ranges are of real partitions.
        return registry.grown.get(topic, found.partition_count) if found is not None else None


@dataclass(frozen=True, slots=True)
class _Changes:
    """Parts by client id, as the body of a request has them."""

    by_client: Mapping[str, Sequence[Part] | None]
    root: Place | None = None
    """Place of one client's parts; None: they stand under its id."""

    def place(self, client_id: str) -> Place:
        """Return the place of a client's parts."""
        return self.root or ("assignments", client_id)

    def locate(self, error: AssignmentInvalid | RangesOverlap, *inside: str) -> str:
        """Return a pointer to what an error is about, as far down as it is known."""
        if error.client_id is None or error.client_id not in self.by_client:
            return ""
        place = self.place(error.client_id)
        for index, part in enumerate(self.by_client[error.client_id] or ()):
            if part.topic == error.topic and error.partition in (None, part.partition):
                return pointer(*place, index, *inside)
        return pointer(*place)


class AssignmentHandlers:
    """Handlers of `/assignments`. A change is made of the newest version, or not at all."""

    def __init__(self, settings: SettingsStore, topics: ClusterTopics) -> None:
        self._settings, self._topics = settings, topics

    def operations(self) -> list[ControlOperation]:
        """Return the operations on key ranges of client ids."""
        everything = partial(ControlOperation, path="/assignments", has_version=True)
        one = partial(ControlOperation, path="/assignments/{client_id}", has_version=True)
        examples = {"assignments": {"billing-0": [PART]}}
        return [
            everything(
                method="GET", handler=self._get_all, answer=models.AssignmentsOut,
                summary="All assignments",
            ),
            everything(
                method="PUT", handler=self._replace, answer=models.AssignmentsOut,
                body=models.AssignmentsIn, example=examples, problems=GUARDED,
                summary="Put these assignments in the place of all that there are",
            ),
            everything(
                method="PATCH", handler=self._update, answer=models.AssignmentsOut,
                body=models.AssignmentsPatch, example=examples, problems=GUARDED,
                summary="Set and delete assignments of a set of clients, all at once",
            ),
            everything(
                method="DELETE", handler=self._clear, problems=DELETE,
                summary="Delete all assignments",
            ),
            one(
                method="GET", handler=self._get, answer=models.AssignmentOut, problems=READ,
                summary="The assignment of one client",
            ),
            one(
                method="PUT", handler=self._set, answer=models.AssignmentOut,
                body=models.AssignmentIn, example={"assignment": [PART]}, problems=GUARDED,
                summary="Give one client its assignment",
            ),
            one(
                method="DELETE", handler=self._delete, problems=(*DELETE, HTTPStatus.NOT_FOUND),
                summary="Delete the assignment of one client",
            ),
        ]  # fmt: skip

    async def _get_all(self, _request: web.Request) -> web.Response:
        return _answer_all(self._settings.assignments.table)

    async def _replace(self, request: web.Request) -> web.Response:
        body = await read_body(request, models.AssignmentsIn)
        return _answer_all(await self._change(request, _Changes(body.assignments), replaces=True))

    async def _update(self, request: web.Request) -> web.Response:
        body = await read_body(request, models.AssignmentsPatch)
        return _answer_all(await self._change(request, _Changes(body.assignments)))

    async def _clear(self, request: web.Request) -> web.Response:
        table = await self._change(request, _Changes({}), replaces=True)
        return answer_deleted(table.version)

    async def _get(self, request: web.Request) -> web.Response:
        client_id = read_name(request, "client_id", CLIENT_ID)
        return _answer_one(self._settings.assignments.table, client_id)

    async def _set(self, request: web.Request) -> web.Response:
        client_id = read_name(request, "client_id", CLIENT_ID)
        body = await read_body(request, models.AssignmentIn)
        changes = _Changes({client_id: body.assignment}, ("assignment",))
        table = await self._change(request, changes)
        return _answer_one(table, client_id)

    async def _delete(self, request: web.Request) -> web.Response:
        client_id = read_name(request, "client_id", CLIENT_ID)
        if client_id not in self._settings.assignments.table.clients:
            raise _no_client(client_id)
        table = await self._change(request, _Changes({client_id: None}))
        return answer_deleted(table.version)

    async def _change(
        self, request: web.Request, changes: _Changes, *, replaces: bool = False
    ) -> RangeTable:
        """Check what can be checked, then write."""
        before = self._settings.assignments.table
        check_version(request, before.version, is_needed=bool(before.clients))
        wanted: dict[str, Assignment | None] = {
            client: None if parts is None else read_parts(parts, changes.place(client))
            for client, parts in changes.by_client.items()
        }
        for client, parts in changes.by_client.items():
            await self._check_parts(client, parts or (), changes.place(client))

        def decide(table: RangeTable) -> Mapping[str, Assignment | None]:
            check_version(request, table.version, is_needed=bool(table.clients))
            return {**dict.fromkeys(table.clients), **wanted} if replaces else wanted

        try:
            after = await self._settings.change_assignments(decide)
        except RangesOverlap as error:
            field, conflict = changes.locate(error, "ranges"), _conflict(error)
            raise Problem(HTTPStatus.CONFLICT, str(error), field=field, conflict=conflict) from None
        except AssignmentInvalid as error:
            field = changes.locate(error)
            raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), field=field) from None
        report(request, "assignments", after.version, sorted({*wanted}), replaces=replaces)
        return after

    async def _check_parts(self, client_id: str, parts: Sequence[Part], place: Place) -> None:
        """Compare with the cluster and the switches. Raises: Problem, UpstreamLost."""
        for index, part in enumerate(parts):
            where = (*place, index)
            if part.topic.startswith("__") or self._topics.is_lane_name(part.topic):
                kind = "internal" if part.topic.startswith("__") else "lanes of another topic"
                raise _unprocessable(f"topic {part.topic} is {kind}", *where, "topic")
            count = await self._topics.partition_count(part.topic, at_least=part.partition + 1)
            if count is None:
                raise _unprocessable(f"there is no topic {part.topic}", *where, "topic")
            if part.partition >= count:
                detail = f"topic {part.topic} has the partitions 0 to {count - 1}"
                raise _unprocessable(detail, *where, "partition")
            merged = merge_ranges(KeyRange(lo, hi) for lo, hi in part.ranges)
            if merged not in {(), WHOLE}:
                self._check_switches(client_id, part.topic, (*where, "ranges"))

    def _check_switches(self, client_id: str, topic: str, where: Place) -> None:
        """A part of a partition needs the topic's and the client's permission."""
        switches = self._settings.switches
        if not switches.accepts_range_fetch(topic):
            detail = f"{ACCEPT_RANGE_FETCH} of topic {topic} is off"
            raise Problem(HTTPStatus.CONFLICT, detail, field=pointer(*where))
        if not switches.allows_individual_commit(client_id):
            detail = f"{ALLOW_INDIVIDUAL_COMMIT} of client {client_id!r} is off"
            raise Problem(HTTPStatus.CONFLICT, detail, field=pointer(*where))


def read_parts(parts: Sequence[Part], place: Place) -> Assignment:
    """An assignment of one client. Raises: Problem, where it makes no sense."""
    assignment: dict[str, dict[int, list[KeyRange]]] = {}
    for index, part in enumerate(parts):
        partitions = assignment.setdefault(part.topic, {})
        if part.partition in partitions:
            detail = f"topic {part.topic} partition {part.partition} stands twice"
            raise _unprocessable(detail, *place, index, "partition")
        partitions[part.partition] = []
        for number, (lo, hi) in enumerate(part.ranges):
            where = (*place, index, "ranges", number)
            if hi > HASH_MAX:
                raise _unprocessable(f"{hi} is beyond the hash space, 2^63-1", *where, 1)
            if lo > hi:
                detail = f"the range is inverted: its first hash {lo} is behind its last {hi}"
                raise _unprocessable(detail, *where)
            partitions[part.partition].append(KeyRange(lo, hi))
    return assignment


def show_parts(parts: Parts) -> list[dict[str, Any]]:
    """An assignment as JSON."""
    return [
        {
            "topic": topic,
            "partition": partition,
            "ranges": [[str(part.lo), str(part.hi)] for part in ranges],
        }
        for topic, partitions in parts.items()
        for partition, ranges in partitions.items()
    ]


def _answer_all(table: RangeTable) -> web.Response:
    assignments = {client: show_parts(parts) for client, parts in table.clients.items()}
    return answer(table.version, {"assignments": assignments})


def _answer_one(table: RangeTable, client_id: str) -> web.Response:
    parts = table.clients.get(client_id)
    if parts is None:
        raise _no_client(client_id)
    return answer(table.version, {"client_id": client_id, "assignment": show_parts(parts)})


def _no_client(client_id: str) -> Problem:
    return Problem(
        HTTPStatus.NOT_FOUND, f"client {client_id!r} has no assignment", field="client_id"
    )


def _unprocessable(detail: str, *place: str | int) -> Problem:
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, detail, field=pointer(*place))


def _conflict(error: RangesOverlap) -> dict[str, Any]:
    return {
        "client_id": error.other_client_id,
        "topic": error.topic,
        "partition": error.partition,
        "range": [str(bound) for bound in error.other_range],
    }
