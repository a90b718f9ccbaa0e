"""A process stays within `memory_max`, whatever is written, sent or left unread; others go on."""

from __future__ import annotations

import re
import socket
import struct
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import Consumer, Producer, TopicPartition

from keylane.config.node import split_address
from keylane.wire.header import write_request
from tests.integration.bombs import (
    GZIP,
    LZ4,
    MIB,
    SNAPPY,
    ZSTD,
    make_batch,
    many_records,
    one_record,
    put,
)
from tests.integration.keylane_process import PATIENCE
from tests.integration.raw import RawClient
from tests.integration.test_load import metric, on_linux

if TYPE_CHECKING:
    from tests.integration.keylane_process import KeylaneProcess

pytestmark = on_linux

MEMORY_MAX: Final = 576 * MIB
LITTLE: Final = ["--set", f"memory_max={MEMORY_MAX}"]
LANES: Final = 2
BOMBS: Final[Sequence[Callable[[], bytes]]] = (
    lambda: make_batch(ZSTD, one_record(800 * MIB)),
    lambda: make_batch(ZSTD, one_record(800 * MIB), declares=sum(map(len, one_record(800 * MIB)))),
    lambda: make_batch(GZIP, one_record(300 * MIB)),
    lambda: make_batch(LZ4, one_record(300 * MIB)),
    lambda: make_batch(SNAPPY, one_record(200 * MIB)),
    lambda: make_batch(ZSTD, many_records(400_000, 1000), 400_000),
)
"""Makers of bombs, one for each partition."""
POLLS_S: Final = 3.0
REFUSED: Final = "batch refused: its lanes stop there"


def test_bombs_are_refused_once_and_hurt_no_others(kafka, keylane, topic) -> None:
    """Each by one read; others go on; what stands before a bomb comes, nothing after it."""
    name = topic("bombs", partitions=len(BOMBS), config={"max.message.bytes": str(64 * MIB)})
    calm = topic("calm", partitions=2)
    for partition, make in enumerate(BOMBS):
        produce(kafka, name, partition, "before")
        put(kafka, name, partition, make())
        produce(kafka, name, partition, "after")
    proxy = keylane(f"{name}={LANES}", f"{calm}={LANES}", args=LITTLE)
    with reading(proxy, name, len(BOMBS) * LANES) as reader, reading(proxy, calm, 4) as other:
        seen = reader.read_until(
            lambda: len(reader.seen) >= len(BOMBS) and proxy.log.count(REFUSED) >= len(BOMBS)
        )
        for partition in (0, 1):
            produce(kafka, calm, partition, "calm")
        others = other.read_until(lambda: len(other.seen) >= 2)
        read_bytes = metric(proxy, "keylane_upstream_bytes_total")
        end_s = time.monotonic() + POLLS_S
        reader.read_until(lambda: time.monotonic() > end_s)

        assert sorted(seen) == [b"before"] * len(BOMBS)
        assert sorted(others) == [b"calm"] * 2
        assert metric(proxy, "keylane_upstream_bytes_total") == read_bytes, "read once"
        assert is_alive(proxy)
    proxy.wait_for_log(REFUSED, count=len(BOMBS))
    assert proxy.log.count(REFUSED) == len(BOMBS)
    assert metric(proxy, "keylane_batches_refused_total") == len(BOMBS)
    assert "Traceback" not in proxy.log
    assert peak_bytes(proxy) < MEMORY_MAX


def test_room_for_a_batch_is_the_way_out(kafka, keylane, topic) -> None:
    """The same group goes on at the same offset once `batch_bytes_max` holds the batch."""
    name = topic("large", partitions=1)
    produce(kafka, name, 0, "before")
    put(kafka, name, 0, make_batch(ZSTD, one_record(40 * MIB)))
    produce(kafka, name, 0, "after")
    proxy = keylane(f"{name}={LANES}", args=LITTLE)
    with reading(proxy, name, LANES) as reader:
        assert reader.read_until(lambda: REFUSED in proxy.log) in ([], [b"before"])
    proxy.stop()

    roomy = keylane(f"{name}={LANES}", args=["--set", f"batch_bytes_max={64 * MIB}"])
    with reading(roomy, name, LANES) as reader:
        values = reader.read_until(lambda: len(reader.seen) >= 3)

    assert sorted(map(len, values)) == [len("after"), len("before"), 40 * MIB]
    assert REFUSED not in roomy.log


def test_requests_that_only_begin(kafka, keylane, topic) -> None:
    """A hundred connections with most of a large request each: the bound is not passed."""
    name = topic("plain")
    proxy = keylane(args=LITTLE)
    request_bytes = 8 * MIB
    with ExitStack() as open_sockets:
        clients = [open_sockets.enter_context(connect(proxy)) for _ in range(100)]
        for client in clients:
            send_all(client, struct.pack(">i", request_bytes) + bytes(request_bytes - 1024))
        producer = Producer({"bootstrap.servers": proxy.bootstrap})
        producer.produce(name, b"value")
        assert producer.flush(60) == 0, "others are served"
    proxy.wait_for_log("buffered_bytes_max")
    assert metric(proxy, "keylane_sessions_heavy_total") > 0
    assert metric(proxy, "keylane_buffered_bytes") <= metric(proxy, "keylane_buffered_bytes_max")
    assert peak_bytes(proxy) < MEMORY_MAX


def test_requests_before_a_login(stage) -> None:
    """A hundred connections without a login share a few MiB; a client that logs in is served."""
    topic, _ = stage.topic("before", 1)
    proxy = stage.start_keylane(stage.direct, f"memory_max={MEMORY_MAX}", "beside_others=true")
    request_bytes = 500 * 1024
    with ExitStack() as open_clients:
        clients = [
            open_clients.enter_context(RawClient(proxy.bootstrap, stage.ca)) for _ in range(100)
        ]
        for client in clients:
            send_all(client.socket, struct.pack(">i", request_bytes) + bytes(request_bytes - 1024))
        proxy.wait_for_log("connections without a login hold too much")
        with RawClient(proxy.bootstrap, stage.ca) as alice:
            alice.login(stage.login("PLAIN", "alice"))
            assert alice.topic_id(topic)
    used, bound = (
        stage.metric("keylane_login_bytes", proxy),
        stage.metric("keylane_login_bytes_max", proxy),
    )
    assert used <= bound < 16 * MIB
    assert peak_bytes(proxy) < MEMORY_MAX
    proxy.stop()


def test_answers_that_wait_for_more_or_for_their_reader(kafka, keylane, topic) -> None:
    """Clients that want more than there is, for minutes, and clients that read nothing."""
    name = topic("waiting", partitions=2)
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(400):
        producer.produce(name, number.to_bytes(2, "big") * 50_000, key=str(number))
        producer.poll(0)
    assert producer.flush(60) == 0
    proxy = keylane(f"{name}={LANES}", args=LITTLE)
    with ExitStack() as open_sockets:
        for _ in range(100):
            client = open_sockets.enter_context(connect(proxy, receive_bytes=4096))
            ask_for_more(client, name)
        with reading(proxy, name, 2 * LANES) as reader:
            reader.read_until(lambda: len(reader.seen) >= 400)
            assert is_alive(proxy)
    assert peak_bytes(proxy) < MEMORY_MAX


def test_large_plain_requests_pass(kafka, keylane, topic) -> None:
    """Sixty times six MiB, ten at a time, and back: all of it arrives once, within the bound.

    More is sent at once than there is room for: connections are closed, and producers send again
    as they do after any connection that broke. Idempotent ones write nothing twice.
    """
    name = topic("blobs", config={"max.message.bytes": str(16 * MIB)})
    proxy = keylane(args=LITTLE)
    options = {
        "bootstrap.servers": proxy.bootstrap,
        "message.max.bytes": 16 * MIB,
        "enable.idempotence": True,
    }
    producers = [Producer(options) for _ in range(10)]
    for number in range(60):
        producers[number % 10].produce(name, bytes([number]) * (6 * MIB))
    for producer in producers:
        assert producer.flush(100 * PATIENCE) == 0
    with reading(proxy, name, 1) as reader:
        values = reader.read_until(lambda: len(reader.seen) >= 60)
    assert sorted(value[0] for value in values) == list(range(60))
    assert peak_bytes(proxy) < MEMORY_MAX


class Reader:
    """A stock consumer of all partitions that a topic shows, from their beginning."""

    def __init__(self, proxy: KeylaneProcess, topic: str, partitions: int) -> None:
        self.seen: list[bytes] = []
        self.errors: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": proxy.bootstrap,
                "group.id": f"g-{topic}",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 200,
                "error_cb": lambda error: self.errors.append(str(error)),
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read_until(self, is_done: Callable[[], bool], *, timeout_s: float = 90.0) -> list[bytes]:
        """Poll until it is so; all values that were seen."""
        deadline_s = time.monotonic() + timeout_s * PATIENCE
        while not is_done():
            assert time.monotonic() < deadline_s, f"seen {len(self.seen)}, errors {self.errors}"
            message = self._consumer.poll(0.2)
            if message is None:
                continue
            if message.error():
                self.errors.append(str(message.error()))
            else:
                self.seen.append(message.value() or b"")
        return self.seen


def reading(proxy: KeylaneProcess, topic: str, partitions: int) -> Reader:
    """A reader, closed at the end."""
    return Reader(proxy, topic, partitions)


def produce(bootstrap: str, topic: str, partition: int, value: str) -> None:
    """One record, acknowledged."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, value, key="k", partition=partition)
    assert producer.flush(60) == 0


def connect(proxy: KeylaneProcess, *, receive_bytes: int | None = None) -> socket.socket:
    """A connection; receive_bytes: what the system takes while it is not read."""
    client = socket.socket()
    if receive_bytes is not None:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.settimeout(60)
    client.connect(split_address(proxy.bootstrap))
    return client


def send_all(client: socket.socket, data: bytes) -> None:
    """Send, as far as the other side lets it."""
    try:
        client.sendall(data)
    except OSError:
        return  # closed for what it holds


def ask_for_more(client: socket.socket, topic: str) -> None:
    """A fetch of all lanes that waits two minutes for 7 MiB."""
    entries = b"".join(struct.pack(">iiqqi", lane, -1, 0, -1, 1 << 26) for lane in range(2 * LANES))
    body = struct.pack(">iiiibiii", -1, 120_000, 7 * MIB, 1 << 26, 0, 0, -1, 1)
    body += struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">i", 2 * LANES) + entries
    body += struct.pack(">ih", 0, 0)
    client.sendall(bytes(write_request(1, 11, 9, "waits", body)))


def is_alive(proxy: KeylaneProcess) -> bool:
    """Return whether /livez answers."""
    with urllib.request.urlopen(f"http://{proxy.control}/livez", timeout=30) as answer:
        return bool(answer.status == 200)


def peak_bytes(proxy: KeylaneProcess) -> int:
    """The most that was ever resident."""
    text = Path(f"/proc/{proxy.pid}/status").read_text()
    peak = int(re.findall(r"^VmHWM:\s+(\d+) kB$", text, re.MULTILINE)[0]) * 1024
    print(f"peak {peak >> 20} MiB of {MEMORY_MAX >> 20}")
    return peak
