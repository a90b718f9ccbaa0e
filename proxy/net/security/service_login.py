"""keylane's own login: its principal on the connections that no client has asked for.

Source: KIP-43, KIP-152 (SaslAuthenticate), KIP-368 (session lifetime); RFC 4616 (PLAIN), RFC 5802
and 7677 (SCRAM, in `scram`), RFC 7628 (OAUTHBEARER).

The secret is read at every login, so a new one needs no restart. It is in no error and no log:
errors name the file, and a broker's reason is its own text.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka.abc import AbstractTokenProvider
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from scramp import ScramException

from keylane.config.security import PASSWORD_VARIABLE, SecurityConfig
from keylane.errors import ConfigInvalid, LoginRefused
from keylane.proxy.net.security.scram import Messages, scram_messages
from keylane.proxy.net.security.secret_file import read_secret

OAUTH_DISMISS: Final = b"\x01"
"""Answer of a client to the reason of a refusal, RFC 7628 3.2.3; the refusal follows."""

Ask = Callable[[Any], Awaitable[Any]]


class ServiceLogin:
    """Logs connections in with keylane's own principal."""

    def __init__(self, config: SecurityConfig) -> None:
        """`config.login_mechanism` is set."""
        assert config.login_mechanism is not None
        self.mechanism: str = config.login_mechanism
        self._username = config.login_username or ""
        self._password_file, self._token_file = config.login_password_file, config.login_token_file

    async def log_in(self, ask: Ask) -> float:
        """Log one connection in; return the login's lifetime in seconds, 0 without end.

        `ask` sends a kio request and returns its answer. Raises: LoginRefused, UpstreamLost.
        """
        handshake = await ask(SaslHandshakeRequest(mechanism=self.mechanism))
        if handshake.error_code != 0:
            offered = ",".join(handshake.mechanisms)
            raise LoginRefused(f"login_mechanism {self.mechanism}: the broker offers {offered}")
        messages = self.messages()
        lifetime_s = 0.0
        try:
            message = next(messages)
            while True:
                answer = await ask(SaslAuthenticateRequest(auth_bytes=message))
                if answer.error_code != 0:
                    reason = answer.error_message or answer.error_code.name
                    raise LoginRefused(f"login as {self._login_name}: {reason}")
                lifetime_s = float(answer.session_lifetime.total_seconds())
                # SCRAM hashes the password thousands of times: not on the event loop.
                following = await asyncio.to_thread(_send, messages, answer.auth_bytes)
                if following is None:
                    break
                message = following
        except ScramException as error:
            raise LoginRefused(f"login as {self._login_name}: {error}") from None
        return lifetime_s

    def messages(self) -> Messages:
        """Generate the messages of this side from the broker's answers. Raises: LoginRefused."""
        if self.mechanism == "PLAIN":
            return _plain(self._username, self._password())
        if self.mechanism == "OAUTHBEARER":
            return _oauthbearer(self.token())
        return scram_messages(self.mechanism, self._username, self._password())

    def aiokafka_options(self) -> dict[str, Any]:
        """Return keyword arguments of aiokafka's clients. Raises: LoginRefused."""
        if self.mechanism == "OAUTHBEARER":
            provider = TokenFile(self)
            return {"sasl_mechanism": self.mechanism, "sasl_oauth_token_provider": provider}
        return {
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self._username,
            "sasl_plain_password": self._password(),
        }

    def token(self) -> str:
        """Return the OAUTHBEARER token as it stands in its file. Raises: LoginRefused."""
        assert self._token_file is not None
        return _read("login_token_file", self._token_file)

    def _password(self) -> str:
        if self._password_file is not None:
            return _read("login_password_file", self._password_file)
        password = os.environ.get(PASSWORD_VARIABLE)
        if not password:
            raise LoginRefused(f"login: set login_password_file or {PASSWORD_VARIABLE}")
        return password

    @property
    def _login_name(self) -> str:
        return f"{self._username or 'the owner of login_token_file'} by {self.mechanism}"


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Source of a token for aiokafka, at every login."""

    def __init__(self, login: ServiceLogin) -> None:
        self._login = login

    async def token(self) -> str:
        """Return the token as it stands in its file."""
        return await asyncio.to_thread(self._login.token)


def _read(key: str, file: str) -> str:
    try:
        return read_secret(key, file)
    except ConfigInvalid as error:
        raise LoginRefused(str(error)) from None


def _send(messages: Messages, answer: bytes) -> bytes | None:
    """Return the next message; None: there is none. A future cannot hold StopIteration."""
    try:
        return messages.send(answer)
    except StopIteration:
        return None


def _plain(username: str, password: str) -> Messages:
    yield f"\0{username}\0{password}".encode()


def _oauthbearer(token: str) -> Messages:
    reason = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if reason:
        yield OAUTH_DISMISS
