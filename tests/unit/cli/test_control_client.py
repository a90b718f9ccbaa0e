"""keylane/cli/control_client.py: address, credentials, output and trust of a command."""

from __future__ import annotations

import contextlib
import http.server
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError

import click
import pytest

from keylane.cli.control_client import (
    CA_VARIABLE,
    CERTIFICATE_VARIABLE,
    HOSTS_VARIABLE,
    KEY_VARIABLE,
    TOKEN_VARIABLE,
    ControlTrust,
    ask_control,
    control_request,
    open_control,
    trust_options,
)
from keylane.errors import ConfigInvalid, ControlRefused
from tests.integration.certificates import Authority


@pytest.mark.parametrize(
    ("control", "url"),
    [
        ("127.0.0.1:19090", "http://127.0.0.1:19090/groups/g"),
        ("http://127.0.0.1:19090/", "http://127.0.0.1:19090/groups/g"),
        ("https://keylane.example", "https://keylane.example/groups/g"),
        ("[::1]:19090", "http://[::1]:19090/groups/g"),
    ],
)
def test_where(control, url, monkeypatch) -> None:
    """Without a scheme it is http, and no token is shown where there is none."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)

    request = control_request(control, "/groups/g")

    assert request.full_url == url
    assert not request.has_header("Authorization")


def test_headers_of_a_request(monkeypatch) -> None:
    """The token from the environment, beside the command's own headers."""
    monkeypatch.setenv(TOKEN_VARIABLE, "token-0123456789")

    request = control_request("h:1", "/x", data=b"{}", headers={"If-match": '"1"'}, method="PATCH")

    assert dict(request.header_items()) == {
        "Authorization": "Bearer token-0123456789",
        "If-match": '"1"',
    }
    assert (request.get_method(), request.data) == ("PATCH", b"{}")


@pytest.mark.parametrize(
    "control",
    [
        "file:///etc/passwd",
        "ftp://h:1",
        "",
        "https://",
        "[::1:19090",
        "localhost:abc",
        "https://localhost:65536",
    ],
)
def test_what_is_no_address(control) -> None:
    """Refused before anything is opened."""
    with pytest.raises(ConfigInvalid, match=r"--control .*: expected HOST:PORT"):
        control_request(control, "/x")


def parsed(*args: str) -> ControlTrust:
    @trust_options
    def command(**options: Any) -> ControlTrust:
        return ControlTrust.of(SimpleNamespace(**options))

    trust = click.command()(command).main(list(args), prog_name="x", standalone_mode=False)
    assert isinstance(trust, ControlTrust)
    return trust


def test_flags_go_before_the_environment(monkeypatch) -> None:
    """Each by itself; an empty variable is none."""
    monkeypatch.setenv(CA_VARIABLE, "ca-of-all.pem")
    monkeypatch.setenv(CERTIFICATE_VARIABLE, "own.pem")
    monkeypatch.setenv(KEY_VARIABLE, "")

    assert parsed() == ControlTrust(ca="ca-of-all.pem", certificate="own.pem")
    assert parsed("--ca", "mine.pem", "--key", "key.pem") == ControlTrust(
        ca="mine.pem", certificate="own.pem", key="key.pem"
    )


@pytest.mark.parametrize(
    ("trust", "names"),
    [
        (ControlTrust(key="k.pem"), "--key needs --cert"),
        (ControlTrust(ca="/nowhere/ca.pem"), "--ca /nowhere/ca.pem"),
        (ControlTrust(certificate="/nowhere/own.pem"), "--cert /nowhere/own.pem"),
    ],
)
def test_files_that_cannot_be_used(trust, names) -> None:
    """Named by their flags."""
    with pytest.raises(ConfigInvalid, match=names):
        trust.context()


class LeadingServer(http.server.ThreadingHTTPServer):
    """Knows where its handler leads to, and keeps what it was shown."""

    leads_to: str | None = None
    needs_token = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.shown: list[str | None] = []


class Led(http.server.BaseHTTPRequestHandler):
    """Leads `/led` to where its server says; answers anything else."""

    def do_GET(self) -> None:
        assert isinstance(self.server, LeadingServer)
        leads_to, token = self.server.leads_to, self.headers.get("Authorization")
        self.server.shown.append(token)
        if self.server.needs_token and token is None:
            self.send_response(401)
        elif leads_to and self.path == "/led":
            self.send_response(307)
            self.send_header("Location", leads_to)
        else:
            self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(
    authority: Authority | None, *, is_mutual: bool = False
) -> Iterator[tuple[str, LeadingServer]]:
    """A server, with TLS where there is an authority; its URL."""
    server = LeadingServer(("127.0.0.1", 0), Led)
    if authority is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(authority.issue("served"))
        if is_mutual:
            context.load_verify_locations(authority.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        scheme = "http" if authority is None else "https"
        yield f"{scheme}://127.0.0.1:{server.server_port}", server
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()


def test_a_node_leads_to_another_one(tmp_path: Path) -> None:
    """Over TLS on both, with the same certificate."""
    authority = Authority(tmp_path)
    own = authority.issue("ops")
    trust = ControlTrust(ca=str(authority.ca), certificate=str(own))

    with serving(authority, is_mutual=True) as (there, _), serving(authority) as (here, server):
        server.leads_to = f"{there}/group"
        with open_control(control_request(here, "/led"), trust, timeout_s=60) as answer:
            assert (answer.status, answer.url) == (200, f"{there}/group")


TOKEN = "token-0123456789"
SHOWN = f"Bearer {TOKEN}"


def elsewhere(url: str) -> str:
    """The same server by another name."""
    return url.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize(
    ("hosts", "shown"),
    [((), None), (("other.example",), None), (("*.localhost",), None), (("localhost",), SHOWN)],
)
def test_a_token_goes_to_hosts_that_the_operator_named(hosts, shown, monkeypatch) -> None:
    """A node says where to go on; that is no reason to show it there."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with serving(None) as (there, other), serving(None) as (here, server):
        server.leads_to = f"{elsewhere(there)}/group"

        trust = ControlTrust(hosts=hosts)
        with open_control(control_request(here, "/led"), trust, timeout_s=60) as answer:
            assert answer.status == 200

    assert (server.shown, other.shown) == ([SHOWN], [shown])


def test_a_token_goes_to_another_port_of_the_same_host(monkeypatch) -> None:
    """As workers of one machine have them."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with serving(None) as (there, other), serving(None) as (here, server):
        server.leads_to = f"{there}/group"

        open_control(control_request(here, "/led"), ControlTrust(), timeout_s=60).close()

    assert other.shown == [SHOWN]


def test_a_token_that_was_dropped_does_not_come_back(monkeypatch) -> None:
    """A host that was not named leads to one that was, as the first one might have done."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with serving(None) as (here, server), serving(None) as (there, other):
        server.leads_to = f"{elsewhere(there)}/led"
        other.leads_to = f"{here}/group"

        open_control(control_request(here, "/led"), ControlTrust(), timeout_s=60).close()

    assert (server.shown, other.shown) == ([SHOWN, None], [None])


def test_a_refusal_names_the_host_to_name(monkeypatch) -> None:
    """And how."""
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    with serving(None) as (there, other), serving(None) as (here, server):
        server.leads_to, other.needs_token = f"{elsewhere(there)}/group", True

        with pytest.raises(URLError, match=r"not named; .* add --control-host localhost"):
            open_control(control_request(here, "/led"), ControlTrust(), timeout_s=60)


def test_a_certificate_goes_to_hosts_that_the_operator_named(tmp_path: Path) -> None:
    """Another one is asked without; where it demands one, the host to name is named."""
    authority = Authority(tmp_path)
    files: dict[str, Any] = {"ca": str(authority.ca), "certificate": str(authority.issue("ops"))}

    with serving(authority, is_mutual=True) as (there, _), serving(authority) as (here, server):
        server.leads_to = f"{elsewhere(there)}/group"
        named = ControlTrust(**files, hosts=("localhost",))
        with open_control(control_request(here, "/led"), named, timeout_s=60) as answer:
            assert answer.status == 200
        with pytest.raises(URLError, match="--control-host localhost"):
            open_control(control_request(here, "/led"), ControlTrust(**files), timeout_s=60)


def test_nodes_that_lead_in_circles_are_left(monkeypatch) -> None:
    """After a few."""
    with serving(None) as (here, server):
        server.leads_to = f"{here}/led"

        with pytest.raises(URLError, match="redirected too often"):
            open_control(control_request(here, "/led"), ControlTrust(), timeout_s=60)


def test_hosts_are_named_by_flag_or_environment(monkeypatch) -> None:
    """Case and a last dot mean nothing in names."""
    monkeypatch.setenv(HOSTS_VARIABLE, "a.example, *.B.example.,")

    assert parsed().hosts == ("a.example", "*.b.example")
    assert parsed("--control-host", "c").hosts == ("c",)
    for bad in ("*", "*.*", "a/b", "http://a", "a b"):
        with pytest.raises(ConfigInvalid, match="--control-host"):
            parsed("--control-host", bad)


@pytest.mark.parametrize(
    ("host", "is_named"),
    [("x.b", True), ("y.x.b", True), ("b", False), ("xb", False), ("x.b.c", False)],
)
def test_a_suffix_names_what_is_below_it(host: str, is_named: bool) -> None:
    """By whole labels."""
    assert ControlTrust(hosts=("*.b",)).names(host) is is_named


def test_no_token_goes_where_there_is_no_tls(tmp_path: Path) -> None:
    """A node that leads from TLS to none is not followed."""
    authority = Authority(tmp_path)
    trust = ControlTrust(ca=str(authority.ca))

    with serving(None) as (there, _), serving(authority) as (here, server):
        server.leads_to = f"{there}/group"
        with pytest.raises((HTTPError, URLError), match="without TLS"):
            open_control(control_request(here, "/led"), trust, timeout_s=60)


def test_a_control_port_of_somebody_else(tmp_path: Path) -> None:
    """Its certificate is checked, against the system's authorities where none are given."""
    with serving(Authority(tmp_path)) as (here, _):
        for trust in (ControlTrust(), ControlTrust(ca=str(Authority(tmp_path / "other").ca))):
            with pytest.raises(URLError, match="certificate verify failed"):
                open_control(control_request(here, "/"), trust, timeout_s=60)


def test_a_port_that_does_not_speak_http() -> None:
    """One with TLS that is asked without: an error that says so, not a trace."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def alert() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(bytes.fromhex("15030100020246"))

        thread = threading.Thread(target=alert)
        thread.start()
        request = control_request(f"127.0.0.1:{server.getsockname()[1]}", "/groups/g")
        with pytest.raises(URLError, match="https://"):
            open_control(request, ControlTrust(), timeout_s=60)
        thread.join(60)


@pytest.mark.parametrize("status", ["200 OK", "503 Service Unavailable"])
def test_an_answer_that_is_cut_is_one_line(status: str) -> None:
    """The node ended in the middle of a body in chunks, as a proxy before it passes it on."""
    head = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(65536)
                accepted.sendall(f"{head}10\r\n[1,".encode())

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"

        with pytest.raises(ControlRefused) as refused:
            ask_control(control_request(address, "/groups"), ControlTrust(), timeout_s=30.0)

        thread.join()
    assert str(refused.value) == f"{address}: the answer ends in the middle"
