"""Offsets of running groups on lane names outlive `offsets.retention.minutes` of their broker."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from kio.index import load_request_schema

from keylane.config.node import split_address
from keylane.embedded import EmbeddedKafka
from keylane.wire.header import response_body_position, write_request
from keylane.wire.messages import read_response, write_message
from tests.integration.conftest import make_topic_factory
from tests.integration.harness import Group, produce
from tests.integration.test_group_handover import log_ends, stable_offsets
from tests.transcript.consumer_protocol import assignment, subscription
from tests.transcript.entities import build, plain

COMMIT, FETCH, JOIN, BEAT, SYNC = 8, 9, 11, 12, 14
KEYS = [f"key-{number}" for number in range(40)]
GONE = -1001
RETENTION = {"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "2000"}


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[EmbeddedKafka]:
    """A broker that keeps offsets for a minute."""
    with EmbeddedKafka(tmp_path / "kafka", properties=RETENTION) as running:
        yield running


class Connection:
    """A client's connection; requests as plain values."""

    def __init__(self, bootstrap: str) -> None:
        self._socket = socket.create_connection(split_address(bootstrap), timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, api_key: int, version: int, **values: Any) -> Any:
        """Ask, and wait for the answer."""
        body = write_message(build(load_request_schema(api_key, version), values))
        self._socket.sendall(write_request(api_key, version, 5, "raw", body))
        frame = self._read(struct.unpack(">i", self._read(4))[0])
        answer = memoryview(frame)[response_body_position(api_key, version) :]
        return plain(read_response(api_key, version, answer))

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            assert part, "the connection is open"
            data += part
        return data


class OldMember:
    """The only member of a group that joined before keylane showed its topic to the broker."""

    def __init__(self, kafka: Connection, group: str, lane_name: str) -> None:
        self.group, self.lane_name = group, lane_name
        protocols = [{"name": "range", "metadata": subscription(lane_name)}]
        joined = kafka.call(
            JOIN, 3, group_id=group, session_timeout=30_000, rebalance_timeout=30_000,
            member_id="", protocol_type="consumer", protocols=protocols,
        )  # fmt: skip
        assert joined["error_code"] == 0
        self.me = {"group_id": group, "generation_id": joined["generation_id"],
                   "member_id": joined["member_id"]}  # fmt: skip
        given = {"member_id": joined["member_id"], "assignment": assignment([(lane_name, 0)])}
        assert kafka.call(SYNC, 3, **self.me, assignments=[given])["error_code"] == 0

    def beat(self, connection: Connection) -> None:
        assert connection.call(BEAT, 3, **self.me)["error_code"] == 0

    def commit(self, keylane: Connection, offsets: dict[int, int]) -> None:
        """Commit lanes."""
        entries = [{"partition_index": i, "committed_offset": at} for i, at in offsets.items()]
        answer = keylane.call(
            COMMIT, 7, group_id=self.group, member_id=self.me["member_id"],
            generation_id_or_member_epoch=self.me["generation_id"],
            topics=[{"name": self.lane_name, "partitions": entries}],
        )  # fmt: skip
        codes = {entry["error_code"] for entry in answer["topics"][0]["partitions"]}
        assert codes == {0}

    def positions(self, keylane: Connection) -> list[int]:
        """Return where its four lanes stand."""
        answer = keylane.call(
            FETCH, 7, group_id=self.group,
            topics=[{"name": self.lane_name, "partition_indexes": list(range(4))}],
        )  # fmt: skip
        return [entry["committed_offset"] for entry in answer["topics"][0]["partitions"]]


def commit_without_members(kafka: str, group: str, topic: str) -> None:
    """Commit for a group without members, whose offset expires in time."""
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.alter_consumer_group_offsets([wanted])[group].result(30)


@pytest.mark.timeout(400)
def test_offsets_of_running_groups_outlive_the_retention(forgetful, keylane) -> None:
    """Shown to the broker, committed again by heartbeats, and kept where both came too late.

    A group without members commits last: when the broker has expired that one, it would have
    expired all of them.
    """
    kafka = forgetful.bootstrap
    topic = make_topic_factory(AdminClient({"bootstrap.servers": kafka}), "retention")()
    proxy = keylane(bootstrap=kafka)
    lane_name = f"{topic}.lanes-4"
    values = produce(kafka, topic, KEYS, 5)
    with (
        Group(proxy.bootstrap, lane_name, "stock") as stock,
        Connection(kafka) as direct,
        Connection(proxy.bootstrap) as client,
    ):
        stock.add("confluent", 2)
        stock.wait_for_values(values)
        stock.wait_for_commits()
        beating, silent = (OldMember(direct, name, lane_name) for name in ("beating", "silent"))
        for member in (beating, silent):
            member.commit(client, {0: 11, 1: 12, 2: 13, 3: 14})
        commit_without_members(kafka, "empty", topic)

        pause = threading.Event()
        while [stable_offsets(kafka, name, topic, 1) for name in ("empty", "silent")] != [
            [GONE]
        ] * 2:
            beating.beat(client)
            silent.beat(direct)
            pause.wait(1)

        assert stable_offsets(kafka, "stock", topic, 1) == log_ends(kafka, topic, 1)
        assert stable_offsets(kafka, "beating", topic, 1) == [11]
        assert silent.positions(client) == [11, 12, 13, 14]
        silent.commit(client, {0: 15})
        assert stable_offsets(kafka, "silent", topic, 1) == [12]
        stock.add("confluent", 1)
        stock.wait_for_lanes(4)
        later = produce(kafka, topic, KEYS, 1, first=5)
        stock.wait_for_values(later)
        assert stock.seen.values() == dict.fromkeys(values + later, 1)
