"""One broker of three hangs (SIGSTOP) for a while: what lanes and groups of the others notice.

In:    nothing; three real brokers, keylane, a steady load, clients with a socket each.
Out:   a table and `results/hung-broker.json`.
Shell: child processes, sockets, threads. The clients ask one thing at a time and note each wait.

A topic with one replica shows what the hung broker leads and nobody else can; one with three shows
the change of leaders. Both ways have the same clients: direct they read partitions, behind keylane
all lanes of a partition. The paces are of what the two other brokers lead from the start; a wait is
from a request to its answer, connection and all. Direct stands beside it in the same run.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from bench.end_to_end.drain import BATCH, MAX_BYTES, MAX_WAIT_MS, PARTITION_MAX_BYTES
from bench.end_to_end.stage import Spread, describe_run, read_metrics, save
from keylane.config import split_address
from keylane.embedded import EmbeddedKafka
from keylane.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from keylane.wire.header import ApiKey, response_body_position, write_request
from keylane.wire.messages import read_response, write_message
from tests.integration.keylane_process import KeylaneProcess

LANES: Final = 4
REPLICAS: Final = {"single": 1, "triple": 3}
PARTITIONS: Final = 6
GROUPS: Final = 6
FETCH_VERSION: Final = 12
PATIENCE_S: Final = 30.0
"""Kafka clients' `request.timeout.ms` default: then a client connects anew."""
RECORD_BYTES: Final = 1000
SETTLE_S: Final = 2.0
"""Around the stop and its end, in which nothing counts for a pace."""
Address = tuple[str, int]


@dataclass(slots=True)
class Book:
    """What all clients of one way have noted; times are time.monotonic's."""

    waits: list[tuple[str, float, float, bool]] = field(default_factory=list)
    """(kind, when it began, seconds, whether an answer came that the client can go on with)."""
    records: list[tuple[str, int, float, int]] = field(default_factory=list)
    """(topic, partition, when, how many)."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def wait(self, kind: str) -> Iterator[None]:
        """Note how long what is inside takes, and whether it raises."""
        began_s, is_good = time.monotonic(), False
        try:
            yield
            is_good = True
        finally:
            with self.lock:
                self.waits.append((kind, began_s, time.monotonic() - began_s, is_good))


class Refused(Exception):
    """An answer with an error that a client asks again upon."""


class Wire:
    """One connection."""

    def __init__(self, address: Address) -> None:
        self._socket = socket.create_connection(address, timeout=PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def close(self) -> None:
        """Close it."""
        self._socket.close()

    def ask(self, entity: Any) -> Any:
        """A kio request, and its answer."""
        api_key, version = int(entity.__api_key__), int(entity.__version__)
        return read_response(api_key, version, self.call(api_key, version, write_message(entity)))

    def call(self, api_key: int, version: int, body: bytes) -> memoryview:
        """A body, and the answer's."""
        self._socket.sendall(write_request(api_key, version, 1, "bench-hung", body))
        (size,) = struct.unpack(">i", self._read(4))
        return memoryview(self._read(size))[response_body_position(api_key, version) :]

    def _read(self, size: int) -> bytearray:
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("closed by the other side")
            data += piece
        return data


@dataclass(slots=True)
class Way:
    """Direct, or behind keylane: where clients begin, and what they call a topic."""

    name: str
    bootstrap: Sequence[Address]
    lanes: int
    """Per partition; 0 for partitions themselves."""
    book: Book = field(default_factory=Book)

    def shown(self, topic: str) -> str:
        """The name that clients use."""
        return f"{topic}.lanes-{self.lanes}" if self.lanes else topic

    def indexes(self, partition: int) -> list[int]:
        """What clients call a partition: it, or its lanes."""
        return [lane * PARTITIONS + partition for lane in range(max(1, self.lanes))]

    def begin(self, use: Callable[[Wire], Any]) -> Any:
        """Ask at the first bootstrap address that answers, as clients do, one after the other."""
        for address in self.bootstrap:
            with suppress(OSError):
                wire = Wire(address)
                try:
                    return use(wire)
                finally:
                    wire.close()
        raise ConnectionError("no bootstrap address answers")

    def leader(self, topic: str, partition: int) -> Address:
        """Where a partition, or its first lane, is led. Raises: Refused."""
        wanted = MetadataRequestTopic(topic_id=None, name=TopicName(self.shown(topic)))
        request = MetadataRequest(
            topics=(wanted,),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        answer = self.begin(lambda wire: wire.ask(request))
        places = {int(b.node_id): (str(b.host), int(b.port)) for b in answer.brokers}
        for entry in answer.topics[0].partitions:
            if int(entry.partition_index) == partition and int(entry.leader_id) in places:
                return places[int(entry.leader_id)]
        raise Refused(f"{topic}-{partition} has no leader")

    def coordinator(self, group: str) -> tuple[int, Address]:
        """Id and address of a group's coordinator. Raises: Refused."""
        answer = self.begin(lambda wire: wire.ask(FindCoordinatorRequest(key=group)))
        if answer.error_code:
            raise Refused(str(answer.error_code))
        return int(answer.node_id), (str(answer.host), int(answer.port))


class Client(threading.Thread):
    """Does its step again and again; connects anew after whatever fails."""

    def __init__(self, way: Way, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.way, self.over = way, over
        self.wire: Wire | None = None

    def run(self) -> None:
        """Until it is over."""
        while not self.over.is_set():
            try:
                self.step()
            except (OSError, Refused):
                self.leave()
                self.over.wait(0.2)
        self.leave()

    def leave(self) -> None:
        """Close the connection."""
        if self.wire is not None:
            self.wire.close()
            self.wire = None

    def step(self) -> None:
        """One request."""
        raise NotImplementedError


class Reader(Client):
    """Reads a partition, or all lanes of it, at the log end."""

    def __init__(self, way: Way, over: threading.Event, topic: str, partition: int) -> None:
        super().__init__(way, over)
        self.topic, self.partition = topic, partition
        self.positions = dict.fromkeys(way.indexes(partition), 0)

    def step(self) -> None:
        """One fetch."""
        kind = f"fetch {self.topic}-{self.partition}"
        if self.wire is None:
            with self.way.book.wait(f"open {self.topic}-{self.partition}"):
                self.wire = Wire(self.way.leader(self.topic, self.partition))
        with self.way.book.wait(kind):
            self._fetch(self.wire)

    def _fetch(self, wire: Wire) -> None:
        entries = tuple(
            FetchPartition(index, -1, offset, -1, -1, PARTITION_MAX_BYTES)
            for index, offset in self.positions.items()
        )
        request = FetchRequest(
            version=FETCH_VERSION,
            max_wait_ms=MAX_WAIT_MS,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=0,
            topics=(
                FetchTopic(name=self.way.shown(self.topic), topic_id=None, partitions=entries),
            ),
        )
        body = wire.call(ApiKey.FETCH, FETCH_VERSION, write_fetch_request(request))
        for topic in read_fetch_response(body, 0, FETCH_VERSION).topics:
            for answer in topic.partitions:
                if answer.error_code:
                    raise Refused(str(answer.error_code))
                self._take(answer.partition, b"".join(map(bytes, answer.records or ())))

    def _take(self, index: int, records: bytes) -> None:
        position = count = 0
        while position + BATCH.size <= len(records):
            base_offset, length, delta, record_count = BATCH.unpack_from(records, position)
            position += 12 + length
            if position > len(records):
                break
            self.positions[index] = base_offset + delta + 1
            count += record_count
        book = self.way.book
        with book.lock:
            book.records.append((self.topic, self.partition, time.monotonic(), count))


class Committer(Client):
    """Commits a partition, or its first lane, for a group of its own, twice a second."""

    def __init__(self, way: Way, over: threading.Event, group: str, partition: int) -> None:
        super().__init__(way, over)
        self.group, self.partition, self.offset = group, partition, 0
        self.first, _ = way.coordinator(group)

    def step(self) -> None:
        """One commit."""
        if self.wire is None:
            with self.way.book.wait(f"coordinator {self.first}"):
                self.wire = Wire(self.way.coordinator(self.group)[1])
        with self.way.book.wait(f"commit {self.first}"):
            self._commit(self.wire)
        self.over.wait(0.5)

    def _commit(self, wire: Wire) -> None:
        self.offset += 1
        entry = OffsetCommitRequestPartition(
            partition_index=i32(self.partition),
            committed_offset=i64(self.offset),
            committed_metadata="",
        )
        name = TopicName(self.way.shown("single"))
        topic = OffsetCommitRequestTopic(name=name, partitions=(entry,))
        request = OffsetCommitRequest(
            group_id=GroupId(self.group),
            generation_id_or_member_epoch=i32(-1),
            member_id="",
            topics=(topic,),
        )
        for topic_answer in wire.ask(request).topics:
            for answer in topic_answer.partitions:
                if answer.error_code:
                    raise Refused(answer.error_code.name)


class Newcomer(Client):
    """A client that starts, once a second: it knows the bootstrap addresses only."""

    def __init__(self, way: Way, over: threading.Event, partition: int) -> None:
        super().__init__(way, over)
        self.partition = partition

    def step(self) -> None:
        """Where is a partition led?"""
        with self.way.book.wait("start"):
            self.way.leader("single", self.partition)
        self.over.wait(1.0)


class Load(threading.Thread):
    """Writes records to the partitions of one leader, so many per second and partition."""

    def __init__(
        self, bootstrap: str, places: Sequence[tuple[str, int]], rate: int, over: threading.Event
    ) -> None:
        super().__init__(daemon=True)
        self._places, self._rate, self._over = places, rate, over
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "linger.ms": 5,
                "compression.type": "lz4",
                "acks": "1",
                "message.timeout.ms": 600_000,
                "socket.timeout.ms": 10_000,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        """Until it is over; what a hung broker does not take waits here, and comes later."""
        value, number, due_s = os.urandom(RECORD_BYTES // 2) * 2, 0, time.monotonic()
        while not self._over.is_set():
            for topic, partition in self._places:
                with suppress(BufferError):
                    self._producer.produce(topic, value, b"key-%d" % (number % 997), partition)
                number += 1
            self._producer.poll(0)
            due_s = max(due_s, time.monotonic() - 0.1) + 1 / self._rate  # no burst after a pause
            self._over.wait(max(0.0, due_s - time.monotonic()))
        self._producer.flush(10)


@dataclass(frozen=True, slots=True)
class Times:
    """Of a run, in time.monotonic's terms."""

    begin_s: float
    stop_s: float
    resume_s: float
    end_s: float

    def phase(self, at_s: float) -> str:
        """Before, during, after; "" around their limits."""
        for name, low, high in (
            ("before", self.begin_s, self.stop_s),
            ("during", self.stop_s + SETTLE_S, self.resume_s),
            ("after", self.resume_s + SETTLE_S, self.end_s),
        ):
            if low <= at_s < high:
                return name
        return ""


def main() -> int:
    """Measure and report."""
    options = parse_options()
    about = describe_run() | {"options": vars(options)}
    print(f"machine: {about}")
    rounds = [run_once(options) for _ in range(options.rounds)]
    table = report(rounds)
    print(save(options.name, about | {"table": table}))
    return 0


def parse_options() -> argparse.Namespace:
    """Read argv."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=30, help="records per second and partition")
    parser.add_argument("--before", type=float, default=15, help="seconds of load before the stop")
    parser.add_argument("--stopped", type=float, default=45, help="seconds")
    parser.add_argument("--after", type=float, default=30, help="seconds of load after it")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--heap-mb", type=int, default=384, help="of each broker")
    parser.add_argument("--name", default="hung-broker", help="of the result file")
    return parser.parse_args()


Row = dict[str, Any]


def run_once(options: argparse.Namespace) -> dict[str, Row]:
    """Both ways at once, on a cluster of their own."""
    import tempfile  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    with tempfile.TemporaryDirectory(prefix="keylane-bench-") as name:
        folder = Path(name)
        # As a broker has it, not the embedded one: how long a hung broker keeps what it leads.
        session = {"broker.session.timeout.ms": "9000", "broker.heartbeat.interval.ms": "2000"}
        with EmbeddedKafka(
            folder / "kafka", node_count=3, heap_mb=options.heap_mb, properties=session
        ) as kafka:
            keylane = KeylaneProcess(
                kafka.bootstrap, [], log_path=folder / "keylane.log",
                environment={"KEYLANE_LOG": "warning"},
            ).start()  # fmt: skip
            try:
                return measure(kafka, keylane, options)
            finally:
                keylane.stop()


def measure(
    kafka: EmbeddedKafka, keylane: KeylaneProcess, options: argparse.Namespace
) -> dict[str, Row]:
    """Load, stop the first broker of the list, let it go on."""
    leaders = make_topics(kafka)
    brokers = [split_address(part) for part in kafka.bootstrap.split(",")]
    ways = [Way("direct", brokers, 0), Way("keylane", [split_address(keylane.bootstrap)], LANES)]
    over = threading.Event()
    victim = kafka.nodes[0]
    hung = victim.settings.node_id
    threads: list[threading.Thread] = []
    by_leader: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for place, leader in leaders.items():
        by_leader[leader].append(place)
    threads += [Load(kafka.bootstrap, at, options.rate, over) for at in by_leader.values()]
    alive = [part for (topic, part), at in leaders.items() if topic == "single" and at != hung]
    for way in ways:
        threads += [Reader(way, over, *place) for place in leaders]
        threads += [
            Committer(way, over, f"{way.name}-{n}", alive[n % len(alive)]) for n in range(GROUPS)
        ]
        threads.append(Newcomer(way, over, alive[0]))
    for thread in threads:
        thread.start()
    time.sleep(15)  # until all read at the log end
    begin_s = time.monotonic()
    time.sleep(options.before)
    assert victim.pid is not None, "the broker runs"
    os.kill(victim.pid, signal.SIGSTOP)
    stop_s = time.monotonic()
    try:
        time.sleep(options.stopped)
    finally:
        os.kill(victim.pid, signal.SIGCONT)
    resume_s = time.monotonic()
    time.sleep(options.after)
    times = Times(begin_s, stop_s, resume_s, time.monotonic())
    over.set()
    for thread in threads:
        thread.join(PATIENCE_S + 15)
    metrics = read_metrics(f"http://{keylane.control}/metrics")
    rows = {way.name: evaluate(way.book, times, leaders, hung) for way in ways}
    rows["keylane"]["metrics"] = {
        name: metrics[name]
        for name in (
            "keylane_hedged_requests_total",
            "keylane_upstream_retries_total",
            "keylane_upstream_errors_total",
            "keylane_group_waits_refused_total",
        )
    }
    return rows


def make_topics(kafka: EmbeddedKafka) -> dict[tuple[str, int], int]:
    """Leader by topic and partition."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    topics = [NewTopic(name, PARTITIONS, count) for name, count in REPLICAS.items()]
    for future in admin.create_topics(topics).values():
        future.result(30)
    while True:
        described = admin.list_topics(timeout=30).topics
        leaders = {
            (name, number): partition.leader
            for name in REPLICAS
            if name in described
            for number, partition in described[name].partitions.items()
        }
        if len(leaders) == len(REPLICAS) * PARTITIONS and min(leaders.values()) > 0:
            return leaders
        time.sleep(0.2)


def evaluate(book: Book, times: Times, leaders: dict[tuple[str, int], int], hung: int) -> Row:
    """Paces and waits of one way."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    first_again: dict[str, float] = {}
    for topic, partition, at_s, count in book.records:
        side = "hung" if leaders[topic, partition] == hung else "others"
        counts[f"{topic} {side}", times.phase(at_s)] += count
        is_new_leader = topic == "triple" and side == "hung" and at_s > times.stop_s + SETTLE_S
        if is_new_leader and count:
            first_again.setdefault("at the new leaders", at_s - times.stop_s)
        if topic == "single" and side == "hung" and at_s > times.resume_s and count:
            first_again.setdefault("at the broker itself", at_s - times.resume_s)
    seconds = {
        "before": times.stop_s - times.begin_s,
        "during": times.resume_s - times.stop_s - SETTLE_S,
        "after": times.end_s - times.resume_s - SETTLE_S,
    }
    paces = {
        f"{what} {phase}": round(counts[what, phase] / seconds[phase], 1)
        for what in sorted({what for what, _ in counts})
        for phase in seconds
    }
    return {
        "records_per_s": paces,
        "ratio_of_others": {
            topic: round(paces[f"{topic} others during"] / paces[f"{topic} others before"], 3)
            for topic in REPLICAS
        },
        "reads_again_s": {what: round(value, 1) for what, value in first_again.items()},
        "waits": describe_waits(book, times, leaders, hung),
    }


def describe_waits(
    book: Book, times: Times, leaders: dict[tuple[str, int], int], hung: int
) -> dict[str, dict[str, float]]:
    """By kind: the longest wait of requests that were under way while the broker hung."""
    found: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for kind, began_s, wait_s, is_good in book.waits:
        if began_s + wait_s < times.stop_s or began_s > times.resume_s:
            continue
        what, _, which = kind.partition(" ")
        if which:
            topic, _, number = which.partition("-")
            at = leaders[topic, int(number)] if number else int(which)
            what = f"{what} {topic if number else ''} {'hung' if at == hung else 'others'}"
        found[" ".join(what.split())].append((wait_s, is_good))
    return {
        what: {
            "requests": len(waits),
            "longest_s": round(max(wait_s for wait_s, _ in waits), 2),
            "failed": sum(not is_good for _, is_good in waits),
        }
        for what, waits in sorted(found.items())
    }


def report(rounds: list[dict[str, Row]]) -> dict[str, Any]:
    """Print the table; return it for the result file."""
    table: dict[str, Any] = {}
    for way in rounds[0]:
        rows = [each[way] for each in rounds]
        print(f"\n{way}")
        ratios = {
            topic: Spread(tuple(row["ratio_of_others"][topic] for row in rows))
            for topic in REPLICAS
        }
        for topic, ratio in ratios.items():
            print(f"  pace of what others lead, during to before, {topic}: {ratio.text(3)}")
        for what in sorted({what for row in rows for what in row["reads_again_s"]}):
            again = [row["reads_again_s"].get(what) for row in rows]
            print(f"  read again {what} after s: {again}")
        for what in sorted({what for row in rows for what in row["waits"]}):
            waits = [row["waits"][what] for row in rows if what in row["waits"]]
            longest, failed = [w["longest_s"] for w in waits], [w["failed"] for w in waits]
            count = [w["requests"] for w in waits]
            print(f"  {what:24} requests {count} failed {failed} longest s {longest}")
        table[way] = {
            "ratio_of_others": {topic: ratio.as_json() for topic, ratio in ratios.items()},
            "rounds": rows,
        }
    return table


if __name__ == "__main__":
    started_s = time.monotonic()
    code = main()
    print(f"took {time.monotonic() - started_s:.0f} s")
    sys.exit(code)
