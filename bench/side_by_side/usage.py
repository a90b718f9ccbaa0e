"""Use of resources by processes between two moments: CPU, peak memory, bytes written.

In:    process ids.  Out: `Usage` by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil


@dataclass(slots=True)
class Usage:
    """Resources that one process used."""

    cpu_s: float = 0.0
    rss_bytes: int = 0
    written_bytes: int = 0
    """Bytes to files and sockets, sendfile too (Linux `wchar`); 0 where the system counts none.
    Of a broker that is only read from, it is what left it."""


class Meter:
    """Measures some processes while its `with` block runs."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self.usage: dict[str, Usage] = {}

    def __enter__(self) -> Self:
        self._before = {name: _read(process) for name, process in self._processes.items()}
        return self

    def __exit__(self, *_: object) -> None:
        for name, process in self._processes.items():
            after, before = _read(process), self._before[name]
            self.usage[name] = Usage(
                cpu_s=after.cpu_s - before.cpu_s,
                rss_bytes=after.rss_bytes,
                written_bytes=after.written_bytes - before.written_bytes,
            )


def _read(process: psutil.Process) -> Usage:
    times = process.cpu_times()
    return Usage(times.user + times.system, process.memory_info().rss, _written(process.pid))


def _written(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:  # no Linux, or not ours
        return 0
    return int(next(line for line in lines if line.startswith("wchar:")).split()[1])
