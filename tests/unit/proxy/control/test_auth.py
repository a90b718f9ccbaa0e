"""proxy/control/auth.py: tokens that open the control port, and those that may change things."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer, make_mocked_request

from keylane.config.node import split_address
from keylane.config.security import SecurityConfig
from keylane.errors import ConfigInvalid
from keylane.proxy.control.api.problems import Problem, answer_problems
from keylane.proxy.control.auth import ControlGuard
from tests.reference.control_port import control_port

ADMIN, READER = "admin-token-0123456789", "reader-token-0123456789"
Ask = Callable[..., Awaitable[tuple[int, Mapping[str, str]]]]


def guard(folder: Path, *, admin: str | None = ADMIN, reader: str | None = READER) -> ControlGuard:
    values = {}
    for key, token in (("control_token_file", admin), ("control_read_token_file", reader)):
        if token is not None:
            (folder / key).write_text(token + "\n")
            values[key] = str(folder / key)
    return ControlGuard(SecurityConfig.model_validate(values))


async def asking(own: ControlGuard) -> AsyncIterator[Ask]:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(middlewares=[answer_problems, own.middleware])
    for path in ("/livez", "/readyz", "/healthz", "/metrics", "/"):
        app.router.add_route("*", path, ok)
    async with TestClient(TestServer(app)) as client:

        async def ask(
            path: str, headers: Mapping[str, str] | None = None, *, method: str = "GET"
        ) -> tuple[int, Mapping[str, str]]:
            async with client.request(method, path, headers=headers) as answer:
                return answer.status, dict(answer.headers)

        yield ask


@pytest.fixture
async def ask(tmp_path) -> AsyncIterator[Ask]:
    """A control port with both tokens."""
    async for each in asking(guard(tmp_path)):
        yield each


@pytest.fixture
async def ask_open() -> AsyncIterator[Ask]:
    """A control port without tokens, as it is on a loopback address."""
    async for each in asking(ControlGuard(SecurityConfig())):
        yield each


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz"])
async def test_probes_are_open(ask, path) -> None:
    """A kubelet has no token, and probes show nothing."""
    assert (await ask(path))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong-token-0123456789"),
        bearer(""),
        basic("wrong"),
        {"Authorization": ADMIN},
        {"Authorization": f"Digest {ADMIN}"},
        {"Authorization": "Basic not base64!"},
        {"Authorization": "Basic /////w=="},
        bearer("\u00e4" * 20),
    ],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_without_a_token_nothing(ask, headers, method) -> None:
    """401 with what is asked for, whatever is wrong."""
    status, reported = await ask("/metrics", headers, method=method)

    assert (status, reported["WWW-Authenticate"].split()[0]) == (401, "Bearer")


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (ADMIN, {"GET": 200, "HEAD": 200, "PUT": 200}),
        (READER, {"GET": 200, "HEAD": 200, "PUT": 403}),
    ],
)
@pytest.mark.parametrize("scheme", [bearer, basic])
async def test_roles(ask, token, expected, scheme) -> None:
    """The reader's token reads; both may come as a browser sends a password."""
    found = {method: (await ask("/", scheme(token), method=method))[0] for method in expected}

    assert found == expected


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
async def test_a_change_for_a_page_of_somebody_else(ask, ask_open, origin) -> None:
    """A browser sends the password along, and reaches a loopback address, for any page."""
    headers = {"Origin": origin}

    with_token, _ = await ask("/", {**basic(ADMIN), **headers}, method="POST")
    without, _ = await ask_open("/", headers, method="POST")

    assert (with_token, without) == (403, 403)


@pytest.mark.parametrize(
    ("site", "expected"),
    [("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403)],
)
async def test_a_change_for_a_page_beside_ours(ask, site, expected) -> None:
    """A browser's word on the site counts, also where it names no origin."""
    headers = {**basic(ADMIN), "Sec-Fetch-Site": site}

    assert (await ask("/", headers, method="POST"))[0] == expected
    assert (await ask("/", headers, method="GET"))[0] == 200


async def test_a_change_for_the_own_page(ask) -> None:
    """Its origin is where it asks."""
    headers = {**basic(ADMIN), "Origin": "http://lanes.example:8080", "Host": "lanes.example:8080"}

    assert (await ask("/", headers, method="POST"))[0] == 200


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1:1", 200),
        ("localhost", 200),
        ("[::1]:8080", 200),
        ("evil.example:8080", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
async def test_without_tokens_only_this_machines_names(ask_open, host, expected) -> None:
    """A name of somebody else that leads to loopback would make any page one of ours."""
    assert (await ask_open("/metrics", {"Host": host}))[0] == expected


async def test_a_new_token_needs_no_restart(tmp_path) -> None:
    """The file is read at each request; without it no caller gets in."""
    async for ask in asking(guard(tmp_path)):
        (tmp_path / "control_token_file").write_text("another-token-0123456789")
        found = [(await ask("/", bearer(t)))[0] for t in (ADMIN, "another-token-0123456789")]
        (tmp_path / "control_token_file").unlink()

        assert [*found, (await ask("/", bearer(ADMIN)))[0]] == [401, 200, 503]


@pytest.mark.parametrize(
    ("admin", "reader", "says"),
    [("short", READER, "16 characters"), (ADMIN, "short", "16"), (ADMIN, ADMIN, "has the token")],
)
def test_tokens_that_protect_nothing(tmp_path, admin, reader, says) -> None:
    """Refused at the start, without being shown."""
    with pytest.raises(ConfigInvalid, match=says) as caught:
        guard(tmp_path, admin=admin, reader=reader)

    assert ADMIN not in str(caught.value)


def test_a_token_file_that_is_not_there() -> None:
    """Refused at the start, by its key."""
    with pytest.raises(ConfigInvalid, match="control_token_file"):
        ControlGuard(SecurityConfig(control_token_file="/nowhere/token"))


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"Authorization": "Basic \u00ff"}),
        ("PUT", {"Origin": "http://["}),
    ],
)
def test_headers_that_make_no_sense(tmp_path, method: str, headers: dict[str, str]) -> None:
    """The request is refused, and not reported as a mistake of keylane."""
    named = {"Host": "keylane", **headers}
    request = make_mocked_request(method, "/metrics", named, transport=asyncio.Transport())

    with pytest.raises(Problem):
        guard(tmp_path).check(request)


def test_a_host_that_makes_no_sense() -> None:
    """It is no name of this machine."""
    request = make_mocked_request("GET", "/metrics", headers={"Host": "["})

    with pytest.raises(Problem, match="localhost"):
        ControlGuard(SecurityConfig()).check(request)


async def test_a_token_that_is_no_text(tmp_path) -> None:
    """Refused as any other that is wrong."""
    async with control_port(guard=guard(tmp_path)) as port:
        reader, writer = await asyncio.open_connection(*split_address(port.server.address))
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: k\r\nAuthorization: Bearer \xff\r\n\r\n")
        status = await reader.readline()
        writer.close()
        await writer.wait_closed()

    assert status == b"HTTP/1.1 401 Unauthorized\r\n"
