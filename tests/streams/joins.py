"""Records of two sides of a join, and the number of pairs that they make."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from confluent_kafka import Producer

WINDOW_MS: Final = 50
"""As `StreamsApp.java` has it."""
STEP_MS: Final = 20
"""Between two values of a key."""
ALTERNATING_MS: Final = STEP_MS // 2
IN_STEP: Final[dict[str, Any]] = {"max_task_idle_ms": 3_000}
"""A task waits for the later side: without it plain topics, too, are joined as records come."""


def produce_sides(
    kafka: str,
    lefts: Sequence[str],
    rights: Sequence[str],
    keys: Sequence[str],
    rounds: int,
    *,
    ahead_ms: int = ALTERNATING_MS,
) -> None:
    """Produce left and right values of each key, the same into all topics of a side.

    ahead_ms: time by which a right value is older than the left one of its round.
    """
    producer = Producer({"bootstrap.servers": kafka, "partitioner": "murmur2_random"})
    failures: list[str] = []

    def note(error: object, _message: object) -> None:
        if error is not None:
            failures.append(str(error))

    start_ms = int(datetime.now(UTC).timestamp()) * 1000 - STEP_MS * rounds
    for number in range(rounds):
        left_ms = start_ms + STEP_MS * number
        sides = ((lefts, "left", left_ms), (rights, "right", left_ms - ahead_ms))
        for topics, side, at_ms in sides:
            for topic in topics:
                for key in keys:
                    value = f"{side} {number}"
                    producer.produce(topic, key=key, value=value, timestamp=at_ms, on_delivery=note)
        assert producer.flush(60) == 0
    assert not failures, failures[:3]


def pairs_in_window(rounds: int) -> int:
    """Return the pairs of a key that a windowed join of alternating values has."""
    times_ms = [STEP_MS * number for number in range(rounds)]
    return sum(
        abs(left_ms - (right_ms - ALTERNATING_MS)) <= WINDOW_MS
        for left_ms in times_ms
        for right_ms in times_ms
    )
