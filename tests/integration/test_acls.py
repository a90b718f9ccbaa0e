"""ACLs through keylane: managed as direct, and obeyed for lanes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from tests.integration.conftest import make_topic_factory
from tests.integration.harness import produce
from tests.integration.test_admin_lanes import delete_records

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture
def guarded_broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A broker that keeps ACLs; what has none is open to everybody."""
    properties = {"authorizer.class.name": AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    with EmbeddedKafka(tmp_path / "kafka", properties=properties) as running:
        yield running


def test_acls_are_managed_through_keylane(guarded_broker, keylane, java) -> None:
    """kafka-acls --add, --list and --remove through keylane do what they do direct."""
    bootstrap = guarded_broker.bootstrap
    proxy = keylane("orders=4", bootstrap=bootstrap)
    rule = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", "invoices")

    java.run("kafka-acls", "--bootstrap-server", proxy.bootstrap, "--add", *rule)

    proxied = java.run("kafka-acls", "--bootstrap-server", proxy.bootstrap, "--list")
    direct = java.run("kafka-acls", "--bootstrap-server", bootstrap, "--list")
    assert proxied.stdout == direct.stdout
    assert "User:alice" in direct.stdout
    java.run("kafka-acls", "--bootstrap-server", proxy.bootstrap, "--remove", "--force", *rule)
    assert "alice" not in java.run("kafka-acls", "--bootstrap-server", bootstrap, "--list").stdout


def test_lanes_of_a_topic_that_may_not_be_read(guarded_broker, keylane, java) -> None:
    """Without READ a client is refused lanes as it is refused the topic, and sees no record."""
    bootstrap = guarded_broker.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name = make_topic_factory(admin, "acl")("secret", partitions=1)
    produce(bootstrap, name, ["key"], rounds=5)
    proxy = keylane(f"{name}=4", bootstrap=bootstrap)
    java.run(
        "kafka-acls",
        *("--bootstrap-server", bootstrap, "--add", "--deny-principal", "User:ANONYMOUS"),
        *("--operation", "Read", "--topic", name, "--force"),
    )
    java.run(
        "kafka-acls",
        *("--bootstrap-server", bootstrap, "--add", "--allow-principal", "User:ANONYMOUS"),
        *("--operation", "Describe", "--topic", name, "--force"),
    )
    read = ("--topic", name, "--partition", "0", "--offset", "earliest", "--timeout-ms", "60000")

    proxied = java.run("kafka-console-consumer", "--bootstrap-server", proxy.bootstrap, *read)
    direct = java.run("kafka-console-consumer", "--bootstrap-server", bootstrap, *read)

    assert proxied.stdout == direct.stdout == ""
    refused = re.compile(r"TopicAuthorizationException|Not authorized to access topics")
    assert refused.search(direct.stderr)
    assert refused.search(proxied.stderr)


def test_records_of_lanes_are_deleted_with_the_right_to_the_topic(
    guarded_broker, keylane, java
) -> None:
    """Without DELETE the broker refuses all lanes of a partition, and one lane gets no reason."""
    bootstrap = guarded_broker.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap})
    name = make_topic_factory(admin, "acl")("kept", partitions=1)
    produce(bootstrap, name, ["key"], rounds=5)
    proxy = keylane(f"{name}=2", bootstrap=bootstrap)
    acl = ("--bootstrap-server", bootstrap, "--topic", name, "--force")
    for operation in ("Read", "Write", "Alter"):
        java.run(
            "kafka-acls", "--add", "--allow-principal", "User:ANONYMOUS",
            "--operation", operation, *acl,
        )  # fmt: skip

    denied = [delete_records(proxy.bootstrap, name, lanes) for lanes in ({0: 3, 1: 3}, {1: 3})]
    java.run(
        "kafka-acls", "--add", "--allow-principal", "User:ANONYMOUS", "--operation", "Delete", *acl
    )
    code = KafkaError.TOPIC_AUTHORIZATION_FAILED
    while (allowed := delete_records(proxy.bootstrap, name, {0: 3, 1: 4})) == {0: code, 1: code}:
        pass  # until the broker has applied the new right

    assert denied == [{0: code, 1: code}, {1: code}]
    assert "DeleteRecords refused" not in proxy.log
    assert allowed == {0: 3, 1: 3}
