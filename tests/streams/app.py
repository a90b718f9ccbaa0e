"""Start `StreamsApp.java` as an instance of an application."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from keylane.embedded.jar_lock import LockedJar
from keylane.embedded.java import find_java
from keylane.embedded.resolve import kafka_lock
from tests.integration.keylane_process import PATIENCE
from tests.java_source import JVM_ARGS, STREAMS, compile_source

SOURCE: Final = Path(__file__).resolve().with_name("StreamsApp.java")
MAIN_CLASS: Final = "StreamsApp"
LOG_ARGS: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",)
START_S: Final = 90.0
RUNNING: Final = "STATE RUNNING"


def jars() -> tuple[LockedJar, ...]:
    """Jars of an application, Kafka's first: an archive of its classes fits only then."""
    return (*kafka_lock(), *STREAMS)


def compiled() -> str:
    """Return the class path of the application."""
    return compile_source(SOURCE, jars())


@dataclass(slots=True)
class Printed:
    """Lines that an instance has printed, and their arrival."""

    lines: list[str] = field(default_factory=list)
    is_over: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)


class Instance:
    """One process of an application."""

    def __init__(
        self,
        topology: str,
        inputs: Sequence[str],
        output: str,
        settings: Mapping[str, object],
        *,
        log_path: Path,
    ) -> None:
        """Start it; `settings` are those of StreamsConfig."""
        self._log_path, self._printed = log_path, Printed()
        arguments = [f"{key}={value}" for key, value in settings.items()]
        command = [str(find_java()), *JVM_ARGS, *LOG_ARGS, "-cp", compiled(), MAIN_CLASS]
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, topology, ",".join(inputs), output, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def printed(self) -> list[str]:
        """Return what it has printed: states, and causes of its end."""
        return self._printed.lines

    @property
    def log(self) -> str:
        """Return what Kafka's classes have logged, at level warn."""
        return self._log_path.read_text(errors="replace")

    def wait_for(self, text: str, *, timeout_s: float = START_S) -> Self:
        """Wait until it prints a line that has `text`."""
        self._wait(lambda lines: any(text in line for line in lines), text, timeout_s)
        return self

    def wait_for_state(self, state: str, *, timeout_s: float = START_S) -> Self:
        """Wait until its last state is `state`, such as RUNNING."""
        wanted = f"STATE {state}"
        self._wait(lambda lines: _last_state(lines) == wanted, wanted, timeout_s)
        return self

    def _wait(self, is_there: Callable[[Sequence[str]], bool], text: str, timeout_s: float) -> None:
        timeout_s *= PATIENCE
        deadline_s = time.monotonic() + timeout_s
        printed = self._printed
        with printed.changed:
            while not is_there(printed.lines):
                left_s = deadline_s - time.monotonic()
                assert left_s > 0, f"not within {timeout_s:g} s: {text}; {printed.lines[-5:]}"
                assert not printed.is_over, f"it ended before {text}: {printed.lines[-5:]}"
                printed.changed.wait(left_s)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Close its stdin, on which it leaves its group and ends."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended
            self._process.stdin.close()
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._printed.changed:
                self._printed.lines.append(line.rstrip())
                self._printed.changed.notify_all()
        with self._printed.changed:
            self._printed.is_over = True
            self._printed.changed.notify_all()


def _last_state(lines: Sequence[str]) -> str:
    return next((line for line in reversed(lines) if line.startswith("STATE")), "")


class Application:
    """Instances of one application, each a process with its own state."""

    def __init__(
        self,
        bootstrap: str,
        topology: str,
        inputs: Sequence[str],
        output: str,
        folder: Path,
        **settings: object,
    ) -> None:
        """Plan it; names of settings have `_` where StreamsConfig has a dot."""
        self.application_id = f"{topology}-{output}"
        self.instances: list[Instance] = []
        self._topology, self._inputs, self._output = topology, inputs, output
        self._folder = folder / f"{bootstrap.rpartition(':')[2]}-{self.application_id}"
        self._folder.mkdir()
        self._settings: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "application.id": self.application_id,
            "auto.offset.reset": "earliest",
            "num.stream.threads": 2,
            "commit.interval.ms": 200,
            "statestore.cache.max.bytes": 0,  # each count is sent, and not the last of an interval
            "main.consumer.session.timeout.ms": 6_000,
            "main.consumer.heartbeat.interval.ms": 1_000,
        }
        self._settings |= {key.replace("_", "."): value for key, value in settings.items()}

    def add(self, count: int = 1) -> Sequence[Instance]:
        """Start instances; return them."""
        first = len(self.instances)
        self.instances += [self._start(number) for number in range(first, first + count)]
        return self.instances[first:]

    def kill_and_start(self, number: int) -> None:
        """Kill an instance with -9, and start it again with its state."""
        self.instances[number].kill()
        self.instances[number] = self._start(number)

    def _start(self, number: int) -> Instance:
        return Instance(
            self._topology,
            self._inputs,
            self._output,
            self._settings | {"state.dir": self._folder / f"state-{number}"},
            log_path=self._folder / f"{number}.log",
        )

    def wait_until_running(self) -> Self:
        """Wait until all instances have their tasks."""
        for instance in self.instances:
            instance.wait_for_state("RUNNING")
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for instance in self.instances:
            instance.stop()
