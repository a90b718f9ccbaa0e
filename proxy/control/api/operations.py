"""Description of what the control port serves: routes and the OpenAPI document are made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel

from keylane.proxy.control.api import models
from keylane.proxy.control.api.problems import Handler

NAMES: Final[Mapping[str, Any]] = {
    "client_id": models.ClientId,
    "topic": models.Topic,
    "group": models.GroupName,
    "key": models.KeyText,
    "number": models.NodeNumber,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryParameter:
    """One parameter behind the `?`; none of them is required."""

    name: str
    kind: Any
    """Type of its value, as pydantic has it."""
    description: str


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
    """True: it needs no token (`auth.OPEN`)."""
    query: Sequence[QueryParameter] = ()
    body: type[BaseModel] | None = None
    example: Mapping[str, Any] = field(default_factory=dict)
    answer: Any = None
    """Type of the answer; None: it has no body."""
    media_type: str = "application/json"
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
