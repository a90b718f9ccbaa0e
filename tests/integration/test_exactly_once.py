"""Consume-transform-produce over lanes: every input once in the output, whatever is killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.integration.harness import produce
from tests.integration.keylane_process import PATIENCE
from tests.integration.test_group_handover import (
    KEYS,
    log_ends,
    stable_offsets,
)

LANES, PARTITIONS, MEMBERS = 4, 2, 4
"""Eight lanes for four members."""
SILENT_S = 20.0


@contextmanager
def steady_input(bootstrap: str, topic: str) -> Iterator[list[str]]:
    """About a thousand records a second until the block ends; the list holds their values."""
    values: list[str] = []
    stopping = threading.Event()

    def run() -> None:
        number = 0
        while not stopping.wait(0.1):
            values.extend(produce(bootstrap, topic, KEYS, 1, first=number))
            number += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield values
    finally:
        stopping.set()
        thread.join()


class Loops:
    """Transformer processes of one group."""

    def __init__(
        self, bootstrap: str, topic: str, output: str, folder: Path, **options: Any
    ) -> None:
        self.bootstrap, self.topic, self.output, self.options = bootstrap, topic, output, options
        self.group = f"g-{topic}"
        self._folder = folder
        self._logged: dict[str, tuple[int, float]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def add(self, library: str, count: int) -> list[str]:
        """Start loops; returns their names."""
        names = [f"{library}-{len(self.processes) + number}" for number in range(count)]
        for name in names:
            self.start(library, name)
        return names

    def start(self, library: str, name: str) -> None:
        """Start a loop, or again one that was killed."""
        command = [sys.executable, "-m", "tests.integration.transformer", library]
        command += ["--bootstrap", self.bootstrap, "--group", self.group, "--name", name]
        command += ["--topic", self.topic, "--output", self.output]
        for key, value in self.options.items():
            command += [f"--{key.replace('_', '-')}", str(value)]
        path = self._folder / f"{name}.log"
        with path.open("ab") as log:
            log.write(b"start\n")
            log.flush()
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self.processes[name].kill()
        self.processes[name].wait()

    def revive(self) -> None:
        """Kill and start again a loop that reports nothing any more, as a supervisor does.

        librdkafka 2.16 does not come back from `send_offsets_to_transaction` when the coordinator
        goes away in it, also not at its time-out (its issue 5456).
        """
        now_s = time.monotonic()
        for name, process in list(self.processes.items()):
            size_bytes = (self._folder / f"{name}.log").stat().st_size
            before, since_s = self._logged.get(name, (-1, now_s))
            if size_bytes != before:
                self._logged[name] = size_bytes, now_s
            elif process.poll() is None and now_s - since_s > SILENT_S:
                self.kill(name)
                self.start(name.split("-")[0], name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Output:
    """The output topic as a read_committed consumer of Kafka itself sees it."""

    def __init__(self, kafka: str, topic: str, partitions: int) -> None:
        self.values: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": f"reader-{topic}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])

    def read(self, *, seconds: float) -> None:
        """Take what comes."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for message in self._consumer.consume(1000, 0.2):
                assert message.error() is None, message.error()
                self.values.append((message.value() or b"").decode())

    def wait_for(
        self, values: list[str], loops: Loops | None = None, *, timeout_s: float = 150
    ) -> None:
        """Read until all values are there, and a little longer for what comes twice."""
        until_s = time.monotonic() + timeout_s
        while not set(values) <= set(self.values):
            missing = len(set(values) - set(self.values))
            assert time.monotonic() < until_s, f"{missing} of {len(values)} values are missing"
            if loops is not None:
                loops.revive()
            self.read(seconds=0.5)
        self.read(seconds=3)

    def assert_exactly_once(self, values: list[str]) -> None:
        """Every value once, no other, and the values of each key in order."""
        repeated = [value for value, count in Counter(self.values).items() if count > 1]
        assert not repeated, f"{len(repeated)} values come more than once: {repeated[:5]}"
        assert set(self.values) == set(values)
        last: dict[str, int] = {}
        for value in self.values:
            key, number = value.rsplit(":", 1)
            assert last.get(key, -1) < int(number), f"key {key} went back to {number}"
            last[key] = int(number)

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


@pytest.fixture
def place(topic, kafka, tmp_path):
    """Input and output topics, and a reader of the output."""
    name = topic("lanes4", partitions=PARTITIONS)
    target = topic("lanes4-out", partitions=PARTITIONS)
    output = Output(kafka, target, PARTITIONS)
    yield name, target, output, tmp_path
    output.close()


def assert_all_is_committed(kafka: str, group: str, topic: str) -> None:
    """The broker's own offsets of the group stand at the log end."""
    until_s = time.monotonic() + 30 * PATIENCE
    while stable_offsets(kafka, group, topic, PARTITIONS) != log_ends(kafka, topic, PARTITIONS):
        assert time.monotonic() < until_s, (
            f"{stable_offsets(kafka, group, topic, PARTITIONS)} of "
            f"{log_ends(kafka, topic, PARTITIONS)}"
        )
        time.sleep(0.5)  # a commit at a broker has no event for others; the loop is bounded


@pytest.mark.parametrize("library", ["confluent", "aiokafka"])
def test_every_input_is_in_the_output_once(library, kafka, shared_keylane, place) -> None:
    """Four members, every seventh transaction is aborted after its offsets were sent."""
    name, target, output, folder = place
    bootstrap = shared_keylane.bootstrap

    with Loops(bootstrap, name, target, folder, records=200, abort_every=7) as loops:
        loops.add(library, MEMBERS)
        values = produce(kafka, name, KEYS, 40)
        output.wait_for(values, loops)
        output.assert_exactly_once(values)
        assert_all_is_committed(kafka, loops.group, name)


@pytest.mark.parametrize("library", ["confluent", pytest.param("aiokafka", marks=pytest.mark.long)])
def test_a_killed_member(library, kafka, shared_keylane, place) -> None:
    """kill -9 of two members under load; one comes back under its name, one never."""
    name, target, output, folder = place

    with Loops(shared_keylane.bootstrap, name, target, folder, records=200, abort_every=7) as loops:
        members = loops.add(library, MEMBERS)
        with steady_input(kafka, name) as values:
            output.read(seconds=6)
            loops.kill(members[0])
            loops.kill(members[1])
            output.read(seconds=2)
            loops.start(library, members[0])
            output.read(seconds=6)
        output.wait_for(values, loops)
        output.assert_exactly_once(values)
        assert_all_is_committed(kafka, loops.group, name)


@pytest.mark.parametrize(
    ("library", "output_lanes"),
    [
        ("confluent", [LANES]),
        pytest.param("aiokafka", [], marks=pytest.mark.long),
        pytest.param("confluent", [], marks=pytest.mark.long),
        pytest.param("aiokafka", [LANES], marks=pytest.mark.long),
    ],
)
def test_a_killed_proxy(library, output_lanes, kafka, keylane, place) -> None:
    """kill -9 of the proxy under load, twice."""
    name, target, output, folder = place
    proxy = keylane(f"{name}={LANES}", *(f"{target}={count}" for count in output_lanes))

    with Loops(proxy.bootstrap, name, target, folder, records=200, abort_every=7) as loops:
        loops.add(library, MEMBERS)
        with steady_input(kafka, name) as values:
            for _ in range(2):
                output.read(seconds=6)
                proxy.kill()
                proxy.start()
            output.read(seconds=6)
        output.wait_for(values, loops)
        output.assert_exactly_once(values)
        assert_all_is_committed(kafka, loops.group, name)


def test_java_copiers(kafka, shared_keylane, place, java) -> None:
    """Kafka's own TransactionalMessageCopier, two in a group, with random aborts."""
    name, target, output, _ = place
    values = produce(kafka, name, KEYS, 20)
    copiers = [
        java.start(
            "org.apache.kafka.tools.TransactionalMessageCopier",
            *("--broker-list", shared_keylane.bootstrap, "--transactional-id", f"t-{name}-{n}"),
            *("--input-topic", name, "--input-partition", "0", "--output-topic", target),
            *("--consumer-group", f"g-{name}", "--group-mode", "--use-group-metadata"),
            *("--transaction-size", "100", "--enable-random-aborts"),
            *("--transaction-timeout", "10000"),
        )
        for n in range(2)
    ]
    readers = [threading.Thread(target=read_to_end, args=(copier,)) for copier in copiers]
    for reader in readers:
        reader.start()
    try:
        output.wait_for(values)
        # Before the end of the members: the broker's offset may follow with their heartbeats.
        assert_all_is_committed(kafka, f"g-{name}", name)
    finally:
        for copier in copiers:
            copier.kill()
        for reader in readers:
            reader.join()

    output.assert_exactly_once(values)


def read_to_end(process: subprocess.Popen[str]) -> None:
    """Read what a process prints: with a full pipe a copier, which prints each turn, would stop."""
    assert process.stdout is not None
    for _ in process.stdout:
        pass
