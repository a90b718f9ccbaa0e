"""TLS listeners and clients that handshake badly: refused with an alert, counted, nothing kept."""

from __future__ import annotations

import random
import re
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from keylane.config.node import split_address
from keylane.proxy.net.security.tls_listener import LOG_INTERVAL_S
from keylane.wire.header import write_request
from tests.integration.certificates import Authority
from tests.integration.client_hello import (
    ALERT,
    HANDSHAKE,
    PROTOCOL_VERSION,
    TLS_1_0,
    TLS_1_1,
    client_hello,
    read_record,
)
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.share_wire import wait_until

pytestmark = pytest.mark.timeout(400)  # kernels may have to be compiled first
API_VERSIONS_REQUEST: Final = bytes(write_request(18, 0, 7, "tls", b""))
SERVER_HELLO: Final = 2
TIMEOUT_S: Final = 60.0
HANDSHAKE_S: Final = 5
"""`frame_timeout_s` of the proxies here; a good client that stands still has no longer either."""
ABORTED: Final = 1000
SLACK: Final = 8
RESET: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Front:
    """A keylane with TLS, one that asks for client certificates, and their authority."""

    plain: KeylaneProcess
    mutual: KeylaneProcess
    authority: Authority
    folder: Path


@pytest.fixture(scope="module")
def front(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Both, before the session's broker."""
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder / "ca")
    certificate = authority.issue("keylane")
    proxies = []
    for number, settings in enumerate(([], [f"tls_client_ca={authority.ca}"])):
        settings += [f"tls_certificate={certificate}", f"frame_timeout_s={HANDSHAKE_S}"]
        args = [part for each in (*settings, "beside_others=true") for part in ("--set", each)]
        log_path = folder / f"keylane-{number}.log"
        proxies.append(KeylaneProcess(kafka, ["lanes4-*=4"], log_path=log_path, args=args))
    try:
        for proxy in proxies:
            proxy.start()
        yield Front(proxies[0], proxies[1], authority, folder)
    finally:
        for proxy in proxies:
            proxy.stop()


def connect(proxy: KeylaneProcess) -> socket.socket:
    """A plain socket to the listener."""
    return socket.create_connection(split_address(proxy.bootstrap), timeout=TIMEOUT_S)


def metric(proxy: KeylaneProcess, name: str) -> float:
    """A number of the control port."""
    with urllib.request.urlopen(f"http://{proxy.control}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return float(re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)[0])


def failed(proxy: KeylaneProcess) -> float:
    """Handshakes that did not succeed so far."""
    return metric(proxy, "keylane_tls_handshakes_failed_total")


def wait_for_failed(proxy: KeylaneProcess, wanted: float) -> None:
    """Wait until so many have failed: one counts after its client has closed, not before.

    There may be more, of tests before.
    """
    wait_until(lambda: failed(proxy) >= wanted, f"{wanted:g} failed handshakes")


def read_all(connection: socket.socket) -> bytes:
    """Read until the other side closes."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionError:
        pass  # closed hard
    return received


def ask_versions(proxy: KeylaneProcess, context: ssl.SSLContext, name: str | None) -> bytes:
    """The first bytes of an answer to ApiVersions. Raises: OSError."""
    with connect(proxy) as plain, context.wrap_socket(plain, server_hostname=name) as secured:
        secured.sendall(API_VERSIONS_REQUEST)
        return secured.recv(8)


def refused_or_answered(proxy: KeylaneProcess, context: ssl.SSLContext) -> bytes:
    """The answer; nothing where the client is refused, which in TLS 1.3 it learns when it reads."""
    try:
        return ask_versions(proxy, context, None)
    except (ssl.SSLError, ConnectionError):
        return b""


def trusting(front: Front) -> ssl.SSLContext:
    """Return a good client's context, without a client certificate."""
    context = ssl.create_default_context(cafile=str(front.authority.ca))
    context.check_hostname = False
    return context


@pytest.mark.parametrize("version", [TLS_1_0, TLS_1_1], ids=["1.0", "1.1"])
def test_old_versions_are_refused_by_their_alert(front: Front, version: int) -> None:
    """TLS 1.0 and 1.1 end with protocol_version, as RFC 8996 asks for."""
    before = failed(front.plain)

    with connect(front.plain) as connection:
        connection.sendall(client_hello(version))
        answer = read_all(connection)

    assert read_record(answer) == (ALERT, PROTOCOL_VERSION)
    wait_for_failed(front.plain, before + 1)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="Python's ssl cannot renegotiate")
def test_renegotiation_is_refused(front: Front) -> None:
    """A client of TLS 1.2 that wants another handshake on its connection gets none."""
    command = ["openssl", "s_client", "-connect", front.plain.bootstrap, "-tls1_2", "-no_ign_eof"]

    done = subprocess.run(
        command, input="R\n", capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )

    assert "RENEGOTIATING" in done.stderr
    assert "no renegotiation" in done.stderr
    assert front.plain.running


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("kind", ["none", "another authority's", "expired"])
def test_client_certificates_are_checked(front: Front, kind: str, version: ssl.TLSVersion) -> None:
    """Without a good one no byte of an answer comes; with one the same client gets in."""
    stranger = Authority(front.folder / "stranger", name="another authority")
    shown = {
        "none": None,
        "another authority's": stranger.issue("client"),
        "expired": front.authority.issue("old-client", expired=True),
    }[kind]
    before = failed(front.mutual)
    bad, good = trusting(front), trusting(front)
    good.load_cert_chain(front.authority.issue("client"))
    for context in (bad, good):
        context.minimum_version = context.maximum_version = version
    if shown is not None:
        bad.load_cert_chain(shown)

    answer = refused_or_answered(front.mutual, bad)

    assert answer == b""
    wait_for_failed(front.mutual, before + 1)
    assert len(ask_versions(front.mutual, good, None)) == 8


def test_a_handshake_that_stalls_is_closed(front: Front) -> None:
    """Clients that stop at any byte of their hello are closed by the time-out, and counted."""
    hello = client_hello()
    before = failed(front.plain)
    connections = [connect(front.plain) for _ in range(40)]
    for number, connection in enumerate(connections):
        connection.sendall(hello[: number * len(hello) // 40])

    received = [read_all(connection) for connection in connections]

    for connection in connections:
        connection.close()
    assert received == [b""] * len(connections)
    wait_for_failed(front.plain, before + len(connections))
    assert len(ask_versions(front.plain, trusting(front), "localhost")) == 8


def test_thousands_of_aborted_handshakes_leave_nothing(front: Front) -> None:
    """Ended at each stage, cleanly or by RST: no descriptor stays, and others get in meanwhile."""
    chance, hello = random.Random(20261123), client_hello()
    ask_versions(front.plain, trusting(front), "localhost")
    before, opened = descriptors_at_rest(front.plain), failed(front.plain)
    began_s, logged = time.monotonic(), len(front.plain.log)

    for number in range(ABORTED):
        with connect(front.plain) as connection:
            stage = number % 4
            with suppress(ConnectionError):  # this process stood still, and its time was over
                connection.sendall(hello[: chance.randrange(1, len(hello))] if stage else b"")
                if stage > 1:
                    connection.sendall(hello)  # whatever of it is behind the first is garbage
                if stage > 2:
                    connection.recv(1)
            if chance.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        if number % 200 == 0:
            assert len(ask_versions(front.plain, trusting(front), "localhost")) == 8

    assert wait_for_descriptors(front.plain, before + SLACK) <= before + SLACK
    wait_for_failed(front.plain, opened + ABORTED // 2)
    assert "Traceback" not in front.plain.log
    reported = re.findall(r"TLS handshake failed .*reason=(.*) count=", front.plain.log[logged:])
    took_s = time.monotonic() - began_s
    # A line for each reason in a while, however long this took.
    assert max(Counter(reported).values(), default=0) <= 1 + took_s / LOG_INTERVAL_S


def open_files(proxy: KeylaneProcess) -> int:
    """Descriptors of the process."""
    return sum(1 for _ in Path(f"/proc/{proxy.pid}/fd").iterdir())


def descriptors_at_rest(proxy: KeylaneProcess) -> int:
    """The count when the handshakes of all tests before have run into their time."""
    threading.Event().wait(HANDSHAKE_S + 2)  # proxies check deadlines once a second
    return open_files(proxy)


def wait_for_descriptors(proxy: KeylaneProcess, wanted: int) -> int:
    """The count as soon as it is `wanted`; else long after all handshakes ran into their time."""
    count = open_files(proxy)
    waiting = threading.Event()
    for _ in range(10 * (HANDSHAKE_S + 60)):
        if count <= wanted:
            break
        waiting.wait(0.1)  # /proc has no event; the rounds bound it
        count = open_files(proxy)
    return count


NAMES: Final = {
    "absent": None,
    "of another host": [(0, b"other.test")],
    "an address": [(0, b"127.0.0.1")],
    "in capitals": [(0, b"LOCALHOST")],
    "with a dot behind": [(0, b"localhost.")],
    "of another listener": [(0, b"n1-b2.kafka.test")],
    "with a zero byte": [(0, b"local\0host")],
    "no text": [(0, b"\xff\xfe\x80")],
    "of 255 bytes": [(0, b"x" * 255)],
    "of 10 KB": [(0, b"x" * 10_000)],
    "empty": [(0, b"")],
    "of an unknown type": [(9, b"localhost")],
    "twice": [(0, b"localhost"), (0, b"other.test")],
    "a thousand": [(0, b"localhost")] * 1000,
}


@pytest.mark.parametrize("names", NAMES)
def test_names_that_clients_ask_for(front: Front, names: str) -> None:
    """Each listener has one certificate, whatever is asked for; a bad list ends with an alert."""
    with connect(front.plain) as connection:
        connection.sendall(client_hello(names=NAMES[names]))

        kind, first = read_record(connection.recv(65536))

    assert (kind, first) == (HANDSHAKE, SERVER_HELLO) or kind == ALERT
    sound = {"absent", "of another host", "an address", "in capitals", "with a dot behind",
             "of another listener", "of 255 bytes"}  # fmt: skip
    assert (kind == HANDSHAKE) or names not in sound
    assert len(ask_versions(front.plain, trusting(front), "localhost")) == 8
    assert "Traceback" not in front.plain.log


def test_a_listener_serves_its_broker_under_any_name(front: Front) -> None:
    """A name of another broker in the handshake opens nothing else: the port decides."""
    answers = {
        name: ask_versions(front.plain, trusting(front), name)
        for name in (None, "localhost", "LOCALHOST", "n7-b2.kafka.test")
    }

    assert len(set(answers.values())) == 1


def test_no_tls_where_tls_is_asked_for_and_the_reverse(front: Front, shared_keylane) -> None:
    """A Kafka request at a TLS port, and a ClientHello at one without: closed, nothing answered."""
    with connect(front.plain) as connection:
        connection.sendall(API_VERSIONS_REQUEST)
        at_tls = read_all(connection)
    with connect(shared_keylane) as connection:
        connection.sendall(client_hello())
        at_plain = read_all(connection)

    assert at_tls == b"" or read_record(at_tls)[0] == ALERT
    assert at_plain == b""
