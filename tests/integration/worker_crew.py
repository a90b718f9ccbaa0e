"""Processes of workers, and a judgement of what they printed."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self

from tests.integration.keylane_process import PATIENCE

WAIT_S = 60.0 * PATIENCE
MODULE = "tests.integration.worker_member"


class WorkDone(NamedTuple):
    """Work on one record."""

    member: int
    key: str
    number: int
    offset: int
    start_ns: int
    end_ns: int
    lane: int


class WorkerCrew:
    """Processes of one group. Lines are taken as they come; `changed` is notified of each."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, *, protocol: str = "auto",
        concurrency: int = 16, commit_s: float = 1.0,
    ) -> None:  # fmt: skip
        self._arguments = [bootstrap, topic, group, protocol, str(concurrency), str(commit_s)]
        self.processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self.done: list[WorkDone] = []
        self.began: list[tuple[int, int]] = []
        """(member, offset)"""
        self.lanes: dict[int, int] = {}
        self.left: set[int] = set()
        self.changed = threading.Condition()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
        for reader in self._readers:
            reader.join(WAIT_S)
        for process in self.processes:
            with process:
                pass

    def start(self) -> int:
        """Start a process; its number."""
        member = len(self.processes)
        process = subprocess.Popen(
            [sys.executable, "-m", MODULE, *self._arguments], stdout=subprocess.PIPE, text=True
        )
        self.processes.append(process)
        self._readers.append(threading.Thread(target=self._read, args=(member, process)))
        self._readers[-1].start()
        return member

    def stop(self, member: int) -> None:
        """SIGTERM, and wait for its end, which is an orderly one."""
        self.processes[member].send_signal(signal.SIGTERM)
        assert self.processes[member].wait(WAIT_S) == 0
        self.until(lambda: member in self.left)

    def kill(self, member: int) -> None:
        """kill -9, and take what it had printed."""
        self.processes[member].kill()
        self.processes[member].wait(WAIT_S)
        self._readers[member].join(WAIT_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds."""
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_S), f"not within {WAIT_S:g} s"

    def until_done(self, count: int) -> None:
        """Wait until so many records are worked on."""
        self.until(lambda: len(self.done) >= count)

    def until_lanes(self, count: int, members: Iterable[int]) -> None:
        """Wait until these members have a lane each, and so many together."""
        wanted = list(members)
        self.until(
            lambda: (
                all(self.lanes.get(member) for member in wanted)
                and sum(self.lanes[member] for member in wanted) == count
            )
        )

    def _read(self, member: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            words = line.split()
            with self.changed:
                if words[0] == "done" and len(words) == 7:
                    key, *numbers = words[1:]
                    self.done.append(WorkDone(member, key, *map(int, numbers)))
                elif words[0] == "began" and len(words) == 4:
                    self.began.append((member, int(words[3])))
                elif words[0] == "lanes":
                    self.lanes[member] = int(words[1])
                elif words[0] == "left":
                    self.left.add(member)
                self.changed.notify_all()

    def assert_keys_in_order(self) -> None:
        """First deliveries of a key ascend, and no two of its records are worked on at a time."""
        by_key: dict[str, list[WorkDone]] = defaultdict(list)
        for each in sorted(self.done, key=lambda done: done.start_ns):
            by_key[each.key].append(each)
        for key, works in by_key.items():
            highest, busy_until_ns, seen = -1, 0, set[int]()
            for each in works:
                assert each.start_ns >= busy_until_ns, f"{key}: two records at work at a time"
                busy_until_ns = each.end_ns
                if each.number in seen:
                    continue
                assert each.number == highest + 1, f"{key}: {each.number} behind {highest}"
                highest = each.number
                seen.add(each.number)


def now_ns() -> int:
    """The clock of the lines."""
    return time.monotonic_ns()
