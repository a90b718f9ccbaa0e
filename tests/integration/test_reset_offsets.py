"""POST /groups/NAME/reset-offsets in front of a real Kafka: what clients read afterwards."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.byte_tap import CHUNK_BYTES, ByteTap, tapped_broker
from tests.integration.conftest import make_topic_factory
from tests.integration.harness import Group, produce
from tests.integration.keylane_process import KeylaneProcess

KEYS = [f"key-{number}" for number in range(40)]
LANES = 4
OFFSET_COMMIT = 8


def ask(
    proxy: KeylaneProcess, group: str, body: Any, *, dry_run: bool = False
) -> tuple[int, dict[str, Any]]:
    """Ask for a reset; the status and the document."""
    url = f"http://{proxy.control}/groups/{group}/reset-offsets"
    request = urllib.request.Request(  # noqa: S310 - http
        f"{url}?dry_run=true" if dry_run else url,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def committed(bootstrap: str, group: str, topic: str, count: int) -> list[int]:
    """Offsets of the group, by index; through keylane of lanes, at Kafka of partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, index) for index in range(count)]
        return [place.offset for place in consumer.committed(places, timeout=60)]
    finally:
        consumer.close()


def commit(bootstrap: str, group: str, topic: str, offsets: list[int]) -> None:
    """Commit without a member, as a tool does."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    places = [TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)]
    done = consumer.commit(offsets=places, asynchronous=False)
    assert all(place.error is None for place in done)
    consumer.close()


def values_from(bootstrap: str, topic: str, starts: dict[int, int]) -> list[str]:
    """Values of all records from these offsets on, by partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    found: list[str] = []
    for partition, start in starts.items():
        place = TopicPartition(topic, partition, start)
        _, end = consumer.get_watermark_offsets(place, timeout=60)
        consumer.assign([place])
        while start < end:
            (message,) = consumer.consume(1, timeout=60)
            value, offset = message.value(), message.offset()
            assert value is not None and offset is not None
            found.append(value.decode())
            start = offset + 1
    consumer.close()
    return found


@pytest.fixture
def proxy(keylane: Any) -> KeylaneProcess:
    """A proxy with lanes for this module's topics."""
    started: KeylaneProcess = keylane("reset*=4")
    return started


def test_a_group_reads_what_it_was_reset_to(kafka, proxy, topic) -> None:
    """A preview changes nothing; then each record from there on comes once, its keys in order."""
    name = topic("reset", partitions=2)
    group_id = f"g-{name}"
    values = produce(kafka, name, KEYS, rounds=10)
    with Group(proxy.bootstrap, name, group_id) as group:
        group.add("confluent", 2)
        group.add("aiokafka")
        group.wait_for_members(3)
        group.wait_for_values(values)
        group.wait_for_commits()
        status, problem = ask(proxy, group_id, {"to": "earliest"})
        assert (status, "3 members" in problem["detail"]) == (409, True)
    ends = committed(kafka, group_id, name, 2)
    wish = {"topics": [{"topic": name, "partitions": [0]}], "to": "shift-by", "value": -100}

    status, shown = ask(proxy, group_id, wish, dry_run=True)
    assert status == 200 and shown["dry_run"]
    assert committed(kafka, group_id, name, 2) == ends
    assert committed(proxy.bootstrap, group_id, name, 2 * LANES) == LANES * ends
    status, done = ask(proxy, group_id, wish)

    start = max(0, ends[0] - 100)
    assert (status, done["partitions"]) == (200, shown["partitions"])
    assert done["partitions"] == [{
        "topic": name, "partition": 0, "from_offset": ends[0], "to_offset": start, "lanes": LANES,
        "offsets_again": ends[0] - start, "offsets_skipped": 0, "is_clamped": ends[0] < 100,
    }]  # fmt: skip
    assert committed(kafka, group_id, name, 2) == [start, ends[1]]
    assert committed(proxy.bootstrap, group_id, name, 2 * LANES) == LANES * [start, ends[1]]
    expected = values_from(kafka, name, {0: start})
    with Group(proxy.bootstrap, name, group_id) as group:
        group.add("confluent", 2)
        group.wait_for_values(expected)
        group.wait_for_commits()
        assert sorted(group.seen.values().elements()) == sorted(expected)
        # The second member may come while the first one reads, and go on with some of its keys.
        group.seen.assert_first_sightings_in_order()
    proxy.wait_for_log(f"offsets reset by=an unnamed client at 127.0.0.1 group={group_id}")


def test_a_group_goes_on_at_kafka(kafka, proxy, topic) -> None:
    """After a reset of all its topics, a plain one too, a direct consumer begins at that place."""
    name, plain = topic("reset", partitions=1), topic("plain", partitions=1)
    group_id = f"g-{name}"
    produce(kafka, name, KEYS, rounds=5)
    produce(kafka, plain, KEYS, rounds=5)
    commit(proxy.bootstrap, group_id, name, [10, 40, 90, 120])
    commit(proxy.bootstrap, group_id, plain, [77])
    assert committed(kafka, group_id, name, 1) == [10]

    status, done = ask(proxy, group_id, {"to": "offset", "value": 60})

    assert status == 200
    found = {
        each["topic"]: [each[key] for key in ("from_offset", "to_offset", "lanes", "offsets_again")]
        for each in done["partitions"]
    }
    assert found == {name: [10, 60, LANES, 60], plain: [77, 60, 0, 17]}
    assert committed(kafka, group_id, name, 1) == committed(kafka, group_id, plain, 1) == [60]
    assert committed(proxy.bootstrap, group_id, name, LANES) == [60] * LANES
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": group_id})
    consumer.subscribe([name])
    (message,) = consumer.consume(1, timeout=60)
    consumer.close()
    assert message.offset() == 60


@pytest.mark.parametrize(
    ("to", "value", "option"),
    [
        ("earliest", None, ["--to-earliest"]),
        ("latest", None, ["--to-latest"]),
        ("current", None, ["--to-current"]),
        ("offset", 7, ["--to-offset", "7"]),
        ("offset", 10_000, ["--to-offset", "10000"]),
        ("shift-by", -5, ["--shift-by", "-5"]),
        ("shift-by", 10_000, ["--shift-by", "10000"]),
        ("datetime", "1970-01-01T00:00:03.000", ["--to-datetime", "1970-01-01T00:00:03.000"]),
        ("datetime", "2100-01-01T00:00:00.000", ["--to-datetime", "2100-01-01T00:00:00.000"]),
        ("duration", "P1D", ["--by-duration", "P1D"]),
    ],
)
def test_offsets_are_those_of_kafkas_tool(kafka, proxy, topic, java, to, value, option) -> None:
    """Each option gives the offset that kafka-consumer-groups gives, with the same clamps."""
    name = topic("reset", partitions=1)
    group_id = f"g-{name}"
    producer = Producer({"bootstrap.servers": kafka})
    for number in range(20):
        producer.produce(name, f"v{number}", key=f"k{number}", timestamp=1000 * number + 1)
    assert producer.flush(60) == 0
    commit(kafka, group_id, name, [12])

    status, shown = ask(proxy, group_id, {"to": to, "value": value}, dry_run=True)

    tool = java.run(
        "kafka-consumer-groups", "--bootstrap-server", kafka, "--group", group_id, "--topic", name,
        "--reset-offsets", *option, "--dry-run",
    )  # fmt: skip
    assert status == 200
    (expected,) = re.findall(rf"{re.escape(name)}\s+0\s+(\d+)", tool.stdout)
    assert shown["partitions"][0]["to_offset"] == int(expected)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"to": "nowhere"}, 422, "expected one of earliest"),
        ({"to": "offset"}, 422, "needs an offset"),
        ({"to": "offset", "value": -1}, 422, "needs an offset"),
        ({"to": "datetime", "value": "yesterday"}, 422, "needs a time"),
        ({"to": "duration", "value": "2 days"}, 422, "ISO 8601"),
        ({"to": "earliest", "value": 3}, 422, "takes no value"),
        ({"to": "earliest"}, 422, "has no offsets"),
        ({"to": "earliest", "topics": [{"topic": "reset-none"}]}, 422, "there is no topic"),
        ({"to": "earliest", "topics": []}, 400, "topics"),
        ({"where": "earliest"}, 400, "to"),
    ],
)
def test_what_cannot_be_is_refused(proxy, body, status, words) -> None:
    """A problem document names the place and what is expected."""
    found, problem = ask(proxy, "no-such-group", body)

    assert (found, words in json.dumps(problem)) == (status, True), problem


# -- crashes -------------------------------------------------------------------------------


class CommitTap(ByteTap):
    """A tap that stops at an OffsetCommit: before the broker has it, or before it is answered."""

    def __init__(self, port: int, target: str) -> None:
        self.mode = ""
        """`request` or `answer`; empty: everything passes."""
        self.met = threading.Event()
        self._muted: set[int] = set()
        super().__init__(port, target)

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(self._target)
            self._open += [client, broker]
            for work in (self._pass_requests, self._pass_answers):
                thread = threading.Thread(target=work, args=(client, broker))
                self._threads.append(thread)
                thread.start()

    def _pass_requests(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError, struct.error), client.makefile("rb") as stream:
            while head := stream.read(4):
                body = stream.read(struct.unpack(">i", head)[0])
                if self.mode and struct.unpack_from(">h", body)[0] == OFFSET_COMMIT:
                    if self.mode == "request":
                        self.met.set()
                        continue
                    self._muted.add(id(client))
                broker.sendall(head + body)
        with suppress(OSError):
            broker.shutdown(socket.SHUT_RDWR)

    def _pass_answers(self, client: socket.socket, broker: socket.socket) -> None:
        with suppress(OSError):
            while data := broker.recv(CHUNK_BYTES):
                if id(client) in self._muted:
                    self.met.set()
                else:
                    client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def tap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommitTap]:
    """A broker behind a tap."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.integration.byte_tap.ByteTap", CommitTap)
        with tapped_broker(tmp_path_factory.mktemp("kafka")) as running:
            assert isinstance(running, CommitTap)
            yield running


@pytest.mark.parametrize("target", [60, pytest.param(5, marks=pytest.mark.long)])
@pytest.mark.parametrize("mode", ["request", "answer"])
def test_a_kill_leaves_a_partition_before_or_after(tap, tmp_path, request, mode, target) -> None:
    """kill -9 behind the journal's write: all lanes stand as before, or all at the new offset."""
    make_topic = make_topic_factory(
        AdminClient({"bootstrap.servers": tap.behind}), request.node.name
    )
    name = make_topic("reset", partitions=1)
    produce(tap.behind, name, KEYS, rounds=5)
    group_id, before = f"g-{name}", [10, 40, 90, 120]
    proxy = KeylaneProcess(tap.bootstrap, ["reset*=4"], log_path=tmp_path / "keylane.log").start()
    try:
        commit(proxy.bootstrap, group_id, name, before)
        tap.met.clear()
        tap.mode = mode
        with suppress(OSError):
            asking = threading.Thread(
                target=_ask_in_vain, args=(proxy, group_id, {"to": "offset", "value": target})
            )
            asking.start()
            assert tap.met.wait(60)
        proxy.kill()
        asking.join()
        tap.mode = ""
        proxy.start()

        expected = before if mode == "request" else [target] * LANES
        assert committed(proxy.bootstrap, group_id, name, LANES) == expected
        assert committed(tap.behind, group_id, name, 1) == [min(expected)]
    finally:
        tap.mode = ""
        proxy.stop()


def _ask_in_vain(proxy: KeylaneProcess, group: str, body: Any) -> None:
    """Ask a proxy that is going to be killed."""
    with suppress(OSError):
        ask(proxy, group, body)
