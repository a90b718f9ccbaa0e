"""Two nodes and their brokers over one port: clients name the listener that they want (SNI)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka, run_java_tool
from keylane.embedded.java import TOOL_JVM_ARGS
from keylane.embedded.ports import find_free_port
from tests.integration.certificates import Authority
from tests.integration.harness import produce
from tests.integration.keylane_process import BROKER_PORTS, KeylaneProcess
from tests.integration.secured import write_properties
from tests.integration.sni_gateway import SniGateway

pytestmark = pytest.mark.timeout(400)  # kernels may have to be compiled first
BOOTSTRAP: Final = "bootstrap.kafka.test"
BROKER: Final = 1
"""Id of the one broker."""
NODES: Final = 2
RULES: Final = ["lanes4-*=4"]
PARTITIONS: Final = 16
"""Number of partitions, with which each node leads some."""
KEYS: Final = [f"key-{number}" for number in range(30)]
ROUNDS: Final = 4


def broker_name(node: int) -> str:
    """Return the host that metadata has for the broker at a node."""
    return f"n{node}-b{BROKER}.kafka.test"


class Front:
    """Nodes behind a gateway."""

    def __init__(self, kafka: str, folder: Path, certificate: Path, ca: Path) -> None:
        self.ca = ca
        port = find_free_port()
        self.bootstrap = f"{BOOTSTRAP}:{port}"
        self.processes: list[KeylaneProcess] = []
        self.secret = folder / "node-secret"
        self.secret.write_text("n" * 64)
        listeners: dict[str, tuple[str, int]] = {}
        for node in range(NODES):
            first = find_free_port(in_a_row=BROKER_PORTS)
            args = ["--listen", f"127.0.0.1:{first}", "--advertise", BOOTSTRAP]
            args += ["--set", f"advertise_pattern=n{{node}}-b{{broker}}.kafka.test:{port}"]
            args += ["--set", f"tls_certificate={certificate}"]
            args += ["--node", str(node), "--set", f"node_secret_file={self.secret}"]
            log_path = folder / f"keylane-{node}.log"
            self.processes.append(KeylaneProcess(kafka, RULES, log_path=log_path, args=args))
            listeners[broker_name(node)] = ("127.0.0.1", first + 1 + BROKER)
            listeners[BOOTSTRAP] = listeners["localhost"] = ("127.0.0.1", first)
        self.gateway = SniGateway(listeners, port=port)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Brokers of this module's own: all nodes in front of the same ones find each other."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka")) as running:
        yield running.bootstrap


@pytest.fixture(scope="module")
def admin(kafka: str) -> AdminClient:
    """An admin client that talks to these brokers directly."""
    return AdminClient({"bootstrap.servers": kafka})


@pytest.fixture(scope="module")
def running(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Nodes that run, and the gateway before them."""
    folder = tmp_path_factory.mktemp("sni")
    authority = Authority(folder / "certificates")
    certificate = authority.issue("keylane", host="*.kafka.test")
    made = Front(kafka, folder, certificate, authority.ca)
    try:
        for process in made.processes:
            process.start()
        with made.gateway:
            yield made
    finally:
        for process in made.processes:
            process.stop()


@pytest.fixture
def front(running: Front) -> Front:
    """The same, with a gateway that no client has asked yet."""
    running.gateway.names.clear()
    return running


class OneAddress(asyncio.SelectorEventLoop):
    """Every name leads to the gateway, as a wildcard in DNS does."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Loopback, for whatever is asked."""
        del host
        return await super().getaddrinfo("127.0.0.1", port, **options)


async def read(front: Front, topic: str, count: int) -> tuple[list[str], set[tuple[str, int]]]:
    """Read values as an aiokafka consumer of a group; return them and its brokers."""
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=front.bootstrap,
        group_id=f"g-{topic}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        security_protocol="SSL",
        ssl_context=ssl.create_default_context(cafile=str(front.ca)),
    )
    values: list[str] = []
    async with asyncio.timeout(90), consumer:
        while len(values) < count:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                values += [(record.value or b"").decode() for record in records]
        await consumer.commit()
        brokers = {(node.host, node.port) for node in consumer._client.cluster.brokers()}
    return values, brokers


def test_a_group_finds_every_broker_by_its_name(front: Front, kafka: str, topic: Any) -> None:
    """aiokafka gets names of nodes and brokers, at the gateway's port; each leads there."""
    name = topic("lanes4", partitions=PARTITIONS)
    values = produce(kafka, name, KEYS, ROUNDS)

    with asyncio.Runner(loop_factory=OneAddress) as runner:
        got, brokers = runner.run(read(front, name, len(values)))

    assert sorted(got) == sorted(values)
    assert brokers == {(broker_name(node), front.gateway.port) for node in range(NODES)}
    assert set(front.gateway.names) == {BOOTSTRAP, *(broker_name(node) for node in range(NODES))}


def test_java_names_the_listener(front: Front, kafka: str, topic: Any, tmp_path: Path) -> None:
    """Kafka's console consumer: the same, its certificates checked by name."""
    name = topic("lanes4", partitions=PARTITIONS)
    values = produce(kafka, name, KEYS, ROUNDS)
    names = [BOOTSTRAP, *(broker_name(node) for node in range(NODES))]
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"127.0.0.1 {host}\n" for host in names))
    properties = write_properties(
        tmp_path / "client.properties",
        {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(front.ca),
            "auto.offset.reset": "earliest",
        },
    )

    done = run_java_tool(
        "kafka-console-consumer",
        *("--bootstrap-server", front.bootstrap, "--topic", name, "--group", f"g-{name}"),
        *("--command-config", properties, "--max-messages", str(len(values))),
        *("--timeout-ms", "60000"),
        jvm_args=(*TOOL_JVM_ARGS, f"-Djdk.net.hosts.file={hosts}"),
    )

    assert sorted(done.stdout.split()) == sorted(values)
    assert set(front.gateway.names) == set(names)


def test_librdkafka_names_the_listener(front: Front, topic: Any) -> None:
    """It sends the name that it was given; advertised names cannot lead here without DNS."""
    client = AdminClient(
        {
            "bootstrap.servers": f"localhost:{front.gateway.port}",
            "security.protocol": "SSL",
            "enable.ssl.certificate.verification": False,
        }
    )

    brokers = client.list_topics(topic("lanes4"), timeout=30).brokers

    assert front.gateway.names["localhost"] >= 1
    reported = {broker.host for broker in brokers.values()}
    assert {broker_name(node) for node in range(NODES)} <= reported


def test_ports_that_lead_here_from_elsewhere(running: Front, kafka: str, tmp_path: Path) -> None:
    """Node ports: each node advertises those of its number, under one host name; names beside."""
    port, step, number = 30_900, 20, 7
    args = ["--advertise", "machine.test", "--node", str(number)]
    args += ["--set", f"node_secret_file={running.secret}"]
    args += ["--set", f"advertise_port={port}", "--set", f"advertise_port_step={step}"]
    listen = f"127.0.0.1:{find_free_port(in_a_row=BROKER_PORTS)}"
    process = KeylaneProcess(
        kafka, RULES, log_path=tmp_path / "keylane.log", args=[*args, "--listen", listen]
    ).start()
    agreed = [f"nodes=0,1 node={node} " for node in range(NODES)]
    before = [node.log.count(text) for node, text in zip(running.processes, agreed, strict=True)]
    try:
        client = AdminClient({"bootstrap.servers": listen})
        listed: Any = client.list_topics(timeout=30).brokers.values()
        reported = {(one.host, one.port) for one in listed}
    finally:
        process.stop()
        # Other tests, which come in any order, mean the two.
        for node, text, count in zip(running.processes, agreed, before, strict=True):
            node.wait_for_log(text, count=count + 1)

    assert process.bootstrap == f"machine.test:{port + number * step}"
    assert ("machine.test", port + number * step + 1 + BROKER) in reported
    assert {(broker_name(node), running.gateway.port) for node in range(NODES)} <= reported


def test_a_client_without_a_name_gets_nowhere(front: Front) -> None:
    """An address has no name to ask for: the gateway closes the connection."""
    context = ssl.create_default_context(cafile=str(front.ca))
    context.check_hostname = False

    with (
        socket.create_connection(("127.0.0.1", front.gateway.port), timeout=30) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain)

    assert front.gateway.names[""] == 1
