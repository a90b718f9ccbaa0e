"""The group that must not notice an attack: stock consumers on lanes, a producer at a fixed rate.

The producer writes to the brokers themselves at a fixed rate, well below what the machine can do.
So a group that keeps up has exactly that pace, whatever the attacker's own CPU time is, and what
falls below it is time in which the group stood still.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, Self

from confluent_kafka import Producer

from tests.long.hostile_stage import PASSWORDS

RECORDS_PER_S: Final = 800
ROUND_S: Final = 0.05
MEMBERS: Final = 2
WINDOW_S: Final = 5.0
VALUE: Final = b"x" * 200
JOINED_S: Final = 60.0
KEY_COUNT: Final = 200


class Load:
    """Use: `with Load(...) as load`, then `load.paces(from_s, to_s)`."""

    def __init__(self, brokers: str, keylane: str, topic: str, group: str, folder: Path) -> None:
        self._arguments = (keylane, group, topic, "alice", PASSWORDS["alice"])
        self._topic, self._folder = topic, folder
        self._counts: list[tuple[float, int]] = []
        self._logged = threading.Condition()
        self._stopping = threading.Event()
        self._producer = Producer({"bootstrap.servers": brokers, "linger.ms": 5, "log_level": 0})
        self._threads = [threading.Thread(target=self._produce, daemon=True)]
        self._members: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        for number in range(MEMBERS):
            with open(self._folder / f"member-{number}.log", "ab") as log:
                member = subprocess.Popen(
                    [sys.executable, "-m", "tests.long.attack_member", *self._arguments],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            self._members.append(member)
            self._threads.append(threading.Thread(target=self._read, args=(member,), daemon=True))
        for thread in self._threads:
            thread.start()
        self._await_pace()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for member in self._members:
            member.terminate()
        for member in self._members:
            try:
                member.wait(15)
            except subprocess.TimeoutExpired:
                member.kill()
                member.wait()
        for thread in self._threads:
            thread.join(5)
        for member in self._members:
            if member.stdout is not None:
                member.stdout.close()

    def paces(self, from_s: float, to_s: float) -> list[float]:
        """Records per second in each whole window of a while."""
        with self._logged:
            counts = [each for each in self._counts if from_s <= each[0] < to_s]
        windows = [0] * int((to_s - from_s) / WINDOW_S)
        for at_s, count in counts:
            number = int((at_s - from_s) / WINDOW_S)
            if number < len(windows):
                windows[number] += count
        return [count / WINDOW_S for count in windows]

    def _await_pace(self) -> None:
        """Until the group gets all that is produced. Raises: AssertionError."""
        deadline_s = time.monotonic() + JOINED_S
        while time.monotonic() < deadline_s:
            self._stopping.wait(1.0)
            now_s = time.monotonic()
            with self._logged:
                recent = sum(count for at_s, count in self._counts if at_s > now_s - 4)
            if recent > 0.9 * 4 * RECORDS_PER_S:
                return
        raise AssertionError(f"the group does not reach {RECORDS_PER_S} records per second")

    def _produce(self) -> None:
        due_s, number = time.monotonic(), 0
        while not self._stopping.is_set():
            for _ in range(int(RECORDS_PER_S * ROUND_S)):
                number += 1
                key = b"%d" % (number % KEY_COUNT)
                try:
                    self._producer.produce(self._topic, key=key, value=VALUE)
                except BufferError:
                    break  # the brokers do not keep up: the pace says so
            self._producer.poll(0)
            due_s = max(due_s + ROUND_S, time.monotonic() - 1)
            self._stopping.wait(max(0.0, due_s - time.monotonic()))
        self._producer.flush(5)

    def _read(self, member: subprocess.Popen[str]) -> None:
        assert member.stdout is not None
        for line in member.stdout:
            at_s, _, count = line.partition(" ")
            with self._logged:
                self._counts.append((float(at_s), int(count)))


def ratio(during: list[float], quiet: list[float]) -> float:
    """The median pace of an attack by that without one."""
    return statistics.median(during or [0.0]) / max(statistics.median(quiet or [0.0]), 1e-9)
