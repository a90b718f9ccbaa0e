"""Start the Java programs of this folder: share consumers, and kafka-share-groups."""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from keylane.embedded.java import find_java
from tests.integration.keylane_process import PATIENCE
from tests.java_source import JVM_ARGS, compile_source, compiler_jars

HERE: Final = Path(__file__).resolve().parent
OWN_ARGS: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-Duser.timezone=UTC")
ANSWER_S: Final = 40.0
Report = Mapping[str, Any]
Settings = Mapping[str, object]


class LineProgram:
    """A process whose lines are read as they come, and that ends with its stdin."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it. Its log goes to this process' stderr."""
        self._lines: list[str] = []
        self._is_over = False
        self._changed, self._writing = threading.Condition(), threading.Lock()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id, for signals."""
        return self._process.pid

    @property
    def lines(self) -> Sequence[str]:
        """Return all whole lines by now."""
        with self._changed:
            return tuple(self._lines)

    def write(self, line: str) -> None:
        """Send a line to its stdin, from any thread."""
        assert self._process.stdin is not None
        with self._writing:
            self._process.stdin.write(line + "\n")

    def wait(
        self, find: Callable[[Sequence[str]], Any], text: str, *, timeout_s: float = ANSWER_S
    ) -> Any:
        """Wait until `find` returns something of all lines by now; return that.

        Raises: AssertionError, when it takes too long or the process ends.
        """
        deadline_s = time.monotonic() + timeout_s * PATIENCE
        with self._changed:
            while not (found := find(self._lines)):
                left_s = deadline_s - time.monotonic()
                last = [line[:500] for line in self._lines[-5:]]
                assert left_s > 0, f"not in time: {text}; {last}"
                assert not self._is_over, f"it ended before {text}: {last}"
                self._changed.wait(left_s)
        return found

    def kill(self) -> None:
        """SIGKILL, and wait for its end; all that it had written is read."""
        self._process.kill()
        self._end()

    def stop(self) -> None:
        """Close its stdin, on which its consumers leave their group and it ends."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError, ValueError):  # it has ended
            self._process.stdin.close()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _end(self) -> None:
        try:
            self._process.wait(ANSWER_S * PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                with self._changed:
                    self._lines.append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


class JavaProgram(LineProgram):
    """A process of a program of this folder."""

    def __init__(self, main_class: str, *args: str) -> None:
        """Start it."""
        class_path = compile_source(HERE / f"{main_class}.java", compiler_jars())
        java = [str(find_java()), *JVM_ARGS, *OWN_ARGS, "-cp", class_path, main_class]
        super().__init__([*java, *args])


@dataclass(frozen=True, slots=True)
class Printed:
    """Exit status of a tool, and what it has printed."""

    status: int
    out: str
    err: str


class GroupTool(JavaProgram):
    """One process that runs kafka-share-groups any number of times, one at a time."""

    def __init__(self) -> None:
        super().__init__("GroupTool")

    def run(self, bootstrap: str, *args: str) -> Printed:
        """Run it; an empty bootstrap leaves that option out."""
        before = len(self.lines)
        place = ("--bootstrap-server", bootstrap) if bootstrap else ()
        self.write("\t".join((*place, *args)))
        line = self.wait(lambda lines: lines[before:], " ".join(args))[0]
        answer = json.loads(line)
        out, err = (base64.b64decode(answer[name]).decode() for name in ("out", "err"))
        return Printed(answer["status"], out, err)


class Drivers(JavaProgram):
    """One process with any number of driven consumers."""

    def __init__(self, bootstrap: str) -> None:
        """bootstrap: of consumers that are opened without one."""
        super().__init__("ShareMember", bootstrap)

    def open(
        self, name: str, group: str, topic: str, bootstrap: str = "", **settings: object
    ) -> DrivenMember:
        """Make a consumer; `_` in names of settings stands for a dot."""
        member = DrivenMember(self, name)
        own = {key.replace("_", "."): value for key, value in settings.items()}
        if bootstrap:
            own["bootstrap.servers"] = bootstrap
        member.call("open", group, topic, *(f"{key}={value}" for key, value in own.items()))
        return member


class DrivenMember:
    """A consumer that does one thing at a time; an error is in its report."""

    def __init__(self, program: JavaProgram, name: str) -> None:
        self.name, self._program, self._seen = name, program, 0

    def call(self, command: str, *words: str) -> Report:
        """Send a command; return its report."""
        before = len(self._reports(self._program.lines, command))
        self._program.write(" ".join((self.name, command, *words)))

        def newest(lines: Sequence[str]) -> Report | None:
            reports = self._reports(lines, command)
            return reports[before] if len(reports) > before else None

        found: Report = self._program.wait(newest, f"{self.name} {command}")
        return found

    def poll(self, ms: int = 500) -> list[tuple[int, int]]:
        """Poll once: offset and delivery count of each record. Raises: AssertionError."""
        report = self.call("poll", str(ms))
        assert "error" not in report, report
        return [(each["offset"], each["deliveryCount"]) for each in report["records"]]

    def poll_until(self, ms: int = 500, *, timeout_s: float = ANSWER_S) -> list[tuple[int, int]]:
        """Poll until there are records. Raises: AssertionError."""
        deadline_s = time.monotonic() + timeout_s * PATIENCE
        while not (found := self.poll(ms)):
            assert time.monotonic() < deadline_s, f"{self.name} got no record"
        return found

    def ack(self, offsets: int | Sequence[int], kind: str = "ACCEPT") -> None:
        """Acknowledge records of partition 0. Raises: AssertionError."""
        for offset in [offsets] if isinstance(offsets, int) else offsets:
            report = self.call("ack", str(offset), kind)
            assert "error" not in report, report

    def callbacks(self) -> list[tuple[tuple[int, ...], str]]:
        """Return offsets and result of each acknowledgement callback by now."""
        return [
            (tuple(each["offsets"]), each["result"])
            for each in self._reports(self._program.lines, "callback")
        ]

    def _reports(self, lines: Sequence[str], event: str) -> list[Report]:
        head = f'{{"member":"{self.name}","event":"{event}"'
        return [json.loads(line) for line in lines if line.startswith(head)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of a consumer that works by itself."""

    kind: str
    """S start, R renewal, E end, C callback, J joined, L left, X error."""
    nano_ns: int
    """Of the process' own clock, to order the events of one process."""
    wall_ms: int
    member: str
    offset: int = -1
    partition: int = -1
    key: str = ""
    text: str = ""
    """Delivery count of S, type of E, result of C, text of X."""

    @property
    def place(self) -> tuple[int, int]:
        """Return partition and offset."""
        return self.partition, self.offset


def parse_event(line: str) -> Event:
    """Read a line. Raises: ValueError."""
    kind, nano_ns, wall_ms, member, *words = line.split(" ")
    own: dict[str, Any] = {}
    if kind in {"S", "R", "E"}:
        own = {"offset": int(words[0]), "partition": int(words[1]), "key": words[2]}
        own["text"] = "".join(words[3:])
    elif kind == "C":
        own = {"offset": int(words[0]), "partition": int(words[1]), "text": words[2]}
    else:
        own = {"text": " ".join(words)}
    return Event(kind=kind, nano_ns=int(nano_ns), wall_ms=int(wall_ms), member=member, **own)


class Workers(JavaProgram):
    """One process with consumers that work by themselves until it is stopped or killed."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        *,
        members: int = 1,
        options: Settings | None = None,
        settings: Settings | None = None,
    ) -> None:
        """options: `work_ms`, `max_poll`, `mode`, `ack`, `release`, `reject`, `name`, `seed`.

        settings: of the consumers, with `_` for a dot.
        """
        chosen = [("members", members), *(options or {}).items()]
        words = [word for key, value in chosen for word in (f"--{_dashed(key)}", str(value))]
        words += [f"{key.replace('_', '.')}={value}" for key, value in (settings or {}).items()]
        super().__init__("ShareMember", bootstrap, group, topic, *words)

    @property
    def events(self) -> list[Event]:
        """Return all events by now, in the order in which they were written."""
        return [parse_event(line) for line in self.lines]

    def wait_for_events(
        self, is_there: Callable[[Sequence[Event]], Any], text: str, *, timeout_s: float = 60.0
    ) -> None:
        """Wait until the events are enough. Raises: AssertionError."""
        events: list[Event] = []

        def look(lines: Sequence[str]) -> Any:
            events.extend(parse_event(line) for line in lines[len(events) :])
            return is_there(events)

        self.wait(look, text, timeout_s=timeout_s)


def _dashed(name: str) -> str:
    return name.replace("_", "-")
