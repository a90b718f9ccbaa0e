"""Chaos at the brokers: kills, hangs, stale leaders, lost disks and records.

In:    a running cluster of three.  Out: the same cluster, which has lost what was asked for.
All waits are bounded.
Source: Kafka's record batch v2 (KIP-98); checkpoint files of kafka.server.checkpoints.
"""

from __future__ import annotations

import random
import shutil
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic
from kio.schema.metadata.v12.request import MetadataRequest

from keylane.embedded import EmbeddedKafka
from keylane.wire.header import response_body_position, write_request
from keylane.wire.messages import read_response, write_message
from tests.integration.nodes import Brokers

POLL_S: Final = 0.2
WAIT_S: Final = 45.0
ASK_S: Final = 3.0
ENDS_TRIES: Final = 50
METADATA, METADATA_VERSION = 3, 12
LENGTH_END: Final = 12
"""Byte from which a batch's length, at byte 8, counts."""
KEPT: Final = ("meta.properties", "bootstrap.checkpoint", "__cluster_metadata-0")
"""Files that a broker keeps when its disk is lost: it is a voter of the controllers' quorum."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Leader and replicas of a partition, by broker ids."""

    leader: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]


class ChaosCluster:
    """Three brokers, with ids 1 to 3 at places 0 to 2."""

    def __init__(self, kafka: EmbeddedKafka, chance: random.Random) -> None:
        self.kafka, self._chance = kafka, chance
        self.brokers = Brokers(kafka)
        self.admin = self._connect()
        self._pause = threading.Event()
        self._made: set[tuple[str, int]] = set()
        # Apart from other chance: the number of questions differs from run to run.
        self._chance_of_ask = random.Random(0)

    def create(self, name: str, partitions: int, replicas: int, **config: str) -> None:
        """Make a topic; `_` stands for dots in names of settings."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        wanted = NewTopic(name, partitions, replicas, config=settings)
        self.admin.create_topics([wanted], operation_timeout=30)[name].result(60)
        self._made |= {(name, number) for number in range(partitions)}

    def partitions(self) -> dict[tuple[str, int], Partition]:
        """Return all partitions of all topics, as a broker that answers knows them.

        Raises: AssertionError, none answers. A Kafka client would wait for one that hangs.
        """
        places = [0, 1, 2]
        self._chance_of_ask.shuffle(places)
        for place in places:
            node = self.kafka.nodes[place]
            if node.running and not self.brokers.is_hung(place):
                try:
                    found = ask_partitions(node.settings.port)
                except OSError:
                    continue
                if found.keys() >= self._made:  # else it has just started
                    return found
        raise AssertionError("no broker answers")

    def wait(
        self,
        condition: Callable[[Mapping[tuple[str, int], Partition]], bool],
        *,
        what: str,
        timeout_s: float = WAIT_S,
    ) -> None:
        """Ask until a condition holds. Raises: AssertionError."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                if condition(self.partitions()):
                    return
            except AssertionError:
                pass  # none at the moment
            assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
            self._pause.wait(POLL_S)  # Kafka has no event for it

    def wait_in_sync(self, *, timeout_s: float = WAIT_S) -> None:
        """Wait until each partition has all its replicas in sync. Raises: AssertionError."""
        self.wait(
            lambda found: all(
                each.leader > 0 and set(each.in_sync) == set(each.replicas)
                for each in found.values()
            ),
            what="all replicas in sync",
            timeout_s=timeout_s,
        )

    # -- events -----------------------------------------------------------------------------

    def elect_stale(self, topic: str) -> str:
        """Let a replica lead that misses acknowledged records; what was done, in words.

        One of two is hung until it is no longer in sync; the other goes on alone and is killed.
        """
        found = [place for place in self.partitions() if place[0] == topic]
        place = self._chance.choice(found)
        here = self.partitions()[place]
        stale = next(each for each in here.replicas if each != here.leader)
        self.brokers.pause(stale - 1)
        try:
            self.wait(lambda all_: all_[place].in_sync == (here.leader,), what=f"{place}: one left")
            self._pause.wait(self._chance.uniform(0.5, 1.5))  # so much is lost
            self.brokers[here.leader - 1].kill()
        finally:
            self.brokers.resume(stale - 1)
        self.wait(lambda all_: all_[place].leader == stale, what=f"{place}: the stale one leads")
        self._pause.wait(self._chance.uniform(0.2, 2.0))
        self.kafka.start()
        return f"{place} of {here.leader} to {stale}"

    def lose_replica(self, topic: str) -> str:
        """A broker finds the folder of a partition gone when it starts; what was done."""
        place = self._chance.choice([place for place in self.partitions() if place[0] == topic])
        broker = self._chance.choice(self.partitions()[place].replicas)
        self._stop(broker)
        shutil.rmtree(self._folder(broker, *place))
        self.kafka.start()
        return f"{place} at {broker}"

    def lose_disk(self) -> str:
        """A broker finds all partitions gone when it starts; what was done."""
        broker = self._chance.randrange(1, 4)
        hosts_alone = {
            place for place, each in self.partitions().items() if each.replicas == (broker,)
        }
        self._stop(broker)
        kept = {self._folder(broker, *place).name for place in hosts_alone}
        for path in self.kafka.nodes[broker - 1].settings.data_path.iterdir():
            if path.name in KEPT or path.name in kept:
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.kafka.start()
        return f"broker {broker}"

    def cut_log(self, topic: str, partition: int) -> str:
        """Take the last batches of a partition with one replica; what was done."""
        broker = self.partitions()[topic, partition].leader
        self._stop(broker)
        folder = self._folder(broker, topic, partition)
        segment = max(folder.glob("*.log"))
        places = batch_places(segment.read_bytes())
        left = self._chance.randrange(len(places) // 2, len(places)) if places else 0
        end, offset = places[left] if places else (0, int(segment.stem))
        with open(segment, "r+b") as file:
            file.truncate(end)
        for path in folder.iterdir():
            is_index = path.suffix in {".index", ".timeindex", ".txnindex"}
            is_later = path.suffix == ".snapshot" and int(path.stem) > offset
            if (is_index and path.stem == segment.stem) or is_later:
                path.unlink()
        data = folder.parent
        (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
        lower_checkpoint(data / "recovery-point-offset-checkpoint", topic, partition, offset)
        self.kafka.start()
        return f"{topic}-{partition} at {broker} from {offset} on"

    def expire(self, topic: str, *, timeout_s: float = 10.0) -> str:
        """Kafka's retention removes what the topic holds; what was done."""
        places = [place for place in self.partitions() if place[0] == topic]
        ends = self._ends(places, OffsetSpec.latest())
        self._set(topic, **{"retention.ms": "200", "segment.ms": "500"})
        deadline_s = time.monotonic() + timeout_s
        try:
            while any(
                start < ends[place]
                for place, start in self._ends(places, OffsetSpec.earliest()).items()
            ):
                assert time.monotonic() < deadline_s, f"{topic}: retention removes nothing"
                self._pause.wait(POLL_S)
        finally:
            self._set(topic, **{"retention.ms": "-1", "segment.ms": "604800000"})
        return f"{topic}: {ends}"

    def _ends(self, places: list[tuple[str, int]], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        """Raises: KafkaException, for want of newer metadata after some tries."""
        for left in range(ENDS_TRIES, -1, -1):
            asked = self.admin.list_offsets({TopicPartition(*place): spec for place in places})
            try:
                return {
                    (at.topic, at.partition): found.result(30).offset for at, found in asked.items()
                }
            except KafkaException:
                if not left:
                    raise
                self._pause.wait(POLL_S)
                # librdkafka keeps the leader epochs that a broker has refused.
                self.admin = self._connect()
        raise AssertionError("unreachable")

    def _connect(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.kafka.bootstrap, "log_level": 2})

    def _set(self, topic: str, **config: str) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in config.items()
        ]
        resource: Any = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(30)

    def _stop(self, broker: int) -> None:
        """Kill or stop it; what it does not lead afterwards is no reason to wait for others."""
        node = self.brokers[broker - 1]
        if self._chance.random() < 0.5:
            node.stop()
            return
        node.kill()
        # It must be known to be away: a replica in sync that comes back empty would be trusted.
        self.wait(
            lambda found: all(
                broker not in each.in_sync or len(each.replicas) == 1 for each in found.values()
            ),
            what=f"broker {broker} is out of sync",
        )

    def _folder(self, broker: int, topic: str, partition: int) -> Path:
        return self.kafka.nodes[broker - 1].settings.data_path / f"{topic}-{partition}"


def ask_partitions(port: int) -> dict[tuple[str, int], Partition]:
    """One broker's own metadata. Raises: OSError, it does not answer."""
    body = write_message(MetadataRequest(topics=None, include_topic_authorized_operations=False))
    with socket.create_connection(("127.0.0.1", port), timeout=ASK_S) as broker:
        broker.sendall(write_request(METADATA, METADATA_VERSION, 1, "chaos", body))
        with broker.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4).ljust(4, b"\0"))
            frame = stream.read(size)
    if len(frame) < size or size == 0:
        raise ConnectionResetError("closed before an answer")
    start = response_body_position(METADATA, METADATA_VERSION)
    answer = read_response(METADATA, METADATA_VERSION, memoryview(frame)[start:])
    return {
        (topic.name, each.partition_index): Partition(
            each.leader_id, tuple(each.replica_nodes), tuple(each.isr_nodes)
        )
        for topic in answer.topics
        for each in topic.partitions
    }


def batch_places(data: bytes) -> list[tuple[int, int]]:
    """(position, base offset) of each whole batch in a segment file."""
    found, place = [], 0
    while place + LENGTH_END <= len(data):
        offset, length = struct.unpack_from(">qi", data, place)
        if length <= 0 or place + LENGTH_END + length > len(data):
            break
        found.append((place, offset))
        place += LENGTH_END + length
    return found


def lower_checkpoint(path: Path, topic: str, partition: int, offset: int) -> None:
    """Let a checkpoint file say no more than `offset` of a partition."""
    if not path.exists():
        return
    lines = path.read_text().splitlines()
    for number, line in enumerate(lines):
        name, _, rest = line.partition(" ")
        if name == topic and rest.startswith(f"{partition} "):
            lines[number] = f"{topic} {partition} {min(offset, int(rest.split()[1]))}"
    path.write_text("\n".join(lines) + "\n")
