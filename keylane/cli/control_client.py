"""Requests of commands to a control port: address, credentials, authorities to trust."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from types import SimpleNamespace
from typing import Any, Final, Self, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import click

from keylane.errors import ConfigInvalid, ControlRefused, reason_of

Command = TypeVar("Command", bound=Callable[..., Any])
CONTROL_VARIABLE: Final = "KEYLANE_CONTROL"
"""A node reads it too: in its pod a command asks the node of that pod."""
CONTROL_DEFAULT: Final = "127.0.0.1:19090"
TOKEN_VARIABLE: Final = "KEYLANE_CONTROL_TOKEN"  # noqa: S105 - the variable's name
"""The token to show; a flag would be visible to all users of the machine."""
CA_VARIABLE: Final = "KEYLANE_CONTROL_CA"
CERTIFICATE_VARIABLE: Final = "KEYLANE_CONTROL_CLIENT_CERTIFICATE"
KEY_VARIABLE: Final = "KEYLANE_CONTROL_CLIENT_KEY"
HOSTS_VARIABLE: Final = "KEYLANE_CONTROL_HOSTS"
"""Hosts that may be shown the token and the certificate, separated by commas."""
REFUSED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
SCHEMES: Final = frozenset({"http", "https"})
ANSWER_BYTES_MAX: Final = 1024**3
ASK_TIMEOUT_S: Final = 30.0
LEADS_MAX: Final = 5
"""Nodes know each other: one leads to the one that serves a group, and that answers."""
HOST: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*|[0-9a-f:]+")


@dataclass(frozen=True, slots=True)
class ControlTrust:
    """PEM files for TLS to a control port; None: the system's authorities, no certificate."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    hosts: tuple[str, ...] = ()
    """Hosts that get the credentials beside that of the request: names, or `*.suffix`."""

    @classmethod
    def of(cls, args: SimpleNamespace) -> Self:
        """Return the access that flags give, or else the environment. Raises: ConfigInvalid."""
        texts = args.control_host or os.environ.get(HOSTS_VARIABLE, "").split(",")
        return cls(
            ca=args.ca or os.environ.get(CA_VARIABLE) or None,
            certificate=args.cert or os.environ.get(CERTIFICATE_VARIABLE) or None,
            key=args.key or os.environ.get(KEY_VARIABLE) or None,
            hosts=tuple(_host_pattern(text) for text in texts if text.strip()),
        )

    def names(self, host: str) -> bool:
        """Return whether the operator named a host, so that it may get the credentials."""
        return any(
            host.endswith(named[1:]) if named.startswith("*.") else host == named
            for named in self.hosts
        )

    def anonymous(self) -> Self:
        """The same authorities, and no certificate to show."""
        return replace(self, certificate=None, key=None)

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


def trust_options(command: Command) -> Command:
    """Add `--ca`, `--cert`, `--key` and `--control-host`, which `ControlTrust.of` reads."""
    files = (
        ("--key", KEY_VARIABLE, "its key; left out, it is in the same file"),
        ("--cert", CERTIFICATE_VARIABLE, "certificate to show, for mTLS"),
        ("--ca", CA_VARIABLE, "authorities of its certificate; left out, the system's"),
    )
    add_host = click.option(
        "--control-host",
        multiple=True,
        metavar="HOST",
        help="A host that the token and the certificate may be shown to when a node leads to it, "
        f"beside that of the control port: a name, or *.SUFFIX; may be repeated (or "
        f"{HOSTS_VARIABLE}, separated by commas).",
    )
    command = add_host(command)
    for flag, variable, text in files:
        about = f"With a control port of https://: {text} (or {variable})."
        command = click.option(flag, metavar="PEM", help=about)(command)
    return command


def control_options(command: Command) -> Command:
    """Add `--control`, and the options of `trust_options`."""
    add_control = click.option(
        "--control",
        default=lambda: os.environ.get(CONTROL_VARIABLE) or CONTROL_DEFAULT,
        show_default=f"{CONTROL_VARIABLE}, else {CONTROL_DEFAULT}",
        metavar="HOST:PORT",
        help="Control port of a node; with TLS https://HOST:PORT.",
    )
    return add_control(trust_options(command))


def control_request(
    control: str,
    path: str,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    method: str | None = None,
) -> Request:
    """Make a request to `control`, by http unless that has https://. Raises: ConfigInvalid."""
    scheme, separator, address = control.partition("://")
    if not separator:
        scheme, address = "http", control
    url = f"{scheme}://{address.rstrip('/')}{path}"
    wrong = f"--control {control!r}: expected HOST:PORT or https://HOST:PORT"
    if scheme not in SCHEMES or not address:
        raise ConfigInvalid(wrong)
    try:
        _ = urlsplit(url).port  # checked when it is read
    except ValueError:
        raise ConfigInvalid(wrong) from None
    shown = dict(headers or {})
    token = os.environ.get(TOKEN_VARIABLE)
    if token:
        shown["Authorization"] = f"Bearer {token}"
    return Request(url, data=data, headers=shown, method=method)  # noqa: S310 - checked above


def open_control(request: Request, trust: ControlTrust, *, timeout_s: float) -> HTTPResponse:
    """Return the answer of the node to which others lead.

    A host that `trust` does not name, and that is not the request's own, is asked without the
    token and the certificate.
    Raises: ConfigInvalid (files of `trust`), HTTPError, URLError, OSError.
    """
    own, shown, leads = _host_of(request), trust, 0
    while True:
        host = _host_of(request)
        is_named = host == own or trust.names(host)
        if not is_named:
            request.remove_header("Authorization")
            shown = trust.anonymous()
        try:
            return _open(request, shown, timeout_s=timeout_s)
        except _Led as led:
            request, leads = led.request, leads + 1
            if leads > LEADS_MAX:
                raise URLError(f"redirected too often, at last to {request.full_url}") from None
        except HTTPError as error:
            if is_named or error.code not in REFUSED:
                raise
            error.close()
            raise URLError(_not_named(request)) from None
        except OSError as error:  # URLError is one; it may ask for a certificate
            if is_named or request.type != "https":
                raise
            raise URLError(f"{error}; {_not_named(request)}") from None


def ask_control(request: Request, trust: ControlTrust, *, timeout_s: float) -> tuple[str, Any]:
    """Return the ETag and the document of an answer.

    Raises: ControlRefused, with the control port's words; ConfigInvalid (files of `trust`).
    """
    try:
        try:
            with open_control(request, trust, timeout_s=timeout_s) as answer:
                return answer.headers.get("ETag", ""), json.loads(_read(answer))
        except HTTPError as error:
            with error:
                raise ControlRefused(_problem(_read(error))) from None
    except OSError as error:  # of the body too: a node may end while it answers
        raise ControlRefused(_unreachable(request, error, timeout_s)) from None
    except ValueError:
        raise ControlRefused(f"{request.host}: the answer is none of a control port") from None


@dataclass(frozen=True, slots=True)
class ControlPort:
    """A node's control port, as `control_options` name it."""

    address: str
    trust: ControlTrust
    timeout_s: float = ASK_TIMEOUT_S

    @classmethod
    def of(cls, options: SimpleNamespace) -> Self:
        """Return the port that flags or the environment name. Raises: ConfigInvalid."""
        return cls(options.control, ControlTrust.of(options))

    def get(self, path: str) -> Any:
        """Return the document at a path. Raises: ControlRefused, ConfigInvalid."""
        request = control_request(self.address, path)
        return ask_control(request, self.trust, timeout_s=self.timeout_s)[1]

    def send(self, method: str, path: str, body: object = None, *, is_dry: bool) -> Any:
        """Act, or ask for a preview; return the answer. Raises: ControlRefused, ConfigInvalid."""
        data = b"" if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        asked = f"{path}?dry_run={'true' if is_dry else 'false'}"
        request = control_request(self.address, asked, data=data, headers=headers, method=method)
        return ask_control(request, self.trust, timeout_s=self.timeout_s)[1]


def _read(answer: HTTPResponse | HTTPError) -> bytes:
    """Return the body. Raises: OSError."""
    try:
        return answer.read(ANSWER_BYTES_MAX)
    except HTTPException:
        raise URLError("the answer ends in the middle") from None


def _unreachable(request: Request, error: OSError, timeout_s: float) -> str:
    """Return the reason why there is no answer, and the cure."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, ConnectionRefusedError):
        return (
            f"{request.host}: nothing listens there; name the control port of a node that runs "
            f"with --control, or with {CONTROL_VARIABLE}"
        )
    if isinstance(cause, TimeoutError):
        return f"{request.host}: no answer within {timeout_s:g} s"
    return f"{request.host}: {reason_of(cause) if isinstance(cause, OSError) else cause}"


def _problem(body: bytes) -> str:
    """Return the text of a problem document; the body itself when it is none."""
    try:
        problem = json.loads(body)
        field = str(problem.get("field") or "")
        place = f"{field}: " if field.startswith("/") else ""  # into a body that a command made
        return f"{place}{problem['detail']}"
    except (AttributeError, KeyError, TypeError, ValueError):
        return body[:200].decode(errors="replace")


def _not_named(request: Request) -> str:
    return (
        f"leads to {request.full_url}, which was asked without token and certificate, since the "
        f"host was not named; if it is a node of yours, add --control-host {_host_of(request)}"
    )


def _open(request: Request, trust: ControlTrust, *, timeout_s: float) -> HTTPResponse:
    handlers: list[Any] = [_Redirects]
    if request.type == "https" or trust != ControlTrust():
        handlers.append(HTTPSHandler(context=trust.context()))
    try:
        answer: HTTPResponse = build_opener(*handlers).open(request, timeout=timeout_s)
    except HTTPException as error:
        hint = "" if request.type == "https" else ", or one with TLS: https://HOST:PORT"
        name = type(error).__name__
        raise URLError(
            f"no HTTP answer ({name}); that is no control port but perhaps one of Kafka{hint}"
        ) from None
    return answer


class _Led(Exception):
    """A node leads to another one."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.full_url)
        self.request = request


class _Redirects(HTTPRedirectHandler):
    """A node may lead to another one, but not from TLS to none.

    It is not followed here: another host is asked by another TLS context.
    """

    def redirect_request(self, req: Request, fp: Any, *args: Any) -> Request | None:
        """Raises: _Led with the request to make in place of `req`; HTTPError, URLError."""
        led = super().redirect_request(req, fp, *args)
        if led is None:
            return None
        fp.close()
        if led.type not in SCHEMES:
            raise URLError(f"leads to {led.full_url}, which is no control port")
        if req.type == "https" and led.type != "https":
            raise URLError(f"leads to {led.full_url}, without TLS")
        raise _Led(led)


def _host_of(request: Request) -> str:
    return (urlsplit(request.full_url).hostname or "").rstrip(".")


def _host_pattern(text: str) -> str:
    """A host as the operator names it. Raises: ConfigInvalid."""
    host = text.strip().lower().rstrip(".")
    if not HOST.fullmatch(host.removeprefix("*.").strip("[]")):
        raise ConfigInvalid(f"--control-host {text!r}: expected a host name, or *.SUFFIX")
    return host.strip("[]")


def _refuse_password() -> str:
    """Called for an encrypted key, for which OpenSSL would ask on the terminal."""
    raise ValueError("the key is encrypted; keylane has no password for it")
