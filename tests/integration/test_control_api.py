"""The control port in front of a real Kafka: durable settings, and switches as clients see them."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as Place
from aiokafka.errors import InvalidRequestError, TopicAuthorizationFailedError
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from cryptography import x509

from keylane.embedded import EmbeddedKafka
from keylane.embedded.java import TOOL_JVM_ARGS, java_command
from keylane.embedded.resolve import resolve_class_path
from keylane.keyrange.space import HASH_MAX
from tests.integration.certificates import Authority
from tests.integration.conftest import PATIENCE_ARGS, make_topic_factory
from tests.integration.keylane_process import KeylaneProcess

PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker of this file's own: switches hold for a whole cluster."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running.bootstrap


@pytest.fixture
def proxy(own_kafka: str, tmp_path: Path) -> Iterator[KeylaneProcess]:
    """A proxy in front of it, which a test may kill."""
    running = KeylaneProcess(own_kafka, ["lanes4-*=4"], log_path=tmp_path / "keylane.log").start()
    yield running
    running.stop()


@pytest.fixture
def make_topic(own_kafka: str, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Makes topics with ten records per partition."""
    create = make_topic_factory(AdminClient({"bootstrap.servers": own_kafka}), request.node.name)

    def make(label: str, partitions: int) -> str:
        name = create(label, partitions=partitions)
        producer = Producer({"bootstrap.servers": own_kafka})
        for number in range(40 * partitions):
            producer.produce(name, b"value", key=f"key-{number}", partition=number % partitions)
        assert producer.flush(30) == 0
        return name

    return make


def call(
    proxy: KeylaneProcess, method: str, path: str, body: Any = None, version: str | None = None
) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json"} if body is not None else {}
    if version is not None:
        headers["If-Match"] = version
    data = json.dumps(body).encode() if body is not None else None
    url = f"http://{proxy.control}{path}"
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
            return answer.status, json.loads(answer.read() or b"null")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_settings_survive_a_restart_and_a_kill(
    proxy: KeylaneProcess, make_topic: Callable[..., str]
) -> None:
    """Changes answered with 200 are there after kill -9 and after a stop; big ones, too."""
    name = make_topic("lanes4", 2)
    step = 2 * (HASH_MAX // 20_000)
    many = [[str(n * step), str(n * step + step // 2)] for n in range(9_000)]
    wanted = {
        "a": [{"topic": name, "partition": 0, "ranges": many}],
        "b": [{"topic": name, "partition": 1, "ranges": [["0", str(HASH_MAX)]]}],
    }

    status, made = call(proxy, "PUT", "/assignments", {"assignments": wanted}, "*")
    assert (status, made["assignments"]) == (200, wanted)
    status, _ = call(proxy, "PUT", f"/switches/topics/{name}", {"accept.range.fetch": False})
    assert status == 200
    for again in (proxy.kill, proxy.stop):
        again()
        proxy.start()
        assert call(proxy, "GET", "/assignments") == (200, made)
        topic = call(proxy, "GET", f"/switches/topics/{name}")[1]
        assert (topic["accept.range.fetch"], topic["is_set"]) == (False, True)
    bad = {"topic": name, "partition": 2, "ranges": []}
    status, problem = call(proxy, "PATCH", "/assignments", {"assignments": {"c": [bad]}}, "*")
    assert (status, problem["field"]) == (422, "/assignments/c/0/partition")
    assert call(proxy, "PATCH", "/assignments", {"assignments": {}}, "0")[0] == 412
    assert call(proxy, "DELETE", "/assignments", version=str(made["version"]))[0] == 204


def poll(consumer: Consumer, is_it: Callable[[Any], bool]) -> None:
    """Poll until a message or an error is what it should be."""
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s:
        message = consumer.poll(1.0)
        if message is not None and is_it(message):
            return
    pytest.fail("what was waited for did not come")


async def test_lanes_of_a_topic_are_refused_and_allowed_again(
    proxy: KeylaneProcess, own_kafka: str, make_topic: Callable[..., str]
) -> None:
    """librdkafka, aiokafka and Java get TOPIC_AUTHORIZATION_FAILED, and read on afterwards."""
    name, plain = make_topic("lanes4", 1), make_topic("plain", 1)
    path = f"/switches/topics/{name}"
    rdkafka = Consumer({"bootstrap.servers": proxy.bootstrap, "group.id": f"r-{name}"})
    rdkafka.assign([TopicPartition(name, 1, 0)])
    aio = AIOKafkaConsumer(bootstrap_servers=proxy.bootstrap, auto_offset_reset="earliest")
    await aio.start()
    aio.assign([Place(name, 2)])
    producer = Producer({"bootstrap.servers": own_kafka})
    console = ["--bootstrap-server", proxy.bootstrap, "--partition", "0", "--offset", "earliest"]
    console += ["--timeout-ms", "30000", "--max-messages", "1"]
    try:
        await asyncio.to_thread(poll, rdkafka, lambda message: message.error() is None)
        assert (await asyncio.wait_for(aio.getone(), PATIENCE_S)).value == b"value"

        assert (await asyncio.to_thread(call, proxy, "PUT", path, {"accept.range.fetch": False}))[
            0
        ] == 200
        denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
        await asyncio.to_thread(
            poll, rdkafka, lambda message: message.error() and message.error().code() == denied
        )
        with pytest.raises(TopicAuthorizationFailedError):
            await asyncio.wait_for(drain(aio), PATIENCE_S)
        refused = await asyncio.to_thread(
            run_tool, "kafka-console-consumer", *console, "--topic", name
        )
        assert "TopicAuthorizationException" in refused and "value" not in refused
        assert "value" in await asyncio.to_thread(
            run_tool, "kafka-console-consumer", *console, "--topic", plain
        )

        await asyncio.to_thread(call, proxy, "PUT", path, {"accept.range.fetch": True})
        for number in range(100):
            producer.produce(name, b"later", key=f"key-{number}")
        assert producer.flush(30) == 0
        await asyncio.to_thread(
            poll, rdkafka, lambda message: not message.error() and message.value() == b"later"
        )
        await asyncio.wait_for(until_later(aio), PATIENCE_S)
        assert "value" in await asyncio.to_thread(
            run_tool, "kafka-console-consumer", *console, "--topic", name
        )
    finally:
        rdkafka.close()
        await aio.stop()


async def until_later(consumer: AIOKafkaConsumer) -> None:
    """Read to the first value that says "later"; errors of before may still be handed out."""
    while True:
        with suppress(TopicAuthorizationFailedError):
            if (await consumer.getone()).value == b"later":
                return


async def drain(consumer: AIOKafkaConsumer) -> None:
    """Read until an error comes."""
    while True:
        await consumer.getone()


def run_tool(name: str, *args: str) -> str:
    """Return the output of one of Kafka's tools, which may fail."""
    command = java_command(resolve_class_path(), name, *args, jvm_args=TOOL_JVM_ARGS)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S
    )
    return done.stdout + done.stderr


async def test_individual_commits_are_refused_and_allowed_again(
    proxy: KeylaneProcess, make_topic: Callable[..., str]
) -> None:
    """librdkafka, aiokafka and Java get INVALID_REQUEST; plain commits pass."""
    name, plain = make_topic("lanes4", 1), make_topic("plain", 1)
    clients = {"bootstrap.servers": proxy.bootstrap, "enable.auto.commit": False}
    rdkafka = Consumer({**clients, "group.id": f"r-{name}"})
    rdkafka.assign([TopicPartition(name, 1)])
    aio = AIOKafkaConsumer(
        bootstrap_servers=proxy.bootstrap, group_id=f"a-{name}", enable_auto_commit=False
    )
    await aio.start()
    aio.assign([Place(name, 2), Place(plain, 0)])

    def commit() -> Any:
        return rdkafka.commit(offsets=[TopicPartition(name, 1, 3)], asynchronous=False)

    def reset() -> str:
        args = ["--bootstrap-server", proxy.bootstrap, "--group", f"j-{name}", "--execute"]
        args += ["--reset-offsets", "--to-offset", "4", "--topic", f"{name}:3", *PATIENCE_ARGS]
        return run_tool("kafka-consumer-groups", *args)

    try:
        await asyncio.to_thread(call, proxy, "PUT", "/switches", OFF, "*")
        with pytest.raises(KafkaException) as caught:
            await asyncio.to_thread(commit)
        assert caught.value.args[0].code() == KafkaError.INVALID_REQUEST
        with pytest.raises(InvalidRequestError):
            await aio.commit({Place(name, 2): 3})
        assert "InvalidRequest" in await asyncio.to_thread(reset)
        await aio.commit({Place(plain, 0): 3})

        await asyncio.to_thread(call, proxy, "PUT", "/switches", {}, "*")
        assert (await asyncio.to_thread(commit))[0].error is None
        await aio.commit({Place(name, 2): 3})
        assert re.search(rf"{name}\s+3\s+4", await asyncio.to_thread(reset))
        assert await aio.committed(Place(name, 2)) == 3
    finally:
        await asyncio.to_thread(call, proxy, "PUT", "/switches", {}, "*")
        rdkafka.close()
        await aio.stop()


OFF = {"accept.individual.commit": False}


def ask(proxy: KeylaneProcess, ca: Path, certificate: Path | None, *what: str, token: str) -> int:
    """The status of a request over TLS: method and path; empty: no token."""
    method, path = what
    trust = ssl.create_default_context(cafile=str(ca))
    if certificate is not None:
        trust.load_cert_chain(certificate)
    headers = {"Content-Type": "application/json", "If-Match": "*"}
    headers |= {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"https://{proxy.control}{path}", headers=headers)
    request.method, request.data = method, b"{}" if method == "PUT" else None
    try:
        with urllib.request.urlopen(request, timeout=60, context=trust) as answer:  # noqa: S310
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_roles_by_client_certificates(own_kafka: str, tmp_path: Path) -> None:
    """Rights of admins and readers; `keylane describe`; a certificate replaced while it runs."""
    authority, stranger = Authority(tmp_path / "ca"), Authority(tmp_path / "other", name="other")
    served, token = authority.issue("served"), tmp_path / "token"
    token.write_text("control-token-0123456789")
    settings = {
        "control_tls": "true",
        "control_certificate": str(served),
        "control_client_ca": str(authority.ca),
        "control_admins": "[CN=ops]",
        "control_readers": "[CN=prometheus]",
        "control_token_file": str(token),
    }
    args = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    log_path = tmp_path / "keylane.log"
    running = KeylaneProcess(own_kafka, ["lanes4-*=4"], log_path=log_path, args=args).start()

    def roles(certificate: Path | None, token: str = "") -> list[int]:
        asked = (("GET", "/readyz"), ("GET", "/metrics"), ("GET", "/"), ("PUT", "/switches"))
        return [ask(running, authority.ca, certificate, *one, token=token) for one in asked]

    def served_serial() -> int:
        pem = ssl.get_server_certificate(("127.0.0.1", int(running.control.rpartition(":")[2])))
        return x509.load_pem_x509_certificate(pem.encode()).serial_number

    try:
        ops = authority.issue("ops")
        assert roles(None) == [200, 401, 401, 401]
        assert roles(None, token.read_text()) == [200, 200, 200, 200]
        assert roles(authority.issue("prometheus")) == [200, 200, 200, 403]
        assert roles(authority.issue("somebody")) == [200, 401, 401, 401]
        assert roles(ops) == [200, 200, 200, 200]
        for bad in (stranger.issue("ops"), authority.issue("ops-of-before", expired=True)):
            with pytest.raises(OSError, match=r"alert (unknown ca|certificate expired)"):
                ask(running, authority.ca, bad, "GET", "/readyz", token="")
        asked = ["--control", f"https://{running.control}", "--group", "absent"]
        reported = run_keylane("describe", *asked, "--ca", str(authority.ca), "--cert", str(ops))
        assert "there is no group absent" in reported
        assert "certificate verify failed" in run_keylane("describe", *asked)

        before = served_serial()
        authority.issue("served")
        running.wait_for_log("certificate read again key=control_certificate")
        assert served_serial() != before
        assert roles(ops) == [200, 200, 200, 200]
    finally:
        running.stop()


def run_keylane(*args: str) -> str:
    """Run a command of keylane that fails; return its message."""
    command = [sys.executable, "-m", "keylane", *args]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 1
    return done.stderr
