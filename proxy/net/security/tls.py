"""TLS contexts that read their files again without a restart.

Source: RFC 8446; Python documentation, `ssl` (server and client contexts).

A server's context is given to asyncio once. Loading another certificate into it would keep old
client authorities, and leave it broken where certificate and key do not fit. So the context that
asyncio has only passes calls to the one that was last made from the files: a new connection gets
the newest, an open one keeps its own, and files that cannot be used change nothing.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

from keylane.errors import ConfigInvalid, reason_of

log = logging.getLogger("keylane.tls")

last_alerts: ContextVar[list[bytes] | None] = ContextVar("last_alerts", default=None)
"""Alerts of OpenSSL for the maker of a handshake that fails.

Event loops (asyncio, uvloop) drop them, and Java's client then takes an expired certificate for a
lost connection and tries without end. `tls_listener` sends them."""
Signature = tuple[tuple[int, int, int], ...]


class _Handshake(ssl.SSLObject):
    """Keeps the alert of a handshake that fails."""

    _outgoing: ssl.MemoryBIO | None = None
    _alerts: list[bytes]

    def keep_alerts(self, outgoing: ssl.MemoryBIO, alerts: list[bytes]) -> None:
        """Put it into `alerts`; `outgoing` is where OpenSSL leaves it."""
        self._outgoing, self._alerts = outgoing, alerts

    def do_handshake(self) -> None:
        """Make the next step of the handshake."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            if self._outgoing is not None:
                self._alerts.append(self._outgoing.read())
            raise


class ReloadingContext(ssl.SSLContext):
    """Makes connections with the newest context that could be built from `files`."""

    _build: Callable[[], ssl.SSLContext]
    _files: Sequence[str]
    _name: str
    _seen: Signature
    _current: ssl.SSLContext

    @classmethod
    def open(
        cls, name: str, build: Callable[[], ssl.SSLContext], files: Sequence[str | None]
    ) -> Self:
        """`build` makes a context from `files`; `name` is the configuration key that errors name.

        Raises: ConfigInvalid.
        """
        self = cls(ssl.PROTOCOL_TLS_SERVER)  # its own settings are never used
        self._name, self._build = name, build
        self._files = [file for file in files if file]
        self._seen = self._signature()
        self._current = self._built()
        return self

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **kwargs: Any
    ) -> ssl.SSLObject:
        """Return the TLS of a new connection; asyncio and uvloop call this for each."""
        made = self._current.wrap_bio(incoming, outgoing, *args, **kwargs)
        kept = last_alerts.get()
        if isinstance(made, _Handshake) and kept is not None:
            made.keep_alerts(outgoing, kept)
        return made

    def poll(self, *, force: bool = False) -> bool:
        """Build anew if a file has changed, or `force`; True: new connections get another.

        Files that cannot be used are logged and change nothing: a certificate that is half
        written is looked at again as soon as it changes.
        """
        seen = self._signature()
        if seen == self._seen and not force:
            return False
        self._seen = seen
        try:
            self._current = self._built()
        except ConfigInvalid as error:
            log.error("certificate kept, the new one cannot be used reason=%s", error)
            return False
        log.info("certificate read again key=%s", self._name)
        return True

    def _built(self) -> ssl.SSLContext:
        try:
            return self._build()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigInvalid(
                f"{self._name}: {reason_of(error)} ({', '.join(self._files)})"
            ) from None

    def _signature(self) -> Signature:
        """Return a value that changes with the files, also behind a Kubernetes secret's links."""
        found = []
        for file in self._files:
            try:
                status = Path(file).stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)


def open_listener_context(
    certificate: str,
    key: str | None,
    client_ca: str | None,
    *,
    name: str = "tls_certificate",
    is_certificate_required: bool = True,
) -> ReloadingContext:
    """Return TLS for clients. With `client_ca` they must, or may, show a good certificate.

    `name` is the configuration key that errors name. Raises: ConfigInvalid.
    """
    verify_mode = ssl.CERT_REQUIRED if is_certificate_required else ssl.CERT_OPTIONAL

    def build() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sslobject_class = _Handshake
        _harden(context)
        context.load_cert_chain(certificate, key, password=_refuse_password)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = verify_mode
        return context

    return ReloadingContext.open(name, build, (certificate, key, client_ca))


def open_upstream_context(
    ca: str | None, certificate: str | None, key: str | None, *, verify_hostname: bool
) -> ReloadingContext:
    """Return TLS to brokers, whose certificates are always checked. Raises: ConfigInvalid."""

    def build() -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=ca)
        _harden(context)
        context.check_hostname = verify_hostname
        if certificate is not None:
            context.load_cert_chain(certificate, key, password=_refuse_password)
        return context

    return ReloadingContext.open("upstream_tls", build, (ca, certificate, key))


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Kafka's `ssl.enabled.protocols`
    # A client could otherwise keep the node busy with handshakes of one connection.
    context.options |= ssl.OP_NO_RENEGOTIATION


def _refuse_password() -> str:
    """Refuse an encrypted key; OpenSSL would ask on the terminal for its password."""
    raise ValueError("the key is encrypted; keylane has no password for it")
