"""The name of a client once its broker has taken its login, read from the tokens that pass.

Source: RFC 4616 (PLAIN), RFC 5802 (SCRAM), RFC 7628 (OAUTHBEARER); Kafka's `PlainSaslServer`,
`ScramFormatter`, `OAuthBearerClientInitialResponse`, KIP-48 (delegation tokens).

A name is the client's claim and counts only once the broker says that the login is over. It is for
bounds alone, never for rights, which the broker is asked for. No password and no token is kept.
Where a name is not readable (Kerberos, tokens that are no JWT) there is none.

An answer without an error code does not end a login: a SCRAM challenge has none, and the answer to
a refused OAUTHBEARER token has its reason in the bytes. Other mechanisms end with an answer without
bytes, as Kerberos does, or with a lifetime, which brokers give at the end alone; without either,
the end is not known.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

NAME_LENGTH_MAX: Final = 1024
"""Longer names count by their beginning: what is kept of a client is bounded."""
SCRAM_FIRST: Final = re.compile(rb"n,(?:a=[^,]*)?,(?:m=[^,]*,)?n=([^,]+),r=[^,]+(,.*)?", re.DOTALL)
DELEGATED: Final = b"tokenauth=true"
BEARER_PARTS_MAX: Final = 16
"""Key-value pairs of a token that are looked at; Kafka's clients send `auth` first."""
BEARER: Final = re.compile(rb"auth=\w+ +[-\w]+\.([-\w]+)\.[-\w]*\s*")


class LoginStep(NamedTuple):
    """Progress of a login by the broker's answer to a token."""

    is_over: bool | None
    """The broker has taken the login; None: its mechanism does not say."""
    principal: str | None = None
    """Name in Kafka's form: `User:alice`, for a delegation token `Token:` and its id."""


NOT_OVER: Final = LoginStep(is_over=False)


class LoginWatch:
    """Follows the logins of one connection, which may follow each other (KIP-368)."""

    def __init__(self, *, subject_claim: str) -> None:
        """subject_claim: of an OAUTHBEARER token, as brokers' `sasl.oauthbearer.sub.claim.name`."""
        self._subject_claim = subject_claim
        self._mechanism, self._claimed, self._taken = "", "", 0

    @property
    def is_watching(self) -> bool:
        """Return whether tokens of a known mechanism are under way: others need not be read."""
        return self._mechanism in _MECHANISMS

    def begin(self, mechanism: str) -> None:
        """Follow a handshake that is sent to the broker: tokens of this mechanism come next."""
        self._mechanism, self._claimed, self._taken = mechanism, "", 0

    def answered(
        self, token: bytes, error_code: int, answer: bytes, lifetime_ms: int = 0
    ) -> LoginStep:
        """Follow the broker's answer to a token: a code, bytes, and the login's lifetime."""
        if error_code != 0:
            self.begin("")
            return NOT_OVER
        mechanism = _MECHANISMS.get(self._mechanism)
        if mechanism is None:
            return LoginStep(is_over=True if not answer or lifetime_ms > 0 else None)
        if self._taken == 0:
            self._claimed = mechanism.name_of(token, self._subject_claim)[:NAME_LENGTH_MAX]
        self._taken += 1
        if not mechanism.is_over(self._taken, answer):
            return NOT_OVER
        claimed = self._claimed
        self.begin("")
        return LoginStep(is_over=True, principal=claimed or None)


def _plain_name(token: bytes, _claim: str) -> str:
    parts = token.split(b"\0")
    return f"User:{_text(parts[1])}" if len(parts) == 3 and parts[1] else ""


def _scram_name(token: bytes, _claim: str) -> str:
    found = SCRAM_FIRST.fullmatch(token)
    if found is None:
        return ""
    kind = "Token" if DELEGATED in (found[2] or b"").split(b",") else "User"
    return f"{kind}:{_text(found[1]).replace('=2C', ',').replace('=3D', '=')}"


def _bearer_name(token: bytes, claim: str) -> str:
    for part in token.split(b"\x01", BEARER_PARTS_MAX):
        found = BEARER.fullmatch(part)
        if found is None:
            continue
        try:
            claims = json.loads(base64.urlsafe_b64decode(found[1] + b"=" * (-len(found[1]) % 4)))
        except (binascii.Error, ValueError, RecursionError):
            return ""
        name = claims.get(claim) if isinstance(claims, dict) else None
        return f"User:{name}" if isinstance(name, str) and name else ""
    return ""


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")


class _Mechanism(NamedTuple):
    name_of: Callable[[bytes, str], str]
    """Name in the first token, by the claim's name where it has claims."""
    is_over: Callable[[int, bytes], bool]
    """True: the login is over with this answer, by its number and bytes."""


# The first answer to SCRAM is the challenge, the second comes after the proof.
_SCRAM: Final = _Mechanism(_scram_name, lambda taken, _answer: taken == 2)
_MECHANISMS: Final[Mapping[str, _Mechanism]] = {
    "PLAIN": _Mechanism(_plain_name, lambda _taken, _answer: True),
    "SCRAM-SHA-256": _SCRAM,
    "SCRAM-SHA-512": _SCRAM,
    # A refused token is answered without an error code at first, but with the reason.
    "OAUTHBEARER": _Mechanism(_bearer_name, lambda _taken, answer: not answer),
}
