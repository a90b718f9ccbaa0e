"""Requests within bounds: bodies, parameters, preconditions; answers with their version.

Source: RFC 9110 (13.1.1 If-Match, 8.8.3 ETag), RFC 6585 (428).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from http import HTTPStatus
from typing import Any, Final, TypeVar

from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from keylane.proxy.control.api.operations import QueryParameter
from keylane.proxy.control.api.problems import Problem, pointer
from keylane.wire.bounded_json import JsonInvalid, NameTwice, read_json

log = logging.getLogger("keylane.control")

BODY_BYTES_MAX: Final = 4 * 1024**2
"""Twice of what the largest table takes."""
BODY_DEPTH_MAX: Final = 16
"""More than twice what the deepest body needs."""
BODY_TIMEOUT_S: Final = 30.0
ERRORS_SHOWN: Final = 20
NAMES_SHOWN: Final = 20
NAME_CHARS_SHOWN: Final = 50
JSON: Final = "application/json"
IF_MATCH: Final = "If-Match"
ANY_VERSION: Final = "*"
ENTITY_TAG: Final = r'(?:(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"|[0-9]+)'
"""A bare number passes for one: quotes inside quotes are what a shell makes people forget."""
ENTITY_TAGS: Final = re.compile(rf"\s*{ENTITY_TAG}(?:\s*,\s*{ENTITY_TAG})*\s*")

Model = TypeVar("Model", bound=BaseModel)


async def read_body(request: web.Request, model: type[Model]) -> Model:
    """Read, parse and check a body.

    Raises: Problem, with the place where the body does not fit.
    """
    if request.content_type != JSON:
        detail = f"the body is {request.content_type}, expected {JSON}"
        raise Problem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            detail,
            field="Content-Type",
            headers={"Accept": JSON},
        )
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            body = await request.read()
    except (ConnectionError, web.RequestPayloadError):
        raise Problem(HTTPStatus.BAD_REQUEST, "the body did not come to its end") from None
    except TimeoutError:
        raise Problem(HTTPStatus.REQUEST_TIMEOUT, "the body did not come in time") from None
    value = _parse(body)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        errors = [
            {"field": _pointer(found["loc"]), "detail": found["msg"].removeprefix("Value error, ")}
            for found in error.errors(include_url=False, include_input=False)[:ERRORS_SHOWN]
        ]
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            f"{errors[0]['field'] or 'the body'}: {errors[0]['detail']}",
            field=errors[0]["field"],
            errors=errors,
        ) from None


def read_name(request: web.Request, name: str, pattern: re.Pattern[str]) -> str:
    """A parameter of the path. Raises: Problem."""
    value = request.match_info[name]
    if pattern.fullmatch(value) is None:
        raise Problem(HTTPStatus.BAD_REQUEST, f"no legal {name}", field=name)
    return value


def read_query(request: web.Request, parameters: Sequence[QueryParameter]) -> dict[str, Any]:
    """Return the values behind the `?`, without those that were left out. Raises: Problem."""
    known = {each.name: each for each in parameters}
    found: dict[str, Any] = {}
    for name, text in request.query.items():
        if name not in known:
            names = ", ".join(known) or "none"
            detail = f"unknown parameter {name[:NAME_CHARS_SHOWN]}, this path takes: {names}"
            raise Problem(HTTPStatus.BAD_REQUEST, detail, field=name[:NAME_CHARS_SHOWN])
        if name in found:
            raise Problem(HTTPStatus.BAD_REQUEST, f"{name} stands there twice", field=name)
        try:
            found[name] = TypeAdapter(known[name].kind).validate_strings(text)
        except ValidationError as error:
            said = error.errors(include_url=False, include_input=False)[0]["msg"]
            raise Problem(HTTPStatus.BAD_REQUEST, f"{name}: {said}", field=name) from None
    return found


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as they are: `asdict` copies each number inside them.

    As `default` of `json.dumps` it gives the same text as `asdict`. Raises: TypeError, it is none.
    """
    return {field.name: getattr(value, field.name) for field in fields(value)}


def entity_tag(version: int) -> str:
    """Return the ETag of a version."""
    return f'"{version}"'


def answer(version: int, values: Mapping[str, Any]) -> web.Response:
    """Answer with a version, and with the values that it has."""
    document = {"version": version, **values}
    return web.json_response(document, headers={"ETag": entity_tag(version)})


def answer_deleted(version: int) -> web.Response:
    """Answer with the version after a deletion, and without a body."""
    return web.Response(status=HTTPStatus.NO_CONTENT, headers={"ETag": entity_tag(version)})


def report(
    request: web.Request, what: str, version: int, names: Sequence[str], *, replaces: bool = False
) -> None:
    """Log one line per change: its maker, its names, its version; no contents."""
    shown = ",".join(map(repr, names[:NAMES_SHOWN]))
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    log.info(
        "%s %s by=%s version=%d names=%s%s",
        what, "replaced" if replaces else "changed", request.remote, version, shown or "none", more,
    )  # fmt: skip


def check_version(request: web.Request, version: int, *, is_needed: bool) -> None:
    """Compare If-Match with the version that would be changed.

    Raises: Problem: 428 when it is needed and missing, 412 when it is another, 400 for nonsense.
    """
    wanted = request.headers.get(IF_MATCH)
    if wanted is None:
        if is_needed:
            raise Problem(
                HTTPStatus.PRECONDITION_REQUIRED,
                f"name the version that you change: {IF_MATCH}: {entity_tag(version)}, as in GET",
                field=IF_MATCH,
                headers={"ETag": entity_tag(version)},
            )
        return
    if wanted.strip() == ANY_VERSION:
        return
    if ENTITY_TAGS.fullmatch(wanted) is None:
        raise Problem(HTTPStatus.BAD_REQUEST, f"{IF_MATCH} is no entity tag", field=IF_MATCH)
    if not {entity_tag(version), str(version)} & set(re.findall(ENTITY_TAG, wanted)):
        raise Problem(
            HTTPStatus.PRECONDITION_FAILED,
            f"the version is {version} by now, read it again",
            field=IF_MATCH,
            headers={"ETag": entity_tag(version)},
        )


def _parse(body: bytes) -> Any:
    try:
        return read_json(body, bytes_max=BODY_BYTES_MAX, depth_max=BODY_DEPTH_MAX)
    except NameTwice as error:
        raise Problem(HTTPStatus.BAD_REQUEST, str(error), field="") from None
    except JsonInvalid:  # bad UTF-8, and what is nested too deep, too
        raise Problem(HTTPStatus.BAD_REQUEST, "the body is no JSON", field="") from None


def _pointer(location: tuple[str | int, ...]) -> str:
    # pydantic says "[key]" where the name of an object's member is wrong, not its value.
    return pointer(*(part for part in location if part != "[key]"))
