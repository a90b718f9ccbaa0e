"""Certificates that change under load: no handshake is lost, and what cannot be used is not."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import pytest

from keylane.config.node import split_address
from keylane.wire.header import write_request
from tests.integration.certificates import Authority
from tests.integration.client_hello import HANDSHAKE, client_hello, read_record
from tests.integration.keylane_process import KeylaneProcess

pytestmark = pytest.mark.timeout(400)  # kernels may have to be compiled first
REQUEST: Final = bytes(write_request(18, 0, 7, "reload", b""))
ROUNDS: Final = 5
CLIENTS: Final = 3
READ_AGAIN: Final = "certificate read again key=tls_certificate"
KEPT: Final = "certificate kept, the new one cannot be used"


@dataclass(slots=True)
class Served:
    """A keylane whose certificate and key are two files."""

    proxy: KeylaneProcess
    authority: Authority
    certificate: Path
    key: Path

    def put(self, source: Path) -> None:
        """Another certificate, key first: for a moment the two do not fit."""
        for target in (self.key, self.certificate):
            temporary = target.with_suffix(".new")
            shutil.copy(source, temporary)
            temporary.replace(target)

    def reload(self, text: str) -> None:
        """SIGHUP, and wait until the log says what became of it."""
        count = self.proxy.log.count(text)
        os.kill(self.proxy.pid, signal.SIGHUP)
        self.proxy.wait_for_log(text, count=count + 1)


@pytest.fixture
def served(keylane: Any, tmp_path: Path) -> Served:
    """A keylane with a first certificate."""
    authority = Authority(tmp_path / "ca")
    first = authority.issue("first")
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    for target in (certificate, key):
        shutil.copy(first, target)
    args = ["--set", f"tls_certificate={certificate}", "--set", f"tls_key={key}"]
    return Served(keylane("orders=4", args=args), authority, certificate, key)


@dataclass(slots=True)
class Clients:
    """Clients that connect, ask and leave, one after another, until they are stopped."""

    served: Served
    serials: set[str] = field(default_factory=set)
    """Serial numbers of the certificates that they were shown."""
    count: int = 0
    errors: list[str] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        self._threads += [threading.Thread(target=self._run) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                serial = ask(self.served)
            except (OSError, AssertionError) as error:
                with self._lock:
                    self.errors.append(repr(error))
                return
            with self._lock:
                self.serials.add(serial)
                self.count += 1


def ask(served: Served) -> str:
    """Send one request over a new connection; return the serial number that was shown."""
    context = ssl.create_default_context(cafile=str(served.authority.ca))
    address = split_address(served.proxy.bootstrap)
    with (
        socket.create_connection(address, timeout=60) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(REQUEST)
        assert len(secured.recv(8)) == 8, "no answer"
        shown: Any = secured.getpeercert()
        return str(shown["serialNumber"])


def serial_of(path: Path) -> str:
    """Serial number of the first certificate in a file, as Python's ssl writes it."""
    return str(ssl._ssl._test_decode_cert(str(path))["serialNumber"])  # type: ignore[attr-defined]


def spoil(served: Served) -> Iterator[str]:
    """Files that cannot be used, one state after another, by name."""
    good = served.certificate.read_bytes()
    served.certificate.write_bytes(good[: len(good) // 2])
    yield "half written"
    served.certificate.write_bytes(b"")
    yield "empty"
    served.certificate.unlink()
    yield "gone"
    served.certificate.write_bytes(good)
    shutil.copy(served.authority.issue("other-key"), served.key)
    yield "a key that does not fit"
    served.key.unlink()
    yield "no key"
    served.key.write_bytes(good)


def test_certificates_change_under_load_and_no_handshake_is_lost(served: Served) -> None:
    """Renewed again and again, unusable in between: each client is served, by a good one."""
    good = {serial_of(served.certificate)}
    with Clients(served) as clients:
        for number in range(ROUNDS):
            for _ in spoil(served):
                served.reload(KEPT)
            renewed = served.authority.issue(f"renewed-{number}")
            good.add(serial_of(renewed))
            served.put(renewed)
            served.reload(READ_AGAIN)
        # The line may be of the look of every second, with the last signal still on its way.
        while ask(served) != serial_of(served.certificate):
            pass

    assert clients.errors == []
    assert clients.count > 0
    assert clients.serials <= good
    assert "Traceback" not in served.proxy.log
    assert "TLS handshake failed" not in served.proxy.log


def test_a_handshake_under_way_ends_with_the_old_certificate(served: Served) -> None:
    """A client that has said half of its hello is served when the files change, and when gone."""
    first, hello = ask(served), client_hello()
    address = split_address(served.proxy.bootstrap)
    with socket.create_connection(address, timeout=60) as begun:
        begun.sendall(hello[:40])
        served.put(served.authority.issue("second"))
        served.reload(READ_AGAIN)
        served.certificate.unlink()
        served.reload(KEPT)

        begun.sendall(hello[40:])
        kind, _ = read_record(begun.recv(65536))

    assert kind == HANDSHAKE
    assert ask(served) != first


def test_it_is_found_without_a_signal(served: Served) -> None:
    """A renewed certificate needs no signal: files are looked at every second."""
    renewed = served.authority.issue("renewed")

    served.put(renewed)
    served.proxy.wait_for_log(READ_AGAIN)

    assert ask(served) == serial_of(renewed)
