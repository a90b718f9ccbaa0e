"""The Python consumer over TLS with a login: through keylane and directly, on both loops."""

from __future__ import annotations

import asyncio
import logging
import ssl
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest
import uvloop
from aiokafka.abc import AbstractTokenProvider

from keylane.client import Consumer
from keylane.client import errors as e
from tests.integration.keylane_process import PATIENCE
from tests.integration.secured import MECHANISMS, Login, token_of

LIMIT_S: Final = 30.0 * PATIENCE
LOOPS: Final[dict[str, Callable[[Coroutine[Any, Any, Any]], Any]]] = {
    "asyncio": asyncio.run,
    "uvloop": uvloop.run,
}


class Token(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    """A provider of one token."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def options_of(bootstrap: str, login: Login) -> dict[str, Any]:
    """Return the settings of a login."""
    return {
        "bootstrap_servers": bootstrap,
        "auto_offset_reset": "earliest",
        "security_protocol": "SASL_SSL",
        "ssl_context": ssl.create_default_context(cafile=str(login.ca)),
        "sasl_mechanism": login.mechanism,
        "sasl_plain_username": login.user,
        "sasl_plain_password": login.password,
        "sasl_oauth_token_provider": Token(login.token),
    }


async def read(topic: str, count: int, **options: Any) -> tuple[list[str], int]:
    """Read so many values and commit them; return them, and the count of assigned partitions."""
    values: list[str] = []
    async with asyncio.timeout(LIMIT_S), Consumer(topic, **options) as consumer:
        while len(values) < count:
            records = await consumer.getmany(timeout_ms=1_000)
            values += [(record.value or b"").decode() for record in records.all()]
        await consumer.commit()
        return values, len(consumer.assignment())


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("way", ["direct", "keylane"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_login_reads_and_commits(stage, mechanism, way, loop) -> None:
    """Each mechanism, on both loops: all values once, and nothing is left for a second start."""
    topic, values = stage.topic(f"client-{mechanism}-{way}-{loop}")
    bootstrap = stage.direct if way == "direct" else stage.proxy.bootstrap
    options = options_of(bootstrap, stage.login(mechanism, "alice"))
    options["group_id"] = f"client-{topic}"
    late = stage.produce

    found, parts = LOOPS[loop](read(topic, len(values), **options))
    more = late(topic, 1, first=3)
    rest, _ = LOOPS[loop](read(topic, len(more), **options))

    assert sorted(found) == sorted(values)
    assert parts == (2 if way == "direct" else 8)
    assert sorted(rest) == sorted(more)


@pytest.mark.parametrize("way", ["direct", "keylane"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_named(stage, mechanism, way, caplog) -> None:
    """The start is an error with the address and the broker's reason, and is not tried again."""
    bootstrap = stage.direct if way == "direct" else stage.proxy.bootstrap
    login = stage.login(mechanism, "alice", password="not-the-password-Zq7")

    with caplog.at_level(logging.WARNING), pytest.raises(e.AuthenticationFailed) as refused:
        asyncio.run(read("any", 1, **options_of(bootstrap, login)))

    text = str(refused.value)
    assert "invalid credentials" in text or "Invalid username or password" in text
    assert f"({mechanism}, user 'alice')" in text
    assert bootstrap in text
    assert "not-the-password" not in text
    assert not refused.value.retriable
    assert caplog.text == ""


PROGRAM: Final = """
import asyncio, ssl, sys
from keylane.client import Consumer
from keylane.errors import KeylaneError

async def main(bootstrap, ca, password):
    options = dict(
        bootstrap_servers=bootstrap, group_id="g", security_protocol="SASL_SSL",
        ssl_context=ssl.create_default_context(cafile=ca), sasl_mechanism="SCRAM-SHA-256",
        sasl_plain_username="alice", sasl_plain_password=password,
    )
    try:
        async with Consumer("orders", **options):
            pass
    except KeylaneError as error:
        sys.exit(f"{type(error).__name__}: {error}")

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_program_that_is_refused_prints_one_line(stage) -> None:
    """What it says itself: no traceback, no warning of a task or a connection that is left."""
    arguments = [stage.proxy.bootstrap, str(stage.ca), "not-the-password-Zq7"]
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", PROGRAM, *arguments],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip

    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("AuthenticationFailed: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


@pytest.mark.parametrize("way", ["direct", "keylane"])
def test_an_authority_that_is_not_trusted_is_named(stage, way) -> None:
    """A certificate that the client cannot check: the text says so."""
    bootstrap = stage.direct if way == "direct" else stage.proxy.bootstrap
    options = options_of(bootstrap, stage.login("PLAIN", "alice"))
    options["ssl_context"] = ssl.create_default_context()

    with pytest.raises(e.ClusterUnreachable, match="certificate verify failed"):
        asyncio.run(read("any", 1, **options))


@pytest.mark.parametrize("way", ["direct", "keylane"])
def test_a_topic_without_the_right_to_read_is_named(stage, way) -> None:
    """bob may see the topics but not read them; a token that has expired is refused at once."""
    topic, _ = stage.topic(f"client-denied-{way}")
    bootstrap = stage.direct if way == "direct" else stage.proxy.bootstrap
    options = options_of(bootstrap, stage.login("PLAIN", "bob"))

    with pytest.raises(e.TopicDenied, match=topic):
        asyncio.run(read(topic, 1, **options))
    expired = options_of(bootstrap, stage.login("OAUTHBEARER", "alice"))
    expired |= {"sasl_oauth_token_provider": Token(token_of("alice", lifetime_s=-60.0))}
    with pytest.raises(e.AuthenticationFailed, match=f"{bootstrap}.*invalid_token"):
        asyncio.run(read(topic, 1, **expired))


async def read_on(topic: str, stage: Any, options: dict[str, Any]) -> list[str]:
    """Read over a time in which the login ends several times."""
    values: list[str] = []
    async with asyncio.timeout(LIMIT_S), Consumer(topic, **options) as consumer:
        for number in range(3):
            wanted = await asyncio.to_thread(stage.produce, topic, 1, first=100 + number)
            while not set(wanted) <= set(values):
                records = await consumer.getmany(timeout_ms=1_000)
                values += [(record.value or b"").decode() for record in records.all()]
            await consumer.commit()
            ends_s = asyncio.get_running_loop().time() + 6.0
            while asyncio.get_running_loop().time() < ends_s:
                await consumer.getmany(timeout_ms=500)
    return values


@pytest.mark.long
@pytest.mark.parametrize("way", ["direct", "keylane"])
def test_a_login_that_ends_is_made_again(stage, way) -> None:
    """SCRAM-SHA-512 holds 10 s there: the consumer reads on for 18 s, each value once."""
    topic, values = stage.topic(f"client-again-{way}")
    bootstrap = stage.direct if way == "direct" else stage.renewing.bootstrap
    options = options_of(bootstrap, stage.login("SCRAM-SHA-512", "alice"))

    found = asyncio.run(read_on(topic, stage, options | {"group_id": f"client-{topic}"}))

    assert len(found) == len(set(found)) == len(values) + 3 * 6
