"""proxy/control/caller.py: the page asks which rights its browser has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from keylane.config.security import SecurityConfig
from keylane.proxy.control.auth import ControlGuard
from keylane.proxy.control.caller import READS
from tests.reference.control_port import control_port

ADMIN, READER = "admin-token-0123456789", "reader-token-0123456789"


def guard(folder: Path) -> ControlGuard:
    values = {}
    for key, token in (("control_token_file", ADMIN), ("control_read_token_file", READER)):
        (folder / key).write_text(token + "\n")
        values[key] = str(folder / key)
    return ControlGuard(SecurityConfig.model_validate(values))


async def ask(own: ControlGuard, token: str | None) -> tuple[int, Any]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        control_port(guard=own) as port,
        ClientSession(headers=headers) as browser,
        browser.get(f"{port.url}/page/caller") as answer,
    ):
        return answer.status, await answer.json()


@pytest.mark.parametrize(
    ("token", "may_write", "reason"), [(ADMIN, True, None), (READER, False, READS)]
)
async def test_the_page_learns_its_role(tmp_path, token, may_write, reason) -> None:
    """The admin's token may change things; the reader's gets the reason why not."""
    status, answer = await ask(guard(tmp_path), token)

    assert status == 200
    assert (answer["may_write"], answer["reason"]) == (may_write, reason)
    assert "token" in answer["name"]
    assert token not in answer["name"]


async def test_without_tokens_this_machine_may_change_things() -> None:
    """No name is invented for a client that needed none."""
    _, answer = await ask(ControlGuard(SecurityConfig()), None)

    assert answer == {"name": None, "may_write": True, "reason": None}


async def test_a_stranger_learns_nothing(tmp_path) -> None:
    """The question needs a role as any other page does."""
    status, answer = await ask(guard(tmp_path), None)

    assert status == 401
    assert "may_write" not in answer
