"""Requests of commands to a control port: where it is, who asks, whom to trust.

In:    `host:port` or a URL, a path; flags; tokens and files from the environment.
Out:   `Request`s, and answers.
Next:  `describe_cli`, `assign_apply` read them.
Shell: HTTP, TLS; reads the environment.
"""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, Self
from urllib.error import URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from keylane.errors import ConfigInvalid

TOKEN_VARIABLE: Final = "KEYLANE_CONTROL_TOKEN"  # noqa: S105 - the variable's name
"""The token to show; a flag would be seen by everybody on the machine."""
CA_VARIABLE: Final = "KEYLANE_CONTROL_CA"
CERTIFICATE_VARIABLE: Final = "KEYLANE_CONTROL_CLIENT_CERTIFICATE"
KEY_VARIABLE: Final = "KEYLANE_CONTROL_CLIENT_KEY"
SCHEMES: Final = frozenset({"http", "https"})


@dataclass(frozen=True, slots=True)
class ControlTrust:
    """PEM files for TLS to a control port; None: the system's authorities, no certificate."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """What flags say, and where they say nothing, the environment."""
        named = zip(
            (args.ca, args.cert, args.key),
            (CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE),
            strict=True,
        )
        return cls(*(flag or os.environ.get(variable) or None for flag, variable in named))

    def context(self) -> ssl.SSLContext:
        """A certificate of the control port is always checked. Raises: ConfigInvalid."""
        if self.key is not None and self.certificate is None:
            raise ConfigInvalid("--key needs --cert")
        given = {"--ca": self.ca, "--cert": self.certificate, "--key": self.key}
        try:
            context = ssl.create_default_context(cafile=self.ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password=_refuse_password)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = " ".join(f"{flag} {file}" for flag, file in given.items() if file is not None)
            raise ConfigInvalid(f"{files}: {error}") from None
        return context


def add_trust_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--ca`, `--cert` and `--key`, which `ControlTrust.of` reads."""
    files = parser.add_argument_group("TLS to a control port with https://")
    for flag, variable, text in (
        ("--ca", CA_VARIABLE, "authorities of its certificate; left out, the system's"),
        ("--cert", CERTIFICATE_VARIABLE, "certificate to show, for mTLS"),
        ("--key", KEY_VARIABLE, "its key; left out, it is in the same file"),
    ):
        files.add_argument(flag, metavar="PEM", help=f"{text} (or {variable})")


def control_request(
    control: str,
    path: str,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
) -> Request:
    """A request to `control`, http unless it says https://. Raises: ConfigInvalid."""
    scheme, separator, address = control.partition("://")
    if not separator:
        scheme, address = "http", control
    if scheme not in SCHEMES or not address:
        raise ConfigInvalid(f"--control {control!r}: expected HOST:PORT or https://HOST:PORT")
    shown = dict(headers or {})
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        shown["Authorization"] = f"Bearer {token}"
    url = f"{scheme}://{address.rstrip('/')}{path}"
    return Request(url, data=data, headers=shown, method=method)  # noqa: S310 - checked above


def open_control(request: Request, trust: ControlTrust, *, timeout_s: float) -> HTTPResponse:
    """The answer, of the node to which others lead.

    Raises: ConfigInvalid (files of `trust`), HTTPError, URLError, OSError.
    """
    handlers: list[Any] = [_Redirects]
    if request.type == "https" or trust != ControlTrust():
        handlers.append(HTTPSHandler(context=trust.context()))
    try:
        answer: HTTPResponse = build_opener(*handlers).open(request, timeout=timeout_s)
    except HTTPException as error:
        hint = "" if request.type == "https" else "; a control port with TLS is https://HOST:PORT"
        raise URLError(f"no HTTP answer: {error!r}{hint}") from None
    return answer


class _Redirects(HTTPRedirectHandler):
    """A node may lead to another one, but not from TLS to none: the token goes along."""

    def redirect_request(self, req: Request, *args: Any) -> Request | None:
        """The request to make in place of `req`. Raises: HTTPError, URLError."""
        led = super().redirect_request(req, *args)
        if led is not None and req.type == "https" and led.type != "https":
            raise URLError(f"leads to {led.full_url}, without TLS")
        return led


def _refuse_password() -> str:
    """Called for an encrypted key, for which OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted; keylane has no password for it")
