"""The control port over TLS: certificates that open it, and for what; reloading."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from keylane.config.security import SecurityConfig
from keylane.errors import ConfigInvalid
from keylane.proxy.control.auth import ControlGuard
from keylane.proxy.net.security.node_security import Security
from keylane.proxy.net.security.tls_listener import TlsDoor
from keylane.proxy.runtime.stats import ProxyStats
from tests.integration.certificates import Authority
from tests.reference.control_port import control_port

WAIT_S = 60.0
"""A test that waits this long hangs."""
ADMIN, READER = "admin-token-0123456789", "reader-token-0123456789"
ASKED = (("GET", "/livez"), ("GET", "/metrics"), ("PUT", "/switches"))
"""A probe, a question, a change."""


class Stand:
    """A control port with TLS, its authority, and clients with certificates."""

    def __init__(self, folder: Path, **keys: Any) -> None:
        self.authority = Authority(folder / "ca")
        self.stranger = Authority(folder / "stranger", name="stranger")
        self.clients = folder / "clients.pem"
        self.clients.write_bytes(self.authority.ca.read_bytes())
        self.stats, self.now_s = ProxyStats(), datetime.datetime.now(datetime.UTC).timestamp()
        self.config = SecurityConfig(
            control_tls=True,
            control_certificate=str(self.authority.issue("served")),
            **{
                "control_client_ca": str(self.clients),
                "control_admins": ("CN=ops", "DNS:robot.example"),
                "control_readers": ("CN=prometheus",),
                **keys,
            },
        )
        self.security = Security(self.config)
        self.guard = ControlGuard(self.config, wall_clock=lambda: self.now_s)
        context = self.security.control
        bounds = {"connections_max": 9, "per_address_max": 9, "timeout_s": 60.0}
        self.door = TlsDoor(context, stats=self.stats, **bounds)  # type: ignore[arg-type]
        self.url = ""

    def client(self, certificate: Path | None) -> aiohttp.ClientSession:
        """A client that keeps its connection."""
        trust = ssl.create_default_context(cafile=str(self.authority.ca))
        if certificate is not None:
            trust.load_cert_chain(certificate)
        return aiohttp.ClientSession(self.url, connector=aiohttp.TCPConnector(ssl=trust))

    async def ask(self, certificate: Path | None, token: str | None = None) -> list[int]:
        """What a probe, a question and a change are answered."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        found = []
        async with self.client(certificate) as client:
            for method, path in ASKED:
                body: Any = {"json": {}, "headers": {**headers, "If-Match": "*"}}
                more = body if method == "PUT" else {"headers": headers}
                async with client.request(method, path, **more) as answer:
                    found.append(answer.status)
        return found

    async def until_failed(self, count: int) -> None:
        """Wait until so many have failed: one counts only after its client has gone."""
        async with asyncio.timeout(WAIT_S):
            while self.stats.tls_handshakes_failed < count:  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0.001)


@asynccontextmanager
async def standing(folder: Path, **keys: Any) -> AsyncIterator[Stand]:
    stand = Stand(folder, **keys)
    async with control_port(guard=stand.guard, door=stand.door) as port:
        stand.url = port.url
        yield stand


@pytest.fixture
async def stand(tmp_path) -> AsyncIterator[Stand]:
    async with standing(tmp_path) as each:
        yield each


@pytest.mark.parametrize(
    ("name", "host", "expected"),
    [
        ("ops", "localhost", [200, 200, 200]),
        ("robot", "robot.example", [200, 200, 200]),
        ("prometheus", "localhost", [200, 200, 403]),
        ("somebody", "localhost", [200, 403, 403]),
        (None, "", [200, 403, 403]),
    ],
)
async def test_roles(stand, name, host, expected) -> None:
    """By subject or alternative name; probes need none, and tokens there are none."""
    certificate = None if name is None else stand.authority.issue(name, host=host)

    assert await stand.ask(certificate) == expected


@pytest.mark.parametrize(
    ("name", "token", "expected"),
    [
        (None, None, [200, 401, 401]),
        (None, READER, [200, 200, 403]),
        (None, ADMIN, [200, 200, 200]),
        ("prometheus", ADMIN, [200, 200, 200]),
        ("ops", READER, [200, 200, 200]),
        ("ops", "wrong-token-0123456789", [200, 200, 200]),
        ("somebody", None, [200, 401, 401]),
        ("somebody", READER, [200, 200, 403]),
    ],
)
async def test_tokens_beside_certificates(tmp_path, name, token, expected) -> None:
    """The better of both counts."""
    files = {"control_token_file": ADMIN, "control_read_token_file": READER}
    for key, text in files.items():
        (tmp_path / key).write_text(text)
    async with standing(tmp_path, **{key: str(tmp_path / key) for key in files}) as stand:
        certificate = None if name is None else stand.authority.issue(name)

        assert await stand.ask(certificate, token) == expected


async def test_a_certificate_needs_no_token_file(tmp_path) -> None:
    """Whose certificate is enough gets in while the tokens cannot be read."""
    file = tmp_path / "token"
    file.write_text(ADMIN)
    async with standing(tmp_path, control_token_file=str(file)) as stand:
        file.unlink()

        assert await stand.ask(stand.authority.issue("prometheus")) == [200, 200, 503]
        assert await stand.ask(stand.authority.issue("ops")) == [200, 200, 200]
        assert await stand.ask(None) == [200, 503, 503]


async def test_a_client_without_a_role_gets_the_names(stand) -> None:
    """One of them can then be put into the configuration."""
    certificate = stand.authority.issue("somebody", host="some.example")
    async with stand.client(certificate) as client, client.get("/metrics") as answer:
        problem = await answer.json(content_type=None)

    assert "CN=somebody, DNS:some.example" in problem["detail"]


async def test_a_certificate_of_another_authority_or_expired(stand) -> None:
    """Ends the handshake with the alert for it, and is counted."""
    bad = {
        "unknown ca": stand.stranger.issue("ops"),
        "certificate expired": stand.authority.issue("late", expired=True),
    }
    for alert, certificate in bad.items():
        before = stand.stats.tls_handshakes_failed
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)) as caught:
            await stand.ask(certificate)
        assert alert in str(caught.value).lower()
        await stand.until_failed(before + 1)


async def test_a_certificate_that_ends_on_an_open_connection(stand) -> None:
    """The handshake took it; from its end on, requests are refused all the same."""
    async with stand.client(stand.authority.issue("ops")) as client:
        found = []
        for days in (0, 31):
            stand.now_s += days * 86_400
            async with client.get("/metrics") as answer:
                found.append(answer.status)

    assert found == [200, 403]


async def test_new_certificates_need_no_restart(stand) -> None:
    """A new certificate of the port, and new authorities, for connections that come then."""
    before, after = stand.authority.issue("ops"), stand.stranger.issue("ops")
    stand.clients.write_bytes(stand.stranger.ca.read_bytes())

    assert await stand.ask(before) == [200, 200, 200]
    stand.security.poll()

    assert await stand.ask(after) == [200, 200, 200]
    with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
        await stand.ask(before)


async def test_the_port_says_https(stand) -> None:
    """Also to other nodes, which lead clients here."""
    assert stand.url.startswith("https://127.0.0.1:")


async def test_plain_http_is_no_handshake(stand) -> None:
    """Counted, and nothing is served."""
    async with aiohttp.ClientSession() as client:
        with pytest.raises(aiohttp.ClientError):
            # Not GET, which aiohttp sends once more on another connection.
            await client.post(stand.url.replace("https", "http") + "/livez")

    await stand.until_failed(1)
    assert stand.stats.tls_handshakes_failed == 1


async def test_listeners_certificate_serves_where_there_is_no_own(tmp_path) -> None:
    """`control_tls` alone: as before there was another."""
    authority = Authority(tmp_path)
    config = SecurityConfig(tls_certificate=str(authority.issue("listener")), control_tls=True)

    assert Security(config).control is not None


@pytest.mark.parametrize("key", ["control_certificate", "control_client_ca"])
def test_a_file_that_cannot_be_used(tmp_path, key) -> None:
    """Refused at the start, by its key."""
    values: dict[str, Any] = {
        "control_tls": True,
        "control_certificate": str(Authority(tmp_path).issue("served")),
        "control_client_ca": str(tmp_path / "ca.pem"),
        "control_admins": ("CN=ops",),
        key: "/nowhere.pem",
    }

    with pytest.raises(ConfigInvalid, match=r"control_certificate.*/nowhere\.pem"):
        Security(SecurityConfig(**values))


async def test_stop_ends_what_is_open(tmp_path) -> None:
    """Connections that are kept are closed, as those without TLS."""
    async with standing(tmp_path) as stand:
        client = stand.client(stand.authority.issue("ops"))
        async with client.get("/metrics") as answer:
            assert answer.status == 200
    with pytest.raises(aiohttp.ClientError):
        await asyncio.wait_for(client.get("/metrics"), WAIT_S)
    await client.close()
