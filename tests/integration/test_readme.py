"""README.md works as it stands: its commands, its consumers, its limits."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.commands import parse_command
from tests.integration.harness import Group, produce
from tests.integration.keylane_process import PATIENCE

README: Final = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
ADDRESS: Final = "127.0.0.1:19092"
KEYS: Final = [f"key-{number}" for number in range(50)]
LANE_COUNT: Final = 32
"""2 partitions of 16 lanes, as README has it."""


def blocks(language: str) -> list[str]:
    """Code blocks of README.md."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def python_examples() -> dict[str, str]:
    """Code by library; each example starts with a comment that names it."""
    (block,) = blocks("python")
    return {code.split()[1]: code for code in re.split(r"\n+(?=# )", block)}


def proxy_command() -> list[str]:
    """Arguments of the first `keylane proxy` line."""
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return shlex.split(next(line for line in lines if line.startswith("keylane proxy")))[1:]


def make_consumer(library: str, bootstrap: str, topic: str) -> Any:
    """Run the example with other names."""
    code = python_examples()[library]
    assert code.count(ADDRESS) == code.count('"billing"') == 1
    code = code.replace(ADDRESS, bootstrap).replace("orders", topic)
    names: dict[str, Any] = {}
    exec(code.replace("billing", f"billing-{topic}"), names)  # noqa: S102  # what users would run
    return names["consumer"]


def read_aiokafka(bootstrap: str, topic: str, count: int) -> tuple[list[str], int]:
    """Values, and how many lanes the consumer was given."""

    async def read() -> tuple[list[str], int]:
        consumer = make_consumer("aiokafka", bootstrap, topic)
        await consumer.start()
        try:
            values: list[str] = []
            while len(values) < count:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    values += [record.value.decode() for record in records]
            return values, len(consumer.assignment())
        finally:
            await consumer.stop()

    return asyncio.run(read())


def read_confluent(bootstrap: str, topic: str, count: int) -> tuple[list[str], int]:
    """As `read_aiokafka`."""
    consumer = make_consumer("confluent-kafka", bootstrap, topic)
    values: list[str] = []
    while len(values) < count:
        message = consumer.poll(1)
        if message is not None and not message.error():
            values.append(message.value().decode())
    lanes = len(consumer.assignment())
    consumer.close()
    return values, lanes


def read_kafka_python(bootstrap: str, topic: str, count: int) -> tuple[list[str], int]:
    """As `read_aiokafka`."""
    consumer = make_consumer("kafka-python", bootstrap, topic)
    from kafka.errors import RetriableError

    values: list[str] = []
    while len(values) < count:
        # A poll that ends in the same moment as the join loses its outcome (docs/clients.md).
        try:
            polled = consumer.poll(timeout_ms=10_000)
        except RetriableError:  # what its refresh of metadata met (docs/clients.md)
            continue
        for records in polled.values():
            values += [record.value.decode() for record in records]
    lanes = len(consumer.assignment())
    consumer.close()
    return values, lanes


READERS: Final = {
    "aiokafka": read_aiokafka,
    "confluent-kafka": read_confluent,
    "kafka-python": read_kafka_python,
}


def commit_directly(bootstrap: str, group: str, topic: str) -> None:
    """Give the group offsets on Kafka, so that the consumers' default reset is not asked."""
    offsets = [TopicPartition(topic, partition, 0) for partition in range(2)]
    wanted = ConsumerGroupTopicPartitions(group, offsets)
    admin = AdminClient({"bootstrap.servers": bootstrap})  # kept: its futures end with it
    admin.alter_consumer_group_offsets([wanted])[group].result(30)


@pytest.fixture
def accepting_config(tmp_path: Path) -> Callable[[str], str]:
    """Writes a configuration file that accepts another layout of a topic."""

    def write(topic: str) -> str:
        path = tmp_path / "keylane.yaml"
        path.write_text(f"accept_layout: [{topic}]\n", encoding="utf-8")
        return str(path)

    return write


def test_the_commands_are_understood() -> None:
    """`keylane proxy`, `keylane kafka` and the control flag of README.md parse."""
    proxy = parse_command(proxy_command())
    (reported,) = re.findall(r"`keylane (kafka [^`]+)`", README)
    controls = re.findall(r"`(--control [^`]+)`", README)

    kafka = parse_command(reported.split())
    both = parse_command([*proxy_command(), *controls[0].split()])
    describe = parse_command(["describe", *controls[1].split()])

    assert proxy.lanes == ("orders=16", "shop-*=4") and proxy.listen == ADDRESS
    assert str(kafka.data) == "kafka-data" and kafka.port == 9092
    assert both.control == describe.control == "127.0.0.1:19090"


def test_every_python_client_is_shown() -> None:
    """One example for each library that the tests run."""
    assert set(python_examples()) == set(READERS)


# kafka-python loads its schemas with functions that Python 3.11 calls deprecated.
@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
@pytest.mark.parametrize("library", sorted(READERS))
def test_an_example_reads_all_lanes(library, kafka, keylane, topic) -> None:
    """The consumer of README.md, with no other setting, reads the topic as 32 partitions."""
    name = topic("orders", partitions=2)
    command = parse_command(proxy_command())
    proxy = keylane(*(rule.replace("orders", name) for rule in command.lanes))
    commit_directly(kafka, f"billing-{name}", name)
    values = produce(kafka, name, KEYS, rounds=4)

    read, lanes = READERS[library](proxy.bootstrap, name, len(values))

    shown = AdminClient({"bootstrap.servers": proxy.bootstrap}).list_topics(name, timeout=30)
    direct = AdminClient({"bootstrap.servers": kafka}).list_topics(name, timeout=30)
    assert sorted(read) == sorted(values)
    assert lanes == LANE_COUNT == len(shown.topics[name].partitions)
    assert len(direct.topics[name].partitions) == 2


def test_another_number_of_lanes_needs_accept_layout(
    kafka, keylane, topic, accepting_config
) -> None:
    """4 lanes become 8: refused while a group has offsets, then taken over by key range."""
    name = topic("orders", partitions=1)
    proxy = keylane(f"{name}=4")
    with Group(proxy.bootstrap, name, f"g-{name}") as group:
        group.add("confluent", 2)
        group.wait_for_lanes(4)
        group.wait_for_values(produce(kafka, name, KEYS, rounds=4))
        group.wait_for_commits()
    proxy.stop()

    command = [sys.executable, "-m", "keylane", "proxy", "--bootstrap", kafka]
    command += ["--listen", "127.0.0.1:0", "--lanes", f"{name}=8"]
    refused = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60 * PATIENCE,
        check=False,
        env={**os.environ, "KEYLANE_BESIDE_OTHERS": "true"},  # others run in front of this broker
    )
    accepted = keylane(f"{name}=8", args=["--config", accepting_config(name)])

    assert refused.returncode == 2
    assert f"topic {name} has 4 lanes" in refused.stderr and "accept_layout" in refused.stderr
    with Group(accepted.bootstrap, name, f"g-{name}") as again:
        again.add("confluent", 2)
        again.wait_for_lanes(8)
        more = produce(kafka, name, KEYS, rounds=2, first=4)
        again.wait_for_values(more)
    assert again.seen.values() == dict.fromkeys(more, 1)
