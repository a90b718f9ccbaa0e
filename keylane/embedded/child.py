"""A child process that ends with its owner, can be awaited, killed and started again."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from keylane.embedded import guard

STOP_GRACE_S: Final = 15.0
"""Time that a clean stop may take before the child is killed."""
REAP_TIMEOUT_S: Final = 15.0
"""Beyond the grace: the guard has nothing left to do but to end."""
TAIL_LINES: Final = 25


class ChildEnded(Exception):
    """The child ended, or was not ready in time; the text holds its last lines."""


class GuardedChild:
    """A process that can be started and ended many times, always with the same command.

    States: stopped -> `launch` -> starting -> `await_ready` -> running -> `stop` or `kill` ->
    stopped. Invariant: `_guard` is set in starting and running only.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log_path: Path,
        ready_text: str,
        environment: Mapping[str, str] | None = None,
        grace_s: float = STOP_GRACE_S,
    ) -> None:
        """Plan the child; `environment` is added to this process's own."""
        self._command, self._log_path, self._ready_text = list(command), log_path, ready_text
        self._environment, self._grace_s = dict(environment or {}), grace_s
        self._guard: subprocess.Popen[bytes] | None = None
        self._events = b""
        self.pid: int | None = None

    @property
    def running(self) -> bool:
        """Return whether the process is alive."""
        return self._guard is not None and self._guard.poll() is None

    def launch(self, *, inherited: Sequence[int] = ()) -> None:
        """Start the process; returns at once. `await_ready` says when it serves.

        The file descriptors `inherited` stay open in the child, and in its guard.
        """
        assert not self.running, "stop or kill the child before starting it again"
        arguments = [guard.__file__, str(self._log_path), self._ready_text, str(self._grace_s)]
        self._release()
        self._events = b""
        self._guard = subprocess.Popen(
            # A separate session: Ctrl-C in a terminal is for this process, which then stops
            # the child in order.
            [sys.executable, "-I", "-S", *arguments, *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            pass_fds=inherited,
            env={**os.environ, **self._environment},
        )

    def await_ready(self, deadline_s: float) -> None:
        """Wait until the child prints its ready text; `deadline_s` by time.monotonic.

        Raises:
            ChildEnded: the child ended, or was not ready in time. Nothing is left running.
        """
        while True:
            event = self._next_event(deadline_s)
            if event.startswith("pid "):
                self.pid = int(event.removeprefix("pid "))
            elif event == "ready":
                return
            else:
                self.kill()
                raise ChildEnded(f"{event or 'was not ready in time'}\n{self.log_tail()}")

    def stop(self) -> int | None:
        """Clean stop: SIGTERM, and SIGKILL when that takes longer than the grace.

        Returns the exit code (128 + the signal's number for a signal); None: was not running.
        """
        if self._guard is None:
            return None
        assert self._guard.stdin is not None  # asked for with PIPE
        self._guard.stdin.close()
        code = self._guard.wait(self._grace_s + REAP_TIMEOUT_S)
        self._release()
        return code

    def await_end(self, timeout_s: float) -> int:
        """Wait until the child has ended by itself; return the exit code as `stop` does.

        Raises:
            subprocess.TimeoutExpired: it runs on.
        """
        assert self._guard is not None, "the child does not run"
        code = self._guard.wait(timeout_s)
        self._release()
        return code

    def kill(self) -> None:
        """kill -9, as a machine that loses power would end it.

        The guard sends the signal: it alone knows whether the pid still is the child's.
        """
        if self._guard is not None:
            assert self._guard.stdin is not None  # asked for with PIPE
            with contextlib.suppress(BrokenPipeError):  # it has ended already
                self._guard.stdin.write(guard.KILL)
        self.stop()

    @property
    def events_fd(self) -> int:
        """File descriptor that becomes readable when the running child ends."""
        assert self._guard is not None and self._guard.stdout is not None
        return self._guard.stdout.fileno()

    def has_ended(self) -> bool:
        """Read what `events_fd` has to say; True once the child is gone and can be launched."""
        if self._guard is not None and self._next_event(time.monotonic()) not in {"", "ready"}:
            self.stop()  # the guard, too, is about to end: wait for it
        return self._guard is None

    def log_tail(self) -> str:
        """The last lines of what the child printed."""
        try:
            with open(self._log_path, errors="replace") as log:
                return "".join(deque(log, maxlen=TAIL_LINES))
        except FileNotFoundError:
            return "(it printed nothing)"

    def _release(self) -> None:
        if self._guard is not None:
            for pipe in (self._guard.stdin, self._guard.stdout):
                assert pipe is not None  # both asked for with PIPE
                pipe.close()
            self._guard.wait(REAP_TIMEOUT_S)
        self._guard, self.pid = None, None

    def _next_event(self, deadline_s: float) -> str:
        """Next line of the guard; empty when the deadline passes first."""
        while b"\n" not in self._events:
            wait_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([self.events_fd], [], [], wait_s)[0]:
                return ""
            chunk = os.read(self.events_fd, 4096)
            if not chunk:
                return "ended without a word"
            self._events += chunk
        line, _, self._events = self._events.partition(b"\n")
        return line.decode()
