"""Errors as problem documents: whatever goes wrong, the body says what, and where.

Source: RFC 9457 (problem details), RFC 6901 (JSON pointer).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

from aiohttp import web

from keylane.errors import NotCoordinator, SettingsUnsaved, UpstreamLost

log = logging.getLogger("keylane.control")

PROBLEM_JSON: Final = "application/problem+json"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Problem(Exception):
    """A request that is not served, and why."""

    def __init__(
        self,
        status: HTTPStatus,
        detail: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """`field` names the place: a JSON pointer into the body, or the name of a parameter."""
        super().__init__(detail)
        self.status, self.detail, self.field = status, detail, field
        self.headers, self.more = dict(headers or {}), more


def pointer(*parts: str | int) -> str:
    """A JSON pointer to a place in the body."""
    escaped = (str(part).replace("~", "~0").replace("/", "~1") for part in parts)
    return "".join(f"/{part}" for part in escaped)


@web.middleware
async def answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Serve; make a problem document of what goes wrong."""
    try:
        return await handler(request)
    except Problem as problem:
        return render(problem)
    except (SettingsUnsaved, UpstreamLost, NotCoordinator) as error:
        more = {}
        if isinstance(error, SettingsUnsaved):
            more["outcome"] = "unknown" if error.is_unknown else "unchanged"
        unavailable = HTTPStatus.SERVICE_UNAVAILABLE
        return render(Problem(unavailable, str(error), headers={"Retry-After": "1"}, **more))
    except web.HTTPException as error:
        return render(_of_aiohttp(request, error))
    except Exception:
        # The path of the route: a path may have a record's key.
        resource = request.match_info.route.resource
        path = "-" if resource is None else resource.canonical
        log.exception("control request failed method=%s path=%s", request.method, path)
        return render(
            Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "a mistake of keylane; see its log")
        )


def render(problem: Problem) -> web.Response:
    """The document of a problem."""
    document: dict[str, Any] = {
        "type": "about:blank",
        "title": problem.status.phrase,
        "status": problem.status.value,
        "detail": problem.detail,
    }
    if problem.field is not None:
        document["field"] = problem.field
    return web.Response(
        text=json.dumps(document | problem.more),
        status=problem.status.value,
        headers=problem.headers,
        content_type=PROBLEM_JSON,
    )


def _of_aiohttp(request: web.Request, error: web.HTTPException) -> Problem:
    headers = {name: error.headers[name] for name in ("Allow",) if name in error.headers}
    details = {
        404: f"{request.path} is nothing here; GET /openapi.json lists what is",
        405: f"{request.method} is not for {request.path}",
        413: "the body is too large",
    }
    detail = details.get(error.status, error.reason)
    return Problem(HTTPStatus(error.status), detail, headers=headers)
