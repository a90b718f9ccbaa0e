"""Run one child so that it never outlives the process that asked for it.

Its arguments are log file, ready text, grace and command. Its stdin is a pipe that the owner holds
open, and writes KILL to for a kill -9. It writes one event per line to stdout: `pid N`, `ready`,
`exit CODE`. The child's own output goes to the log file.
Standard library only: it is started without site packages, which keeps it at 10 ms and a few MB.

The owner may die in any way, kill -9 included: its end of the pipe then closes, this process
sees the end of stdin and stops the child. PR_SET_PDEATHSIG alone would not do, since it fires
when the *thread* that started the child ends, and brokers are also started from worker threads.
It covers the remaining case: that this process itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import IO, Final

PR_SET_PDEATHSIG: Final = 1
CHUNK_BYTES: Final = 64 * 1024
KILL: Final = b"K"


def main(argv: list[str]) -> int:
    """Start `argv[3:]`, report on stdout, stop it when stdin ends; returns its exit code."""
    log_path, ready_text, grace_s = argv[0], argv[1].encode(), float(argv[2])
    with open(log_path, "ab", buffering=0) as log:
        child = subprocess.Popen(
            argv[3:],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            close_fds=False,  # what the owner has handed down goes on to the child
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )
        _report(f"pid {child.pid}")
        _pump(child, log, ready_text, grace_s)
    code = child.wait()
    _report(f"exit {code}")
    return code if code >= 0 else 128 - code


def _pump(
    child: subprocess.Popen[bytes], log: IO[bytes], ready_text: bytes, grace_s: float
) -> None:
    """Copy the child's output until it ends; stop the child when the owner is gone."""
    assert child.stdout is not None  # asked for with PIPE
    output = child.stdout
    kill_at_s: float | None = None
    recent: bytes | None = b""  # None once the ready text was seen
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while True:
            wait_s = None if kill_at_s is None else max(0.0, kill_at_s - time.monotonic())
            ready = {key.fileobj for key, _ in selector.select(wait_s)}
            if kill_at_s is not None and time.monotonic() >= kill_at_s:
                child.kill()
                kill_at_s = None
            if sys.stdin in ready:
                if os.read(sys.stdin.fileno(), CHUNK_BYTES):  # the owner only ever writes KILL
                    child.kill()
                else:
                    selector.unregister(sys.stdin)
                    child.terminate()
                    kill_at_s = time.monotonic() + grace_s
            if output in ready:
                chunk = os.read(output.fileno(), CHUNK_BYTES)
                if not chunk:
                    return
                log.write(chunk)
                recent = _watch(recent, chunk, ready_text)


def _watch(recent: bytes | None, chunk: bytes, ready_text: bytes) -> bytes | None:
    """Report once when a line with `ready_text` has ended; returns what such a line may go on."""
    if recent is None:
        return None
    seen = recent + chunk
    position = seen.find(ready_text)
    if position < 0:
        return seen[-len(ready_text) :]
    if seen.find(b"\n", position) < 0:
        return seen[position:]  # the rest of the line may hold what the owner wants to read
    _report("ready")
    return None


def _report(event: str) -> None:
    # An owner that is gone reads no events; the child is stopped by the end of stdin.
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{event}\n".encode())


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    os._exit(main(sys.argv[1:]))
