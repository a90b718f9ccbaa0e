"""keylane/embedded/child.py: a child that is awaited, ended in order, killed, started again."""

from __future__ import annotations

import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from keylane.embedded.child import ChildEnded, GuardedChild

SERVES = "import signal; print('it serves', flush=True); signal.pause()"
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SERVES
TIMEOUT_S = 60.0


class ChildFactory(Protocol):
    """Makes a child that runs a Python program."""

    def __call__(self, program: str, *, grace_s: float = ...) -> GuardedChild:
        """`program` is the text of the program."""
        ...


@pytest.fixture
def make_child(tmp_path: Path) -> Iterator[ChildFactory]:
    """Factory of children that are gone after the test, whatever its outcome."""
    made: list[GuardedChild] = []

    def make(program: str, *, grace_s: float = 30.0) -> GuardedChild:
        command = [sys.executable, "-c", program]
        child = GuardedChild(
            command, log_path=tmp_path / "child.log", ready_text="it serves", grace_s=grace_s
        )
        made.append(child)
        return child

    yield make
    for child in made:
        child.kill()


def start(child: GuardedChild) -> psutil.Process:
    """Start `child`, wait until it serves, and return its process."""
    child.launch()
    child.await_ready(time.monotonic() + TIMEOUT_S)
    return psutil.Process(child.pid)


def test_a_clean_stop_gives_the_exit_code(make_child: ChildFactory) -> None:
    """SIGTERM ends a child that does not handle it: 128 and the signal's number."""
    child = make_child(SERVES)
    process = start(child)

    code = child.stop()

    assert code == 128 + signal.SIGTERM
    assert not process.is_running()


def test_a_stubborn_child_is_killed_after_the_grace(make_child: ChildFactory) -> None:
    """A child that ignores SIGTERM ends by SIGKILL."""
    child = make_child(STUBBORN, grace_s=0.1)
    start(child)

    assert child.stop() == 128 + signal.SIGKILL


def test_a_killed_child_starts_again(make_child: ChildFactory, tmp_path: Path) -> None:
    """After kill -9 the same object runs a new process; the log keeps both."""
    child = make_child(SERVES)
    first = start(child)

    child.kill()
    second = start(child)

    assert first.pid != second.pid
    assert (tmp_path / "child.log").read_text().splitlines() == ["it serves"] * 2


def test_stopping_twice_is_harmless(make_child: ChildFactory) -> None:
    """A second stop, and a stop before any start, find nothing to do."""
    child = make_child(SERVES)

    assert child.stop() is None
    start(child)
    child.stop()

    assert child.stop() is None


def test_a_child_that_ends_before_it_serves_says_why(make_child: ChildFactory) -> None:
    """The error holds the exit code and the last lines of the log."""
    child = make_child("import sys; sys.exit('no such topic')")
    child.launch()

    with pytest.raises(ChildEnded, match=r"exit 1\n(?s:.*)no such topic"):
        child.await_ready(time.monotonic() + TIMEOUT_S)

    assert not child.running


def test_a_child_that_never_serves_is_ended(make_child: ChildFactory) -> None:
    """When the deadline passes the child is killed: nothing is left running."""
    child = make_child("import signal; signal.pause()")
    child.launch()

    with pytest.raises(ChildEnded, match="not ready in time"):
        child.await_ready(time.monotonic())

    assert not child.running


def test_an_end_by_itself_is_noticed(make_child: ChildFactory) -> None:
    """A child that was killed by somebody else is reported as ended, and can start again."""
    child = make_child(SERVES)
    start(child).kill()

    readable = select.select([child.events_fd], [], [], TIMEOUT_S)[0]

    assert readable
    assert child.has_ended()
    assert start(child).is_running()


def test_an_end_by_itself_can_be_waited_for(make_child: ChildFactory) -> None:
    """The exit code is the child's own, and it can start again."""
    child = make_child(SERVES)
    start(child).kill()

    code = child.await_end(TIMEOUT_S)

    assert code == 128 + signal.SIGKILL
    assert start(child).is_running()
