"""keylane/pipeline/topic_range.py, what of it needs neither Kafka nor Spark."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError

from keylane.errors import ConfigInvalid
from keylane.pipeline.brokers import SparkAdmin
from keylane.pipeline.topic_range import TASKS_MAX, TopicRange, count_tasks, refuse_lanes


@pytest.mark.parametrize(
    ("records", "partitions", "tasks"),
    [
        (0, 16, 16),
        (100_000_000, 16, 100),
        (100_000_001, 16, 101),
        (10**12, 16, TASKS_MAX),
        (10**12, TASKS_MAX + 1, TASKS_MAX + 1),  # Spark makes one of each partition at least
    ],
)
def test_tasks_are_bounded_whatever_the_records(records: int, partitions: int, tasks: int) -> None:
    """The driver keeps something of each task, so their number does not grow with records."""
    chosen = TopicRange(
        bootstrap="kafka:9092",
        topic="orders",
        starts=(5,) * partitions,
        ends=(5 + records, *(5,) * (partitions - 1)),
        options={},
        topic_id="",
    )

    assert count_tasks(chosen) == tasks


def failing_admin(monkeypatch: pytest.MonkeyPatch, error: str) -> SparkAdmin:
    """An admin client whose questions about a topic fail."""

    def fail(_admin: SparkAdmin, _topic: str) -> None:
        raise Py4JError(f"org.apache.kafka.common.errors.{error}")

    monkeypatch.setattr(SparkAdmin, "_describe", fail)
    admin = object.__new__(SparkAdmin)
    admin.bootstrap = "kafka:9092"
    return admin


@pytest.mark.parametrize(
    "error",
    [
        "UnknownTopicOrPartitionException: This server does not host this topic-partition.",
        "InvalidTopicException: the name is too long",
        "TopicAuthorizationException: Not authorized to access topics: [orders.lanes-1]",
    ],
)
def test_at_kafka_a_topic_has_no_lanes(monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    """Where rights are for `orders` alone, a broker refuses the name of its lanes."""
    refuse_lanes(failing_admin(monkeypatch, error), "orders", 32)


def test_no_answer_is_not_that_there_are_no_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that hangs says nothing about lanes."""
    admin = failing_admin(monkeypatch, "TimeoutException: Timed out waiting for a node")

    with pytest.raises(ConfigInvalid, match="kafka:9092: no broker answers"):
        refuse_lanes(admin, "orders", 32)
