"""proxy/net/security/service_login.py: against the server side of each mechanism."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import SaslAuthenticationFailed
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.static.primitive import i64Timedelta
from scramp import ScramException, ScramMechanism

from keylane.config.security import PASSWORD_VARIABLE, SecurityConfig
from keylane.errors import LoginRefused
from keylane.proxy.net.security.scram import scram_messages
from keylane.proxy.net.security.service_login import ServiceLogin

PASSWORD = "sesame-open-7"
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
Answer = Callable[[bytes], bytes]


class Broker:
    """Takes the messages of one login; `answer` raises PermissionError to refuse one."""

    def __init__(self, mechanism: str, answer: Answer, *, lifetime_s: float = 0.0) -> None:
        self.mechanism, self._answer, self._lifetime_s = mechanism, answer, lifetime_s
        self.messages: list[bytes] = []

    async def ask(self, entity: Any) -> Any:
        if int(entity.__api_key__) == 17:
            is_known = entity.mechanism == self.mechanism
            code = ErrorCode.none if is_known else ErrorCode.unsupported_sasl_mechanism
            return SaslHandshakeResponse(error_code=code, mechanisms=(self.mechanism,))
        self.messages.append(entity.auth_bytes)
        lifetime = i64Timedelta.parse(timedelta(seconds=self._lifetime_s))
        try:
            data = self._answer(entity.auth_bytes)
        except PermissionError as error:
            return SaslAuthenticateResponse(
                error_code=ErrorCode.sasl_authentication_failed,
                error_message=str(error),
                auth_bytes=b"",
            )
        return SaslAuthenticateResponse(
            error_code=ErrorCode.none,
            error_message=None,
            auth_bytes=data,
            session_lifetime=lifetime,
        )


def scram(mechanism: str, password: str = PASSWORD) -> Answer:
    """The server side of SCRAM, which knows one password."""
    made = ScramMechanism(mechanism)
    server = made.make_server(lambda _: made.make_auth_info(password))
    step = iter((server.set_client_first, server.set_client_final))
    say = iter((server.get_server_first, server.get_server_final))

    def answer(message: bytes) -> bytes:
        try:
            next(step)(message.decode())
        except ScramException:
            raise PermissionError("invalid credentials") from None
        return next(say)().encode()

    return answer


def login(mechanism: str, tmp_path: Any, secret: str = PASSWORD) -> ServiceLogin:
    path = tmp_path / "secret"
    path.write_text(secret + "\n")
    if mechanism == "OAUTHBEARER":
        config = SecurityConfig(login_mechanism="OAUTHBEARER", login_token_file=str(path))
    else:
        config = SecurityConfig(
            login_mechanism=mechanism,  # type: ignore[arg-type]
            login_username="keylane",
            login_password_file=str(path),
        )
    return ServiceLogin(config)


async def test_plain(tmp_path) -> None:
    """RFC 4616: no other authorization, user, password."""
    broker = Broker("PLAIN", lambda _: b"", lifetime_s=3.5)

    lifetime_s = await login("PLAIN", tmp_path).log_in(broker.ask)

    assert broker.messages == [b"\0keylane\0sesame-open-7"]
    assert lifetime_s == 3.5


@pytest.mark.parametrize("mechanism", SCRAM)
async def test_scram(tmp_path, mechanism) -> None:
    """Two messages, neither of which shows the password."""
    broker = Broker(mechanism, scram(mechanism), lifetime_s=60)

    lifetime_s = await login(mechanism, tmp_path).log_in(broker.ask)

    assert (len(broker.messages), lifetime_s) == (2, 60)
    assert PASSWORD.encode() not in b"".join(broker.messages)


@pytest.mark.parametrize("mechanism", SCRAM)
async def test_scram_with_a_wrong_password(tmp_path, mechanism) -> None:
    """The error has the broker's words, and the refused user; never the password."""
    broker = Broker(mechanism, scram(mechanism, "another"))

    with pytest.raises(LoginRefused, match=r"keylane by SCRAM.*invalid credentials") as caught:
        await login(mechanism, tmp_path).log_in(broker.ask)

    assert PASSWORD not in str(caught.value)


async def test_a_broker_that_does_not_know_the_password(tmp_path) -> None:
    """SCRAM proves both sides: a stranger at the broker's address cannot make up the end."""
    honest = scram("SCRAM-SHA-256")

    def answer(message: bytes) -> bytes:
        return honest(message) if message.startswith(b"n,") else b"v=" + b"A" * 43 + b"="

    with pytest.raises(LoginRefused, match="keylane by SCRAM-SHA-256"):
        await login("SCRAM-SHA-256", tmp_path).log_in(Broker("SCRAM-SHA-256", answer).ask)


@pytest.mark.parametrize("said", [b"", b"\xff\xfe", b"r=x,s=eA==,i=1", b"e=other-error"])
async def test_a_broker_that_speaks_nonsense(tmp_path, said) -> None:
    """A refusal, not a trace."""
    broker = Broker("SCRAM-SHA-256", lambda _: said)

    with pytest.raises(LoginRefused):
        await login("SCRAM-SHA-256", tmp_path).log_in(broker.ask)


def first_message(text: str) -> Answer:
    """A broker that goes on with our nonce (`{r}`) and a salt (`{s}`), as `text` says."""
    salt = base64.b64encode(bytes(16)).decode()

    def answer(message: bytes) -> bytes:
        nonce = message.decode().rpartition("r=")[2]
        return text.format(r=nonce, s=salt).encode()

    return answer


@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("count", ["1", "4095", "1000001", "999999999"])
async def test_iterations_are_bounded(tmp_path, mechanism, count) -> None:
    """Fewer let a listener guess the password, more keep a processor busy for hours."""
    broker = Broker(mechanism, first_message("r={r}abcdefgh,s={s},i=" + count))

    with pytest.raises(LoginRefused, match=f"asks for {count} iterations.*4096 to 1000000"):
        await login(mechanism, tmp_path).log_in(broker.ask)

    assert len(broker.messages) == 1, "nothing was sent that is made of the password"


@pytest.mark.parametrize("count", ["4096", "1000000"])
def test_iterations_at_the_bounds_are_taken(count) -> None:
    """Kafka's default is the fewest that it allows."""
    messages = scram_messages("SCRAM-SHA-256", "keylane", PASSWORD)
    answer = first_message("r={r}abcdefgh,s={s},i=" + count)

    final = messages.send(answer(next(messages)))

    assert final.startswith(b"c=biws,r=")


@pytest.mark.parametrize(
    ("fault", "text"),
    {
        "another nonce": "r=abcdefghijklmnopqrstuvwxyz0123456789,s={s},i=4096",
        "our nonce and no more": "r={r},s={s},i=4096",
        "a mandatory extension": "m=x,r={r}abcdefgh,s={s},i=4096",
        "a short salt": "r={r}abcdefgh,s=AAAA,i=4096",
        "no salt": "r={r}abcdefgh,i=4096",
        "no count": "r={r}abcdefgh,s={s}",
        "two counts": "r={r}abcdefgh,s={s},i=4096,i=1",
        "a count of many digits": "r={r}abcdefgh,s={s},i=" + "9" * 5000,
        "a negative count": "r={r}abcdefgh,s={s},i=-4096",
        "a count with zeros": "r={r}abcdefgh,s={s},i=0000004096",
    }.items(),
    ids=lambda value: value if "=" not in value else "",
)
async def test_a_first_message_that_breaks_the_rules(tmp_path, fault, text) -> None:
    """RFC 5802, section 5.1 and 7: refused before anything is made of the password."""
    broker = Broker("SCRAM-SHA-256", first_message(text))

    with pytest.raises(LoginRefused, match="keylane by SCRAM-SHA-256"):
        await login("SCRAM-SHA-256", tmp_path).log_in(broker.ask)

    assert len(broker.messages) == 1, fault


def aiokafka_login(mechanism: str) -> Any:
    """What a connection of aiokafka logs in with."""
    connection = AIOKafkaConnection(
        "localhost",
        1,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username="keylane",
        sasl_plain_password=PASSWORD,
    )
    return connection.authenticator_scram()


@pytest.mark.parametrize("mechanism", SCRAM)
async def test_aiokafka_logs_in_by_the_same_rules(mechanism) -> None:
    """Its own clients ask for no fewest iterations: keylane's, which it opens, do."""
    honest = scram(mechanism)
    own = aiokafka_login(mechanism)

    first, is_answered = await own.step(None)
    final, _ = await own.step(honest(first))
    end = await own.step(honest(final))

    assert (is_answered, end) == (True, None)
    liar = aiokafka_login(mechanism)
    answer = first_message("r={r}abcdefgh,s={s},i=1")
    with pytest.raises(SaslAuthenticationFailed, match="asks for 1 iterations"):
        await liar.step(answer((await liar.step(None))[0]))


async def test_aiokafka_asks_for_a_proof_of_the_broker() -> None:
    """A made-up signature at the end is refused."""
    own = aiokafka_login("SCRAM-SHA-256")
    final, _ = await own.step(scram("SCRAM-SHA-256")((await own.step(None))[0]))

    assert final
    with pytest.raises(SaslAuthenticationFailed):
        await own.step(b"v=" + b"A" * 43 + b"=")


async def test_oauthbearer(tmp_path) -> None:
    """RFC 7628, with the token as it stands in its file at each login."""
    broker = Broker("OAUTHBEARER", lambda _: b"")
    own = login("OAUTHBEARER", tmp_path, "first.token")
    await own.log_in(broker.ask)
    (tmp_path / "secret").write_text("second.token")

    await own.log_in(broker.ask)

    wanted = [f"n,,\x01auth=Bearer {name}.token\x01\x01".encode() for name in ("first", "second")]
    assert broker.messages == wanted


async def test_oauthbearer_refused(tmp_path) -> None:
    """The broker gives its reason first; the refusal comes for the answer to that."""

    def answer(message: bytes) -> bytes:
        if message == b"\x01":
            raise PermissionError("invalid_token")
        return b'{"status":"invalid_token"}'

    broker = Broker("OAUTHBEARER", answer)

    with pytest.raises(LoginRefused, match=r"login_token_file.*invalid_token") as caught:
        await login("OAUTHBEARER", tmp_path, "a.b.c").log_in(broker.ask)

    assert "a.b.c" not in str(caught.value)


async def test_a_mechanism_that_the_broker_lacks(tmp_path) -> None:
    """The error names both."""
    with pytest.raises(LoginRefused, match=r"login_mechanism PLAIN.*offers SCRAM-SHA-256"):
        await login("PLAIN", tmp_path).log_in(Broker("SCRAM-SHA-256", lambda _: b"").ask)


async def test_a_password_in_the_environment(tmp_path, monkeypatch) -> None:
    """Taken where no file is named; neither is an error that names both ways."""
    config = SecurityConfig(login_mechanism="PLAIN", login_username="keylane")
    broker = Broker("PLAIN", lambda _: b"")
    monkeypatch.delenv(PASSWORD_VARIABLE, raising=False)
    with pytest.raises(LoginRefused, match=f"login_password_file or {PASSWORD_VARIABLE}"):
        await ServiceLogin(config).log_in(broker.ask)
    monkeypatch.setenv(PASSWORD_VARIABLE, "from-there")

    await ServiceLogin(config).log_in(broker.ask)

    assert broker.messages == [b"\0keylane\0from-there"]


async def test_a_file_that_is_gone(tmp_path) -> None:
    """Named by its key, when a login is due."""
    own = login("PLAIN", tmp_path)
    (tmp_path / "secret").unlink()

    with pytest.raises(LoginRefused, match="login_password_file"):
        await own.log_in(Broker("PLAIN", lambda _: b"").ask)


@pytest.mark.parametrize("mechanism", ["PLAIN", *SCRAM])
def test_options_of_aiokafka(tmp_path, mechanism) -> None:
    """By its own names, with the password as it is now."""
    assert login(mechanism, tmp_path).aiokafka_options() == {
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "keylane",
        "sasl_plain_password": PASSWORD,
    }


async def test_aiokafka_asks_for_tokens(tmp_path) -> None:
    """At each login, not once."""
    options = login("OAUTHBEARER", tmp_path, "a.b.c").aiokafka_options()
    (tmp_path / "secret").write_text("d.e.f")

    assert await options["sasl_oauth_token_provider"].token() == "d.e.f"
