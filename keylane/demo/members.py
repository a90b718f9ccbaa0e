"""The consumers of the demo, seen by their parent: start, kill -9, ask to stop, read.

Each watches its stdin, which ends with this process, so none survives it.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from keylane.demo.events import Ended, Event, SessionEnd, read_event
from keylane.demo.member import STOP_WORD

CHUNK_BYTES: Final = 1024 * 1024


@dataclass(slots=True, eq=False)
class MemberProcess:
    """One child. `end` is None while it runs."""

    number: int
    client: str
    process: subprocess.Popen[bytes]
    log_path: Path
    cut_line: bytes = b""
    """Start of a line whose rest has not arrived."""
    was_killed: bool = False
    end: SessionEnd | None = None


@dataclass(slots=True, kw_only=True)
class Members:
    """Children, past and present, by number. Used from one thread."""

    bootstrap: str
    topic: str
    group: str
    folder: Path
    audit: Sequence[str] = ()
    """Bootstrap address and name of an audit topic, partitions and lanes of `topic`: with it each
    member reports what it does, for `keylane spark audit`."""
    by_number: dict[int, MemberProcess] = field(default_factory=dict)
    _selector: selectors.DefaultSelector = field(default_factory=selectors.DefaultSelector)

    @property
    def alive(self) -> list[MemberProcess]:
        """Those whose output has not ended."""
        return [member for member in self.by_number.values() if member.end is None]

    @property
    def failed(self) -> list[MemberProcess]:
        """Those that ended by themselves and not in order."""
        return [m for m in self.by_number.values() if m.end is SessionEnd.LOST]

    def start(self, number: int, client: str) -> None:
        """Start a member."""
        command = [sys.executable, "-m", "keylane.demo.member", "--client", client]
        command += ["--bootstrap", self.bootstrap, "--topic", self.topic]
        command += ["--group", self.group, "--number", str(number)]
        command += ["--audit", *self.audit] if self.audit else []
        log_path = self.folder / f"member-{number}.log"
        with open(log_path, "wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                # Ctrl-C in a terminal is for this process, which then stops them in order.
                start_new_session=True,
            )
        member = MemberProcess(number, client, process, log_path)
        self.by_number[number] = member
        assert process.stdout is not None  # asked for with PIPE
        self._selector.register(process.stdout, selectors.EVENT_READ, member)

    def kill(self, number: int) -> None:
        """kill -9; what it had written before is still read."""
        member = self.by_number[number]
        if member.end is None:
            member.was_killed = True
            member.process.kill()

    def kill_all(self) -> list[Event]:
        """End every child at once, wait until none is left, and return their last events."""
        for member in self.alive:
            self.kill(member.number)
        events: list[Event] = []
        while self.alive:
            events += self.read(timeout_s=1.0)
        return events

    def ask_to_stop(self) -> None:
        """Let every member commit, leave the group and end."""
        for member in self.alive:
            assert member.process.stdin is not None  # asked for with PIPE
            with contextlib.suppress(BrokenPipeError):  # it ended in this moment
                member.process.stdin.write(STOP_WORD + b"\n")

    def read(self, *, timeout_s: float) -> list[Event]:
        """Events that arrive within `timeout_s`; returns as soon as there are any."""
        events: list[Event] = []
        for key, _ in self._selector.select(timeout_s):
            member: MemberProcess = key.data
            chunk = os.read(key.fd, CHUNK_BYTES)
            if chunk:
                *lines, member.cut_line = (member.cut_line + chunk).split(b"\n")
                events += [read_event(member.number, line) for line in lines]
            else:
                self._selector.unregister(key.fileobj)
                events.append(_reap(member))
        return events

    def close(self) -> None:
        """End what still runs."""
        self.kill_all()
        self._selector.close()


def last_words(member: MemberProcess) -> str:
    """Last line that a member wrote to its log; empty when there is none."""
    lines = member.log_path.read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _reap(member: MemberProcess) -> Ended:
    """The end of a child. What its cut last line was about was never committed either."""
    code = member.process.wait()
    assert member.process.stdin is not None and member.process.stdout is not None
    member.process.stdin.close()
    member.process.stdout.close()
    if member.was_killed:
        member.end = SessionEnd.KILLED
    else:
        member.end = SessionEnd.LEFT if code == 0 else SessionEnd.LOST
    return Ended(member.number, time.monotonic_ns(), member.end)
