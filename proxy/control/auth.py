"""Rights on the control port: by a client certificate, or by a bearer token.

Source: RFC 6750 (Bearer), RFC 7617 (Basic), Fetch standard (Origin), Fetch Metadata
(Sec-Fetch-Site); of names in certificates RFC 2253 (subjects, as Kafka's SSL principals and
`openssl -nameopt RFC2253` have them) and RFC 5280 4.2.1.6 (alternative names).

A client with a certificate and a token may do what the better of them allows. Probes are open to
all, since they hold no secret. A browser cannot be made to send a bearer token, so a token is also
taken as the password of Basic, with any user name. A browser would send that, and a certificate,
for a page of another site as well, so a change that such a page asks for is refused. Without
tokens and certificates only this machine gets in, and only by its own names: a foreign name may be
one that a stranger's DNS server leads here.
"""

from __future__ import annotations

import base64
import hmac
import ssl
import time
from collections.abc import Callable, Mapping
from enum import IntEnum
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from keylane.config.security import SecurityConfig, is_loopback
from keylane.errors import ConfigInvalid
from keylane.proxy.control.api.problems import Handler, Problem
from keylane.proxy.net.security.secret_file import read_secret

IDENTITY: Final = web.RequestKey("identity", str)
"""The client's name, once the guard has let it in."""
OPEN: Final = frozenset({"/healthz", "/livez", "/readyz"})
SAFE: Final = frozenset({"GET", "HEAD"})
OWN_SITES: Final = frozenset({"same-origin", "none"})
"""Values of Sec-Fetch-Site for requests of our own page, and of a person."""
TOKEN_LENGTH_MIN: Final = 16
"""Shorter ones can be guessed over the network."""
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="keylane", Basic realm="keylane"'}
NAMES_SHOWN_MAX: Final = 10
"""Of a certificate that may do nothing, in the answer to its client."""

SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "givenName": "GN",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "street",
    "surname": "SN",
    "userId": "UID",
}
"""Of attributes of a subject, as OpenSSL has them; any other one keeps its name."""
ALTERNATIVES: Final = frozenset({"DNS", "URI", "email"})
SPECIAL: Final = frozenset(',+"\\<>;')


class Role(IntEnum):
    """Rights of a client; a higher one may do what a lower one may."""

    NO_ROLE = 0
    READER = 1
    ADMIN = 2


class ControlGuard:
    """Lets in clients with a certificate of a configured name, or a token.

    The files of tokens are read at each request, so a new one needs no restart.
    """

    def __init__(
        self,
        config: SecurityConfig,
        *,
        wall_clock: Callable[[], float] = time.time,  # noqa: TID251 - certificates end by it
    ) -> None:
        """Raises: ConfigInvalid (a token file cannot be used)."""
        self._wall_clock = wall_clock
        self._takes_certificates = config.control_client_ca is not None
        self._roles = dict.fromkeys(config.control_readers, Role.READER)
        self._roles |= dict.fromkeys(config.control_admins, Role.ADMIN)
        self._admin, self._reader = config.control_token_file, config.control_read_token_file
        if self._admin is not None:
            tokens = self._tokens()
            if min(map(len, tokens)) < TOKEN_LENGTH_MIN:
                raise ConfigInvalid(
                    f"control_token_file: a token has at least {TOKEN_LENGTH_MIN} characters"
                )
            if len(tokens) > len(set(tokens)):
                raise ConfigInvalid(
                    "control_read_token_file: has the token of control_token_file, make another one"
                )

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve a request that may be served. Raises: Problem."""
        if request.path not in OPEN:
            request[IDENTITY] = self.check(request)
        return await handler(request)

    def check(self, request: web.Request) -> str:
        """Return the client's name for the log: of its certificate, or of the token's key.

        Raises: Problem, when the request is refused.
        """
        if request.method not in SAFE and not _is_same_origin(request):
            raise Problem(HTTPStatus.FORBIDDEN, "a page of another origin asks for this")
        if not self.needs_role:
            if not is_loopback(_host_name(request.host)):
                raise Problem(
                    HTTPStatus.FORBIDDEN,
                    "without control_token_file or control_client_ca: localhost and 127.0.0.1 only",
                )
            return f"an unnamed client at {request.remote}"
        names = self._certified(request)
        role = self._role_of_names(names)
        identity = min((name for name in names if self._roles.get(name) is role), default="")
        needed = Role.READER if request.method in SAFE else Role.ADMIN
        if role < needed:
            role = max(role, self._role_of_token(request))
            key = "control_token_file" if role is Role.ADMIN else "control_read_token_file"
            identity = f"the token of {key} at {request.remote}"
        if role is Role.NO_ROLE:
            raise self._refusal(names)
        if role < needed:
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "control_readers, and the token of control_read_token_file, only read",
            )
        return identity

    @property
    def needs_role(self) -> bool:
        """Return whether a client needs a token or a certificate; else it is on this machine."""
        return self._admin is not None or self._takes_certificates

    def role_of(self, request: web.Request) -> Role:
        """Return the best role that a client has. Raises: Problem (a token file cannot be read)."""
        if not self.needs_role:
            return Role.ADMIN
        by_certificate = self._role_of_names(self._certified(request))
        return max(by_certificate, self._role_of_token(request))

    def _role_of_names(self, names: frozenset[str]) -> Role:
        return max((self._roles.get(name, Role.NO_ROLE) for name in names), default=Role.NO_ROLE)

    def _certified(self, request: web.Request) -> frozenset[str]:
        """Names in the certificate of the connection; none without one, or when its time is over.

        The handshake has checked it, but a connection may live longer than a certificate.
        """
        certificate: Mapping[str, Any] | None = request.get_extra_info("peercert")
        if not self._takes_certificates or not certificate:
            return frozenset()
        if ssl.cert_time_to_seconds(certificate["notAfter"]) <= self._wall_clock():
            return frozenset()
        return names_of(certificate)

    def _role_of_token(self, request: web.Request) -> Role:
        """Raises: Problem (a token file cannot be read)."""
        if self._admin is None:
            return Role.NO_ROLE
        shown = _shown(request.headers.get("Authorization", ""))
        try:
            tokens = self._tokens()
        except ConfigInvalid as error:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
        # Both are compared, each in constant time: the time that it takes says nothing.
        data = shown.encode(errors="surrogateescape")  # as the bytes came that are no UTF-8
        known = [hmac.compare_digest(data, token.encode()) for token in tokens]
        if known[0]:
            return Role.ADMIN
        return Role.READER if any(known) else Role.NO_ROLE

    def _refusal(self, names: frozenset[str]) -> Problem:
        """Return the answer to a client without a role: what is missing."""
        if names:
            reported = ", ".join(sorted(names)[:NAMES_SHOWN_MAX])
            needed = f"neither control_admins nor control_readers has a name of yours: {reported}"
        elif self._takes_certificates:
            tokens = " or a token" if self._admin is not None else ""
            needed = f"a certificate of control_client_ca{tokens} is needed"
        else:
            needed = "a token is needed"
        if self._admin is None:  # 401 would have a browser ask for a password
            return Problem(HTTPStatus.FORBIDDEN, needed)
        return Problem(HTTPStatus.UNAUTHORIZED, needed, headers=CHALLENGE)

    def _tokens(self) -> list[str]:
        """The admin's token first. Raises: ConfigInvalid."""
        files = {
            "control_token_file": self._admin,
            "control_read_token_file": self._reader,
        }
        return [read_secret(key, file) for key, file in files.items() if file is not None]


def identity_of(request: web.Request) -> str:
    """Return the name of a client that was let in, for the log and the event line."""
    return request.get(IDENTITY) or f"a client at {request.remote}"


def _shown(authorization: str) -> str:
    """Return the token that a request shows; empty for none."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:  # no base64, or no text in it
        return ""


def _is_same_origin(request: web.Request) -> bool:
    """Return whether the request is not from a page of another site.

    A browser names the page's origin with each change; newer ones also say how it stands to ours.
    """
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in OWN_SITES:
        return False
    origin = request.headers.get("Origin")
    try:
        return origin is None or urlsplit(origin).netloc == request.host
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """Return the name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def names_of(certificate: Mapping[str, Any]) -> frozenset[str]:
    """Return the subject (`CN=ops,O=Example`), and each of `DNS:`, `URI:` and `email:`."""
    alternatives = certificate.get("subjectAltName", ())
    names = {f"{kind}:{value}" for kind, value in alternatives if kind in ALTERNATIVES}
    # The most general part comes first in the certificate, and last in the name.
    parts = [
        "+".join(f"{SHORT.get(key, key)}={_escape(text)}" for key, text in reversed(part))
        for part in reversed(certificate.get("subject", ()))
    ]
    if parts:
        names.add(",".join(parts))
    return frozenset(names)


def _escape(text: str) -> str:
    """Escape signs of the syntax: else a value with a comma could pass for two parts."""
    escaped = "".join(f"\\{letter}" if letter in SPECIAL else letter for letter in text)
    if text.startswith(("#", " ")):
        escaped = f"\\{escaped}"
    if text.endswith(" ") and len(text) > 1:
        escaped = f"{escaped[:-1]}\\ "
    return escaped
