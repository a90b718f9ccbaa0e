"""A process that measures a keylane from outside: its answers, their delays, its memory.

In:    its process id and control port.  Out: `Look`: the worst of a while.

A probe may be late because the machine was busy. /proc/PID/schedstat says how long a thread was
ready and got no CPU. What both sides waited for that while a probe was under way is taken off, and
shown beside the plain figure. `loop_delay_seconds` is keylane's own figure: its thread's waits for
the CPU in the same time are taken off there too.
"""

from __future__ import annotations

import http.client
import multiprocessing
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

INTERVAL_S: Final = 0.05
METRICS_S: Final = 0.5
TIMEOUT_S: Final = 20.0
NS: Final = 1e-9
LOOP_DELAY: Final = re.compile(r"^keylane_loop_delay_seconds (\S+)$", re.MULTILINE)


@dataclass(slots=True)
class Look:
    """The worst that was seen in a while."""

    probes: int = 0
    failed: int = 0
    """Probes that were refused, cut off or not answered in `TIMEOUT_S`."""
    livez_s: float = 0.0
    """Slowest answer as it was."""
    livez_own_s: float = 0.0
    """Slowest answer without the waits for a CPU."""
    loop_delay_s: float = 0.0
    loop_delay_own_s: float = 0.0
    """The loop's delay without keylane's waits for a CPU."""
    prober_late_s: float = 0.0
    """Seconds by which the prober itself woke up late."""
    rss_mib: float = 0.0
    rss_start_mib: float = 0.0
    descriptors_max: int = 0


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def descriptor_count(pid: int) -> int:
    """Files that a process has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def waited_s(pid: int | str) -> float:
    """How long a process's first thread, which is keylane's loop, has waited for a CPU so far."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[1]) * NS
    except (OSError, IndexError):
        return 0.0


class Watch:
    """Use: `with Watch(pid, control) as watch`, then `watch.cut()` after each while."""

    def __init__(self, pid: int, control: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawn.Pipe()
        self._child = spawn.Process(target=_watch, args=(pid, control, theirs), daemon=True)

    def __enter__(self) -> Self:
        self._child.start()
        self.cut()  # the child looks by now
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send("end")
        self._child.join(TIMEOUT_S)
        if self._child.is_alive():
            self._child.kill()
            self._child.join()

    def cut(self) -> Look:
        """Return the worst figures since the last call."""
        self._pipe.send("cut")
        found = self._pipe.recv()
        assert isinstance(found, Look)
        return found


def _watch(pid: int, control: str, orders: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    host, _, port = control.rpartition(":")
    seen, metrics_due_s, last = _begin(pid), 0.0, (waited_s(pid), time.monotonic())
    while True:
        asked_s = time.monotonic()
        if orders.poll(INTERVAL_S):
            if orders.recv() != "cut":
                return
            orders.send(seen)
            seen = _begin(pid)
            continue
        seen.prober_late_s = max(seen.prober_late_s, time.monotonic() - asked_s - INTERVAL_S)
        _probe(seen, pid, host, int(port))
        if time.monotonic() >= metrics_due_s:
            metrics_due_s = time.monotonic() + METRICS_S
            last = _ask_delay(seen, pid, (host, int(port)), last)
        _measure(seen, pid)


def _begin(pid: int) -> Look:
    seen = Look()
    _measure(seen, pid)
    seen.rss_start_mib = seen.rss_mib
    return seen


def _measure(seen: Look, pid: int) -> None:
    try:
        seen.rss_mib = max(seen.rss_mib, resident_mib(pid))
        seen.descriptors_max = max(seen.descriptors_max, descriptor_count(pid))
    except OSError:
        seen.failed += 1  # it has ended


def _probe(seen: Look, pid: int, host: str, port: int) -> None:
    seen.probes += 1
    started_s, waits_s = time.monotonic(), waited_s(pid) + waited_s(os.getpid())
    try:
        _get(host, port, "/livez")
    except (OSError, http.client.HTTPException):
        seen.failed += 1
    took_s = time.monotonic() - started_s
    own_s = took_s - (waited_s(pid) + waited_s(os.getpid()) - waits_s)
    seen.livez_s = max(seen.livez_s, took_s)
    seen.livez_own_s = max(seen.livez_own_s, own_s)


def _ask_delay(
    seen: Look, pid: int, control: tuple[str, int], last: tuple[float, float]
) -> tuple[float, float]:
    """Take keylane's own figure; its waits for a CPU, and when they were read."""
    try:
        text = _get(*control, "/metrics")
    except (OSError, http.client.HTTPException):
        return last  # the next probe says so
    waits_s = waited_s(pid)
    found = LOOP_DELAY.search(text)
    if found is not None:
        delay_s = float(found[1])
        seen.loop_delay_s = max(seen.loop_delay_s, delay_s)
        seen.loop_delay_own_s = max(seen.loop_delay_own_s, delay_s - (waits_s - last[0]))
    return waits_s, time.monotonic()


def _get(host: str, port: int, path: str) -> str:
    connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
        if answer.status != 200:
            raise http.client.HTTPException(f"status {answer.status}")
        return text
    finally:
        connection.close()
