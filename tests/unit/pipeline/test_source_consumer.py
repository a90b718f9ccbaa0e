"""A consumer that waits for the next task: what it is kept for, and what closes it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import ClassVar

import pytest

pytest.importorskip("pyspark")

from keylane.pipeline import source_consumer
from keylane.pipeline.source_consumer import KEPT_S, close_idle, open_consumer

ORDERS = ("orders", 8)
SETTINGS = {"security.protocol": "SSL"}


class Made:
    """A consumer of confluent-kafka, as far as it is used here."""

    all: ClassVar[list[Made]] = []

    def __init__(self, settings: dict[str, object]) -> None:
        self.settings, self.unassigned, self.is_closed = settings, 0, False
        Made.all.append(self)

    def unassign(self) -> None:
        self.unassigned += 1

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Made]]:
    """All that are made."""
    close_idle()
    monkeypatch.setattr(source_consumer, "Consumer", Made)
    Made.all = []
    yield Made.all
    close_idle()


def test_the_next_task_of_a_topic_takes_the_same_consumer(made: list[Made]) -> None:
    """Without an assignment: nothing of the task before is fetched any more."""
    for _ in range(3):
        with open_consumer("h:1", ORDERS, SETTINGS):
            pass

    assert len(made) == 1 and made[0].unassigned == 3 and not made[0].is_closed


@pytest.mark.parametrize(
    ("bootstrap", "topic", "settings", "fetch_bytes"),
    [
        ("h:2", ORDERS, SETTINGS, None),
        ("h:1", ("bills", 8), SETTINGS, None),
        ("h:1", ("orders", 12), SETTINGS, None),
        ("h:1", ORDERS, {**SETTINGS, "ssl.ca.location": "ca.pem"}, None),
        ("h:1", ORDERS, SETTINGS, 1_000),
    ],
)
def test_another_task_has_another_consumer(
    made: list[Made], bootstrap, topic, settings, fetch_bytes
) -> None:
    """Other brokers, topic, partitions, login, size: the one that waited is closed."""
    with open_consumer("h:1", ORDERS, SETTINGS):
        pass
    with open_consumer(bootstrap, topic, settings, fetch_bytes=fetch_bytes):
        pass

    assert [each.is_closed for each in made] == [True, False]


def test_a_consumer_that_is_old_serves_no_further_task(
    made: list[Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of its certificate may be another one by now."""
    now_s = 1_000.0
    monkeypatch.setattr(source_consumer, "time", SimpleNamespace(monotonic=lambda: now_s))
    for step_s in (0.0, KEPT_S - 1, 2.0, 0.0):
        now_s += step_s
        with open_consumer("h:1", ORDERS, SETTINGS):
            pass

    assert [each.is_closed for each in made] == [True, False]


def test_two_reads_at_once_have_a_consumer_each(made: list[Made]) -> None:
    """Only one of them waits afterwards."""
    with open_consumer("h:1", ORDERS, {}) as outer, open_consumer("h:1", ORDERS, {}) as inner:
        assert outer is not inner

    assert sorted(each.is_closed for each in made) == [False, True]


@pytest.mark.parametrize("error", [ValueError, GeneratorExit, KeyboardInterrupt])
def test_a_task_that_fails_or_is_left_closes_its_consumer(made: list[Made], error) -> None:
    """What it knows of the cluster may be the cause."""
    with pytest.raises(error), open_consumer("h:1", ORDERS, {}):
        raise error
    with open_consumer("h:1", ORDERS, {}):
        pass

    assert [each.is_closed for each in made] == [True, False]


def test_the_settings_that_reading_depends_on_cannot_be_changed(made: list[Made]) -> None:
    """Without the log's end a task would stall, and a reset would pass over records."""
    given = {"enable.partition.eof": "false", "auto.offset.reset": "latest", "group.id": "mine"}
    with open_consumer("h:1", ORDERS, {**given, "fetch.wait.max.ms": "7"}, fetch_bytes=9):
        pass

    chosen = made[0].settings
    assert chosen["enable.partition.eof"] is True and chosen["auto.offset.reset"] == "error"
    assert chosen["group.id"] == "keylane-spark" and chosen["enable.auto.commit"] is False
    assert (chosen["fetch.wait.max.ms"], chosen["fetch.message.max.bytes"]) == ("7", 9)
