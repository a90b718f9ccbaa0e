"""SCRAM of keylane's own logins: the messages, and what of a broker's first answer is believed.

Source: RFC 5802 and 7677, by the library scramp, which checks that the broker's nonce begins with
ours and is longer, that a salt has 12 bytes or more, that no extension is asked for (`m=`), and the
broker's signature. Kafka's `ScramMechanism` for the fewest iterations.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any, Final

import aiokafka.conn
from aiokafka.errors import SaslAuthenticationFailed
from scramp import ScramClient, ScramException

ITERATIONS_MIN: Final = 4096
"""RFC 7677, section 4, and Kafka's own clients. A broker that asks for fewer is an attacker in
between, and can then guess the password from what was sent."""
ITERATIONS_MAX: Final = 1_000_000
"""Kafka's own bound is 16384. A liar at the broker's address must not keep a processor busy."""

Messages = Generator[bytes, bytes, None]

_ITERATIONS: Final = re.compile(r"(?:^|,)i=([0-9]{1,9})(?=,|$)")


def scram_messages(mechanism: str, username: str, password: str) -> Messages:
    """Generate the messages of this side from the broker's answers. Raises: ScramException."""
    client = ScramClient([mechanism], username, password)
    server_first = (yield client.get_client_first().encode()).decode("utf-8", "replace")
    _check_iterations(server_first)
    client.set_server_first(server_first)
    server_final = yield client.get_client_final().encode()
    # Checks that the broker knows the password as well.
    client.set_server_final(server_final.decode("utf-8", "replace"))


def _check_iterations(server_first: str) -> None:
    """Raises: ScramException. A count that is no number of up to 9 digits scramp refuses itself."""
    for text in _ITERATIONS.findall(server_first):
        if not ITERATIONS_MIN <= int(text) <= ITERATIONS_MAX:
            raise ScramException(
                f"the broker asks for {int(text)} iterations of SCRAM, allowed are"
                f" {ITERATIONS_MIN} to {ITERATIONS_MAX}: nothing was sent from which the password"
                " can be guessed; look for another process at the broker's address"
            )


class ScramLogin(aiokafka.conn.BaseSaslAuthenticator):  # type: ignore[misc]  # it has no types
    """Replaces aiokafka's own, which takes any number of iterations, even one."""

    def __init__(
        self,
        *,
        loop: Any,
        sasl_plain_password: str,
        sasl_plain_username: str,
        sasl_mechanism: str,
    ) -> None:
        self._loop = loop
        messages = scram_messages(sasl_mechanism, sasl_plain_username, sasl_plain_password)
        self._authenticator = _for_aiokafka(messages)


def _for_aiokafka(messages: Messages) -> Generator[tuple[bytes, bool], bytes, None]:
    """Yield each message with True: an answer is awaited. Raises: SaslAuthenticationFailed."""
    try:
        answer = yield next(messages), True
        while True:
            answer = yield messages.send(answer), True
    except StopIteration:
        return
    except ScramException as error:
        raise SaslAuthenticationFailed(str(error)) from None


# aiokafka looks its class up by this name for each login, and has no argument for another.
aiokafka.conn.ScramAuthenticator = ScramLogin
