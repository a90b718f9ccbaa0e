"""Which process a node is: proved to run, proved to have ended, or not known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from keylane.proxy.nodes import process_mark
from keylane.proxy.nodes.process_mark import Life, look_up, make_mark, pid_of

MARKS = "from keylane.proxy.nodes.process_mark import make_mark; print(make_mark(), flush=True)"


@pytest.fixture
def other() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Another process of this machine, and its mark."""
    command = [sys.executable, "-c", f"{MARKS}; input()"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
        process.kill()


def test_a_process_that_runs_is_known_by_its_pid(other) -> None:
    """This one as well as another one."""
    process, mark = other

    assert look_up(mark) is Life.RUNS
    assert look_up(make_mark()) is Life.RUNS
    assert pid_of(mark) == str(process.pid)


def test_a_process_that_was_killed_has_ended(other) -> None:
    """As soon as its parent has taken note."""
    process, mark = other

    process.kill()
    process.wait()

    assert look_up(mark) is Life.ENDED


def test_a_pid_that_is_another_processs_by_now_proves_the_end() -> None:
    """A process has one start time."""
    place, pid, started = make_mark().split(":")

    assert look_up(f"{place}:{pid}:{int(started) - 1}") is Life.ENDED


def test_a_process_that_is_stopped_is_not_known(other) -> None:
    """It may go on at any time, so it does not count as ended, nor as one that answers."""
    process, mark = other
    os.kill(process.pid, signal.SIGSTOP)
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        pass

    assert look_up(mark) is Life.UNKNOWN


@pytest.mark.parametrize("mark", ["", "x", "a:b", "other-boot/1:17:99", "::", "a:-1:3", "a:1"])
def test_what_is_of_another_machine_or_no_mark_is_not_known(mark: str) -> None:
    """Nothing is concluded from it."""
    assert look_up(mark) is Life.UNKNOWN


def test_a_system_without_proc_makes_no_mark_and_knows_nothing(monkeypatch, tmp_path) -> None:
    """Then a session has to run out."""
    mark = make_mark()
    monkeypatch.setattr(process_mark, "PROC", tmp_path)

    assert make_mark() == ""
    assert look_up(mark) is Life.UNKNOWN
