"""`keylane demo` as a user runs it: it ends by itself, it passes, it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Final

import psutil
import pytest

MARK: Final = "KEYLANE_TEST_RUN"
"""Variable that children inherit, also when their parent has ended."""


def start_demo(mark: str, folder: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "keylane", "demo", "--plain", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, MARK: mark, "TMPDIR": str(folder)},
    )


def wait_until_reading(demo: subprocess.Popen[str]) -> None:
    """Read the demo's lines until orders flow."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if "orders begin" in line:
            return
    raise AssertionError(f"the demo ended with {demo.wait()} before any order")


def processes_of(mark: str) -> list[psutil.Process]:
    """Processes that a demo with this mark started, itself included."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process)
        except psutil.Error:  # another user's, or gone in this moment
            continue
    return found


@pytest.mark.parametrize(
    "args",
    [
        pytest.param((), id="lanes"),
        pytest.param(("--workers",), id="workers", marks=pytest.mark.long),
        pytest.param(("--direct", "--partitions", "12"), id="direct", marks=pytest.mark.long),
    ],
)
def test_the_show_passes_and_leaves_nothing(tmp_path: Path, args: tuple[str, ...]) -> None:
    """Members and keylane are killed on the way; every check passes and nothing remains."""
    mark = uuid.uuid4().hex
    demo = start_demo(mark, tmp_path, "--seconds", "20", *args)

    output, _ = demo.communicate(timeout=380)

    assert demo.returncode == 0, output
    assert "FAILED" not in output
    assert processes_of(mark) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)],
)
def test_an_ended_demo_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, SIGTERM and even kill -9 in the middle of the show end all that it started."""
    mark = uuid.uuid4().hex
    demo = start_demo(mark, tmp_path, "--seconds", "60", "--direct", "--partitions", "12")
    wait_until_reading(demo)
    started = processes_of(mark)

    demo.send_signal(number)
    demo.communicate(timeout=120)

    assert len(started) > 8
    _, alive = psutil.wait_procs([p for p in started if p.pid != demo.pid], timeout=90)
    assert alive == []
    expected = -number if number == signal.SIGKILL else 130
    assert demo.returncode == expected
