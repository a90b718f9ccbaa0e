"""The OpenAPI document of the control port, made of its table of operations and its models.

Source: OpenAPI 3.1.0, whose schemas are JSON Schema 2020-12, as pydantic writes them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from pydantic import TypeAdapter

from keylane import __version__
from keylane.proxy.control.api.models import ProblemOut
from keylane.proxy.control.api.operations import NAMES, ControlOperation
from keylane.proxy.control.api.problems import PROBLEM_JSON

REFERENCE: Final = "#/components/schemas/{model}"
ETAG: Final = {
    "description": "The version that was read or made.",
    "required": True,
    "schema": {"type": "string", "pattern": '^"[0-9]+"$'},
}
IF_MATCH: Final = {
    "name": "If-Match",
    "in": "header",
    "required": False,
    "description": "ETag of the version that is changed; needed as soon as there is something to"
    " lose. `*` is any version.",
    "schema": {"type": "string", "pattern": r'^(\*|"[0-9]{1,15}")$'},
    "example": "*",
}
REFUSED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
SECURITY_SCHEMES: Final = {
    "token": {"type": "http", "scheme": "bearer"},
    "certificate": {"type": "mutualTLS"},
}
"""Asked for where tokens are configured."""
DESCRIPTION: Final = (
    "Health, statistics, groups; which client id reads which key ranges; what is allowed."
    " Errors are problem documents (RFC 9457)."
)


def describe(operations: Sequence[ControlOperation]) -> dict[str, Any]:
    """The document. Operations are in it in their order."""
    shapes = _Schemas()
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        entry: dict[str, Any] = {
            "operationId": _operation_id(operation),
            "summary": operation.summary,
            "responses": _responses(operation, shapes),
        }
        parameters = [
            {"name": name, "in": "path", "required": True, "schema": shapes.of(NAMES[name])}
            for name in operation.parameters
        ]
        parameters += [
            {
                "name": each.name,
                "in": "query",
                "required": False,
                "description": each.description,
                "schema": shapes.of(each.kind),
            }
            for each in operation.query
        ]
        if operation.takes_version:
            parameters.append(IF_MATCH)
        if parameters:
            entry["parameters"] = parameters
        if operation.body is not None:
            media = {"schema": shapes.of(operation.body), "example": dict(operation.example)}
            entry["requestBody"] = {"required": True, "content": {"application/json": media}}
        paths.setdefault(operation.path, {})[operation.method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "keylane control port",
            "version": __version__,
            "description": DESCRIPTION,
        },
        "paths": paths,
        "components": {"schemas": shapes.components, "securitySchemes": SECURITY_SCHEMES},
        "security": [{}, *({name: []} for name in SECURITY_SCHEMES)],
    }


def _operation_id(operation: ControlOperation) -> str:
    words = re.findall(r"[a-z]+", f"{operation.method} {operation.path}".lower())
    return "_".join(words)


def _responses(operation: ControlOperation, shapes: _Schemas) -> dict[str, Any]:
    done: dict[str, Any] = {"description": "Done."}
    if operation.answer is not None:
        schema = shapes.of(operation.answer, mode="serialization")
        done["content"] = {operation.media_type: {"schema": schema}}
    if operation.has_version:
        done["headers"] = {"ETag": ETAG}
    others = {
        str(status.value): {**done, "description": status.phrase} for status in operation.plain
    }
    problem = {"schema": shapes.of(ProblemOut, mode="serialization")}
    refusals = {
        str(status.value): {"description": status.phrase, "content": {PROBLEM_JSON: problem}}
        for status in sorted((*operation.problems, *(() if operation.is_open else REFUSED)))
    }
    return {str(operation.status.value): done, **others, **refusals}


class _Schemas:
    """Schemas of types; named ones stand in `components` once."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}

    def of(self, kind: Any, *, mode: Any = "validation") -> dict[str, Any]:
        """The schema of a type, a reference where it has a name."""
        schema = TypeAdapter(kind).json_schema(mode=mode, ref_template=REFERENCE)
        self.components |= schema.pop("$defs", {})
        name = getattr(kind, "__name__", "")
        if schema.get("title") == name and schema.get("type") == "object":
            self.components[name] = schema
            return {"$ref": REFERENCE.format(model=name)}
        return schema
