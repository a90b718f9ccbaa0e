"""`keylane assign --bootstrap`: partition counts come from a real cluster."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer

from keylane.cli.main import main
from tests.integration.conftest import TopicFactory

pytestmark = pytest.mark.integration


def test_partitions_are_asked_of_the_cluster(
    kafka: str, topic: TopicFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five members share the three partitions of the broker's metadata."""
    name = topic(partitions=3)
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(name, b"x")
    assert producer.flush(30) == 0  # so the broker knows the topic
    argv = ["assign", "--topic", name, "--bootstrap", kafka, "--members", "5", "-o", "json"]

    assert main(argv) == 0

    members = json.loads(capsys.readouterr().out)["members"]
    assert len(members) == 5
    assert {part["partition"] for parts in members.values() for part in parts} == {0, 1, 2}


def test_an_unknown_topic_is_named(kafka: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, and one line that names topic and cluster."""
    assert main(["assign", "--topic", "never-made", "--bootstrap", kafka, "--members", "2"]) == 2
    line = f"keylane assign: --topic never-made: there is no such topic at {kafka}\n"
    assert capsys.readouterr().err == line
