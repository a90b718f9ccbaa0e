"""keylane in front of the demo's Kafka."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Final

from keylane.embedded.child import ChildEnded, GuardedChild
from keylane.embedded.ports import find_free_port
from keylane.errors import KeylaneError

READY_TEXT: Final = "keylane ready bootstrap="
READY_LINE: Final = re.compile(r"^keylane ready bootstrap=(\S+) control=(\S+)\n", re.MULTILINE)
READY_TIMEOUT_S: Final = 180.0
"""The very first start compiles the kernels; later ones read them from disk."""
STOP_GRACE_S: Final = 10.0
BROKER_ID: Final = 1
"""The embedded broker's; keylane serves broker n at its own port + 1 + n."""


class FrontFailed(KeylaneError):
    """The proxy did not start, or ended by itself; its last lines follow."""


class ProxyFront:
    """`keylane proxy` as a child, always on the same port, so that clients find it again."""

    def __init__(self, upstream: str, *, topic: str, lanes: int, folder: Path) -> None:
        self.bootstrap = f"127.0.0.1:{find_free_port(in_a_row=2 + BROKER_ID)}"
        self._log_path = folder / "keylane.log"
        command = [sys.executable, "-m", "keylane", "proxy", "--bootstrap", upstream]
        command += ["--listen", self.bootstrap, "--control", "127.0.0.1:0"]
        command += ["--lanes", f"{topic}={lanes}"]
        self._child = GuardedChild(
            command, log_path=self._log_path, ready_text=READY_TEXT, grace_s=STOP_GRACE_S
        )

    def launch(self) -> None:
        """Start the process; returns at once."""
        self._log_path.write_bytes(b"")  # a ready line of an earlier start must not count
        self._child.launch()

    def await_ready(self) -> None:
        """Wait until it serves.

        Raises:
            FrontFailed: it ended, or was not ready in time.
        """
        try:
            self._child.await_ready(time.monotonic() + READY_TIMEOUT_S)
        except ChildEnded as error:
            raise FrontFailed(f"keylane proxy: {error}") from error
        ready = self.is_ready()
        assert ready  # its line is whole by the time it is reported

    def is_ready(self) -> bool:
        """Return whether it has printed its ready line.

        Raises:
            FrontFailed: the process has ended.
        """
        if not self._child.running:
            raise FrontFailed(f"keylane proxy ended:\n{self._child.log_tail()}")
        match = READY_LINE.search(self._log_path.read_text(errors="replace"))
        if match is not None:
            self.bootstrap = match[1]
        return match is not None

    def kill(self) -> None:
        """kill -9, as a machine that loses power would end it."""
        self._child.kill()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL when that takes longer than `STOP_GRACE_S`."""
        self._child.stop()
