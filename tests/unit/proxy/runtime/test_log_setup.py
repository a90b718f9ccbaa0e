"""A broker that is away for an hour makes two lines of log, not seventy thousand."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from keylane.proxy.runtime.log_setup import LIBRARY, ClientTrouble, muted_log, set_up_logging


class Clock:
    """Time that the test moves; what is due is done."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self.due.append((self.now_s + seconds, do))

    def go(self, seconds: float) -> None:
        self.now_s += seconds
        ready = [entry for entry in self.due if entry[0] <= self.now_s]
        self.due = [entry for entry in self.due if entry[0] > self.now_s]
        for _, do in ready:
            do()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def library(clock: Clock) -> Iterator[logging.Logger]:
    """A logger below aiokafka's, as its modules have; nothing of it reaches the root."""
    top = logging.getLogger(LIBRARY)
    before = (top.handlers, top.propagate, top.level)
    top.handlers, top.propagate = [ClientTrouble(lambda: clock.now_s, clock.later)], False
    yield logging.getLogger(f"{LIBRARY}.client")
    top.handlers, top.propagate = before[0], before[1]
    top.setLevel(before[2])


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in ours(caplog)]


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Lines of keylane's; pytest listens to loggers that do not propagate, too."""
    return [record for record in caplog.records if record.name == "keylane.kafka"]


def test_a_loss_is_logged_once_and_its_end_once(library, clock, caplog) -> None:
    """Complaints of any number of clients are one line; the next loss is logged again."""
    for _ in range(20 * 60):
        library.error("Unable connect to node with id %s: %s", 1, "refused")
        library.warning("Cannot send %r to %s", "Fetch", 1)
        clock.go(0.05)
    (begun,) = reported(caplog)
    assert begun.startswith("Kafka clients inside keylane are in trouble reason=Unable connect to")

    clock.go(9.0)
    assert len(reported(caplog)) == 1, "it may not be over"
    for _ in range(20):
        clock.go(1.0)
    assert reported(caplog)[1:] == [
        "Kafka clients inside keylane are well again trouble_s=60 complaints=2400"
    ]

    library.error("Unable to update metadata from %s", [1])
    assert len(reported(caplog)) == 3


def test_the_end_is_logged_late_where_no_timer_ran(library, clock, caplog) -> None:
    """With the next loss, at the latest."""
    library.error("lost")
    clock.due.clear()
    clock.go(3600.0)
    library.error("lost again")

    assert [text.split(" reason")[0].split(" trouble_s")[0] for text in reported(caplog)] == [
        "Kafka clients inside keylane are in trouble",
        "Kafka clients inside keylane are well again",
        "Kafka clients inside keylane are in trouble",
    ]


def test_a_missing_right_and_a_bug_are_logged_as_they_are(library, clock, caplog) -> None:
    """Each kind once a minute, with its level and its trace; neither is a loss."""
    for _ in range(3):
        library.warning("Not authorized to read from topic %s.", "orders")
        try:
            raise ZeroDivisionError
        except ZeroDivisionError:
            library.exception("Unexpected error in sender routine")
    expected = ["Not authorized to read from topic orders.", "Unexpected error in sender routine"]
    assert reported(caplog) == expected
    assert [record.levelname for record in ours(caplog)] == ["WARNING", "ERROR"]
    assert ours(caplog)[1].exc_info

    clock.go(61.0)
    library.warning("Not authorized to read from topic %s.", "orders")
    assert reported(caplog) == [*expected, expected[0]]


def test_a_line_that_cannot_be_logged_does_not_stop_its_writer(library, capsys, caplog) -> None:
    """One argument too few: `logging` says so on stderr, aiokafka goes on."""
    record = logging.LogRecord(library.name, logging.ERROR, "x.py", 1, "lost %s of %s", (1,), None)

    logging.getLogger(LIBRARY).handlers[0].handle(record)

    assert "--- Logging error ---" in capsys.readouterr().err
    assert reported(caplog) == []


def test_debug_shows_the_library_as_it_is(library) -> None:
    """And any other level does not."""
    keylane, top = logging.getLogger("keylane"), logging.getLogger(LIBRARY)
    level = keylane.level
    try:
        set_up_logging("debug")
        whole = (top.propagate, len(top.handlers))
        set_up_logging("info")
        assert whole == (True, 0)
        assert not top.propagate
        assert [type(handler) for handler in top.handlers] == [ClientTrouble]
    finally:
        keylane.setLevel(level)


def test_a_command_that_looks_mutes_the_log_and_leaves_it_as_it_was(caplog) -> None:
    """No line of either inside, not even a critical one; both as before behind it."""
    loggers = [logging.getLogger("keylane.x"), logging.getLogger(f"{LIBRARY}.x")]
    levels = [logging.getLogger(name).level for name in ("keylane", LIBRARY)]

    with muted_log():
        for logger in loggers:
            logger.critical("inside")

    # The logger of asyncio may have what a collection finds of other tests.
    assert [r for r in caplog.records if r.name.startswith(("keylane", LIBRARY))] == []
    assert [logging.getLogger(name).level for name in ("keylane", LIBRARY)] == levels
