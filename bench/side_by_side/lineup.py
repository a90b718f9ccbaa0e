"""Everything that is measured, started once: Kafka, keylane, HAProxy, other proxies, Java readers.

Kafka has a second listener that advertises HAProxy's address, as a plain TCP relay needs.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Final

from bench.end_to_end.stage import Stage
from bench.peers.haproxy import Haproxy, HaproxyMissing
from bench.peers.java_program import JavaMissing, start_java, stop_java
from keylane.embedded import EmbeddedKafka
from keylane.embedded.ports import find_free_port
from tests.integration.keylane_process import KeylaneProcess

ADDRESS: Final = "127.0.0.1"
KEYLANE_LOG: Final = "warning"
ORDERED_PREFIX: Final = "ordered-"
"""Of share groups that keylane keeps in the order of keys."""
SEVERAL_PREFIX: Final = "several-"
"""Of those whose members may get several records of a key at a time."""
EARLY_PREFIX: Final = "early-"
"""Of those whose outcomes count when keylane has them."""
SHARE_GROUPS: Final = (
    {"group": f"{ORDERED_PREFIX}*", "order": "key"},
    {"group": f"{SEVERAL_PREFIX}*", "order": "key", "several_per_key": 40},
    {"group": f"{EARLY_PREFIX}*", "order": "key", "confirm": "received"},
)


@dataclass(frozen=True, slots=True)
class OtherProxy:
    """A proxy that somebody started in front of the benchmark's Kafka."""

    name: str
    address: str
    pid: int


@dataclass(slots=True)
class Lineup:
    """The running programs."""

    stage: Stage
    haproxy: Haproxy | None
    others: tuple[OtherProxy, ...]
    readers: Popen[str] | None
    """`Readers.java`, waiting for lines."""
    repetitions: int
    scale: float
    """Scale of data and times: 1 for the full run."""
    missing: list[str] = field(default_factory=list)
    """Programs that were left out, with the reason."""

    @property
    def kafka(self) -> EmbeddedKafka:
        """The one broker."""
        return self.stage.kafka

    @property
    def keylane(self) -> KeylaneProcess:
        """The proxy that all this is about."""
        return self.stage.keylane

    @property
    def broker_pid(self) -> int:
        """Process id of Kafka."""
        pid = self.kafka.nodes[0].pid
        assert pid is not None, "Kafka runs"
        return pid

    @property
    def pids(self) -> dict[str, int]:
        """Kafka's and keylane's, for a `Meter`."""
        return {"broker": self.broker_pid, "keylane": self.keylane.pid}

    def relays(self) -> dict[str, tuple[str, int | None]]:
        """Ways to a plain topic: bootstrap address, and the process that is passed, if any."""
        ways: dict[str, tuple[str, int | None]] = {"direct": (self.kafka.bootstrap, None)}
        if self.haproxy is not None:
            ways["haproxy"] = (self.haproxy.address, self.haproxy.pid)
        for other in self.others:
            ways[other.name] = (other.address, other.pid)
        ways["keylane"] = (self.keylane.bootstrap, self.keylane.pid)
        return ways


@contextmanager
def open_lineup(
    *,
    repetitions: int,
    scale: float,
    kafka_port: int = 0,
    others: Sequence[OtherProxy] = (),
) -> Iterator[Lineup]:
    """Start all that this machine has; stop it and remove its files."""
    missing: list[str] = []
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory(prefix="keylane-bench-"))
        folder = Path(name)
        port, inner, outer = kafka_port or find_free_port(), find_free_port(), find_free_port()
        kafka = stack.enter_context(
            EmbeddedKafka(
                folder / "kafka", port=port, heap_mb=1024, properties=_listeners(port, inner, outer)
            )
        )
        haproxy = None
        try:
            haproxy = stack.enter_context(Haproxy(folder, outer, f"{ADDRESS}:{inner}"))
        except HaproxyMissing as error:
            missing.append(f"HAProxy: {error}")
        keylane = KeylaneProcess(
            kafka.bootstrap,
            [],
            log_path=folder / "keylane.log",
            args=["--set", f"share_groups={json.dumps(SHARE_GROUPS)}"],
            environment={"KEYLANE_LOG": KEYLANE_LOG},
        ).start()
        stack.callback(keylane.stop)
        readers = None
        try:
            readers = start_java("Readers.java")
            stack.callback(stop_java, readers)
        except JavaMissing as error:
            missing.append(f"stock Java readers: {error}")
        stage = Stage(kafka, keylane, folder)
        yield Lineup(stage, haproxy, tuple(others), readers, repetitions, scale, missing)


def read_with_java(
    lineup: Lineup, bootstrap: str, topic: str, count: int, members: Sequence[Sequence[int]]
) -> float:
    """Seconds in which stock Java consumers, one per entry of `members`, read `count` records."""
    process = lineup.readers
    assert process is not None and process.stdin is not None and process.stdout is not None
    parts = ";".join(",".join(map(str, member)) for member in members)
    process.stdin.write(f"{bootstrap} {topic} {count} {parts}\n")
    process.stdin.flush()
    answer = process.stdout.readline().split()
    assert int(answer[1]) == count, f"every record came once: {answer[1]} of {count}"
    return int(answer[0]) / 1e9


def progress(text: str) -> None:
    """Say how far the run is."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def _listeners(port: int, inner: int, outer: int) -> dict[str, str]:
    """Kafka's settings for a second listener on `inner` that advertises the port `outer`."""
    controller = find_free_port()
    plain = f"PLAINTEXT://{ADDRESS}:{port}"
    return {
        "listeners": f"{plain},RELAYED://{ADDRESS}:{inner},CONTROLLER://{ADDRESS}:{controller}",
        "advertised.listeners": f"{plain},RELAYED://{ADDRESS}:{outer}",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,RELAYED:PLAINTEXT,CONTROLLER:PLAINTEXT"
        ),
        "controller.quorum.voters": f"1@{ADDRESS}:{controller}",
    }
