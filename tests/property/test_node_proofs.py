"""Proofs of hellos and verdicts: what was said verifies, and nothing else does."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from keylane.errors import NodeInvalid
from keylane.proxy.nodes.gate.proofs import (
    MARK,
    TRAILER_BYTES,
    hello_scope,
    prove,
    seal,
    unseal,
    verdict_scope,
)

SECRETS = st.lists(st.binary(min_size=32, max_size=40), min_size=1, max_size=4)
NAMES = st.text(max_size=6)
HELLOS = st.builds(hello_scope, NAMES, NAMES, NAMES)
VERDICTS = st.builds(verdict_scope, NAMES, NAMES, st.integers(0, 20), NAMES, NAMES)
SCOPES = st.one_of(HELLOS, VERDICTS)
BODIES = st.binary(max_size=50)


def twin(secret: bytes, parts: list[bytes]) -> bytes:
    """HMAC by its definition (RFC 2104), over all parts as one text."""
    text = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    key = hashlib.sha256(secret).digest() if len(secret) > 64 else secret
    inner, outer = (bytes(byte ^ pad for byte in key.ljust(64, b"\0")) for pad in (0x36, 0x5C))
    return hashlib.sha256(outer + hashlib.sha256(inner + text).digest()).digest()


@given(secret=st.binary(min_size=1, max_size=100), scope=SCOPES, body=BODIES)
def test_a_proof_is_an_hmac_of_all_parts(secret: bytes, scope, body: bytes) -> None:
    """As the twin computes it."""
    assert prove(secret, scope, body) == twin(secret, [*scope, body])
    assert prove(secret, scope, body) == hmac.digest(
        secret, b"".join(len(part).to_bytes(8, "big") + part for part in (*scope, body)), "sha256"
    )


@given(secrets=SECRETS, scope=SCOPES, body=BODIES, place=st.integers(0, 3))
def test_what_one_of_the_secrets_signed_verifies(secrets, scope, body, place: int) -> None:
    """Whichever line it is at the reader: that is how a secret is rotated."""
    signer = secrets[place % len(secrets) :]

    assert unseal(seal(body, signer, scope), secrets, scope) == body


@given(
    secrets=SECRETS,
    other=SECRETS,
    scope=SCOPES,
    elsewhere=SCOPES,
    body=BODIES,
    changed=st.binary(max_size=50),
)
def test_any_change_of_any_part_does_not_verify(
    secrets, other, scope, elsewhere, body, changed
) -> None:
    """Of the secret, of a part that it is bound to, of the message."""
    sealed = seal(body, secrets, scope)

    if not set(other) & {secrets[0]}:
        with pytest.raises(NodeInvalid):
            unseal(sealed, other, scope)
    if elsewhere != scope:
        with pytest.raises(NodeInvalid):
            unseal(sealed, secrets, elsewhere)
    if changed != body:
        with pytest.raises(NodeInvalid):
            unseal(changed + sealed[-TRAILER_BYTES:], secrets, scope)


@given(secrets=SECRETS, scope=SCOPES, body=BODIES, data=st.data())
def test_any_bit_counts(secrets, scope, body, data) -> None:
    """Also those of the proof itself."""
    sealed = bytearray(seal(body, secrets, scope))
    at = data.draw(st.integers(0, len(sealed) - 1))
    sealed[at] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises(NodeInvalid):
        unseal(bytes(sealed), secrets, scope)


@given(left=st.lists(BODIES, max_size=4), right=st.lists(BODIES, max_size=4))
def test_parts_cannot_be_moved_into_each_other(left: list[bytes], right: list[bytes]) -> None:
    """Two lists of parts have one proof only where they are the same list."""
    assume(left != right)

    assert prove(b"s" * 32, left, b"") != prove(b"s" * 32, right, b"")


@given(hello=HELLOS, verdict=VERDICTS)
def test_a_hello_is_no_verdict(hello, verdict) -> None:
    """Whatever their parts are."""
    assert prove(b"s" * 32, hello, b"x") != prove(b"s" * 32, verdict, b"x")


@given(secrets=SECRETS, scope=SCOPES, message=st.binary(max_size=TRAILER_BYTES + 10))
def test_what_was_not_signed_does_not_verify(secrets, scope, message: bytes) -> None:
    """Of whatever length, with a mark or without."""
    for tried in (message, message + MARK, MARK + message):
        with pytest.raises(NodeInvalid):
            unseal(tried, secrets, scope)


@given(scope=SCOPES, body=BODIES)
def test_without_secrets_nothing_is_signed_or_checked(scope, body: bytes) -> None:
    """As nodes on one machine may do."""
    assert seal(body, (), scope) == body == unseal(body, (), scope)
