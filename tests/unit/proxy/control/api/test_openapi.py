"""proxy/control/api/openapi.py: the document has every route, and all that it refers to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import aiohttp

from keylane.proxy.control.api.openapi import describe
from keylane.proxy.control.auth import OPEN
from tests.reference.control_port import control_port

PATHS = {
    "/assignments": {"get", "put", "patch", "delete"},
    "/assignments/{client_id}": {"get", "put", "delete"},
    "/cluster": {"get"},
    "/config": {"get"},
    "/events": {"get"},
    "/groups": {"get"},
    "/groups/{group}": {"get"},
    "/groups/{group}/rebalance": {"post"},
    "/groups/{group}/reset-offsets": {"post"},
    "/history": {"get"},
    "/healthz": {"get"},
    "/livez": {"get"},
    "/metrics": {"get"},
    "/nodes/{number}/drain": {"get", "post", "delete"},
    "/openapi.json": {"get"},
    "/readyz": {"get"},
    "/switches": {"get", "put"},
    "/switches/clients/{client_id}": {"get", "put"},
    "/switches/topics/{topic}": {"get", "put"},
    "/topics": {"get"},
    "/topics/{topic}/keys/{key}": {"get"},
}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


async def test_what_is_served_is_described() -> None:
    """The document that is served has each path and method, and no reference leads nowhere."""
    async with control_port() as port, aiohttp.ClientSession() as session:
        async with session.get(f"{port.url}/openapi.json") as answer:
            document = await answer.json()

        assert {path: set(methods) for path, methods in document["paths"].items()} == PATHS
        assert document == json.loads(json.dumps(describe(port.server.operations)))
        names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
        assert set(references(document)) == names
        ids = [
            entry["operationId"] for methods in document["paths"].values() for entry in
            methods.values()
        ]  # fmt: skip
        assert len(set(ids)) == len(ids) == len(port.server.operations)
        open_paths = {each.path for each in port.server.operations if each.is_open}
        assert open_paths == OPEN


async def test_probes_and_statistics_are_text() -> None:
    """/readyz is 503 before the listeners serve; /metrics is what Prometheus reads."""
    async with control_port() as port, aiohttp.ClientSession() as session:
        for path, status in (("/healthz", 200), ("/livez", 200), ("/readyz", 503)):
            async with session.get(port.url + path) as answer:
                assert (answer.status, answer.content_type) == (status, "text/plain")
        port.health.serves()
        async with session.get(f"{port.url}/readyz") as answer:
            assert answer.status == 200
        async with session.get(f"{port.url}/metrics") as answer:
            assert "keylane_" in await answer.text()


async def test_a_group_is_described_where_it_is_served() -> None:
    """Another node is named, but for a share group that has windows here."""
    async with control_port() as port, aiohttp.ClientSession() as session:
        port.nodes["billing"] = "http://node-2:9100"
        async with session.get(f"{port.url}/groups/billing", allow_redirects=False) as answer:
            assert answer.status == 307
            assert answer.headers["Location"] == "http://node-2:9100/groups/billing"
        port.open_shares.add("billing")
        async with session.get(f"{port.url}/groups/billing", allow_redirects=False) as answer:
            assert answer.status == 200
            assert (await answer.json())["share"] is None
