"""docs/secured-setup.md, run as it stands: three secured nodes, with the outputs that it shows.

In one bash, in an empty folder, with Kafka's own tools and curl and openssl of this machine. Only
the values of the variables at the head of the page are others.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from keylane.embedded import EmbeddedKafka
from keylane.embedded.java import java_command
from keylane.embedded.ports import find_free_port
from keylane.embedded.resolve import resolve_class_path
from tests.integration.certificates import Authority
from tests.integration.keylane_process import BROKER_PORTS
from tests.integration.nodes import NODE_ID_STEP
from tests.integration.secured import MODULES, Login, read_confluent, write_properties

pytestmark = pytest.mark.timeout(500)  # kernels may have to be compiled first
PAGE: Final = Path(__file__).parents[2] / "docs" / "secured-setup.md"
FENCE: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SECTION: Final = re.compile(r"^## \d+\. (.+)$", re.MULTILINE)
WAIT_S: Final = 240.0
BLOCK_S: Final = 240.0
"""Seconds for one block; the start of the nodes may compile for a minute."""
MECHANISM: Final = "SCRAM-SHA-512"
ADMIN_PASSWORD: Final = "admin-password-Zq7"
KEY_COUNT, PAGE_COUNT, MEMBERS = 20, 300, 3


class Shell:
    """One bash for the whole page; ends with this process, and its nodes as well."""

    def __init__(self, folder: Path) -> None:
        """Start it in an empty folder, with shims of Kafka's scripts and of keylane beside it."""
        self.folder = folder / "page"
        self.folder.mkdir()
        self._errors = folder / "bash.err"
        self.lifeline, self._held = os.pipe()
        shims = make_shims(folder / "bin", self.lifeline)
        with self._errors.open("wb") as errors:
            self._bash = subprocess.Popen(
                ["bash", "-eu", "-o", "pipefail"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                cwd=self.folder, pass_fds=[self.lifeline],
                env={**os.environ, "PATH": f"{shims}:{os.environ['PATH']}"},
            )  # fmt: skip
        self._count = 0

    def run(self, block: str) -> str:
        """Run commands and return their output; one that fails fails the test."""
        self._count += 1
        script, marker = self.folder.parent / f"block-{self._count}.sh", f"end-{self._count}"
        script.write_text(block)
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.write(f"source {script} < /dev/null\necho {marker}\n")
        self._bash.stdin.flush()
        watchdog = threading.Timer(BLOCK_S, self._bash.kill)
        watchdog.start()
        try:
            lines: list[str] = []
            for line in self._bash.stdout:
                if line.rstrip("\n") == marker:
                    return "".join(lines)
                lines.append(line)
        finally:
            watchdog.cancel()
        reported = self._errors.read_text()[-3000:]
        pytest.fail(f"a block failed:\n{block}\nit printed:\n{''.join(lines)[-2000:]}\n{reported}")

    def log(self, number: int) -> str:
        """Return the log of a node; empty until bash has begun it."""
        path = self.folder / f"node-{number}.log"
        return path.read_text() if path.exists() else ""

    def close(self) -> None:
        """End nodes and bash."""
        os.close(self._held)  # each node ends with it
        try:
            self._bash.communicate("wait\n", timeout=60)
        except subprocess.TimeoutExpired:
            self._bash.kill()
            self._bash.communicate()
        except BrokenPipeError:  # it has ended by a block that failed
            self._bash.wait()
        os.close(self.lifeline)


def make_shims(folder: Path, lifeline: int) -> Path:
    """`kafka-*.sh` and `keylane` as commands; a node reads the lifeline, and ends with it."""
    folder.mkdir()
    class_path = resolve_class_path()
    names = set(re.findall(r"\$KAFKA/([a-z-]+)\.sh", PAGE.read_text(encoding="utf-8")))
    commands = {f"{name}.sh": java_command(class_path, name) for name in names}
    scripts = {name: f'exec {" ".join(command)} "$@"\n' for name, command in commands.items()}
    own = f'{sys.executable} -m keylane "$@"'
    scripts["keylane"] = f"[ $1 = proxy ] && exec {own} --until-eof <&{lifeline}\nexec {own}\n"
    for name, text in scripts.items():
        path = folder / name
        path.write_text(f"#!/usr/bin/env bash\n{text}")  # sh knows descriptors of one digit
        path.chmod(0o700)
    return folder


def sections(values: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    """(language, text) of the page's blocks by section, with `values` for its variables."""
    page = PAGE.read_text(encoding="utf-8")
    for name, value in values.items():
        pattern = rf"((?:^export|(?<=\d)) {name}=)\S+"
        page, count = re.subn(pattern, rf"\g<1>{value}", page, flags=re.MULTILINE)
        assert count == 1, f"the page sets {name} {count} times"
    parts = SECTION.split(page)
    return {
        title: FENCE.findall(text) for title, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def play(shell: Shell, blocks: list[tuple[str, str]]) -> str:
    """Run blocks in order; what stands in a `text` block is what the one before has printed."""
    printed = whole = ""
    for language, text in blocks:
        if language == "text":
            assert printed.strip() == text.strip()
        else:
            assert language == "sh"
            printed = shell.run(text)
            whole += printed
    return whole


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A broker as the page assumes it: SASL_SSL, ACLs, an administrator."""
    authority = Authority(tmp_path / "kafka-ca", name="kafka's authority")
    prefix = "listener.name.secured."
    given = f'required user_admin="{ADMIN_PASSWORD}";'
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",  # the plain listener is the broker's own
        f"{prefix}ssl.keystore.type": "PEM",
        f"{prefix}ssl.keystore.location": str(authority.issue("broker")),
        f"{prefix}sasl.enabled.mechanisms": f"PLAIN,{MECHANISM}",
        f"{prefix}plain.sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule {given}",
        f"{prefix}scram-sha-512.sasl.jaas.config": f"{MODULES}.scram.ScramLoginModule required;",
    }
    own = f'required username="admin" password="{ADMIN_PASSWORD}";'
    write_properties(
        tmp_path / "admin.properties",
        {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f"{MODULES}.plain.PlainLoginModule {own}",
        },
    )
    kafka = EmbeddedKafka(
        tmp_path / "kafka", properties=properties, listeners={"SECURED": "SASL_SSL"}
    )
    with kafka as running:
        yield running


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """The bash that the page is run in."""
    made = Shell(tmp_path)
    yield made
    made.close()


def make_values(broker: EmbeddedKafka, folder: Path) -> dict[str, str]:
    """The page's variables for three nodes on this machine."""
    ports = [find_free_port(in_a_row=BROKER_PORTS + 1) for _ in range(3)]
    values = {
        "KAFKA": str(folder / "bin"),
        "BOOTSTRAP": broker.bootstrap_of("SECURED"),
        "KAFKA_CA": str(folder / "kafka-ca" / "ca.pem"),
        "ADMIN": str(folder / "admin.properties"),
        "ETC": str(folder / "etc"),
    }
    for number, port in enumerate(ports):
        values |= {f"HOST_{number}": "localhost", f"PORT_{number}": str(port)}
        values[f"CONTROL_{number}"] = str(port + BROKER_PORTS)
    return values


def client_config(login: Login, bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(login.ca),
        "sasl.mechanisms": login.mechanism,
        "sasl.username": login.user,
        "sasl.password": login.password,
    }


class Traffic:
    """A producer and a group of three through the nodes, until all that was produced is read."""

    def __init__(self, login: Login, bootstrap: str) -> None:
        """Join; `running` produces meanwhile."""
        config = client_config(login, bootstrap)
        # As Java deals keys out: librdkafka by itself sends them to other partitions than the page.
        # Not idempotent: with an answer that a node took with it librdkafka would give up for good.
        dealing = {"max.in.flight": 1, "linger.ms": 5, "partitioner": "murmur2_random"}
        self._producer = Producer({**config, **dealing})
        group = {"group.id": "shipping", "auto.offset.reset": "earliest"}
        self._members = [Consumer({**config, **group}) for _ in range(MEMBERS)]
        for member in self._members:
            member.subscribe(["orders"])
        self.sent = PAGE_COUNT
        self.failed: list[str] = []
        self.seen: list[tuple[int, str, int]] = []
        """(member, key, number)"""
        self._stopping, self._all_sent = threading.Event(), threading.Event()
        self._threads = [threading.Thread(target=self._produce)]
        self._threads += [
            threading.Thread(target=self._consume, args=(index,)) for index in range(MEMBERS)
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        """The block begins when all members work; traffic ends when all has been read."""
        for thread in self._threads:
            thread.start()
        try:
            self.wait_for(PAGE_COUNT)
            wait_until(lambda: self._members_at_work() == MEMBERS, "each member has a record")
            yield
        finally:
            self._stopping.set()
            for thread in self._threads:
                thread.join(90)

    def wait_for(self, count: int) -> None:
        """Wait until `count` records have come."""
        wait_until(lambda: self._records_seen() >= count, f"{count} records have come")

    def _records_seen(self) -> int:
        return len({number for _, _, number in self.seen})

    def _members_at_work(self) -> int:
        return len({member for member, _, _ in self.seen})

    def _produce(self) -> None:
        while not self._stopping.wait(0.02):
            number = self.sent = self.sent + 1
            key = f"key-{number % KEY_COUNT}"
            self._producer.produce("orders", str(number), key, on_delivery=self._delivered)
            self._producer.poll(0)
        self._producer.flush(60)
        self._all_sent.set()  # not before: a record that is still sent would find no member

    def _delivered(self, error: Any, _message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))

    def _consume(self, index: int) -> None:
        deadline_s = None
        while deadline_s is None or time.monotonic() < deadline_s:
            message = self._members[index].poll(0.2)
            if self._all_sent.is_set():
                deadline_s = deadline_s or time.monotonic() + 60
                if self._records_seen() >= self.sent:
                    break
            if message is not None and message.error() is None:
                key, value = message.key() or b"", message.value() or b""
                self.seen.append((index, key.decode(), int(value)))
        self._members[index].close()


def expect_keys_in_order(pairs: list[tuple[str, int]], count: int) -> None:
    """Each number from 1 on once, when repeated ones are left out; of each key ascending."""
    first = list(dict.fromkeys(pairs))
    assert sorted(number for _, number in first) == list(range(1, count + 1))
    last: dict[str, int] = {}
    for key, number in first:
        assert key == f"key-{number % KEY_COUNT}" and last.get(key, 0) < number
        last[key] = number


def wait_for_logs(shell: Shell, text: str) -> None:
    """Wait until the log of each node has the text."""
    wait_until(
        lambda: all(text in shell.log(number) for number in range(3)), f"all logs say {text!r}"
    )


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Stock clients and log files have no event for it; the deadline bounds it."""
    deadline_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline_s, f"not within {WAIT_S:g} s: {what}"
        time.sleep(0.1)


def make_user(broker: EmbeddedKafka, user: str, password: str) -> None:
    """Make a user that may log in, and has no right."""
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    changes: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, info, password.encode())
    ]
    admin.alter_user_scram_credentials(changes)[user].result(60)


def test_the_page_gives_three_secured_nodes(broker, shell, tmp_path) -> None:
    """Three nodes start from an empty folder, serve clients with rights, and rotate secrets."""
    values = make_values(broker, tmp_path)
    page = sections(values)
    etc, direct = Path(values["ETC"]), values["BOOTSTRAP"]
    nodes = ",".join(f"localhost:{values[f'PORT_{number}']}" for number in range(3))

    *before, check, client, rotation = page
    for title in before:
        play(shell, page[title])
    wait_for_logs(shell, "nodes=0,1,2")  # the last node may serve before the first knows of it
    play(shell, page[check])
    printed = play(shell, page[client])

    pairs = re.findall(r"^(key-\d+)\t(\d+)$", printed, re.MULTILINE)
    expect_keys_in_order([(key, int(number)) for key, number in pairs], PAGE_COUNT)
    assert "group billing: " in printed and "24 lanes" in printed
    for path in etc.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    password = (shell.folder / "client" / "password").read_text().strip()
    alice = Login(
        mechanism=MECHANISM, user="alice", password=password, ca=shell.folder / "authority/ca.crt"
    )
    reported = AdminClient(client_config(alice, nodes)).list_topics("orders", timeout=30)
    leading = {one.leader // NODE_ID_STEP for one in reported.topics["orders"].partitions.values()}
    assert leading == {0, 1, 2}

    traffic = Traffic(alice, nodes)
    with traffic.running():
        play(shell, page[rotation])
        wait_for_logs(shell, "certificate read again key=tls_certificate")
        wait_for_logs(shell, "certificate read again key=control_certificate")
        traffic.wait_for(traffic.sent)
    assert traffic.failed == []
    expect_keys_in_order([(key, number) for _, key, number in traffic.seen], traffic.sent)
    assert len((etc / "node-secret").read_text().split()) == 1
    assert play(shell, page["Check"])  # three nodes again, with the new secret and certificates

    expect_strangers_are_refused(broker, alice, direct=direct, nodes=nodes, values=values)
    expect_logs(shell, etc, password)


def expect_strangers_are_refused(
    broker: EmbeddedKafka, alice: Login, *, direct: str, nodes: str, values: dict[str, str]
) -> None:
    """A user without rights reads nothing; READ on any group does not open the nodes' group."""
    make_user(broker, "mallory", "mallory-password-Zq7")
    mallory = Login(
        mechanism=MECHANISM, user="mallory", password="mallory-password-Zq7", ca=alice.ca
    )
    # A broker knows a new user a moment after the answer. The client logs in until it may.
    admitted = replace(mallory, ca=Path(values["KAFKA_CA"]))
    AdminClient(client_config(admitted, direct)).list_topics(timeout=60)
    refused = read_confluent(nodes, "orders", "billing", mallory, 1)
    assert refused.values == [] and refused.error.endswith("AUTHORIZATION_FAILED")

    at_broker = Login(
        mechanism=MECHANISM,
        user="alice",
        password=alice.password,
        ca=Path(values["KAFKA_CA"]),
    )
    assert read_confluent(direct, "orders", "any-other", at_broker, 1).error == ""
    joined = read_confluent(direct, "orders", "__keylane_nodes", at_broker, 1)
    assert joined.error == "GROUP_AUTHORIZATION_FAILED"


def expect_logs(shell: Shell, etc: Path, password: str) -> None:
    """The lines of a good start and no other of the page's table; no secret in any."""
    wait_for_logs(shell, "nodes=0,1,2")
    wait_for_logs(shell, "the ACLs give none of these rights to others")
    secrets = [password, (etc / "password").read_text(), (etc / "node-secret").read_text()]
    wrong = (
        *("others have rights", "rights of others are not known", "is no node", "was expelled"),
        *("Traceback", "PRIVATE KEY", *map(str.strip, secrets)),
    )
    for number in range(3):
        log = shell.log(number)
        assert [text for text in wrong if text in log] == []
        assert "authorization" not in log.lower()
