"""Groups, topics and lane names that come and go: their remains in memory and on disk.

`python -m tests.long.growth --groups 10000 --topics 1000 --names 1000`: prints what a node holds
before, at most, and when Kafka has forgotten them all; how long a start takes, also once Kafka has
compacted the journal; and a verdict. Exit code 1 when something of them is left, or memory stays
high or grows with each wave.
"""

from __future__ import annotations

import argparse
import re
import socket
import struct
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewTopic
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12.request import MetadataRequest, MetadataRequestTopic
from kio.schema.offset_commit.v8.request import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from keylane.config.node import split_address
from keylane.embedded import EmbeddedKafka
from keylane.offsets.records.journal import TOPIC_NAME, read_key
from keylane.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from keylane.wire.header import response_body_position, write_request
from keylane.wire.messages import read_response, write_message
from tests.integration.keylane_process import KeylaneProcess
from tests.long.watch import descriptor_count, resident_mib

BASE: Final = "growth-base"
FETCH: Final = 1
FETCH_VERSION: Final = 12
LANES: Final = (f"{BASE}=2", "growth-*=2")
STAYING: Final = 400
"""Groups that stay: so many that each journal partition has some of them."""
COMING: Final = (14, 15, 16)
"""The coordinator loads, is not there yet, or is another: a new broker makes its topic first."""
WAIT_S: Final = 900.0
BATCH: Final = 100
GIVE_BACK_S: Final = 15.0
"""Rounds of forgetting follow each other each few seconds here, and give back what is free."""
RSS_FACTOR: Final = 1.6
"""Of the memory before: 1.4 were measured. What is added are arenas of CPython that are nearly
empty, and what its caches hold."""
RSS_FACTOR_AT_ONCE: Final = 2.2
"""The same where all lane names are read at once: 2.0 were measured. Half a million lanes with an
object or more each took 3.4."""
COMPACTED_FACTOR: Final = 5
"""Factor of the living records that a start may read, once Kafka has compacted the journal."""
WAVE_FACTOR: Final = 1.1
"""Of the memory after the first wave: what is kept is used again by the next. And of the memory
before, for a process that is started when all is over."""
FORGET_S: Final = 5
SOON: Final = (f"forget_interval_s={FORGET_S}",)
"""Looks follow each other in seconds."""
AT_ONCE: Final = ("lane_names_per_principal_max=2000", "lane_name_lanes_max=2000000")
"""Settings with which all lane names may be read at the same moment."""
NO_ROOM: Final = int(ErrorCode.topic_authorization_failed)
"""Error of a lane name beyond those that one principal may read at once."""


class Talk:
    """One plain connection; requests are sent ahead of their answers."""

    def __init__(self, bootstrap: str) -> None:
        self._socket = socket.create_connection(split_address(bootstrap), timeout=WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask_all(self, entities: Sequence[Any]) -> list[Any]:
        """Send all, then read all answers."""
        for entity in entities:
            self._send(int(entity.__api_key__), int(entity.__version__), write_message(entity))
        return [
            read_response(key, version, self._receive(key, version))
            for key, version in ((int(e.__api_key__), int(e.__version__)) for e in entities)
        ]

    def fetch(self, names: Iterable[str], *, wait_ms: int = 500) -> dict[str, int]:
        """The error code of lane 0 of each name, read from its beginning."""
        entry = FetchPartition(0, -1, 0, -1, -1, 1)
        topics = tuple(FetchTopic(name=name, topic_id=None, partitions=(entry,)) for name in names)
        request = FetchRequest(
            version=FETCH_VERSION,
            max_wait_ms=wait_ms,
            min_bytes=1 << 20,
            max_bytes=1 << 20,
            isolation_level=0,
            topics=topics,
        )
        self._send(FETCH, FETCH_VERSION, write_fetch_request(request))
        answer = read_fetch_response(self._receive(FETCH, FETCH_VERSION), 0, FETCH_VERSION)
        return {str(topic.name): topic.partitions[0].error_code for topic in answer.topics}

    def _send(self, api_key: int, version: int, body: bytes) -> None:
        self._socket.sendall(write_request(api_key, version, 5, "growth", body))

    def _receive(self, api_key: int, version: int) -> memoryview:
        size = struct.unpack(">i", self._read(4))[0]
        return memoryview(self._read(size))[response_body_position(api_key, version) :]

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._socket.recv(count)
            if not part:
                raise ConnectionError("closed")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Held:
    """Things that a node holds."""

    rss_mib: float
    descriptors: int
    states: int
    readers: int
    topics: int
    journal: int
    """Records that compaction leaves."""
    start_s: float = 0.0

    @property
    def counts(self) -> tuple[int, ...]:
        """Return the counts that must be as before: all but memory, descriptors and time."""
        return self.states, self.readers, self.topics, self.journal

    def line(self) -> str:
        """Return a line for people."""
        start = f" start {self.start_s:.1f} s" if self.start_s else ""
        return (
            f"{self.rss_mib:.0f} MiB, {self.descriptors} descriptors, {self.states} states, "
            f"{self.readers} readers, {self.topics} topics, {self.journal} journal records{start}"
        )


@dataclass(slots=True)
class Growth:
    """A broker, a keylane, and many of everything."""

    kafka: str
    proxy: KeylaneProcess
    group_count: int
    topic_count: int
    name_count: int
    tag: str = "growth"

    @property
    def topics(self) -> list[str]:
        """Their names."""
        return [f"{self.tag}-t{number}" for number in range(self.topic_count)]

    @property
    def groups(self) -> list[str]:
        """Their names."""
        return [f"{self.tag}-g{number}" for number in range(self.group_count)]

    def make_base(self) -> None:
        """The topic that stays, with some records."""
        make_topics(self.kafka, [BASE])
        produce(self.kafka, [BASE], 100)

    def stay(self, offset: int) -> None:
        """Have the groups that stay commit, which writes to each journal partition."""
        commits = [commit_of(f"{BASE}-stays-{number}", BASE, offset) for number in range(STAYING)]
        with Talk(f"127.0.0.1:{self.proxy.listen_port + 2}") as talk:
            for part in chunks(commits):
                commit_all(talk, part)

    def compact(self) -> int:
        """Have Kafka compact the journal, as it does within some days; the records it has then.

        A segment ends with a record that comes late enough, and tombstones go when a segment is
        cleaned once more.
        """
        soon = {"segment.ms": "1000", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in soon.items()
        ]
        journal = ConfigResource(ConfigResource.Type.TOPIC, TOPIC_NAME, incremental_configs=entries)
        admin = AdminClient({"bootstrap.servers": self.kafka})
        for future in admin.incremental_alter_configs([journal]).values():
            future.result()
        deadline_s = time.monotonic() + WAIT_S
        offset = 1
        while True:
            offset += 1
            self.stay(offset)
            count, live = read_journal(self.kafka)
            if count <= COMPACTED_FACTOR * len(live) or time.monotonic() > deadline_s:
                return count
            time.sleep(5)  # the cleaner looks each 15 s

    def look(self, start_s: float = 0.0) -> Held:
        """Return the things that the node holds now."""
        metrics = read_metrics(self.proxy.control)
        return Held(
            rss_mib=resident_mib(self.proxy.pid),
            descriptors=descriptor_count(self.proxy.pid),
            states=int(metrics["keylane_offset_states"]),
            readers=int(metrics["keylane_readers"]),
            topics=int(metrics["keylane_topics"]),
            journal=len(read_journal(self.kafka)[1]),
            start_s=start_s,
        )

    def timed_restart(self) -> float:
        """Seconds until it serves."""
        self.proxy.stop()
        began_s = time.monotonic()
        self.proxy.start()
        start_s = time.monotonic() - began_s
        while not read_metrics(self.proxy.control)["keylane_topics"]:
            time.sleep(0.1)  # the gauges are brought up to date once a second
        return start_s

    def grow(self) -> Held:
        """Make everything and use it once; what is held then."""
        for part in chunks(self.topics):
            make_topics(self.kafka, part)
        produce(self.kafka, self.topics, 2)
        with Talk(self.proxy.bootstrap) as talk:
            for part in chunks(self.topics):
                until_known(talk, part)
        with Talk(f"127.0.0.1:{self.proxy.listen_port + 2}") as talk:
            for part in chunks(self.topics):
                expect(talk.fetch(part))
            names = [f"{BASE}.lanes-{1 + number}" for number in range(self.name_count)]
            for part in chunks(names):
                fetch_in_turns(talk, part)
            places = [*self.topics, BASE]
            commits = [
                commit_of(group, places[number % len(places)], 1)
                for number, group in enumerate(self.groups)
            ]
            for part in chunks(commits):
                commit_all(talk, part)
            return self.look()

    def drop(self) -> None:
        """Have Kafka forget all of it."""
        admin = AdminClient({"bootstrap.servers": self.kafka})
        for part in chunks(self.groups):
            for future in admin.delete_consumer_groups(part, request_timeout=60).values():
                future.result()
        for part in chunks(self.topics):
            for future in admin.delete_topics(part, operation_timeout=60).values():
                future.result()

    def wait_until(self, is_forgotten: Callable[[Held], bool], *, wait_s: float = WAIT_S) -> Held:
        """Wait until nothing of it is held; what is held then, or when the time is over."""
        deadline_s = time.monotonic() + wait_s
        while True:
            now = self.look()
            if is_forgotten(now) or time.monotonic() > deadline_s:
                return now
            time.sleep(1)  # metrics have no event; the deadline bounds it


def commit_of(group: str, topic: str, offset: int) -> OffsetCommitRequest:
    """Return a commit of lane 0 by no member."""
    entry = OffsetCommitRequestPartition(
        partition_index=i32(0),
        committed_offset=i64(offset),
        committed_leader_epoch=i32(-1),
        committed_metadata="",
    )
    return OffsetCommitRequest(
        group_id=GroupId(group),
        generation_id_or_member_epoch=i32(-1),
        member_id="",
        group_instance_id=None,
        topics=(OffsetCommitRequestTopic(name=TopicName(topic), partitions=(entry,)),),
    )


def commit_all(talk: Talk, commits: Sequence[OffsetCommitRequest]) -> None:
    """Commit, once more what comes before the broker is ready for it, as clients do."""
    deadline_s = time.monotonic() + WAIT_S
    left = list(commits)
    while left:
        answers = talk.ask_all(left)
        codes = [int(answer.topics[0].partitions[0].error_code) for answer in answers]
        assert {*codes} <= {0, *COMING}, codes
        assert time.monotonic() < deadline_s, "the coordinator does not come"
        left = [commit for commit, code in zip(left, codes, strict=True) if code]
        time.sleep(0.1 if left else 0)  # as a client's retry.backoff.ms


def until_known(talk: Talk, names: Sequence[str]) -> None:
    """Wait until the broker knows topics that were made just now."""
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    deadline_s = time.monotonic() + WAIT_S
    while any(topic.error_code for topic in talk.ask_all([request])[0].topics):
        assert time.monotonic() < deadline_s, "topics stay unknown"
        time.sleep(0.1)  # as a client's retry.backoff.ms


def make_topics(kafka: str, names: Sequence[str]) -> None:
    """Create topics with one partition each."""
    admin = AdminClient({"bootstrap.servers": kafka})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result()


def produce(kafka: str, topics: Sequence[str], count: int) -> None:
    """Some records to each."""
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 50})
    for topic in topics:
        for number in range(count):
            producer.produce(topic, key=f"k{number}", value=b"v" * 100)
        producer.poll(0)
    assert producer.flush(60) == 0


def read_journal(kafka: str) -> tuple[int, set[bytes | None]]:
    """How many records it has; keys that have a value: what compaction leaves, but for fences."""
    settings = {"group.id": "none", "enable.partition.eof": True, "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": kafka, **settings})
    found = consumer.list_topics(TOPIC_NAME, timeout=30).topics[TOPIC_NAME].partitions
    consumer.assign([TopicPartition(TOPIC_NAME, number, OFFSET_BEGINNING) for number in found])
    live: set[bytes | None] = set()
    ended: set[int | None] = set()
    count = 0
    while len(ended) < len(found):
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                ended.add(message.partition())
                continue
            count += 1
            if message.value() is None:
                live.discard(message.key())
            elif read_key(message.key() or b"") is not None:
                live.add(message.key())
    consumer.close()
    return count, live


def read_metrics(control: str) -> dict[str, float]:
    """Those without labels, by name."""
    with urllib.request.urlopen(f"http://{control}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}


def fetch_in_turns(talk: Talk, names: Sequence[str]) -> None:
    """Fetch each name once, again where there was no room: those that were read first give way."""
    deadline_s = time.monotonic() + WAIT_S
    left = list(names)
    while left:
        codes = talk.fetch(left)
        left = [name for name in left if codes[name] == NO_ROOM]
        expect({name: code for name, code in codes.items() if code != NO_ROOM})
        assert time.monotonic() < deadline_s, f"{len(left)} lane names get no room"


def expect(codes: dict[str, int]) -> None:
    """Expect no error in the answers."""
    refused = {name: code for name, code in codes.items() if code}
    assert not refused, refused


def chunks(items: list[Any]) -> list[list[Any]]:
    """Return the items in parts of BATCH."""
    return [items[start : start + BATCH] for start in range(0, len(items), BATCH)]


def show(what: str, held: Held, more: str = "") -> Held:
    """Print a line of the report."""
    print(f"{what:<20}", held.line(), more, flush=True)
    return held


def run_waves(growth: Growth, wave_count: int, rss_factor: float) -> list[str]:
    """Waves, then one that the node starts in the middle of. What is wrong afterwards."""
    faults: list[str] = []
    growth.stay(1)
    before = show("before", growth.look(growth.timed_restart()))
    rss_mib: list[float] = []
    for wave in range(1, wave_count + 2):
        growth.tag = f"growth-{wave}"
        show(f"wave {wave}, at most", growth.grow())
        if wave > wave_count:
            show("started with it", growth.look(growth.timed_restart()))
        growth.drop()
        dropped_s = time.monotonic()
        growth.wait_until(lambda held: held.counts == before.counts)
        # What is free goes back behind the last of it.
        after = growth.wait_until(
            lambda held: held.rss_mib <= before.rss_mib * rss_factor, wait_s=GIVE_BACK_S
        )
        took = f"after {time.monotonic() - dropped_s:.0f} s"
        show(f"wave {wave}, forgotten", after, took)
        rss_mib.append(after.rss_mib)
        if after.counts != before.counts:
            faults.append(f"wave {wave} has left {after.counts}, before it was {before.counts}")
    show("started without", growth.look(growth.timed_restart()))
    count = growth.compact()
    last = show("compacted", growth.look(growth.timed_restart()), f"of {count} records")
    if last.counts != before.counts or count > COMPACTED_FACTOR * last.journal:
        faults.append(f"{count} records are left in the journal, {last.journal} of them live")
    if last.rss_mib > before.rss_mib * WAVE_FACTOR:
        faults.append(f"a start took {before.rss_mib:.0f} MiB, and takes {last.rss_mib:.0f}")
    if max(rss_mib) > before.rss_mib * rss_factor:
        faults.append(f"memory of {before.rss_mib:.0f} MiB has become {max(rss_mib):.0f}")
    if max(rss_mib[:wave_count]) > rss_mib[0] * WAVE_FACTOR:
        faults.append(f"memory grows with each wave: {[round(each) for each in rss_mib]} MiB")
    return faults


def main() -> int:
    """Run it at the size that was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--groups", type=int, default=10_000)
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--names", type=int, default=1_000)
    parser.add_argument("--waves", type=int, default=3, help="one after the other in a process")
    parser.add_argument(
        "--names-at-once", action="store_true", help="beyond the bounds that keylane has by default"
    )
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="keylane-growth-"))
    with EmbeddedKafka(folder / "kafka", properties={"log.retention.ms": "-1"}) as kafka:
        settings = SOON + (AT_ONCE if args.names_at_once else ())
        sets = [part for setting in settings for part in ("--set", setting)]
        proxy = KeylaneProcess(kafka.bootstrap, LANES, log_path=folder / "keylane.log", args=sets)
        growth = Growth(kafka.bootstrap, proxy, args.groups, args.topics, args.names)
        growth.make_base()
        try:
            proxy.start()
            factor = RSS_FACTOR_AT_ONCE if args.names_at_once else RSS_FACTOR
            faults = run_waves(growth, args.waves, factor)
        finally:
            proxy.stop()
    print("\n".join(["SOMETHING IS LEFT", *faults] if faults else ["nothing of them is left"]))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
