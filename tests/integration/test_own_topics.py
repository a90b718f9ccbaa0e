"""keylane's own topics are no business of members that subscribe to a pattern."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.integration.keylane_process import PATIENCE
from tests.integration.share_wire import wait_until

JOURNAL = "__individual_commit_offsets"
ALL = ".*"
JOIN_TIMEOUT_S = 60.0 * PATIENCE


def given_to_aiokafka(bootstrap: str, group: str) -> set[str]:
    """Topics of which a member of the pattern is given partitions."""

    async def join() -> set[str]:
        member = AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group)
        member.subscribe(pattern=ALL)
        async with member:
            while not member.assignment():
                await member.getmany(timeout_ms=200)
            return {place.topic for place in member.assignment()}

    return asyncio.run(join())


KAFKA_PYTHON = """
import sys
from kafka import KafkaConsumer
from kafka.errors import RetriableError
member = KafkaConsumer(bootstrap_servers=sys.argv[1], group_id=sys.argv[2])
member.subscribe(pattern=sys.argv[3])
while not member.assignment():
    try:
        member.poll(2_000)  # one that ends with the join loses its outcome (docs/clients.md)
    except RetriableError:  # what its refresh of metadata met (docs/clients.md)
        pass
print(*{place.topic for place in member.assignment()})
member.close()
"""
"""Program for another process: the library's import warns, and warnings are errors here."""


def given_to_kafka_python(bootstrap: str, group: str) -> set[str]:
    """Return the same for kafka-python."""
    command = [sys.executable, "-c", KAFKA_PYTHON, bootstrap, group, ALL]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=JOIN_TIMEOUT_S, check=True
    )
    return set(done.stdout.split())


def given_to_java(bootstrap: str, group: str, java: Any) -> set[str]:
    """Return the same for Java's classic consumer, by the broker's description."""
    java.start(
        "kafka-console-consumer",
        *("--bootstrap-server", bootstrap, "--include", ALL, "--group", group),
    )
    admin = AdminClient({"bootstrap.servers": bootstrap})

    def given() -> set[str]:
        try:
            found = admin.describe_consumer_groups([group])[group].result(30)
        except KafkaException:  # the coordinator of a group that is new may load its offsets yet
            return set()
        return {
            place.topic for member in found.members for place in member.assignment.topic_partitions
        }

    topics: set[str] = wait_until(given, "the member's topics", timeout_s=JOIN_TIMEOUT_S)
    return topics


GIVEN: dict[str, Callable[..., set[str]]] = {
    "aiokafka": lambda bootstrap, group, _: given_to_aiokafka(bootstrap, group),
    "kafka-python": lambda bootstrap, group, _: given_to_kafka_python(bootstrap, group),
    "java": given_to_java,
}


@pytest.mark.parametrize("library", GIVEN)
def test_a_pattern_of_all_topics_gets_none_of_keylanes(
    library, kafka, shared_keylane, topic, java
) -> None:
    """A classic member of `.*` reads the users' topics, and not the journal of commits."""
    name = topic("plain")

    before = GIVEN[library](kafka, f"g-{name}-before", java)
    given = GIVEN[library](shared_keylane.bootstrap, f"g-{name}", java)
    after = GIVEN[library](kafka, f"g-{name}-after", java)

    # Other tests make and delete topics on this broker meanwhile.
    direct = before & after
    assert name in given
    assert JOURNAL not in given
    assert direct - given == {own for own in direct if own.startswith("__")} >= {JOURNAL}


def test_tools_leave_them_out(shared_keylane, topic, java) -> None:
    """Java's admin client takes the journal for internal."""
    name = topic("plain")
    through = ("--bootstrap-server", shared_keylane.bootstrap)

    shown = java.run("kafka-topics", *through, "--list").stdout.split()
    listed = java.run("kafka-topics", *through, "--list", "--exclude-internal").stdout.split()

    assert {name, JOURNAL} <= set(shown)
    assert name in listed
    assert JOURNAL not in listed
