"""The members' processes: what they reported before they were killed is not lost."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keylane.demo.events import Ended, LanesReleased, SessionEnd, write_event
from keylane.demo.members import Members

RELEASED = LanesReleased(1, 5, (0, 3), SessionEnd.REVOKED)
LINE = f"{write_event(RELEASED)}\n".encode()
PROGRAM = f"import os; os.write(1, {LINE!r}); os.read(0, 9)"
"""Reports with one write, so that no kill cuts the line; then it waits."""


def test_the_last_words_of_killed_members_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict needs them: a lane that was given up in time was at one member only."""
    start = subprocess.Popen

    def start_program(_: list[str], **options: Any) -> subprocess.Popen[bytes]:
        return start([sys.executable, "-c", PROGRAM], **options)

    monkeypatch.setattr(subprocess, "Popen", start_program)
    members = Members(bootstrap="b:1", topic="t", group="g", folder=tmp_path)
    members.start(1, "aiokafka")
    stdout = members.by_number[1].process.stdout
    assert stdout is not None
    select.select([stdout], [], [])  # it has reported

    released, ended = members.kill_all()

    members.close()
    assert released == RELEASED
    assert isinstance(ended, Ended)
    assert ended.end is SessionEnd.KILLED


HANGS = """
import sys, threading

def close_that_never_ends():
    print("closes", file=sys.stderr, flush=True)
    threading.Event().wait()

def consume(progress, seat, is_stopping):
    close_that_never_ends()
"""
MEMBER = """
from keylane.demo import member

member.STOP_LATE_S, member.MODULES["aiokafka"] = 0.1, "hangs"
member.main()
"""


def test_a_member_that_does_not_stop_logs_where_it_waits(tmp_path: Path) -> None:
    """To stderr, which is its log; stdout is for events."""
    (tmp_path / "hangs.py").write_text(HANGS)
    command = [sys.executable, "-c", MEMBER, "--client", "aiokafka", "--bootstrap", "b:1"]
    with subprocess.Popen(
        [*command, "--topic", "t", "--group", "g", "--number", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None and process.stderr is not None
        assert process.stderr.readline() == "closes\n"
        process.stdin.write("stop\n")
        process.stdin.flush()

        while "in close_that_never_ends" not in (line := process.stderr.readline()):
            assert line, "it ended"

        process.stdin.close()
        assert process.stdout.read() == ""
        assert process.wait() == 3, "its parent is gone"
