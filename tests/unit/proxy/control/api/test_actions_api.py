"""proxy/control/api/actions.py, drains.py: outcomes, redirects, previews, and what is published."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from keylane.errors import (
    ActionInvalid,
    ActionRefused,
    ActionUnknown,
    NotCoordinator,
    UpstreamLost,
)
from tests.reference.control_port import ControlPort, control_port

RESET = "/groups/billing/reset-offsets"
EARLIEST = {"to": "earliest"}


async def ask(port: ControlPort, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """The status and the document."""
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"{port.url}{path}", json=body, allow_redirects=False) as answer,
    ):
        return answer.status, {**await answer.json(), "at": answer.headers.get("Location")}


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (ActionRefused("group billing has 3 members"), 409, None),
        (ActionInvalid("there is no topic x", field="/topics/0/topic"), 422, None),
        (UpstreamLost("no broker"), 503, "unchanged"),
        (NotCoordinator("another node"), 503, "unchanged"),
        (ActionUnknown("no answer"), 503, "unknown"),
    ],
)
async def test_outcomes(error, status, outcome) -> None:
    """An error that comes before anything was sent says that nothing has changed."""
    async with control_port() as port:
        port.actions.failure = error
        found, problem = await ask(port, "POST", RESET, EARLIEST)

    assert (found, problem.get("outcome"), problem["detail"]) == (status, outcome, str(error))
    assert bool(port.noted) == (outcome == "unknown")


async def test_a_reset_is_published_and_its_preview_is_not() -> None:
    """The line names the client, the group and the place."""
    async with control_port() as port:
        await ask(port, "POST", f"{RESET}?dry_run=true", EARLIEST)
        assert port.noted == []
        status, _ = await ask(port, "POST", RESET, {"to": "shift-by", "value": -100})

    assert status == 200
    assert [(is_dry, reset.to.number) for reset, is_dry in port.actions.resets] == [
        (True, 0), (False, -100),
    ]  # fmt: skip
    ((text, group),) = port.noted
    assert group == "billing"
    assert "an unnamed client at 127.0.0.1 reset the offsets of group billing to shift-by" in text


async def test_a_group_of_another_node() -> None:
    """The answer has its address, with all of the query."""
    async with control_port() as port:
        port.nodes["billing"] = "http://node-1:9100"
        status, problem = await ask(port, "POST", f"{RESET}?dry_run=true", EARLIEST)

    assert (status, problem["at"]) == (307, f"http://node-1:9100{RESET}?dry_run=true")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (f"{RESET}?dry_run=maybe", EARLIEST, "dry_run"),
        (f"{RESET}?dryrun=true", EARLIEST, "dryrun"),
        (RESET, {"to": "earliest", "topics": []}, "/topics"),
        (RESET, {"to": "earliest", "topics": [{"topic": "a/b"}]}, "/topics/0/topic"),
        (RESET, {"to": "offset", "value": 1.5}, "/value/int"),
        (RESET, {"to": "offset", "value": 1, "more": 1}, "/more"),
    ],
)
async def test_bodies_that_do_not_fit(path, body, field) -> None:
    """400 names the place; nothing is asked of the group."""
    async with control_port() as port:
        status, problem = await ask(port, "POST", path, body)

    assert (status, problem["field"]) == (400, field)
    assert port.actions.resets == []


async def test_a_rebalance_of_no_group() -> None:
    """A reason about a group that brokers do not know is a 404."""
    async with control_port() as port:
        status, problem = await ask(port, "POST", "/groups/none/rebalance")
        assert (status, problem["field"]) == (404, "group")
        status, done = await ask(port, "POST", "/groups/billing/rebalance")

    assert (status, done["is_asked"], len(done["moves"])) == (200, True, 1)
    assert [group for _, group in port.noted] == ["billing"]


async def test_drains() -> None:
    """The last node that serves stays; others are named by number; a second wish is no news."""
    async with control_port() as port:
        path = "/nodes/1/drain"
        status, shown = await ask(port, "POST", f"{path}?dry_run=true")
        assert (status, shown["state"], port.noted) == (200, "serving", [])
        for _ in range(2):
            _, shown = await ask(port, "POST", path)
        assert (shown["state"], len(port.noted)) == ("draining", 1)
        assert (await ask(port, "GET", path))[1]["state"] == "draining"
        assert (await ask(port, "DELETE", path))[1]["state"] == "serving"
        port.node.others = False
        status, problem = await ask(port, "POST", path)
        assert (status, "the only one" in problem["detail"]) == (409, True)
        assert (await ask(port, "POST", "/nodes/2/drain"))[1][
            "at"
        ] == "http://node-2:9100/nodes/2/drain"
        assert (await ask(port, "POST", "/nodes/3/drain"))[0] == 409
        assert (await ask(port, "POST", "/nodes/4/drain"))[0] == 404
        assert (await ask(port, "POST", "/nodes/x/drain"))[0] == 400
        port.node.number = None
        assert (await ask(port, "GET", path))[0] == 409
