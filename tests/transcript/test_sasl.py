"""SaslHandshake v1, SaslAuthenticate v0-2: tokens pass as bytes, and nothing comes between."""

from __future__ import annotations

import pytest

from keylane.errors import FrameInvalid
from keylane.proxy.apis import BEFORE_LOGIN, ROUTES
from keylane.proxy.apis.connection.sasl import TOKEN_BYTES_MAX
from tests.transcript.fake import (
    FakeContext,
    call,
    check,
    is_relayed,
    make_request,
    serve,
    versions,
)

HANDSHAKE, AUTHENTICATE = 17, 36
TOKEN = b"\0alice\0password"


async def test_a_handshake_waits_for_what_is_under_way() -> None:
    """Keylane's own questions are over before it is sent; nothing follows before its answer."""
    context = FakeContext()
    answer = {"error_code": 0, "mechanisms": ["PLAIN", "SCRAM-SHA-256"]}
    context.expect(HANDSHAKE, {"mechanism": "PLAIN"}, answer, version=1)

    seen = await call(context, HANDSHAKE, 1, {"mechanism": "PLAIN"})

    check(answer, seen)
    assert context.events == ["others done", "send SaslHandshake"]


@pytest.mark.parametrize("version", versions(AUTHENTICATE))
@pytest.mark.parametrize("error_code", [0, 58])
async def test_tokens_pass_as_bytes(version, error_code) -> None:
    """Both ways; only a token that the broker took counts as a login."""
    context = FakeContext()
    request = make_request(AUTHENTICATE, version, {"auth_bytes": TOKEN})
    answer = {"error_code": error_code, "auth_bytes": b"v=proof"}
    context.expect(AUTHENTICATE, bytes(request.body), answer)

    assert is_relayed(context, request)
    check(answer, await call(context, AUTHENTICATE, version, {"auth_bytes": TOKEN}))
    taken = ["token taken"] if error_code == 0 else []
    assert context.events == ["send SaslAuthenticate", *taken]


@pytest.mark.parametrize("version", versions(AUTHENTICATE))
@pytest.mark.parametrize(
    ("mechanism", "token", "answer"),
    [
        ("OAUTHBEARER", b"n,,\x01auth=Bearer aaaa.bbbb.\x01\x01", b'{"status":"invalid_token"}'),
        ("SCRAM-SHA-512", b"n,,n=alice,r=nonce", b"r=nonce,s=salt,i=4096"),
    ],
)
async def test_an_answer_on_the_way_is_no_login(version, mechanism, token, answer) -> None:
    """A refused bearer token and a challenge have no error code."""
    context = FakeContext()
    context.expect(HANDSHAKE, None, {"error_code": 0, "mechanisms": [mechanism]})
    await call(context, HANDSHAKE, 1, {"mechanism": mechanism})
    context.events.clear()
    context.expect(AUTHENTICATE, None, {"error_code": 0, "auth_bytes": answer})

    await call(context, AUTHENTICATE, version, {"auth_bytes": token})

    assert context.events == ["send SaslAuthenticate", "on the way"]


def test_a_token_that_no_broker_takes() -> None:
    """Brokers bound it, too; a client that logs in again may send no larger one."""
    request = make_request(AUTHENTICATE, 2, {"auth_bytes": bytes(TOKEN_BYTES_MAX)})

    with pytest.raises(FrameInvalid, match="bytes"):
        ROUTES[AUTHENTICATE].check(request, may_relay=True)


@pytest.mark.parametrize("version", versions(AUTHENTICATE))
@pytest.mark.parametrize("error_code", [0, 58])
async def test_a_name_counts_when_the_broker_took_the_login(version, error_code) -> None:
    """And not before: a client that is refused has no name."""
    context = FakeContext()
    context.expect(HANDSHAKE, None, {"error_code": 0, "mechanisms": ["PLAIN"]})
    await call(context, HANDSHAKE, 1, {"mechanism": "PLAIN"})
    context.events.clear()
    context.expect(AUTHENTICATE, None, {"error_code": error_code, "auth_bytes": b""})

    await call(context, AUTHENTICATE, version, {"auth_bytes": TOKEN})

    known = ["login", "principal User:alice"] if error_code == 0 else []
    assert context.events == ["send SaslAuthenticate", *known]


@pytest.mark.parametrize("body", [b"", b"\x00"])
async def test_an_answer_that_is_cut(body) -> None:
    """A broker that sends it is not believed."""
    context = FakeContext()
    context.expect(AUTHENTICATE, None, body)

    with pytest.raises(FrameInvalid, match="too short"):
        await serve(context, make_request(AUTHENTICATE, 1, {"auth_bytes": TOKEN}))


def test_what_a_broker_takes_before_the_login() -> None:
    """Kafka's own list."""
    names = {route.name for key, route in ROUTES.items() if route.is_before_login}

    assert names == {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
    assert len(names) == len(BEFORE_LOGIN)
