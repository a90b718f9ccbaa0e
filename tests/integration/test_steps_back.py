"""Commits below what a member was answered: left over from an earlier turn, or sought."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from kio.index import load_request_schema

from keylane.assignor.protocol import Subscription, write_assignment, write_subscription
from keylane.config.node import split_address
from keylane.wire.header import response_body_position, write_request
from keylane.wire.messages import read_response, write_message
from tests.integration.keylane_process import PATIENCE
from tests.transcript.entities import build, plain

COMMIT, OFFSETS, JOIN, SYNC, FETCH, VERSIONS = 8, 9, 11, 14, 1, 18
LOADING = (14, 15, 16)
"""Codes of a coordinator that is not ready yet."""
MEMBER_ID_REQUIRED = 79
RECORDS = 40


class RawMember:
    """A member of one connection for its group, and one more for what it fetches."""

    def __init__(self, bootstrap: str, group: str, topic: str, software: str) -> None:
        self._address, self.group, self.topic = split_address(bootstrap), group, topic
        self._software = software
        self._sockets = [self._open(software), self._open(software)]
        self.member_id, self.generation_id = "", -1

    def _open(self, software: str) -> socket.socket:
        opened = socket.create_connection(self._address, 60)
        said = {"client_software_name": software, "client_software_version": "2.16.0"}
        assert ask(opened, VERSIONS, 3, said)["error_code"] == 0
        return opened

    def close(self) -> None:
        for each in self._sockets:
            each.close()

    def ask(self, api_key: int, version: int, wanted: dict[str, Any]) -> Any:
        return ask(self._sockets[api_key == FETCH], api_key, version, wanted)

    def join(self, *lanes: int) -> None:
        """Begin a generation, alone, and be given these lanes."""
        said = write_subscription(Subscription(version=1, topics=(self.topic,)))
        wanted = {
            "group_id": self.group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": said}],
        }
        joined = self.ask(JOIN, 5, wanted)
        # A broker that has just made its topic of group offsets loads it first.
        while joined["error_code"] in (*LOADING, MEMBER_ID_REQUIRED):
            if joined["error_code"] == MEMBER_ID_REQUIRED:
                wanted |= {"member_id": joined["member_id"]}
            joined = self.ask(JOIN, 5, wanted)
        assert joined["error_code"] == 0
        self.member_id, self.generation_id = joined["member_id"], joined["generation_id"]
        given = write_assignment([(self.topic, lane) for lane in lanes], version=1)
        synced = self.ask(
            SYNC,
            3,
            {
                "group_id": self.group,
                "generation_id": self.generation_id,
                "member_id": self.member_id,
                "assignments": [{"member_id": self.member_id, "assignment": given}],
            },
        )
        assert synced["error_code"] == 0

    def commit(self, lane: int, offset: int) -> int:
        """The error code."""
        answer = self.ask(COMMIT, 7, self._commit_of(lane, offset))
        return int(answer["topics"][0]["partitions"][0]["error_code"])

    def commit_and_leave(self, lane: int, offset: int) -> None:
        """Commit, and come again by another connection without the answer."""
        send(self._sockets[0], COMMIT, 7, self._commit_of(lane, offset))
        self._sockets[0].close()
        self._sockets[0] = self._open(self._software)

    def _commit_of(self, lane: int, offset: int) -> dict[str, Any]:
        entry = {"partition_index": lane, "committed_offset": offset}
        return {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation_id,
            "member_id": self.member_id,
            "topics": [{"name": self.topic, "partitions": [entry]}],
        }

    def position(self, lane: int) -> int:
        """Return what is committed."""
        topics = [{"name": self.topic, "partition_indexes": [lane]}]
        answer = self.ask(OFFSETS, 7, {"group_id": self.group, "topics": topics})
        (entry,) = answer["topics"][0]["partitions"]
        assert entry["error_code"] == 0
        return int(entry["committed_offset"])

    def fetch(self, lane: int, offset: int) -> None:
        """Ask for records of a lane."""
        entry = {"partition": lane, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        answer = self.ask(
            FETCH,
            11,
            {
                "replica_id": -1,
                "max_wait": 500,
                "min_bytes": 1,
                "max_bytes": 1 << 20,
                "session_epoch": -1,
                "topics": [{"topic": self.topic, "partitions": [entry]}],
            },
        )
        assert answer["responses"][0]["partitions"][0]["error_code"] == 0


def send(opened: socket.socket, api_key: int, version: int, wanted: dict[str, Any]) -> None:
    body = write_message(build(load_request_schema(api_key, version), wanted))
    opened.sendall(write_request(api_key, version, 5, "rdkafka", body))


def ask(opened: socket.socket, api_key: int, version: int, wanted: dict[str, Any]) -> Any:
    send(opened, api_key, version, wanted)
    with opened.makefile("rb") as stream:
        frame = stream.read(struct.unpack(">i", stream.read(4))[0])
    start = response_body_position(api_key, version)
    return plain(read_response(api_key, version, memoryview(frame)[start:]))


@pytest.fixture
def proxy(keylane: Any) -> Any:
    """A proxy for this module, whose members deal out lanes as each test has it."""
    return keylane("back*=4", args=("--assignor", "*=client"))


@pytest.fixture
def filled(kafka: str, topic: Any) -> str:
    """A topic with lanes and some records."""
    name = str(topic("back", partitions=1))
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(RECORDS):
        producer.produce(name, key=f"k{number}", value=str(number))
    assert producer.flush(30) == 0
    return name


@pytest.fixture(params=["librdkafka", "apache-kafka-java"])
def member(proxy: Any, filled: str, request: Any) -> Iterator[RawMember]:
    """One that had lane 0 and committed 30, lost it, and has it again."""
    raw = RawMember(proxy.bootstrap, f"g-{filled}", filled, request.param)
    raw.join(0, 1)
    assert raw.commit(0, 30) == 0
    raw.join(1)
    raw.join(0, 1)
    assert raw.position(0) == 30
    yield raw
    raw.close()


@pytest.mark.parametrize("member", ["librdkafka"], indirect=True)
def test_a_commit_of_an_earlier_turn_is_answered_and_leaves_the_lane(member, proxy) -> None:
    """librdkafka hands out records that it fetched before; the next owner does not read again."""
    member.fetch(0, 30)

    assert member.commit(0, 12) == 0
    assert member.position(0) == 30
    proxy.wait_for_log("it is of an earlier turn, and the lane stays")
    assert samples(proxy, member.group) == {"keylane_commits_left_over_total": 1}
    assert member.commit(0, 35) == 0
    assert member.position(0) == 35


def test_a_seek_is_done(member, proxy) -> None:
    """A fetch below what was answered makes each commit above it a wish."""
    member.fetch(0, 10)

    assert member.commit(0, 12) == 0
    assert member.position(0) == 12
    proxy.wait_for_log("the lane is read again from there")
    assert samples(proxy, member.group) == {"keylane_commits_back_total": 1}


@pytest.mark.parametrize("member", ["apache-kafka-java"], indirect=True)
def test_other_clients_go_back_without_a_fetch(member) -> None:
    """`seek` and `commitSync` without a poll between them is how Java resets a lane."""
    assert member.commit(0, 12) == 0
    assert member.position(0) == 12


def test_a_lane_that_the_member_has_kept_goes_back(member) -> None:
    """It may hold records of it from before the rebalance, and seek among them."""
    member.join(0, 1)
    assert member.position(0) == 30

    assert member.commit(0, 12) == 0
    assert member.position(0) == 12


def test_a_lane_goes_back_behind_commits_that_were_not_answered(proxy, kafka, topic) -> None:
    """Whether or not they were taken: the lane stands where the last answered commit says.

    All records are of one lane. The others never committed, so pushes count on what was scanned.
    """
    name = str(topic("back", partitions=1))
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(RECORDS):
        producer.produce(name, key="k", value=str(number))
    assert producer.flush(30) == 0
    settings = {"bootstrap.servers": proxy.bootstrap, "group.id": f"r-{name}"}
    with closing(Consumer(settings)) as reader:
        reader.assign([TopicPartition(name, lane, 0) for lane in range(4)])
        (message, *_) = wait_for(lambda: True, reader, until_records=RECORDS)
    lane = message.partition() or 0
    with closing(RawMember(proxy.bootstrap, f"g-{name}", name, "apache-kafka-java")) as member:
        member.join(0, 1, 2, 3)
        for _ in range(20):
            assert member.commit(lane, 10) == 0
            member.commit_and_leave(lane, 30)
            assert member.position(lane) in {10, 30}

            assert member.commit(lane, 20) == 0
            assert member.position(lane) == 20


def samples(proxy: Any, group: str) -> dict[str, int]:
    """Return the group's samples of the two counters."""
    with urlopen(f"http://{proxy.control}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    label = f'{{group="{group}"}} '
    found = (line.partition(label) for line in lines)
    return {
        name: int(float(value))
        for name, is_group, value in found
        if is_group and name.startswith("keylane_commits_")
    }


def test_librdkafka_seeks_in_a_lane_that_it_has_just_been_given(proxy, filled) -> None:
    """The lane goes to another member and comes back; then the application rewinds it."""
    settings = {
        "bootstrap.servers": proxy.bootstrap,
        "group.id": f"g-{filled}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "partition.assignment.strategy": "range",
    }
    one, two = Consumer(settings), Consumer(settings)
    try:
        one.subscribe([filled])
        wait_for(lambda: len(one.assignment()) == 4, one)
        ends = [TopicPartition(filled, lane, RECORDS) for lane in range(4)]
        one.commit(offsets=ends, asynchronous=False)
        two.subscribe([filled])
        wait_for(lambda: len(one.assignment()) == 2 == len(two.assignment()), one, two)
        lane = min(each.partition for each in two.assignment())
        two.close()
        wait_for(lambda: len(one.assignment()) == 4, one)
        place = TopicPartition(filled, lane, 0)
        assert one.committed([place], 30)[0].offset == RECORDS

        one.seek(place)
        (message,) = wait_for(lambda: True, one, until_records=1)
        done = TopicPartition(filled, message.partition() or 0, (message.offset() or 0) + 1)
        one.commit(offsets=[done], asynchronous=False)

        assert done.partition == lane
        assert one.committed([place], 30)[0].offset == done.offset < RECORDS
    finally:
        one.close()


def wait_for(
    is_done: Callable[[], bool], *consumers: Consumer, until_records: int = 0
) -> list[Message]:
    """Poll consumers until it is so, and as many records have come."""
    deadline_s = time.monotonic() + 60 * PATIENCE
    messages: list[Message] = []
    while len(messages) < until_records or not is_done():
        assert time.monotonic() < deadline_s
        for consumer in consumers:
            message = consumer.poll(0.1)
            if message is not None:
                assert message.error() is None, message.error()
                messages.append(message)
    return messages
