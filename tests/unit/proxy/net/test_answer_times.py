"""How long brokers are waited for: short at first, longer for those that are slow."""

from __future__ import annotations

import logging

import pytest

from keylane.proxy.net.answer_times import (
    ADDRESSES_MAX,
    ANSWER_S_MAX,
    ANSWER_S_MIN,
    SLOW_S,
    Patience,
)

ONE, TWO = ("kafka1", 9092), ("kafka2", 9092)


class World:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.late: list[str] = []
        self.patience = Patience(
            lambda address: address[0][-1], clock=lambda: self.now_s, on_late=self.late.append
        )


@pytest.fixture
def world() -> World:
    return World()


def test_a_broker_that_takes_its_time_is_waited_for_longer(world) -> None:
    """One that needs 8 s fails once; from then on it has three times what it took."""
    patience = world.patience
    assert patience.seconds(ONE) == ANSWER_S_MIN == 5

    patience.timed_out(ONE, 5.0)
    assert patience.seconds(ONE) == 10
    patience.answered(ONE, 8.0)

    assert patience.seconds(ONE) == 24 and patience.seconds(TWO) == ANSWER_S_MIN


def test_a_wait_in_vain_doubles_the_next_up_to_a_bound(world) -> None:
    """Those that waited beside it count once; quick answers bring the first wait back."""
    patience = world.patience
    for _ in range(3):
        patience.timed_out(ONE, 5.0)
    assert patience.seconds(ONE) == 10
    for waited_s in (10.0, 20.0, 30.0):
        patience.timed_out(ONE, waited_s)
    assert patience.seconds(ONE) == ANSWER_S_MAX == 30

    for _ in range(3):
        patience.answered(ONE, 0.01)

    assert patience.seconds(ONE) == ANSWER_S_MIN
    assert world.late == ["1"] * 6


def test_a_broker_that_does_not_answer_is_asked_last(world) -> None:
    """Until it answers again; one that was overtaken for a while."""
    patience = world.patience
    patience.timed_out(ONE, 5.0)
    patience.overtaken(TWO)
    other = ("kafka3", 9092)
    assert patience.in_order([ONE, TWO, other, ONE]) == [other, ONE, TWO]

    patience.answered(ONE, 0.1)
    assert patience.in_order([ONE, TWO]) == [ONE, TWO] and patience.is_late(TWO)
    world.now_s += SLOW_S

    assert not patience.is_late(TWO)


def test_silence_is_logged_when_it_begins_and_when_it_has_ended(world, caplog) -> None:
    """Two lines, however many requests got no answer."""
    caplog.set_level(logging.WARNING)
    for _ in range(5):
        world.patience.timed_out(ONE, 5.0)
    world.now_s += 600
    world.patience.answered(ONE, 0.1)

    lines = [one.getMessage() for one in caplog.records if one.name == "keylane.brokers"]
    assert lines == [
        "broker does not answer broker=1 address=kafka1:9092 waited_s=5",
        "broker answers again broker=1 address=kafka1:9092 silent_s=600",
    ]


def test_what_is_known_is_bounded(world) -> None:
    """Addresses may come and go without end."""
    for port in range(3 * ADDRESSES_MAX):
        world.patience.timed_out(("kafka", port), 5.0)

    assert len(world.patience._known) <= ADDRESSES_MAX
