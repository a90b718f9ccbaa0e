"""Topics without lanes behave through keylane as they do direct."""

from __future__ import annotations

import re
import socket
import struct

import pytest

from keylane.config.node import split_address
from keylane.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from keylane.wire.header import write_request
from tests.integration.harness import produce
from tests.integration.share_wire import wait_until

KEYS = [f"key-{number}" for number in range(50)]


def ask(bootstrap: str, frame: bytes) -> bytes:
    """Send one request frame on a new connection, return the answer without its size."""
    with socket.create_connection(split_address(bootstrap), timeout=30) as connection:
        connection.sendall(frame)
        stream = connection.makefile("rb")
        (size,) = struct.unpack(">i", stream.read(4))
        return stream.read(size)


@pytest.mark.parametrize("version", [4, 7, 11, 12])
def test_a_fetch_answer_is_the_same_bytes(version, kafka, shared_keylane, topic) -> None:
    """The answer to a fetch of a plain topic is byte for byte that of the broker."""
    name = topic("plain")
    produce(kafka, name, KEYS, rounds=5)
    request = FetchRequest(
        version=version,
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        topics=(
            FetchTopic(
                name=name, topic_id=None, partitions=(FetchPartition(0, -1, 0, -1, -1, 1 << 20),)
            ),
        ),
    )
    frame = write_request(1, version, 77, "raw", write_fetch_request(request))

    proxied, direct = ask(shared_keylane.bootstrap, frame), ask(kafka, frame)

    assert proxied == direct
    answer = read_fetch_response(direct, 5 if version >= 12 else 4, version)
    assert sum(map(len, answer.topics[0].partitions[0].records or ())) > 1000


def normal(text: str, *addresses: str) -> str:
    """A tool's output without what differs from run to run."""
    for address in addresses:
        text = text.replace(address, "ADDRESS")
    text = re.sub(r"\d+([.,]\d+)? (MB/sec|records/sec|ms)", "N", text)
    return re.sub(r"localhost:\d+|127\.0\.0\.1:\d+", "ADDRESS", text)


@pytest.mark.parametrize(
    "command",
    [
        ("kafka-topics", "--describe", "--topic", "{topic}"),
        ("kafka-topics", "--list"),
        ("kafka-configs", "--describe", "--entity-type", "topics", "--entity-name", "{topic}"),
        ("kafka-configs", "--describe", "--entity-type", "brokers", "--entity-name", "1"),
        ("kafka-get-offsets", "--topic", "{topic}"),
        pytest.param(
            ("kafka-get-offsets", "--topic", "{topic}", "--time", "earliest"),
            marks=pytest.mark.long,
        ),
        ("kafka-get-offsets", "--topic", "{topic}", "--time", "max-timestamp"),
        ("kafka-consumer-groups", "--describe", "--group", "{group}"),
        ("kafka-consumer-groups", "--list"),
        ("kafka-log-dirs", "--describe", "--topic-list", "{topic}"),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_a_tool_prints_the_same(command, kafka, shared_keylane, topic, java) -> None:
    """A Kafka tool prints the same of a plain topic as direct."""
    name = topic("plain", partitions=2, config={"retention.ms": "3600000"})
    group = f"g-{name}"
    produce(kafka, name, KEYS, rounds=1)
    consume = ("--topic", name, "--group", group, "--from-beginning", "--max-messages", "50")
    java.run("kafka-console-consumer", "--bootstrap-server", kafka, *consume)
    tool, *args = [part.format(topic=name, group=group) for part in command]

    def printed(bootstrap: str) -> str:
        return normal(java.run(tool, "--bootstrap-server", bootstrap, *args).stdout, bootstrap)

    before = printed(kafka) if "--list" in args else ""
    proxied, direct = printed(shared_keylane.bootstrap), printed(kafka)

    if "--list" in args:
        # A broker forgets groups of other tests meanwhile, every ten minutes those without offsets.
        earlier, shown, later = [set(text.split()) for text in (before, proxied, direct)]
        assert earlier & later <= shown <= earlier | later
    else:
        assert proxied == direct
    assert direct.strip()


def test_tools_change_things_through_keylane(kafka, shared_keylane, topic, java) -> None:
    """Configs altered, records deleted, partitions added and topics deleted arrive."""
    name = topic("plain")
    produce(kafka, name, KEYS, rounds=1)
    through = ("--bootstrap-server", shared_keylane.bootstrap)

    java.run(
        "kafka-configs",
        *through,
        *("--alter", "--entity-type", "topics", "--entity-name", name),
        *("--add-config", "retention.ms=7200000"),
    )
    java.run("kafka-topics", *through, "--alter", "--topic", name, "--partitions", "3")

    # The controller has changed them; the broker that is asked may apply that a moment later.
    def shown(*args: str) -> str:
        return str(java.run("kafka-topics", "--bootstrap-server", kafka, *args).stdout)

    def is_changed() -> bool:
        described = shown("--describe", "--topic", name)
        return "retention.ms=7200000" in described and "PartitionCount: 3" in described

    wait_until(is_changed, "the changes of the topic")

    java.run("kafka-topics", *through, "--delete", "--topic", name)
    wait_until(lambda: name not in shown("--list").split(), "the end of the topic")


def test_performance_tools_run(kafka, shared_keylane, topic, java) -> None:
    """The producer and consumer performance tools pass 50,000 records through keylane."""
    name = topic("plain", partitions=2)
    through = ("--bootstrap-server", shared_keylane.bootstrap)

    java.run(
        "kafka-producer-perf-test",
        *("--topic", name, "--num-records", "50000", "--record-size", "100"),
        *("--throughput", "-1", *through),
    )
    reported = java.run(
        "kafka-consumer-perf-test",
        *(*through, "--topic", name, "--num-records", "50000", "--timeout", "120000"),
    )

    assert re.search(r"\b50000\b", reported.stdout)


def test_acls_answer_as_direct(kafka, shared_keylane, java) -> None:
    """kafka-acls without an authorizer is refused by the broker with the same words."""
    with pytest.raises(Exception, match="No Authorizer") as proxied:
        java.run("kafka-acls", "--bootstrap-server", shared_keylane.bootstrap, "--list")
    with pytest.raises(Exception, match="No Authorizer") as direct:
        java.run("kafka-acls", "--bootstrap-server", kafka, "--list")
    assert type(proxied.value) is type(direct.value)
