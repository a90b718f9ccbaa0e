"""Groups under chaos, and the producer that feeds them: processes, and their events.

In:    addresses, topics.  Out: `Held` and `Delivery` events; `Produced` ones.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from tests.long.chaos_history import Delivery, Event, Held, Place, Produced

TICK_S: Final = 0.05
LOG_LEVEL: Final = 2
"""Level of syslog: refused connections are part of the play, and need no lines."""
STOP_S: Final = 20.0


class Waiter:
    """Lets one thread wait for what others have published."""

    def __init__(self) -> None:
        self.changed = threading.Condition()

    def wait(self, condition: Callable[[], bool], *, timeout_s: float) -> bool:
        """Wait; return whether the condition came true in time."""
        deadline_s = time.monotonic() + timeout_s
        with self.changed:
            while not condition():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                self.changed.wait(left_s)
        return True


class ChaosGroup:
    """Stock consumers of one group, each a child process with another name."""

    def __init__(
        self,
        name: str,
        topics: Sequence[str],
        *,
        bootstrap: str,
        folder: Path,
        topic_of: Callable[[str], str | None],
        waiter: Waiter,
    ) -> None:
        """topics: as its clients call them; topic_of: Kafka's own names of these."""
        self.name, self.topics = name, list(topics)
        self._bootstrap, self._folder, self._topic_of = bootstrap, folder, topic_of
        self._waiter = waiter
        self.events: list[Event] = []
        """`Held` and `Delivery`, in the order in which they were read; by member in order."""
        self.newest: dict[Place, int] = defaultdict(lambda: -1)
        """Highest number that was handed out, by lane."""
        self.members: dict[str, subprocess.Popen[str]] = {}
        """Those that should run."""
        self.said: list[str] = []
        """Errors that members published."""
        self._count = 0
        self._readers: list[threading.Thread] = []

    def add(self, library: str) -> str:
        """Start a member; its name, which no other has had."""
        name = f"{self.name}-{library}-{self._count}"
        self._count += 1
        command = [sys.executable, "-m", "tests.long.chaos_member", library, "--name", name]
        command += ["--bootstrap", self._bootstrap, "--group", self.name]
        for topic in self.topics:
            command += ["--topic", topic]
        with open(self._folder / f"{name}.log", "ab") as log:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.members[name] = process
        reader = threading.Thread(target=self._read, args=(name, process), daemon=True)
        reader.start()
        self._readers.append(reader)
        return name

    def kill(self, name: str) -> None:
        """SIGKILL a member; it is no longer one."""
        process = self.members.pop(name)
        process.kill()
        process.wait()

    def end(self, name: str) -> None:
        """SIGTERM a member: it leaves the group."""
        process = self.members.pop(name)
        process.terminate()
        _await(process)

    def hang(self, name: str) -> None:
        """SIGSTOP; `go_on` ends it."""
        os.kill(self.members[name].pid, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """SIGCONT."""
        os.kill(self.members[name].pid, signal.SIGCONT)

    def ended(self) -> list[str]:
        """Members that ended though nothing asked them to; they are no longer members."""
        found = [name for name, each in self.members.items() if each.poll() is not None]
        return [f"{name} ended with {self.members.pop(name).returncode}" for name in found]

    def stop(self) -> None:
        """End all members, cleanly first."""
        for process in self.members.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.members.values():
            _await(process)
        for reader in self._readers:
            reader.join()
        self.members.clear()

    def _read(self, name: str, process: subprocess.Popen[str]) -> None:
        """A line that was written in part, by a member that was killed, was not committed."""
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if line.startswith("{") and line.endswith("\n"):
                    with self._waiter.changed:
                        self._take(name, json.loads(line))
                        self._waiter.changed.notify_all()

    def _take(self, name: str, published: dict[str, Any]) -> None:
        event, at_s = published["event"], published["at_s"]
        if event == "records":
            for topic, lane, offset, key, value in published["records"]:
                place = Place(self._topic_of(topic) or topic, lane)
                number = int(value.rpartition(":")[2])
                key = sys.intern(key)
                self.events.append(Delivery(name, place, offset, key, number, at_s))
                self.newest[place] = max(number, self.newest[place])
        elif event in {"assigned", "revoked", "lost"}:
            for topic, lane in published["lanes"]:
                place = Place(self._topic_of(topic) or topic, lane)
                self.events.append(Held(name, place, at_s, event == "assigned"))
        else:
            self.said.append(f"{at_s:.3f} {name}: {published}")


def _await(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class ChaosProducer:
    """Numbered values per key into some topics, directly to Kafka, a few every tick."""

    def __init__(
        self, bootstrap: str, topics: Sequence[str], keys: Sequence[str], *, rate: int
    ) -> None:
        self.produced: list[Produced] = []
        self.refused: list[str] = []
        """Records that will never be written, as `topic: error`."""
        self.cycle = 0
        """The number that keys get now."""
        self._topics, self._keys, self._rate = list(topics), list(keys), rate
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                # Not idempotent: one that meets a log that was cut may never write again.
                "max.in.flight": 1,
                "linger.ms": 0,  # librdkafka spins through the last millisecond of a wait
                "log_level": LOG_LEVEL,
                "partitioner": "murmur2_random",
                "topic.metadata.refresh.interval.ms": 5000,
            }
        )
        self._thread = threading.Thread(target=self._run, name="producer")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> int:
        """Stop; how many records have no answer yet after a while. Safe to call again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        return int(self._producer.flush(60))

    def _run(self) -> None:
        place, step = 0, max(1, round(self._rate * TICK_S))
        whole = len(self._keys) * len(self._topics)
        while not self._stopping.wait(TICK_S):
            for _ in range(step):
                topic = self._topics[place % len(self._topics)]
                key = self._keys[place // len(self._topics)]
                self.write(topic, key, self.cycle)
                place = (place + 1) % whole
                self.cycle += place == 0
            self._producer.poll(0)

    def write(self, topic: str, key: str, number: int) -> None:
        """One record."""

        def answered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self.refused.append(f"{topic}: {error}")
                return
            partition, offset = message.partition(), message.offset()
            assert partition is not None and offset is not None, "acknowledged where?"
            self.produced.append(Produced(topic, partition, offset, key, number, time.monotonic()))

        self._producer.produce(topic, key=key, value=f"{key}:{number}", on_delivery=answered)

    def flush(self) -> None:
        """Wait until what was written from this thread is answered. Raises: AssertionError."""
        assert self._producer.flush(60) == 0, "records were not written"
