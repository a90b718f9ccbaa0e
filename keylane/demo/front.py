"""keylane in front of the demo's Kafka."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from keylane.embedded.child import ChildEnded, GuardedChild
from keylane.embedded.ports import find_free_port
from keylane.errors import KeylaneError

READY_TEXT: Final = "keylane ready bootstrap="
READY_TIMEOUT_S: Final = 180.0
"""The very first start compiles the kernels; later ones read them from disk."""
STOP_GRACE_S: Final = 10.0
BROKER_ID: Final = 1
"""The embedded broker's; keylane serves broker n at its own port + 1 + n."""


class FrontFailed(KeylaneError):
    """The proxy did not start, or ended by itself; its last lines follow."""


class ProxyFront(GuardedChild):
    """`keylane proxy` as a child, always on the same port, so that clients find it again."""

    def __init__(self, upstream: str, *, topic: str, lanes: int, folder: Path) -> None:
        self.bootstrap = f"127.0.0.1:{find_free_port(in_a_row=2 + BROKER_ID)}"
        command = [sys.executable, "-m", "keylane", "proxy", "--bootstrap", upstream]
        command += ["--listen", self.bootstrap, "--control", "127.0.0.1:0"]
        command += ["--lanes", f"{topic}={lanes}"]
        super().__init__(
            command, log_path=folder / "keylane.log", ready_text=READY_TEXT, grace_s=STOP_GRACE_S
        )

    def launch(self, *, inherited: Sequence[int] = ()) -> None:
        """Start the process; returns at once."""
        self._log_path.write_bytes(b"")  # a ready line of an earlier start must not count
        super().launch(inherited=inherited)

    def await_ready(self, deadline_s: float | None = None) -> None:
        """Wait until it serves.

        Raises:
            FrontFailed: it ended, or was not ready in time.
        """
        try:
            super().await_ready(deadline_s or time.monotonic() + READY_TIMEOUT_S)
        except ChildEnded as error:
            raise FrontFailed(f"keylane proxy: {error}") from error

    def is_ready(self) -> bool:
        """Return whether it has printed its ready line.

        Raises:
            FrontFailed: the process has ended.
        """
        if not self.running:
            raise FrontFailed(f"keylane proxy ended:\n{self.log_tail()}")
        return READY_TEXT in self._log_path.read_text(errors="replace")
