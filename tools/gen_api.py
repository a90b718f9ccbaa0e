"""Write docs/reference/api.md: the calls of the control port, from its OpenAPI document."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from keylane.proxy.control.api.openapi import describe
from keylane.proxy.control.api.problems import PROBLEM_JSON
from tests.reference.control_port import control_port

HEAD: Final = """# Control API

Every call of the [control port](../control-api.md), which explains what they are for and has
examples with `curl`. A running node has the same as OpenAPI 3.1 at `GET /openapi.json`.
Errors are problem documents (RFC 9457): `title`, `detail`, and the `field` that is wrong.
With tokens, a reader may call the paths with GET, an admin all of them; probes need none.

"""


def api() -> str:
    """Return the page."""
    document = asyncio.run(_document())
    parts = [HEAD, _index(document), "## Calls\n\n"]
    for path, methods in sorted(document["paths"].items()):
        parts += [_call(path, method, entry) for method, entry in methods.items()]
    parts.append("## Types\n\n")
    schemas = document["components"]["schemas"]
    parts += [f"### {name}\n\n{_type(schema)}\n" for name, schema in sorted(schemas.items())]
    return "".join(parts).rstrip() + "\n"


async def _document() -> dict[str, Any]:
    async with control_port() as port:
        return describe(port.server.operations)


def _index(document: Mapping[str, Any]) -> str:
    rows = [
        f"| [`{method.upper()} {path}`](#{_anchor(f'{method} {path}')}) | {entry['summary']} |\n"
        for path, methods in sorted(document["paths"].items())
        for method, entry in methods.items()
    ]
    return "| call | what it does |\n|---|---|\n" + "".join(rows) + "\n"


def _call(path: str, method: str, entry: Mapping[str, Any]) -> str:
    """Return the section of one method of one path."""
    lines = [f"### {method.upper()} {path}\n", f"{entry['summary']}.\n"]
    if entry.get("parameters"):
        lines.append("| parameter | in | type | meaning |\n|---|---|---|---|")
        lines += [
            f"| `{each['name']}` | {each['in']} | {_name(each['schema'])} | {_meaning(each)} |"
            for each in entry["parameters"]
        ]
        lines[-1] += "\n"
    if "requestBody" in entry:
        for media, content in entry["requestBody"]["content"].items():
            lines.append(f"Body, `{media}`: {_name(content['schema'])}.\n")
            if content.get("example"):
                lines.append(f"```json\n{json.dumps(content['example'], indent=2)}\n```\n")
    problems = []
    lines.append("| status | answer |\n|---|---|")
    for status, answer in entry["responses"].items():
        text = answer["description"].rstrip(".")
        content = answer.get("content", {})
        if PROBLEM_JSON in content:
            problems.append(f"{status} {text}")
        else:
            kinds = [f"`{media}`: {_name(each['schema'])}" for media, each in content.items()]
            lines.append(f"| {status} | {'; '.join([text, *kinds])} |")
    if problems:
        lines.append(f"\nProblems: {', '.join(problems)}.")
    return "\n".join(lines) + "\n\n"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def _meaning(parameter: Mapping[str, Any]) -> str:
    text = parameter.get("description") or parameter["schema"].get("description") or ""
    return str(text).replace("|", "\\|")


def _type(schema: Mapping[str, Any]) -> str:
    """Return what a named type is: its fields, or its bounds."""
    text = f"{schema['description'].strip()}\n\n" if schema.get("description") else ""
    fields = schema.get("properties")
    if not fields:
        return f"{text}{_name(schema)}\n"
    needed = set(schema.get("required", ()))
    rows = [
        f"| `{name}` | {_name(each)} | {'yes' if name in needed else 'no'} |"
        f" {_meaning({'schema': each})} |\n"
        for name, each in fields.items()
    ]
    return f"{text}| field | type | required | meaning |\n|---|---|---|---|\n{''.join(rows)}"


def _name(schema: Mapping[str, Any]) -> str:
    """Return a type in words, with a link where it has a section."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return " or ".join(dict.fromkeys(_name(each) for each in schema[choice]))
    return " ".join(_words(schema)) or "anything"


def _words(schema: Mapping[str, Any]) -> Iterator[str]:
    """Give the words of a type without a name."""
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        yield " or ".join(f"`{json.dumps(value)}`" for value in values)
        return
    kind = schema.get("type", "")
    yield str(kind)
    if kind == "array" and "prefixItems" in schema:
        yield "of " + ", ".join(_name(each) for each in schema["prefixItems"])
    elif kind == "array" and schema.get("items"):
        yield f"of {_name(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        yield f"of names to {_name(schema['additionalProperties'])}"
    bounds = [
        f"{word} {schema[key]}"
        for key, word in (("minimum", "from"), ("maximum", "to"), ("maxLength", "up to"))
        if key in schema
    ]
    if bounds:
        yield f"({' '.join(bounds)})"
