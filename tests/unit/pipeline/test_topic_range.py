"""keylane/pipeline/topic_range.py, what of it needs neither Kafka nor Spark."""

from __future__ import annotations

import pytest

from keylane.pipeline.topic_range import TASKS_MAX, TopicRange, count_tasks


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
