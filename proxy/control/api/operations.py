"""THE table of what the control port serves: routes and their description are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel

from keylane.proxy.control.api import models
from keylane.proxy.control.api.assignments import AssignmentHandlers
from keylane.proxy.control.api.problems import Handler
from keylane.proxy.control.api.switches import SwitchHandlers
from keylane.proxy.control.describe import GroupReport

NAMES: Final[Mapping[str, Any]] = {
    "client_id": models.ClientId,
    "topic": models.Topic,
    "group": models.GroupName,
}
"""Parameters of paths, by name."""
READ: Final = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)
WRITE: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.PRECONDITION_FAILED,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    HTTPStatus.UNPROCESSABLE_ENTITY,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
GUARDED: Final = (*WRITE, HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_REQUIRED)
DELETE: Final = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.PRECONDITION_FAILED,
    HTTPStatus.PRECONDITION_REQUIRED,
    HTTPStatus.SERVICE_UNAVAILABLE,
)
JSON: Final = "application/json"
PART: Final = {"topic": "orders", "partition": 0, "ranges": [["0", "4611686018427387902"]]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOperation:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    summary: str
    problems: Sequence[HTTPStatus] = ()
    """Problems that it may answer, beside 405; where tokens are needed, 401 and 403 as well."""
    is_open: bool = False
    """True: it needs no token (`control_auth.OPEN`)."""
    body: type[BaseModel] | None = None
    example: Mapping[str, Any] = field(default_factory=dict)
    answer: Any = None
    """Type of the answer; None: it has no body."""
    media_type: str = JSON
    plain: Sequence[HTTPStatus] = ()
    """Other answers of the same type."""
    has_version: bool = False
    """True: the answer has an ETag."""

    @property
    def takes_version(self) -> bool:
        """Return whether If-Match is looked at."""
        return self.has_version and self.method != "GET"

    @property
    def status(self) -> HTTPStatus:
        """Of success."""
        return HTTPStatus.OK if self.answer is not None else HTTPStatus.NO_CONTENT

    @property
    def parameters(self) -> tuple[str, ...]:
        """Names in the path."""
        parts = self.path.split("/")
        return tuple(part[1:-1] for part in parts if part.startswith("{"))


def status_operations(
    *,
    health: Handler,
    alive: Handler,
    ready: Handler,
    metrics: Handler,
    group: Handler,
    description: Handler,
) -> list[ControlOperation]:
    """Operations that change nothing."""
    return [
        ControlOperation(
            method="GET", path="/healthz", handler=health, is_open=True, answer=str,
            summary="Whether the proxy serves", media_type="text/plain",
        ),
        ControlOperation(
            method="GET", path="/livez", handler=alive, is_open=True, answer=str,
            summary="Whether the process is alive", media_type="text/plain",
        ),
        ControlOperation(
            method="GET", path="/readyz", handler=ready, is_open=True, answer=str,
            summary="Whether clients may come", media_type="text/plain",
            plain=(HTTPStatus.SERVICE_UNAVAILABLE,),
        ),
        ControlOperation(
            method="GET", path="/metrics", handler=metrics, summary="Statistics for Prometheus",
            answer=str, media_type="text/plain",
        ),
        ControlOperation(
            method="GET", path="/openapi.json", handler=description, summary="This document",
            answer=dict[str, Any],
        ),
        ControlOperation(
            method="GET", path="/groups/{group}", handler=group, answer=GroupReport,
            summary="Members of a group: their lanes, pace and lag",
            problems=(*READ, HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.SERVICE_UNAVAILABLE),
        ),
    ]  # fmt: skip


def assignment_operations(handlers: AssignmentHandlers) -> list[ControlOperation]:
    """Key ranges of client ids."""
    everything = partial(ControlOperation, path="/assignments", has_version=True)
    one = partial(ControlOperation, path="/assignments/{client_id}", has_version=True)
    examples = {"assignments": {"billing-0": [PART]}}
    return [
        everything(
            method="GET", handler=handlers.get_all, answer=models.AssignmentsOut,
            summary="All assignments",
        ),
        everything(
            method="PUT", handler=handlers.replace, answer=models.AssignmentsOut,
            body=models.AssignmentsIn, example=examples, problems=GUARDED,
            summary="Put these assignments in the place of all that there are",
        ),
        everything(
            method="PATCH", handler=handlers.update, answer=models.AssignmentsOut,
            body=models.AssignmentsPatch, example=examples, problems=GUARDED,
            summary="Set and delete assignments of a set of clients, all at once",
        ),
        everything(
            method="DELETE", handler=handlers.clear, problems=DELETE,
            summary="Delete all assignments",
        ),
        one(
            method="GET", handler=handlers.get, answer=models.AssignmentOut, problems=READ,
            summary="The assignment of one client",
        ),
        one(
            method="PUT", handler=handlers.set, answer=models.AssignmentOut,
            body=models.AssignmentIn, example={"assignment": [PART]}, problems=GUARDED,
            summary="Give one client its assignment",
        ),
        one(
            method="DELETE", handler=handlers.delete, problems=(*DELETE, HTTPStatus.NOT_FOUND),
            summary="Delete the assignment of one client",
        ),
    ]  # fmt: skip


def switch_operations(handlers: SwitchHandlers) -> list[ControlOperation]:
    """Return what is allowed."""
    everything = partial(ControlOperation, path="/switches", has_version=True)
    topic = partial(ControlOperation, path="/switches/topics/{topic}", has_version=True)
    client = partial(ControlOperation, path="/switches/clients/{client_id}", has_version=True)
    return [
        everything(
            method="GET", handler=handlers.get_all, answer=models.SwitchesOut,
            summary="All switches that are set",
        ),
        everything(
            method="PUT", handler=handlers.replace, answer=models.SwitchesOut,
            body=models.SwitchesIn, problems=GUARDED,
            example={"accept.individual.commit": True, "accept.range.fetch": {"orders": False}},
            summary="Set these switches, and leave all others to the configuration",
        ),
        topic(
            method="GET", handler=handlers.get_topic, answer=models.TopicSwitchOut,
            problems=(HTTPStatus.BAD_REQUEST,),
            summary="Whether parts of a topic's partitions may be fetched",
        ),
        topic(
            method="PUT", handler=handlers.set_topic, answer=models.TopicSwitchOut,
            body=models.TopicSwitchIn, example={"accept.range.fetch": True}, problems=WRITE,
            summary="Set the switch of a topic; null leaves it to the configuration",
        ),
        client(
            method="GET", handler=handlers.get_client, answer=models.ClientSwitchOut,
            problems=(HTTPStatus.BAD_REQUEST,),
            summary="Whether a client takes parts of partitions",
        ),
        client(
            method="PUT", handler=handlers.set_client, answer=models.ClientSwitchOut,
            body=models.ClientSwitchIn, example={"allow.individual.commit": False}, problems=WRITE,
            summary="Set the switch of a client; null leaves it to the configuration",
        ),
    ]  # fmt: skip
