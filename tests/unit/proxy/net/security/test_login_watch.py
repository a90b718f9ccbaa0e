"""proxy/net/security/login_watch.py: a name is what the broker took, and nothing else."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from keylane.proxy.net.security.login_watch import NAME_LENGTH_MAX, LoginWatch

FIRST = b"n,,n=alice,r=nonce"
FINAL = b"c=biws,r=nonce,p=proof"


def watch(mechanism: str, *exchange: tuple[bytes, int, bytes], claim: str = "sub") -> list[Any]:
    """What is known after each answer."""
    login = LoginWatch(subject_claim=claim)
    login.begin(mechanism)
    return [login.answered(*step).principal for step in exchange]


def bearer(claims: Any, prefix: bytes = b"n,,") -> bytes:
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    token = ".".join(base64.urlsafe_b64encode(p).decode().rstrip("=") for p in parts) + ".c2ln"
    return prefix + b"\x01auth=Bearer " + token.encode() + b"\x01\x01"


def test_plain() -> None:
    """Name and password in one token."""
    assert watch("PLAIN", (b"\0alice\0secret", 0, b"")) == ["User:alice"]
    assert watch("PLAIN", (b"bob\0bob\0secret", 0, b"")) == ["User:bob"]
    assert watch("PLAIN", (b"\0alice\0secret", 58, b"")) == [None]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram(mechanism) -> None:
    """The challenge proves nothing; what follows the proof does."""
    first, challenge = (FIRST, 0, b"r=nonce,s=salt"), (FINAL, 0, b"v=proof")

    assert watch(mechanism, first, challenge) == [None, "User:alice"]
    assert watch(mechanism, first, (FINAL, 58, b"")) == [None, None]
    assert watch(mechanism, first, (FINAL, 58, b""), challenge) == [None, None, None]


@pytest.mark.parametrize(
    ("token", "name"),
    [
        (b"n,a=al=2Cce,n=al=2Cce,r=x", "User:al,ce"),
        (b"n,,m=ext,n=a=3Db,r=x", "User:a=b"),
        (b"n,,n=id-7,r=x,tokenauth=true", "Token:id-7"),
        (b"n,,n=alice,r=x,tokenauth=false", "User:alice"),
        (b"y,,n=alice,r=x", None),
        (b"", None),
    ],
)
def test_names_of_scram(token, name) -> None:
    """Escapes, extensions, delegation tokens; a name that is written otherwise is unknown."""
    steps = (token, 0, b"r=x,s=y"), (FINAL, 0, b"v=z")

    assert watch("SCRAM-SHA-256", *steps) == [None, name]


def test_oauthbearer() -> None:
    """The claim that the brokers take; a reason instead of success is a refusal."""
    token = bearer({"sub": "alice", "client_id": "billing"})

    assert watch("OAUTHBEARER", (token, 0, b"")) == ["User:alice"]
    assert watch("OAUTHBEARER", (token, 0, b""), claim="client_id") == ["User:billing"]
    assert watch("OAUTHBEARER", (token, 0, b'{"status":"invalid_token"}')) == [None]
    assert watch("OAUTHBEARER", (token, 0, b"{}"), (b"\x01", 58, b"")) == [None, None]
    with_authzid = bearer({"sub": "alice"}, prefix=b"n,a=alice,")
    assert watch("OAUTHBEARER", (with_authzid, 0, b"")) == ["User:alice"]


@pytest.mark.parametrize(
    "token",
    [
        bearer({"sub": 5}),
        bearer({"sub": ""}),
        bearer({}),
        bearer(["sub"]),
        b"n,,\x01auth=Bearer opaque\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a." + b"W1tb" * 100_000 + b".c\x01\x01",
        b"",
    ],
)
def test_tokens_without_a_name(token) -> None:
    """Opaque, cut, nested without end: the name is unknown, and nothing fails."""
    assert watch("OAUTHBEARER", (token, 0, b"")) == [None]


def test_a_mechanism_that_is_not_known() -> None:
    """Kerberos: what a ticket says is encrypted; nor is anything read without a handshake."""
    assert watch("GSSAPI", (b"ticket", 0, b""), (b"more", 0, b"")) == [None, None]
    login = LoginWatch(subject_claim="sub")
    assert not login.is_watching
    assert login.answered(b"\0alice\0secret", 0, b"").principal is None


@pytest.mark.parametrize(
    ("mechanism", "exchange", "over"),
    [
        ("PLAIN", [(b"\0alice\0secret", 0, b"")], [True]),
        ("PLAIN", [(b"no name", 0, b"")], [True]),
        ("PLAIN", [(b"\0alice\0secret", 58, b"")], [False]),
        ("SCRAM-SHA-256", [(FIRST, 0, b"r=nonce"), (FINAL, 0, b"v=proof")], [False, True]),
        ("SCRAM-SHA-256", [(FIRST, 0, b"")], [False]),
        ("OAUTHBEARER", [(b"n,,\x01auth=Bearer aaaa.bbbb.\x01\x01", 0, b"{}")], [False]),
        ("OAUTHBEARER", [(b"opaque", 0, b"")], [True]),
        (
            "GSSAPI",
            [(b"ticket", 0, b"reply"), (b"", 0, b"wrap"), (b"x", 0, b"")],
            [None, None, True],
        ),
        ("OF-LATER", [(b"one", 0, b"challenge"), (b"two", 0, b"final", 3_600_000)], [None, True]),
        ("OF-LATER", [(b"one", 58, b"")], [False]),
    ],
)
def test_when_a_login_is_over(mechanism, exchange, over) -> None:
    """An answer without a code is none of it: challenges and refused bearer tokens have none."""
    login = LoginWatch(subject_claim="sub")
    login.begin(mechanism)

    assert [login.answered(*step).is_over for step in exchange] == over


def test_a_login_counts_once() -> None:
    """A token that follows without a handshake has no name."""
    token = (b"\0alice\0secret", 0, b"")

    assert watch("PLAIN", token, token) == ["User:alice", None]


def test_long_names_are_cut() -> None:
    """What is kept of a client is bounded."""
    (name,) = watch("PLAIN", (b"\0" + b"x" * 500_000 + b"\0secret", 0, b""))

    assert len(name) == NAME_LENGTH_MAX
