"""Many connections at once, clients that do not read, peers that vanish: others notice nothing."""

from __future__ import annotations

import asyncio
import random
import re
import resource
import select
import socket
import struct
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Self

import pytest
from confluent_kafka import Producer

from keylane.config.node import split_address
from keylane.wire.fetch import FetchPartition, FetchRequest, FetchTopic, write_fetch_request
from keylane.wire.header import write_request
from tests.integration.harness import Group
from tests.integration.keylane_process import PATIENCE, KeylaneProcess

on_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="memory and open files are read from /proc"
)

CONNECTIONS = 2000
WAVES = 3
FILES_BESIDE = 500
"""Descriptors that a process needs beside the connections: libraries, kernels, the group."""
RSS_GROWTH_MAX = 8 * 1024**2
"""Between the second wave and the last; a wave that left its connections would cost 200 MB."""
SLACK = 8
"""Connections and tasks that the group and the producer may have one moment and not the next."""
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing sends RST, as a process that is killed with unread bytes does."""
API_VERSIONS_REQUEST = bytes(write_request(18, 0, 7, "load", b""))
KEYS = [f"key-{number}" for number in range(20)]


class End(Enum):
    """Ways in which a connection of a wave ends."""

    CLEAN = 0
    RESET_AFTER_ANSWER = 1
    RESET_BEFORE_ANSWER = 2
    RESET_IN_REQUEST = 3


class BackgroundProducer:
    """Numbered values per key into lanes, through keylane, one acknowledged round after another."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.values: list[str] = []
        self._topic, self._stopping = topic, threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True}
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        assert self._producer.flush(60) == 0, "records were never acknowledged"

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(0.1):  # a rate that leaves the machine to the connections
            for key in KEYS:
                value = f"{key}:{number}"
                self._producer.produce(self._topic, key=key, value=value)
                self.values.append(value)
            self._producer.poll(0)
            number += 1


@pytest.fixture
def connection_count() -> Iterator[int]:
    """How many connections the limit of open files allows; children inherit what is raised here.

    keylane needs two descriptors for each.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTIONS + FILES_BESIDE
    allowed = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    count = (allowed - FILES_BESIDE) // 2
    if count < CONNECTIONS:
        print(f"only {count} connections: the hard limit of open files is {hard}")
    yield count
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def metric(proxy: KeylaneProcess, name: str) -> float:
    """A number of the control port."""
    return metrics(proxy, name)[0]


def metrics(proxy: KeylaneProcess, *names: str) -> list[float]:
    """Numbers of the control port, of one moment."""
    with urllib.request.urlopen(f"http://{proxy.control}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    return [float(re.findall(rf"^{name} (\S+)$", text, re.MULTILINE)[0]) for name in names]


def resident_bytes(proxy: KeylaneProcess) -> int:
    """Resident memory of a proxy."""
    return int(Path(f"/proc/{proxy.pid}/statm").read_text().split()[1]) * 4096


def file_count(proxy: KeylaneProcess) -> int:
    """Descriptors that a proxy has open."""
    return len(list(Path(f"/proc/{proxy.pid}/fd").iterdir()))


def wait_until(is_so: Callable[[], bool]) -> None:
    """Ask until something holds: each question is a request to the proxy.

    The bound ends the thread in which this may run; no time-out of a test does.
    """
    deadline_s = time.monotonic() + 60 * PATIENCE
    while not is_so():
        assert time.monotonic() < deadline_s


async def in_parallel(work: list[Awaitable[None]]) -> None:
    """Await all at once; the first failure is raised."""
    await asyncio.gather(*work)


async def wave(proxy: KeylaneProcess, count: int, opened: Callable[[], None]) -> None:
    """Open all connections at once; `opened` runs when all are; then end each in its way."""
    address = split_address(proxy.bootstrap)
    loop = asyncio.get_running_loop()
    clients = [socket.socket() for _ in range(count)]
    for client in clients:
        client.setblocking(False)
    try:
        await in_parallel([loop.sock_connect(client, address) for client in clients])
        await asyncio.to_thread(opened)
        ends = list(End)
        await in_parallel(
            [use(client, ends[number % len(ends)]) for number, client in enumerate(clients)]
        )
    finally:
        for client in clients:
            client.close()


async def use(client: socket.socket, end: End) -> None:
    """Send a request that keylane has to connect to a broker for, and end as `end` says."""
    loop = asyncio.get_running_loop()
    asked = API_VERSIONS_REQUEST[:9] if end is End.RESET_IN_REQUEST else API_VERSIONS_REQUEST
    await loop.sock_sendall(client, asked)
    if end in {End.CLEAN, End.RESET_AFTER_ANSWER}:
        (size,) = struct.unpack(">i", await receive(client, 4))
        body = await receive(client, size)
        assert struct.unpack_from(">ih", body) == (7, 0)
    if end is not End.CLEAN:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    client.close()


async def receive(client: socket.socket, count: int) -> bytes:
    """Receive `count` bytes."""
    loop, data = asyncio.get_running_loop(), b""
    while len(data) < count:
        part = await loop.sock_recv(client, count - len(data))
        assert part, "closed by keylane"
        data += part
    return data


@pytest.mark.long
@on_linux
def test_waves_of_connections_leave_nothing_behind(kafka, keylane, topic, connection_count) -> None:
    """2,000 at once, three times, ended in four ways, beside a group and a producer.

    Each record comes once. Connections, descriptors and tasks are what they were after the first
    wave, and memory is what it was after the second.
    """
    name = topic("orders", partitions=2)
    # A busy machine takes long for 2,000: none may be closed for its silence before they are all.
    room = (
        "connections_per_address_max=10000",
        "connections_before_login_max=10000",
        "login_timeout_s=300",
    )
    args = [part for setting in room for part in ("--set", setting)]
    proxy = keylane(f"{name}=4", args=args, environment={"KEYLANE_LOG": "info"})
    with Group(proxy.bootstrap, name, f"g-{name}", session_timeout_ms=45_000) as group:
        group.add("aiokafka", 2)
        group.add("confluent")
        group.wait_for_lanes(8)
        with BackgroundProducer(proxy.bootstrap, name) as producer:
            group.wait(lambda seen: len(seen.sightings) > 200, timeout_s=60, what="200 records")
            calm = metric(proxy, "keylane_sessions")
            tasks = metric(proxy, "keylane_tasks")

            def is_full() -> bool:
                return metric(proxy, "keylane_sessions") >= calm + connection_count

            def is_calm() -> bool:
                sessions, running = metrics(proxy, "keylane_sessions", "keylane_tasks")
                return sessions <= calm and running <= tasks + SLACK

            resident, files = [], []
            for _ in range(WAVES):
                asyncio.run(wave(proxy, connection_count, lambda: wait_until(is_full)))
                wait_until(is_calm)
                resident.append(resident_bytes(proxy))
                files.append(file_count(proxy))
                print(f"rss {resident[-1] >> 10} KiB, {files[-1]} files")
        group.wait_for_values(producer.values)
        group.wait_for_commits()

    assert group.seen.values() == dict.fromkeys(producer.values, 1)
    group.seen.assert_nothing_committed_again()
    assert files[-1] <= files[0] + SLACK
    assert resident[-1] - resident[1] < RSS_GROWTH_MAX
    assert proxy.stop() == 0
    assert "Traceback" not in proxy.log
    assert "WARNING" not in proxy.log.partition("keylane ready")[2]  # before: of the journal


@pytest.mark.long
def test_connections_beyond_the_bound_are_refused_and_let_in_later(kafka, keylane, topic) -> None:
    """Open connections stay; one too many is closed without an answer, and logged."""
    bound = 60
    name = topic("orders", partitions=2)
    args = ["--set", f"connections_max={bound}"]
    proxy = keylane(f"{name}=4", args=args, environment={"KEYLANE_LOG": "info"})
    with Group(proxy.bootstrap, name, f"g-{name}", session_timeout_ms=45_000) as group:
        group.add("aiokafka", 2)
        group.wait_for_lanes(8)
        with BackgroundProducer(proxy.bootstrap, name) as producer:
            group.wait(lambda seen: len(seen.sightings) > 100, timeout_s=60, what="100 records")
            clients: list[socket.socket] = []
            let_in: list[socket.socket] = []
            for _ in range(2 * bound):
                clients.append(connect(proxy))
                if handshake(clients[-1]):
                    let_in.append(clients[-1])
            before = len(producer.values)
            group.wait_for_values(producer.values[:before])
            for client in clients:
                client.close()
            wait_until(lambda: metric(proxy, "keylane_sessions") < bound // 2)
            with connect(proxy) as later:
                assert handshake(later)
        group.wait_for_values(producer.values)

    assert group.seen.values() == dict.fromkeys(producer.values, 1)
    assert bound // 2 < len(let_in) < bound
    refused = f"connections are refused reason=connections_max {bound} is reached"
    wait_until(lambda: refused in proxy.log)  # which is logged once a second
    assert proxy.stop() == 0
    assert "Traceback" not in proxy.log


IDLE_S = 2.0


def test_idle_connections_end(keylane) -> None:
    """With and without a request before; one that asks now and then stays."""
    proxy = keylane("orders=4", args=["--set", f"idle_timeout_s={IDLE_S}"])
    busy = Asker(proxy)
    idle = []
    for number in range(40):
        idle.append(Asker(proxy))
        if number % 2 == 0:
            idle[-1].ask()
        busy.ask()

    for each in idle:
        while not is_readable(each.client, 0.1):
            busy.ask()
        assert each.client.recv(1) == b""
        each.client.close()

    busy.ask()
    busy.client.close()


class Asker:
    """A connection that may be closed only if this process was held up for the whole time-out."""

    def __init__(self, proxy: KeylaneProcess) -> None:
        self._proxy, self._spoke_s = proxy, time.monotonic()
        self.client = connect(proxy)

    def ask(self) -> None:
        """Send a request and take the answer; over a new connection if the old one was silent."""
        silent_since_s, self._spoke_s = self._spoke_s, time.monotonic()
        if not handshake(self.client):
            assert time.monotonic() - silent_since_s >= IDLE_S, "it was not idle"
            self.client.close()
            self._spoke_s = time.monotonic()
            self.client = connect(self._proxy)


@pytest.mark.long
@on_linux
def test_clients_that_do_not_read_hold_up_no_other(kafka, keylane, topic) -> None:
    """Memory stays within the bounds; a client that reads nothing is closed, a slow one is not.

    Each of them asks for all that there is, several times. Others go on meanwhile.
    """
    name, other = topic("large", partitions=2), topic("orders", partitions=2)
    fill(kafka, name)
    proxy = keylane(f"{name}=4", f"{other}=4", args=SLOW_ARGS, environment={"KEYLANE_LOG": "info"})
    with Group(proxy.bootstrap, other, f"g-{other}", session_timeout_ms=45_000) as group:
        group.add("aiokafka")
        group.add("confluent")
        group.wait_for_lanes(8)
        with BackgroundProducer(proxy.bootstrap, other) as producer:
            group.wait(lambda seen: len(seen.sightings) > 100, timeout_s=60, what="100 records")
            before = resident_bytes(proxy)
            stuck = [connect(proxy, receive_bytes=4096) for _ in range(SLOW_CLIENTS)]
            with Sippers(proxy, name, SLOW_CLIENTS) as sippers:
                for client in stuck:
                    ask_for_all(client, name)
                proxy.wait_for_log(STUCK, count=len(stuck))
                peak = peak_resident_bytes(proxy)
                assert sippers.closed_count == 0
                assert sippers.byte_count > 0
            for client in stuck:
                client.close()
        group.wait_for_values(producer.values)

    assert group.seen.values() == dict.fromkeys(producer.values, 1)
    print(f"peak above {(peak - before) >> 20} MiB")
    assert peak - before < SLOW_BYTES_MAX
    assert proxy.stop() == 0
    assert len([line for line in proxy.log.splitlines() if STUCK in line]) == len(stuck)
    assert "Traceback" not in proxy.log


SLOW_CLIENTS = 20
STUCK = "client has not read responses for"
SLOW_ARGS = ["--set", "unread_timeout_s=8", "--set", "fetch_answer_bytes_max=1048576"]
SLOW_ARGS += ["--set", "cache_bytes_max=16777216", "--set", "filtering_bytes_max=16777216"]
SLOW_ARGS += ["--set", "buffered_bytes_max=67108864"]
SLOW_BYTES_MAX = (16 + 16 + 64) * 1024**2
"""The three bounds together; 20 MiB were seen."""


def connect(proxy: KeylaneProcess, *, receive_bytes: int | None = None) -> socket.socket:
    """Connect; receive_bytes: size of the system's buffer for bytes that are not read."""
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(60)
    client.connect(split_address(proxy.bootstrap))
    return client


def handshake(client: socket.socket) -> bool:
    """Ask for ApiVersions; False: it is closed."""
    try:
        client.sendall(API_VERSIONS_REQUEST)
        head = take(client, 4)
        return len(head) == 4 and bool(take(client, struct.unpack(">i", head)[0]))
    except ConnectionError:
        return False


def take(client: socket.socket, count: int) -> bytes:
    """Receive `count` bytes, or less at the end.

    MSG_WAITALL does not wait on a socket with a time-out.
    """
    data = b""
    while len(data) < count and (part := client.recv(count - len(data))):
        data += part
    return data


def is_readable(client: socket.socket, wait_s: float) -> bool:
    """Return whether bytes or an end have come, or come within a moment."""
    return bool(select.select([client], [], [], wait_s)[0])


def fill(bootstrap: str, topic: str) -> None:
    """32 MiB of records that do not compress, over both partitions."""
    producer, noise = Producer({"bootstrap.servers": bootstrap}), random.Random(7)
    for number in range(320):
        producer.produce(topic, noise.randbytes(100_000), key=str(number))
        producer.poll(0)
    assert producer.flush(60) == 0


def ask_for_all(client: socket.socket, topic: str) -> None:
    """Ten fetches of all lanes, each for as much as there is."""
    lanes = tuple(FetchPartition(lane, -1, 0, -1, -1, 1 << 26) for lane in range(8))
    request = FetchRequest(
        version=12,
        max_wait_ms=500,
        min_bytes=1 << 20,
        max_bytes=1 << 26,
        isolation_level=0,
        topics=(FetchTopic(name=topic, topic_id=None, partitions=lanes),),
    )
    client.sendall(bytes(write_request(1, 12, 9, "slow", write_fetch_request(request))) * 10)


def peak_resident_bytes(proxy: KeylaneProcess) -> int:
    """The most that was ever resident."""
    text = Path(f"/proc/{proxy.pid}/status").read_text()
    return int(re.findall(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE)[0]) * 1024


class Sippers:
    """Clients that ask for all and take a few bytes at a time, as long as they are open."""

    def __init__(self, proxy: KeylaneProcess, topic: str, count: int) -> None:
        self.byte_count = self.closed_count = 0
        self._clients = [connect(proxy, receive_bytes=4096) for _ in range(count)]
        for client in self._clients:
            ask_for_all(client, topic)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        for client in self._clients:
            client.close()

    def _run(self) -> None:
        while not self._stopping.wait(0.05):  # slow is what they are
            for client in select.select(self._clients, [], [], 0)[0]:
                sip = self._sip(client)
                self.byte_count += sip
                self.closed_count += not sip

    def _sip(self, client: socket.socket) -> int:
        try:
            return len(client.recv(512))
        except ConnectionError:
            return 0
