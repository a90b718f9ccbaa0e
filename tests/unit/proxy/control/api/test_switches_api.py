"""proxy/control/api: switches over HTTP; what is set goes before what is configured."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.reference.control_port import ControlPort, control_port


@pytest.fixture
async def port() -> AsyncIterator[ControlPort]:
    """A separate port for each test."""
    async with control_port(refuse_individual_commit=("audit-*",)) as opened:
        yield opened


async def call(
    port: ControlPort, method: str, path: str, body: Any = None, *, version: int | None = None
) -> tuple[int, Any]:
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, port.url + path, json=body, headers=headers) as answer,
    ):
        reported = await answer.json()
        if answer.status == 200:
            assert answer.headers["ETag"] == f'"{reported["version"]}"'
        return answer.status, reported


async def test_all_switches_are_set_and_given_back(port: ControlPort) -> None:
    """PUT sets all; what it leaves out is as configured again."""
    body = {
        "accept.individual.commit": False,
        "accept.range.fetch": {"orders": False},
        "allow.individual.commit": {"audit-1": True},
    }

    status, reported = await call(port, "PUT", "/switches", body)

    assert (status, reported["version"]) == (200, 1)
    assert reported == (await call(port, "GET", "/switches"))[1]
    assert reported == {"version": 1, **body, "configured": {"accept.individual.commit": True}}
    assert not port.switches.accepts_individual_commit
    assert not port.switches.accepts_range_fetch("orders", is_lane_view=True)
    assert port.switches.allows_individual_commit("audit-1")
    assert (await call(port, "PUT", "/switches", {}))[0] == 428
    assert (await call(port, "PUT", "/switches", {}, version=0))[0] == 412
    assert (await call(port, "PUT", "/switches", {}, version=1))[1]["version"] == 2
    assert port.switches.current.is_empty and port.switches.accepts_individual_commit


async def test_the_switch_of_a_topic(port: ControlPort) -> None:
    """It is flipped and given back without a version; one that is given has to fit."""
    path = "/switches/topics/orders"
    assert (await call(port, "GET", path))[1] == {
        "version": 0, "topic": "orders", "accept.range.fetch": True, "is_set": False,
    }  # fmt: skip

    off = await call(port, "PUT", path, {"accept.range.fetch": False})
    again = await call(port, "PUT", path, {"accept.range.fetch": False})

    reported = {"version": 1, "topic": "orders", "accept.range.fetch": False, "is_set": True}
    assert off == again == (200, reported), "no change, no version"
    assert (await call(port, "PUT", path, {"accept.range.fetch": True}, version=7))[0] == 412
    status, reported = await call(port, "PUT", path, {"accept.range.fetch": None}, version=1)
    assert (status, reported["accept.range.fetch"], reported["is_set"]) == (200, True, False)
    assert port.switches.current.is_empty


async def test_the_switch_of_a_client(port: ControlPort) -> None:
    """As configured by a glob, set otherwise, and given back."""
    path = "/switches/clients/audit-1"
    assert (await call(port, "GET", path))[1]["allow.individual.commit"] is False

    status, reported = await call(port, "PUT", path, {"allow.individual.commit": True})

    assert (status, reported["allow.individual.commit"], reported["is_set"]) == (200, True, True)
    assert (await call(port, "PUT", path, {"allow.individual.commit": None}))[1]["is_set"] is False


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("/switches", {"accept.individual.commit": 1}, 400, "/accept.individual.commit"),
        ("/switches", {"accept.individual.commit": "no"}, 400, "/accept.individual.commit"),
        ("/switches", {"accept.range.fetch": {"a b": True}}, 400, "/accept.range.fetch/a b"),
        ("/switches", {"accept.range.fetch": {"a": None}}, 400, "/accept.range.fetch/a"),
        ("/switches", {"accept_range_fetch": {}}, 400, "/accept_range_fetch"),
        ("/switches", {"accept.range.fetch": {"..": True}}, 422, ""),
        ("/switches", {"allow.individual.commit": {"\x07": True}}, 422, ""),
        ("/switches", {"accept.range.fetch": {f"t{n}": True for n in range(501)}}, 422, ""),
        ("/switches/topics/orders", {}, 400, "/accept.range.fetch"),
        ("/switches/topics/a%20b", {"accept.range.fetch": True}, 400, "topic"),
        ("/switches/topics/..%2e", {"accept.range.fetch": "on"}, 400, "/accept.range.fetch"),
        ("/switches/clients/%07", {"allow.individual.commit": True}, 422, "client_id"),
    ],
)
async def test_bad_input_names_its_place(
    port: ControlPort, path: str, body: Any, status: int, field: str
) -> None:
    """400 where the body does not fit the schema, 422 where it makes no sense; nothing changes."""
    got, problem = await call(port, "PUT", path, body)

    assert (got, problem["field"]) == (status, field)
    assert port.switches.current.version == 0
