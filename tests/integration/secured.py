"""A secured broker, its users, and stock clients that log in, for the security tests."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from aiokafka import AIOKafkaConsumer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError as AiokafkaError
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from keylane.embedded import run_java_tool
from tests.integration.certificates import Authority
from tests.integration.share_wire import wait_until

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
USERS = ("alice", "bob", "carol", "dave")
PASSWORDS = {name: f"{name}-password-Zq7" for name in (*USERS, "keylane")}
SECRETS = set(PASSWORDS.values())
"""Secrets, which no log and no metric may hold (`Stage` checks); tokens are added when made."""
MODULES = "org.apache.kafka.common.security"
BEARER = f"{MODULES}.oauthbearer"
REAUTH_MS = 10_000
"""Milliseconds that a login by SCRAM-SHA-512 is valid."""


def broker_properties(authority: Authority, keystore: Path, expired: Path) -> dict[str, str]:
    """Listeners SECURED, MUTUAL (asks for client certificates), EXPIRED (its own has); ACLs."""
    users = " ".join(f'user_{name}="{password}"' for name, password in PASSWORDS.items())
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",  # the plain listener: nodes, and the test's own admin
        "listener.name.mutual.ssl.client.auth": "required",
    }
    for name, store in (("secured", keystore), ("mutual", keystore), ("expired", expired)):
        prefix = f"listener.name.{name}."
        plain = f"{MODULES}.plain.PlainLoginModule required {users};"
        scram = f"{MODULES}.scram.ScramLoginModule required;"
        bearer = f"{BEARER}.OAuthBearerLoginModule required;"
        properties |= {
            f"{prefix}ssl.keystore.type": "PEM",
            f"{prefix}ssl.keystore.location": str(store),
            f"{prefix}ssl.truststore.type": "PEM",
            f"{prefix}ssl.truststore.location": str(authority.ca),
            f"{prefix}sasl.enabled.mechanisms": ",".join(MECHANISMS),
            f"{prefix}plain.sasl.jaas.config": plain,
            f"{prefix}scram-sha-256.sasl.jaas.config": scram,
            f"{prefix}scram-sha-512.sasl.jaas.config": scram,
            f"{prefix}scram-sha-512.connections.max.reauth.ms": str(REAUTH_MS),
            f"{prefix}oauthbearer.sasl.jaas.config": bearer,
            f"{prefix}oauthbearer.sasl.server.callback.handler.class": f"{BEARER}.internals."
            "unsecured.OAuthBearerUnsecuredValidatorCallbackHandler",
        }
    return properties


def make_users(admin: AdminClient) -> None:
    """Give every user the SCRAM credentials that PLAIN has in the properties."""
    for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
        changes: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(
                name, ScramCredentialInfo(mechanism, 4096), password.encode()
            )
            for name, password in PASSWORDS.items()
        ]
        for done in admin.alter_user_scram_credentials(changes).values():
            done.result(60)


def rule(user: str, operation: str, kind: str = "TOPIC", name: str = "*") -> AclBinding:
    """An ACL that allows; `kind` is TOPIC, GROUP, BROKER (the cluster) or TRANSACTIONAL_ID."""
    return AclBinding(
        ResourceType[kind],
        "kafka-cluster" if kind == "BROKER" else name,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        AclOperation[operation],
        AclPermissionType.ALLOW,
    )


def allow(admin: AdminClient, *rules: AclBinding) -> None:
    """Create ACLs; they are in force, which a broker's answer does not wait for."""
    for done in admin.create_acls(list(rules)).values():
        done.result(60)
    wait_until(lambda: all(_is_there(admin, one) for one in rules), "ACLs in force")


def revoke(admin: AdminClient, *rules: AclBinding) -> None:
    """Delete ACLs; they are no longer in force."""
    for done in admin.delete_acls(list(map(_filter_of, rules))).values():
        assert done.result(60)
    wait_until(lambda: not any(_is_there(admin, one) for one in rules), "ACLs gone")


def _is_there(admin: AdminClient, rule: AclBinding) -> bool:
    return bool(admin.describe_acls(_filter_of(rule)).result(60))


def _filter_of(rule: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        rule.restype,
        rule.name,
        rule.resource_pattern_type,
        rule.principal,
        rule.host,
        rule.operation,
        rule.permission_type,
    )


def token_of(user: str, *, lifetime_s: float = 3600.0) -> str:
    """An unsecured JWS as Kafka's own handler makes them; a negative lifetime has expired it."""
    now_s = time.time()  # noqa: TID251 - a token's claims are in seconds since 1970
    claims = {"sub": user, "iat": now_s - 7200, "exp": now_s + lifetime_s}
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, claims)]
    encoded = [base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts]
    SECRETS.add(encoded[1])
    return ".".join(encoded) + "."


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A client's user and credentials, and the authorities that it trusts."""

    mechanism: str
    user: str
    password: str = ""
    token: str = ""
    ca: Path = Path()
    certificate: Path | None = None
    """The client's own, with its key, where it is asked for one."""
    lifetime_s: float = 3600.0
    """Lifetime of an OAUTHBEARER token; negative: it has expired."""

    @classmethod
    def of(cls, mechanism: str, user: str, ca: Path, **changes: Any) -> Login:
        """The user's own password and a token that holds, unless `changes` say otherwise."""
        token = token_of(user, lifetime_s=changes.get("lifetime_s", 3600.0))
        values = {"password": PASSWORDS[user], "token": token, **changes}
        SECRETS.add(values["password"])
        return cls(mechanism=mechanism, user=user, ca=ca, **values)


@dataclass(slots=True)
class Read:
    """The records that a client read, or its error."""

    values: list[str] = field(default_factory=list)
    error: str = ""
    """Code or exception with its text; what names a connection is left out."""


Reader = Callable[[str, str, str, Login, int], Read]
"""(bootstrap, topic, group, login, record count) -> what was read before the first error."""


def make_confluent(
    bootstrap: str, group: str, login: Login
) -> tuple[Consumer, list[ConfluentError]]:
    """Return a librdkafka consumer, and a list that takes the errors that it reports."""
    errors: list[ConfluentError] = []
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(login.ca),
        "sasl.mechanisms": login.mechanism,
        "error_cb": errors.append,
        "log_level": 0,
    }
    if login.mechanism == "OAUTHBEARER":
        config["oauth_cb"] = lambda _: (login.token, time.time() + 3600)  # noqa: TID251
    else:
        config |= {"sasl.username": login.user, "sasl.password": login.password}
    if login.certificate is not None:
        config |= {
            "ssl.certificate.location": str(login.certificate),
            "ssl.key.location": str(login.certificate),
        }
    return Consumer(config), errors


def poll_value(consumer: Consumer) -> str:
    """The next record's value. Raises: KafkaException, AssertionError (none comes)."""
    message = consumer.poll(60)
    assert message is not None, "no record came"
    error = message.error()
    if error is not None:
        raise KafkaException(error)
    return (message.value() or b"").decode()


def read_confluent(bootstrap: str, topic: str, group: str, login: Login, count: int) -> Read:
    """Read `count` records with librdkafka, or until it reports an error."""
    found = Read()
    consumer, errors = make_confluent(bootstrap, group, login)
    try:
        consumer.subscribe([topic])
        deadline_s = time.monotonic() + 60
        while len(found.values) < count and time.monotonic() < deadline_s:
            reported = [error.name() for error in errors if error.code() not in PASSING]
            reported += [alert for error in errors for alert in ALERT.findall(error.str())]
            if reported:
                found.error = reported[0]
                return found
            message = consumer.poll(0.1)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                found.error = error.name()
                return found
            found.values.append((message.value() or b"").decode())
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        found.error = error.args[0].name()
    finally:
        consumer.close()
    return found


PASSING = (ConfluentError._ALL_BROKERS_DOWN, ConfluentError._TRANSPORT)
"""Errors that librdkafka reports of every lost connection, before it tries again."""
ALERT = re.compile(r"alert [a-z]+(?: [a-z]+)*")
"""The reason in the text, where it is a TLS alert that came after the client's part."""


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token


def read_aiokafka(bootstrap: str, topic: str, group: str, login: Login, count: int) -> Read:
    """aiokafka: the same."""
    return asyncio.run(_read_aiokafka(bootstrap, topic, group, login, count))


@asynccontextmanager
async def closing_connections() -> AsyncIterator[None]:
    """Close for good what the loop has connected: aiokafka does not wait for it, and so leaks.

    It matters where a broker has refused it: the loop ends before the connections do.
    """
    loop = asyncio.get_running_loop()
    made: list[asyncio.BaseTransport] = []
    connect = loop.create_connection

    async def remember(*args: Any, **options: Any) -> Any:
        pair = await connect(*args, **options)
        made.append(pair[0])
        return pair

    loop.create_connection = remember  # type: ignore[method-assign]
    try:
        yield
    finally:
        for transport in made:
            # Before 3.11.4 a TLS transport that has ended cannot be aborted once more.
            with suppress(AttributeError):
                cast("asyncio.WriteTransport", transport).abort()
        for _ in range(3):  # the transport of TLS, the one below it, its socket
            await asyncio.sleep(0)


async def _read_aiokafka(bootstrap: str, topic: str, group: str, login: Login, count: int) -> Read:
    async with closing_connections():
        return await _consume_aiokafka(bootstrap, topic, group, login, count)


async def _consume_aiokafka(
    bootstrap: str, topic: str, group: str, login: Login, count: int
) -> Read:
    found = Read()
    has_ended = login.mechanism == "OAUTHBEARER" and login.lifetime_s <= 0
    context = ssl.create_default_context(cafile=str(login.ca))
    if login.certificate is not None:
        context.load_cert_chain(login.certificate)
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        security_protocol="SASL_SSL",
        ssl_context=context,
        sasl_mechanism=login.mechanism,
        sasl_plain_username=login.user,
        sasl_plain_password=login.password,
        sasl_oauth_token_provider=_Token(login.token),
        # It takes the reason of a refused token for success, and waits for an answer to what
        # it asks next, which no broker gives.
        request_timeout_ms=5_000 if has_ended else 40_000,
    )
    try:
        async with asyncio.timeout(60):
            await consumer.start()
            while len(found.values) < count:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found.values += [(record.value or b"").decode() for record in records]
            await consumer.commit()
    except AiokafkaError as error:
        found.error = type(error).__name__
    finally:
        await consumer.stop()
    return found


def java_properties(login: Login) -> dict[str, str]:
    """Return the properties of a Java client."""
    properties = {
        "security.protocol": "SASL_SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(login.ca),
        "sasl.mechanism": login.mechanism,
        "auto.offset.reset": "earliest",
    }
    if login.certificate is not None:
        properties["ssl.keystore.type"] = "PEM"
        properties["ssl.keystore.location"] = str(login.certificate)
    if login.mechanism == "OAUTHBEARER":
        module = f"{BEARER}.OAuthBearerLoginModule"
        given = f'unsecuredLoginStringClaim_sub="{login.user}"'
        given += f' unsecuredLoginLifetimeSeconds="{login.lifetime_s:.0f}"'
        handler = f"{BEARER}.internals.unsecured.OAuthBearerUnsecuredLoginCallbackHandler"
        properties["sasl.login.callback.handler.class"] = handler
    else:
        kind = "plain.Plain" if login.mechanism == "PLAIN" else "scram.Scram"
        module = f"{MODULES}.{kind}LoginModule"
        given = f'username="{login.user}" password="{login.password}"'
    return {**properties, "sasl.jaas.config": f"{module} required {given};"}


def write_properties(path: Path, properties: Mapping[str, str]) -> Path:
    """A Java properties file."""
    path.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return path


def read_java(
    bootstrap: str, topic: str, group: str, login: Login, count: int, *, folder: Path
) -> Read:
    """Kafka's console consumer: the same; an error is its exception with its text."""
    name = f"{login.mechanism}-{login.user}-{abs(hash((bootstrap, group)))}.properties"
    config = write_properties(folder / name, java_properties(login))
    done = run_java_tool(
        "kafka-console-consumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--group", group),
        *("--command-config", config, "--max-messages", str(count), "--timeout-ms", "60000"),
        check=False,
    )
    return Read(done.stdout.split(), java_error(done))


def java_error(done: subprocess.CompletedProcess[str]) -> str:
    """The exception that ended a Java tool, and what caused it."""
    lines = [line.strip() for line in done.stderr.splitlines()]
    reported = [line for line in lines if "Exception: " in line or line.startswith("Caused by")]
    return reported[0].split("Exception: ", 1)[-1] if reported else ""
