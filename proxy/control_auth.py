"""Who may use the control port: bearer tokens, one for everything and one for reading.

In:    requests of the control port.  Out: the same, or 401 and 403 as problem documents.
Next:  `control` puts the guard around every handler.
Shell: aiohttp; reads token files.
Source: RFC 6750 (Bearer), RFC 7617 (Basic), Fetch standard (Origin); REQUIREMENTS issue 7.

Probes are open to all, since they tell nothing. A browser cannot send a bearer token of itself:
it is taken as the password of Basic as well, whatever the user name. And since a browser would
send that also for a page of somebody else, a change that such a page asks for is refused. Without
tokens only this machine gets here, but a name of somebody else that leads here does not.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from keylane.errors import ConfigInvalid
from keylane.proxy.control_api.problems import Handler, Problem
from keylane.proxy.secret_file import read_secret
from keylane.security import SecurityConfig, is_loopback

OPEN: Final = frozenset({"/healthz", "/livez", "/readyz"})
SAFE: Final = frozenset({"GET", "HEAD"})
TOKEN_LENGTH_MIN: Final = 16
"""Shorter ones can be guessed over the network."""
CHALLENGE: Final = {"WWW-Authenticate": 'Bearer realm="keylane", Basic realm="keylane"'}


class ControlGuard:
    """Lets in who shows a token.

    The files are read at each request, so a new token needs no restart.
    """

    def __init__(self, config: SecurityConfig) -> None:
        """Raises: ConfigInvalid (a token file cannot be used)."""
        self._admin, self._reader = config.control_token_file, config.control_read_token_file
        if self._admin is not None:
            tokens = self._tokens()
            if min(map(len, tokens)) < TOKEN_LENGTH_MIN:
                raise ConfigInvalid(
                    f"control_token_file: a token has at least {TOKEN_LENGTH_MIN} characters"
                )
            if len(tokens) > len(set(tokens)):
                raise ConfigInvalid("control_read_token_file: has the token of control_token_file")

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Serve who may. Raises: Problem."""
        if request.path not in OPEN:
            self.check(request)
        return await handler(request)

    def check(self, request: web.Request) -> None:
        """Raises: Problem, when the request is refused."""
        if request.method not in SAFE and not _is_same_origin(request):
            raise Problem(HTTPStatus.FORBIDDEN, "a page of another origin asks for this")
        if self._admin is None:
            if not is_loopback(_host_name(request.host)):
                raise Problem(
                    HTTPStatus.FORBIDDEN, "without control_token_file: localhost and 127.0.0.1 only"
                )
            return
        shown = _shown(request.headers.get("Authorization", ""))
        try:
            tokens = self._tokens()
        except ConfigInvalid as error:
            raise Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from None
        # Both are compared, each in constant time: how long it takes tells nothing.
        known = [hmac.compare_digest(shown.encode(), token.encode()) for token in tokens]
        if not any(known):
            raise Problem(HTTPStatus.UNAUTHORIZED, "a token is needed", headers=CHALLENGE)
        if not known[0] and request.method not in SAFE:
            raise Problem(HTTPStatus.FORBIDDEN, "the token of control_read_token_file only reads")

    def _tokens(self) -> list[str]:
        """The admin's token first. Raises: ConfigInvalid."""
        files = {
            "control_token_file": self._admin,
            "control_read_token_file": self._reader,
        }
        return [read_secret(key, file) for key, file in files.items() if file is not None]


def _shown(authorization: str) -> str:
    """The token that a request shows; empty for none."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _is_same_origin(request: web.Request) -> bool:
    """Whether no browser says that a page of somebody else asks."""
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.host


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    return urlsplit(f"//{host}").hostname or ""
