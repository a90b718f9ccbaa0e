"""`keylane proxy` as a child process, for tests and benchmarks."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from keylane.embedded.child import GuardedChild
from keylane.embedded.ports import find_free_port

READY_TIMEOUT_S: Final = 120.0
"""A first start compiles the kernels, which takes most of a minute on a busy machine."""
STOP_GRACE_S: Final = 60.0
"""Clients are served until they have left, which takes a slow machine some seconds."""
BROKER_PORTS: Final = 5
"""Broker n listens on the port + 1 + n; embedded brokers have the ids 1 to 3. As many for each
worker: all ports of a proxy must be drawn, others of the same process get the rest."""

PATIENCE: Final = 3
"""What waits for an event ends with it. Bounds are those of a quiet machine; CI's may be slow."""
READY_LINE: Final = re.compile(r"^keylane ready bootstrap=(\S+) control=(\S+)", re.MULTILINE)


@functools.cache
def without_hypothesis() -> Path:
    """Return a PYTHONPATH on which Hypothesis cannot be imported, as in an image.

    kio imports it where it is installed, for a fifth of the time that a node takes to start.
    """
    folder = Path(sys.prefix) / "without-hypothesis"
    folder.mkdir(exist_ok=True)
    (folder / "hypothesis.py").write_text('raise ImportError("not in an image")\n')
    return folder


class KeylaneProcess:
    """A proxy that can be stopped, killed and started again on the same ports."""

    def __init__(
        self,
        upstream: str,
        lanes: Sequence[str],
        *,
        log_path: Path,
        args: Sequence[str] = (),
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Plan the proxy; `start` runs it."""
        self._log_path = log_path
        # Fixed from the start, not 0: a client that knows a broker's address finds it again.
        self.listen_port = find_free_port(in_a_row=BROKER_PORTS * workers)
        listen = self.listen = f"127.0.0.1:{self.listen_port}"
        control = f"127.0.0.1:{find_free_port(in_a_row=workers)}"
        rules = [part for rule in lanes for part in ("--lanes", rule)]
        command = [sys.executable, "-m", "keylane", "proxy", "--bootstrap", upstream]
        command += ["--listen", listen, "--control", control, *rules, *args]
        if workers > 1:
            command += ["--workers", str(workers), "--set", f"worker_port_step={BROKER_PORTS}"]
        self._command = command
        self._child = GuardedChild(
            command,
            log_path=log_path,
            ready_text="keylane ready bootstrap=",
            grace_s=STOP_GRACE_S,
            environment={
                "KEYLANE_LOG": "debug",
                "PYTHONPATH": str(without_hypothesis()),
                **(environment or {}),
            },
        )
        self.bootstrap = self.control = ""

    @property
    def command(self) -> Sequence[str]:
        """Command line of the proxy."""
        return self._command

    @property
    def pid(self) -> int:
        """Process id of the running proxy."""
        assert self._child.pid is not None, "the proxy does not run"
        return self._child.pid

    @property
    def running(self) -> bool:
        """Return whether the process is alive."""
        return self._child.running

    @property
    def log(self) -> str:
        """Return all that the proxy has printed, over restarts too."""
        return self._log_path.read_text(errors="replace")

    def start(self, *, timeout_s: float = READY_TIMEOUT_S) -> Self:
        """Start and wait until it serves. Raises ChildEnded, with the end of its log."""
        self.launch()
        return self.await_ready(timeout_s=timeout_s)

    def launch(self) -> None:
        """Start; returns at once."""
        self._child.launch()

    def await_ready(self, *, timeout_s: float = READY_TIMEOUT_S) -> Self:
        """Wait until it serves. Raises ChildEnded, with the end of its log."""
        self._child.await_ready(time.monotonic() + timeout_s)
        self.bootstrap, self.control = READY_LINE.findall(self.log)[-1]
        return self

    def wait_for_log(self, text: str, *, count: int = 1, timeout_s: float = 60.0) -> None:
        """Wait until the log holds a text so many times."""
        deadline_s = time.monotonic() + timeout_s * PATIENCE
        while self.log.count(text) < count:
            assert time.monotonic() < deadline_s, f"the log does not say {text!r}"
            time.sleep(0.05)  # a log file has no event; the deadline bounds it

    def stop(self) -> int | None:
        """SIGTERM and wait; the exit code, or None when it did not run."""
        return self._child.stop()

    def await_end(self, *, timeout_s: float = 60.0) -> int:
        """Wait until it has ended by itself; the exit code. Raises: TimeoutExpired."""
        return self._child.await_end(timeout_s)

    def kill(self) -> None:
        """kill -9 and wait until it is gone."""
        self._child.kill()

    def restart(self) -> Self:
        """Stop if it runs, then start on the same ports."""
        self.stop()
        return self.start()

    def pause(self) -> None:
        """SIGSTOP: it holds its connections and says nothing. `resume` goes on."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        os.kill(self.pid, signal.SIGCONT)
