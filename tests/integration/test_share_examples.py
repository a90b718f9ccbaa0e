"""The programs of docs/examples/share do what docs/share-groups.md promises, in ordered groups.

All run side by side on one topic, a group for each program; those for each record, in Java and in
Python, are two members of one group.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from keylane.embedded.java import find_java
from tests.integration.conftest import make_topic_factory
from tests.integration.keylane_process import PATIENCE, KeylaneProcess
from tests.integration.share_sides import append
from tests.integration.share_wire import ACCEPT, ShareClient, alter_group, share_offsets, wait_until
from tests.java_source import JVM_ARGS, compile_source, compiler_jars
from tests.reference.batches import Batch, Record

EXAMPLES: Final = Path(__file__).parents[2] / "docs" / "examples" / "share"
WAIT_S: Final = 40.0 * PATIENCE
LOCK_MS: Final = 5000
"""Of the group that renews: its slow work takes 6 s."""
RECORDS: Final = (
    ("a", "ok"), ("b", "later"), ("a", "ok"), ("b", "ok"), ("c", "never"), ("c", "ok"),
    ("d", "slow"), ("d", "ok"), ("a", "later"), ("a", "ok"), ("b", "never"), ("b", "ok"),
)  # fmt: skip
"""Key and value by offset; values name the fate of the work in the programs."""
SLOW: Final = tuple((key, "slow") for key in "pqrstu")
"""At the end of the topic: programs get SIGTERM while they work on these."""
FINAL: Final = frozenset({"DONE", "ACCEPT", "REJECT"})
ENDED: Final = {".java": 128 + signal.SIGTERM, ".py": 0}
"""Exit status after SIGTERM: Java's after its hooks, and that of a Python that returns."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a program: an event, and the record that it is about."""

    event: str
    offset: int
    key: str
    value: str
    count: int


@dataclass
class Run:
    """Programs of one group. They write to one pipe, so that lines are in the order of events."""

    group: str
    names: Sequence[str]
    busy: int = 1
    """Records at work, in all, when the group is stopped."""
    lines: list[Line] = field(default_factory=list)
    closed: int = 0
    again: Mapping[int, int] = field(default_factory=dict)
    """After its end: delivery counts by offset of what another member gets."""
    statuses: Sequence[int] = ()
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _reader: threading.Thread | None = None

    def start(self, bootstrap: str, topic: str) -> None:
        """Start the programs."""
        reading, writing = os.pipe()
        for name in self.names:
            command = [*command_of(name), bootstrap, self.group, topic]
            self._processes.append(subprocess.Popen(command, stdout=writing))
        os.close(writing)
        self._reader = threading.Thread(target=self._read, args=(reading,))
        self._reader.start()

    def wait(self, is_there: Callable[[Sequence[Line]], bool], text: str) -> None:
        """Wait for lines. Raises: AssertionError."""
        deadline_s = time.monotonic() + WAIT_S
        with self._changed:
            while not is_there(self.lines):
                left_s = deadline_s - time.monotonic()
                assert left_s > 0, f"{self.group}: {text}: {self.lines}"
                self._changed.wait(left_s)

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        self.statuses = [process.wait(WAIT_S) for process in self._processes]
        assert self._reader is not None
        self._reader.join()

    def kill(self) -> None:
        """End what still runs."""
        for process in self._processes:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join()

    def finals(self) -> dict[int, tuple[str, int]]:
        """Return outcome and delivery count of each record that is finished, by offset."""
        return {line.offset: (line.event, line.count) for line in self.lines if line.event in FINAL}

    def _read(self, reading: int) -> None:
        with open(reading, encoding="utf-8") as stream:
            for text in stream:
                words = text.split()
                with self._changed:
                    if words == ["CLOSED"]:
                        self.closed += 1
                    else:
                        event, offset, key, value, count = words
                        self.lines.append(Line(event, int(offset), key, value, int(count)))
                    self._changed.notify_all()


def command_of(name: str) -> Sequence[str]:
    """Return the command that runs a program."""
    source = EXAMPLES / name
    if source.suffix == ".py":
        return [sys.executable, str(source)]
    options = (*JVM_ARGS, "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
    class_path = compile_source(source, compiler_jars())
    return [str(find_java()), *options, "-cp", class_path, source.stem]


def write(bootstrap: str, topic: str, records: Sequence[tuple[str, str]]) -> None:
    """Append all as one batch, so that a member gets none of them before the others are there."""
    written = tuple(
        Record(number, key=key.encode(), value=value.encode())
        for number, (key, value) in enumerate(records)
    )
    append(bootstrap, topic, Batch(0, written))


def take_the_rest(bootstrap: str, run: Run, topic: str, expected: int) -> None:
    """Take, as another member, what the stopped programs of a group have left."""
    with ShareClient(bootstrap, run.group) as client:
        client.join([topic])
        topic_id = client.topic_id(topic)
        answer = client.acquire(topic_id, count=expected)
        run.again = answer.part.counts
        acks = [(offset, offset, [ACCEPT]) for offset in sorted(run.again)]
        assert client.acknowledge(topic_id, acks=acks).codes == (0, 0, 0)
        client.close()


def read_letters(bootstrap: str, topic: str, count: int) -> dict[str, list[int]]:
    """Return offsets of dead letters by group."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "letters"})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    letters: dict[str, list[int]] = {}
    deadline_s = time.monotonic() + WAIT_S
    while sum(map(len, letters.values())) < count and time.monotonic() < deadline_s:
        for message in consumer.consume(100, 0.5):
            headers: dict[str, Any] = dict(message.headers() or ())
            group = headers["__dlq.errors.group"].decode()
            letters.setdefault(group, []).append(int(headers["__dlq.errors.offset"]))
    consumer.close()
    return letters


@dataclass(frozen=True)
class Stage:
    """All that has happened."""

    runs: Mapping[str, Run]
    letters: Mapping[str, Sequence[int]]


@pytest.fixture(scope="module")
def stage(kafka, admin, tmp_path_factory) -> Iterator[Stage]:
    """Run all programs through both halves of the topic."""
    folder = tmp_path_factory.mktemp("examples")
    make = make_topic_factory(admin, "share-examples")
    topic, dead = make(), make("dead")
    runs = [
        Run(f"examples-{topic}-implicit-java", ["Implicit.java"]),
        Run(f"examples-{topic}-implicit-python", ["implicit.py"]),
        Run(f"examples-{topic}-record", ["PerRecord.java", "per_record.py"], busy=2),
        Run(f"examples-{topic}-stop-java", ["StopAtFirstError.java"]),
        Run(f"examples-{topic}-stop-python", ["stop_at_first_error.py"]),
        Run(f"examples-{topic}-pool-java", ["RenewPool.java"], busy=4),
        Run(f"examples-{topic}-pool-python", ["worker_pool.py"], busy=4),
    ]
    config = folder / "keylane.yaml"
    config.write_text(f"share_groups: [{{group: 'examples-*', dead_letter: {dead}}}]\n")
    proxy = KeylaneProcess(
        kafka, (), log_path=folder / "keylane.log", args=["--config", str(config)],
        environment={"KEYLANE_BESIDE_OTHERS": "true"},
    )  # fmt: skip
    proxy.launch()
    with ThreadPoolExecutor(len(runs)) as pool:
        try:
            for run in runs:
                alter_group(kafka, run.group, share_auto_offset_reset="earliest")
            alter_group(kafka, runs[5].group, share_record_lock_duration_ms=LOCK_MS)
            write(kafka, topic, RECORDS)
            list(pool.map(command_of, [name for run in runs for name in run.names]))
            for run in runs:
                run.start(proxy.listen, topic)  # they look for keylane until it listens
            proxy.await_ready()
            for run in runs:
                run.wait(partial(is_done, len(RECORDS)), "all is done")
                await_no_lag(kafka, run, topic)
            write(kafka, topic, SLOW)
            list(pool.map(lambda run: finish(proxy.bootstrap, run, topic), runs))
            for run in runs:
                await_no_lag(kafka, run, topic)
            letters = read_letters(kafka, dead, sum(map(len, map(rejected, runs))))
            yield Stage({name: run for run in runs for name in run.names}, letters)
        finally:
            for run in runs:
                run.kill()
            proxy.stop()


def finish(bootstrap: str, run: Run, topic: str) -> None:
    """Stop the programs of a group at work, and take what they have left."""

    def is_busy(lines: Sequence[Line]) -> bool:
        # Of two programs both are at work then, so that each has got its share of the records.
        late = [line for line in lines if line.offset >= len(RECORDS)]
        begun = {line.offset for line in late if line.event == "WORK"}
        ended = {line.offset for line in late if line.event in FINAL}
        return len(begun - ended) >= run.busy or len(begun) == len(SLOW)

    run.wait(is_busy, "work on the second half")
    run.stop()
    left = len(RECORDS) + len(SLOW) - len(run.finals())
    if left:
        take_the_rest(bootstrap, run, topic, left)


def is_done(count: int, lines: Sequence[Line]) -> bool:
    """Return whether so many records are finished."""
    return len({line.offset for line in lines if line.event in FINAL}) == count


def await_no_lag(bootstrap: str, run: Run, topic: str) -> None:
    """Wait until the broker has an outcome for each record. Raises: AssertionError."""

    def is_there() -> bool:
        return share_offsets(bootstrap, run.group).get((topic, 0), (-1, -1))[1] == 0

    wait_until(is_there, f"outcomes of {run.group}")


def rejected(run: Run) -> list[int]:
    """Return offsets that a program has rejected."""
    return [offset for offset, (event, _) in sorted(run.finals().items()) if event == "REJECT"]


ALL: Final = sorted(path.name for path in EXAMPLES.iterdir())
EXPLICIT: Final = [name for name in ALL if not name.lower().startswith("implicit")]
LATER: Final = [offset for offset, (_, value) in enumerate(RECORDS) if value == "later"]
NEVER: Final = [offset for offset, (_, value) in enumerate(RECORDS) if value == "never"]


def test_every_program_is_run(stage) -> None:
    """Each file of the folder has its run, so that none is published untried."""
    assert sorted(stage.runs) == ALL


@pytest.mark.parametrize("name", ALL)
def test_a_key_is_worked_on_in_order(name, stage) -> None:
    """Work on a record begins after the one before it of its key is finished, in any member."""
    run = stage.runs[name]

    at_work: dict[str, int] = {}
    finished: list[tuple[str, int]] = []
    for line in run.lines:
        if line.event == "WORK":
            assert line.key not in at_work, (line, at_work)
            at_work[line.key] = line.offset
        elif line.event != "RENEW":
            at_work.pop(line.key, None)
            if line.event in FINAL:
                finished.append((line.key, line.offset))

    for key in {key for key, _ in RECORDS}:
        offsets = [offset for own, offset in finished if own == key]
        assert offsets == sorted(set(offsets))


@pytest.mark.parametrize("name", ["Implicit.java", "implicit.py"])
def test_a_poll_accepts(name, stage) -> None:
    """Each record is worked on once, with the first delivery."""
    finals = stage.runs[name].finals()

    assert finals == dict.fromkeys(range(len(RECORDS) + len(SLOW)), ("DONE", 1))


@pytest.mark.parametrize(
    "name", ["PerRecord.java", "per_record.py", "RenewPool.java", "worker_pool.py"]
)
def test_each_record_has_its_outcome(name, stage) -> None:
    """A failure that may pass comes again with delivery 2, one that will not is rejected."""
    run = stage.runs[name]

    finals = {offset: run.finals()[offset] for offset in range(len(RECORDS))}

    expected = dict.fromkeys(range(len(RECORDS)), ("ACCEPT", 1))
    expected |= dict.fromkeys(LATER, ("ACCEPT", 2)) | dict.fromkeys(NEVER, ("REJECT", 1))
    if name == "RenewPool.java":  # records wait in the consumer behind its slow one, and may expire
        assert all(finals[offset][1] >= count for offset, (_, count) in expected.items())
        finals = {offset: (event, expected[offset][1]) for offset, (event, _) in finals.items()}
    assert finals == expected
    released = {line.offset for line in run.lines if line.event == "RELEASE"}
    assert {offset for offset in released if offset < len(RECORDS)} == set(LATER)


@pytest.mark.parametrize(
    ("name", "kept", "count"),
    [("StopAtFirstError.java", "RENEW", 1), ("stop_at_first_error.py", "RELEASE", 2)],
)
def test_the_rest_of_a_batch_comes_again(name, kept, count, stage) -> None:
    """Behind an error: the same delivery where locks can be renewed, and the next one elsewhere."""
    run = stage.runs[name]

    finals = {offset: run.finals()[offset] for offset in range(len(RECORDS))}
    behind = {line.offset for line in run.lines if line.event == kept}

    assert behind and all(finals[offset][1] >= count for offset in behind)
    assert {offset for offset, (event, _) in finals.items() if event == "REJECT"} == set(NEVER)
    assert count > 1 or {deliveries for _, deliveries in finals.values()} == {1}


def test_long_work_is_renewed(stage) -> None:
    """Work of 6 s under locks of 5 s is done once, and accepted with its first delivery."""
    run = stage.runs["RenewPool.java"]

    (slow,) = [offset for offset, (_, value) in enumerate(RECORDS) if value == "slow"]

    events = [line.event for line in run.lines if line.offset == slow]
    assert (events[0], events[-1], set(events[1:-1])) == ("WORK", "ACCEPT", {"RENEW"})


@pytest.mark.parametrize("name", EXPLICIT)
def test_rejected_records_are_dead_letters(name, stage) -> None:
    """keylane has written exactly what the program rejected."""
    run = stage.runs[name]

    letters = sorted(stage.letters[run.group])

    assert letters == rejected(run) == NEVER


@pytest.mark.parametrize("name", ALL)
def test_sigterm_ends_it_and_releases_what_it_holds(name, stage) -> None:
    """Work at hand is finished, the rest of the batch comes to another member with delivery 2.

    One of two programs may get what the other one releases, and release it as well.
    """
    run = stage.runs[name]

    assert run.statuses == [ENDED[Path(each).suffix] for each in run.names]
    assert run.closed == len(run.names)
    done = run.finals().keys()
    left = set(range(len(RECORDS) + len(SLOW))) - done
    assert run.again.keys() == left
    assert set(run.again.values()) <= set(range(2, 2 + len(run.names)))
    # The last two records of the pool in Python wait for half a second only.
    assert bool(left) == (name in EXPLICIT) or name == "worker_pool.py"
    begun = {line.offset for line in run.lines if line.event == "WORK"}
    assert begun == done
