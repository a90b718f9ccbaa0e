"""proxy/net/security/tls.py: new connections get new files, bad files change nothing."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from keylane.errors import ConfigInvalid
from keylane.proxy.net.security.tls import (
    ReloadingContext,
    open_listener_context,
    open_upstream_context,
)
from tests.integration.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


@asynccontextmanager
async def echoing(context: ssl.SSLContext) -> AsyncIterator[int]:
    """A TLS server that gives back one byte; at the end its connections are closed."""
    serving: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.add(asyncio.current_task())
        writer.write(await reader.read(1))
        await shut(writer)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*filter(None, serving), return_exceptions=True)


async def shut(writer: asyncio.StreamWriter) -> None:
    """Close it, and wait for its socket: one that outlives the loop is reported in a later test."""
    writer.close()
    with suppress(OSError):  # errors of TLS and of the connection
        await writer.wait_closed()


async def name_of(port: int, context: ssl.SSLContext, *, host: str = "localhost") -> str:
    """The server's common name, after a byte there and back."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname=host
    )
    try:
        writer.write(b"x")
        if await reader.read(1) != b"x":
            raise ConnectionError("closed")
        subject = writer.get_extra_info("peercert")["subject"]
        return str(subject[0][0][1])
    finally:
        await shut(writer)


def client(authority: Authority, certificate: Path | None = None) -> ReloadingContext:
    file = str(certificate) if certificate else None
    return open_upstream_context(str(authority.ca), file, None, verify_hostname=True)


def put(path: Path, data: bytes) -> None:
    """Put a new file in the place of another one, as Kubernetes does.

    A file that is written again may keep its size and, within a tick of the kernel's clock, its
    time: then no reader can see the change.
    """
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)


async def test_a_new_certificate_is_for_new_connections(tmp_path, authority) -> None:
    """Polled after the file has changed, not before, and only once."""
    file = tmp_path / "served.pem"
    file.write_bytes(authority.issue("first").read_bytes())
    context = open_listener_context(str(file), None, None)
    async with echoing(context) as port:
        assert (context.poll(), await name_of(port, client(authority))) == (False, "first")
        put(file, authority.issue("second").read_bytes())

        seen = [await name_of(port, client(authority)), context.poll(), context.poll()]

        assert [*seen, await name_of(port, client(authority))] == ["first", True, False, "second"]
        assert context.poll(force=True)


@pytest.mark.parametrize("damage", ["empty", "another key", "gone"])
async def test_files_that_cannot_be_used_change_nothing(
    tmp_path, authority, damage, caplog
) -> None:
    """Half written, mismatched or missing: said once, looked at again when it changes."""
    file, key = tmp_path / "served.pem", tmp_path / "key.pem"
    good = authority.issue("good").read_bytes()
    for path in (file, key):
        path.write_bytes(good)
    context = open_listener_context(str(file), str(key), None)
    other = authority.issue("other").read_bytes()
    async with echoing(context) as port:
        match damage:
            case "empty":
                file.write_bytes(b"")
            case "another key":
                put(key, other)
            case "gone":
                file.unlink()

        assert [context.poll(), context.poll()] == [False, False]
        assert await name_of(port, client(authority)) == "good"
        assert caplog.text.count("certificate kept") == 1
        for path in (file, key):
            put(path, other)
        assert context.poll()
        assert await name_of(port, client(authority)) == "other"


async def test_authorities_of_clients_are_replaced(tmp_path, authority) -> None:
    """One that is taken out of the file is believed no longer."""
    other = Authority(tmp_path / "other", name="other authority")
    believed = tmp_path / "believed.pem"
    believed.write_bytes(authority.ca.read_bytes())
    served = str(authority.issue("served"))
    context = open_listener_context(served, None, str(believed))
    async with echoing(context) as port:
        own = client(authority, authority.issue("own"))
        foreign = client(authority, other.issue("foreign"))
        assert await name_of(port, own) == "served"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await name_of(port, foreign)
        put(believed, other.ca.read_bytes())
        assert context.poll()

        assert await name_of(port, foreign) == "served"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await name_of(port, own)


async def test_a_client_without_certificate_is_refused(authority) -> None:
    """As Kafka's `ssl.client.auth=required` does."""
    served = str(authority.issue("served"))
    async with echoing(open_listener_context(served, None, str(authority.ca))) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await name_of(port, client(authority))


async def test_brokers_certificates_are_checked(tmp_path, authority) -> None:
    """Another authority, an expired one, another host: each is refused and named."""
    served = open_listener_context(str(authority.issue("served")), None, None)
    expired = open_listener_context(str(authority.issue("old", expired=True)), None, None)
    stranger = Authority(tmp_path / "stranger")
    async with echoing(served) as port, echoing(expired) as expired_port:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get local issuer|self"):
            await name_of(port, client(stranger))
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            await name_of(expired_port, client(authority))
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            await name_of(port, client(authority), host="elsewhere")
        lenient = open_upstream_context(str(authority.ca), None, None, verify_hostname=False)
        assert await name_of(port, lenient, host="elsewhere") == "served"


def test_old_protocols_are_refused(authority) -> None:
    """As Kafka's own default: TLS 1.2 and 1.3."""
    context = open_listener_context(str(authority.issue("served")), None, None)

    assert context._current.minimum_version is ssl.TLSVersion.TLSv1_2


def test_files_that_cannot_be_used_at_the_start(tmp_path, authority) -> None:
    """The configuration key and the file are named."""
    with pytest.raises(ConfigInvalid, match=r"tls_certificate: .*nowhere\.pem"):
        open_listener_context(str(tmp_path / "nowhere.pem"), None, None)
    with pytest.raises(ConfigInvalid, match="upstream_tls"):
        open_upstream_context(str(authority.issue("x")), "none.pem", None, verify_hostname=True)


def test_an_encrypted_key_is_refused(tmp_path, authority) -> None:
    """No question is asked on a terminal without a user."""
    plain, locked = authority.issue("served"), tmp_path / "locked.pem"
    command = ["openssl", "ec", "-in", plain, "-aes256", "-passout", "pass:x", "-out", locked]
    subprocess.run(command, check=True, capture_output=True)

    with pytest.raises(ConfigInvalid, match="encrypted"):
        open_listener_context(str(plain), str(locked), None)
