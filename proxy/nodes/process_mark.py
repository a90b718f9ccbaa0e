"""Mark of a lone node's process, by which one on the same machine can see if it still runs.

Source: proc(5): a process is its machine's boot, its PID namespace, its pid and its start time.

A lease is taken over on it, so an end has to be proved: anything that cannot be read is UNKNOWN.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
START_FIELD: Final = 19
"""Field of /proc/<pid>/stat, counted from behind the command's name: ticks from boot to start."""
STATE_FIELD: Final = 0
STOPPED: Final = frozenset({"T", "t"})
"""States of a process that a signal or a debugger has stopped: it may go on at any time."""


class Life(enum.Enum):
    """State of a process, as far as it is known."""

    RUNS = "runs"
    ENDED = "has ended"
    UNKNOWN = "is not known"


def make_mark() -> str:
    """Return the mark of this process; empty where the system does not show its parts."""
    try:
        return f"{_place()}:{os.getpid()}:{_stat(os.getpid())[START_FIELD]}"
    except (OSError, IndexError):
        return ""


def look_up(mark: str) -> Life:
    """Return the state of the process that made `mark`; a stopped one is UNKNOWN."""
    place, _, process = mark.partition(":")
    pid_text, _, started = process.partition(":")
    try:
        if not pid_text.isdecimal() or place != _place():
            return Life.UNKNOWN
        pid = int(pid_text)
        os.kill(pid, 0)
        fields = _stat(pid)
    except ProcessLookupError:
        return Life.ENDED
    except (OSError, OverflowError):
        return Life.UNKNOWN
    if len(fields) <= START_FIELD:
        return Life.UNKNOWN
    if fields[START_FIELD] != started:
        return Life.ENDED  # its pid is another process's by now
    return Life.UNKNOWN if fields[STATE_FIELD] in STOPPED else Life.RUNS


def pid_of(mark: str) -> str:
    """Return the pid in a mark, for a log; empty: none."""
    return mark.split(":")[1] if mark.count(":") == 2 else ""


def _place() -> str:
    """Return this boot of this machine, and this PID namespace of it."""
    boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{(PROC / 'self/ns/pid').stat().st_ino}"


def _stat(pid: int) -> list[str]:
    """Return the fields behind the command's name, which may hold anything. Raises: OSError."""
    text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(")")[2].split()
