"""proxy/control/api/config.py: the configuration over HTTP, with switches that are set."""

from __future__ import annotations

import json

import aiohttp

from tests.reference.control_port import control_port


async def test_a_switch_is_in_force() -> None:
    """A switch that is set shows as the value in force, beside the place of the configuration."""
    async with control_port() as port, aiohttp.ClientSession() as session:
        wanted = {"accept.individual.commit": False}
        async with session.put(f"{port.url}/switches", json=wanted) as answer:
            assert answer.status == 200
        async with session.get(f"{port.url}/config") as answer:
            keys = {entry["key"]: entry for entry in (await answer.json())["keys"]}

    switch = keys["accept_individual_commit"]
    assert (switch["value"], switch["default"], switch["adjusted_by"]) == (False, True, "/switches")
    assert keys["bootstrap"]["place"] == "--bootstrap"


async def test_the_password_is_not_shown(monkeypatch) -> None:
    """The variable's value is nowhere in the answer."""
    monkeypatch.setenv("KEYLANE_LOGIN_PASSWORD", "hunter2-hunter2")
    async with (
        control_port() as port,
        aiohttp.ClientSession() as session,
        session.get(f"{port.url}/config") as answer,
    ):
        text = await answer.text()

    assert "hunter2" not in text
    keys = {entry["key"]: entry for entry in json.loads(text)["keys"]}
    assert keys["login_password"]["value"] == "********"
