"""Logins of the Python consumer: what is set wrong, what a server refuses, what no server says."""

from __future__ import annotations

import logging
import ssl
from typing import Any

import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError, SaslAuthenticationFailed

from keylane.client import errors as e
from keylane.client.cluster import ClusterClient
from keylane.client.connection import _TokenLogin
from keylane.client.settings import ConsumerSettings
from keylane.errors import ConfigInvalid

SERVERS = "one:9092,two:9093"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sasl_mechanism": "DIGEST-MD5"}, "sasl_mechanism is 'DIGEST-MD5', expected one of PLAIN"),
        ({}, "sasl_mechanism PLAIN needs sasl_plain_username"),
        ({"sasl_plain_username": "ann"}, "sasl_mechanism PLAIN needs sasl_plain_password"),
        (
            {"sasl_mechanism": "SCRAM-SHA-256", "sasl_plain_password": "p"},
            "sasl_mechanism SCRAM-SHA-256 needs sasl_plain_username",
        ),
        (
            {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": lambda: "token"},
            "needs sasl_oauth_token_provider, an aiokafka.abc.AbstractTokenProvider",
        ),
        ({"sasl_mechanism": "GSSAPI"}, "sasl_mechanism GSSAPI needs the package gssapi"),
    ],
)
def test_what_a_login_lacks_is_named(options: dict[str, Any], text: str) -> None:
    """Before a connection is made, by the name of the option."""
    with pytest.raises(ConfigInvalid, match=text):
        ConsumerSettings(security_protocol="SASL_PLAINTEXT", **options)


def test_without_a_login_nothing_is_needed() -> None:
    """Options of a login are not looked at with security_protocol PLAINTEXT."""
    assert ConsumerSettings(sasl_mechanism="OAUTHBEARER").security_protocol == "PLAINTEXT"


async def start(monkeypatch: pytest.MonkeyPatch, *outcomes: Exception) -> list[str]:
    """Start in front of servers that end connections so; return the addresses that were tried."""
    tried: list[str] = []
    rest = list(outcomes)

    async def connect(link: AIOKafkaConnection) -> None:
        tried.append(f"{link.host}:{link.port}")
        raise rest.pop(0)

    monkeypatch.setattr(AIOKafkaConnection, "connect", connect)
    settings = ConsumerSettings(
        bootstrap_servers=SERVERS,
        security_protocol="SASL_PLAINTEXT",
        sasl_plain_username="ann",
        sasl_plain_password="secret",
    )
    cluster = ClusterClient(settings)
    try:
        await cluster.start()
    finally:
        await cluster.close()
    return tried


async def test_a_refused_login_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The address, the user and the server's reason are in it; the password and the log are not."""
    with caplog.at_level(logging.WARNING), pytest.raises(e.AuthenticationFailed) as refused:
        await start(monkeypatch, SaslAuthenticationFailed("unknown user"))

    text = str(refused.value)
    assert ":909" in text and "(PLAIN, user 'ann')" in text and "unknown user" in text
    assert "secret" not in text
    assert (refused.value.error_code, refused.value.retriable) == (58, False)
    assert caplog.text == ""


async def test_servers_that_do_not_answer_are_named_with_their_reasons(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All are tried; each has its reason in the text."""
    with caplog.at_level(logging.WARNING), pytest.raises(e.ClusterUnreachable) as refused:
        await start(monkeypatch, KafkaConnectionError("no route"), TimeoutError())

    text = str(refused.value)
    assert "one:9092 (" in text and "two:9093 (" in text
    assert "no route" in text and "no answer" in text
    assert refused.value.retriable
    assert caplog.text == ""


async def test_a_certificate_that_is_not_trusted_is_no_login(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is a ValueError as a wrong proof of SCRAM is; the other servers are tried."""
    bad = ssl.SSLCertVerificationError("certificate verify failed")
    with pytest.raises(e.ClusterUnreachable, match=r"certificate verify failed.*no route"):
        await start(monkeypatch, bad, KafkaConnectionError("no route"))


class Provider(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """Gives one token."""

    async def token(self) -> str:
        return "token"


async def test_the_reason_of_a_refused_token_is_no_success() -> None:
    """An answer with bytes is the reason (RFC 7628); an empty one lets the client in."""
    login = _TokenLogin(sasl_oauth_token_provider=Provider())
    sent = await login.step(None)
    assert sent is not None
    assert b"Bearer token" in sent[0]
    assert await login.step(b"") is None
    with pytest.raises(SaslAuthenticationFailed, match="invalid_token"):
        await login.step(b'{"status":"invalid_token"}')


async def test_a_server_without_a_proof_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What aiokafka says of a wrong signature (SCRAM) is a refused login too, not a ValueError."""
    with pytest.raises(e.AuthenticationFailed, match="Server sent wrong signature!"):
        await start(monkeypatch, ValueError("Server sent wrong signature!"))
