"""Brokers on the simulated network: frames in, frames out, requests of a connection in order.

Source: Kafka protocol guide; Apache Kafka 4.3, `KafkaApis`, `SocketServer` (one request of a
connection at a time), `DelayedFetch`.
"""

from __future__ import annotations

import struct
import uuid
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from keylane.wire.fetch import (
    FetchAnswer,
    FetchRequest,
    FetchResponse,
    FetchTopicAnswer,
    write_fetch_response,
)
from keylane.wire.header import read_request_header
from tests.reference.response_frame import write_response
from tests.simulation.broker_groups import GROUP_HANDLERS, GROUP_VERSIONS
from tests.simulation.broker_members import Reply
from tests.simulation.broker_share import SHARE_ACKNOWLEDGE, SHARE_FETCH, ShareBroker
from tests.simulation.broker_share_groups import (
    DESCRIBE_SHARE_OFFSETS,
    GROUP_RESOURCE,
    SHARE_HEARTBEAT,
    describe_share_offsets,
    group_configs,
    share_heartbeat,
)
from tests.simulation.cluster import Cluster, Held, Partition, Topic
from tests.simulation.messages import read_fetch, read_question, write_answer

if TYPE_CHECKING:
    from tests.simulation.network import End
    from tests.simulation.share_store import ShareStore

FETCH, LIST_OFFSETS, METADATA, FIND_COORDINATOR, API_VERSIONS = 1, 2, 3, 10, 18
END_OF_EPOCH, DESCRIBE_ACLS, DESCRIBE_CONFIGS = 23, 29, 32
VERSIONS = GROUP_VERSIONS | {
    FETCH: (4, 16), LIST_OFFSETS: (1, 7), METADATA: (9, 12), FIND_COORDINATOR: (0, 4),
    API_VERSIONS: (0, 3), END_OF_EPOCH: (2, 4), DESCRIBE_ACLS: (1, 3), DESCRIBE_CONFIGS: (1, 4),
}  # fmt: skip
SESSIONS = frozenset({SHARE_FETCH, SHARE_ACKNOWLEDGE})
"""APIs whose sessions end with a connection."""
SHARE_VERSIONS = {
    SHARE_HEARTBEAT: (1, 1), SHARE_FETCH: (1, 2), SHARE_ACKNOWLEDGE: (1, 2),
    DESCRIBE_SHARE_OFFSETS: (0, 1),
}  # fmt: skip
OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER, COORDINATOR_NOT_AVAILABLE, UNKNOWN_TOPIC_ID = (
    1,
    3,
    6,
    15,
    100,
)
ALL_OPERATIONS = 0x1FF8
PORT = 9092
WORK_S = 0.0003
HELD_S = 1.0
"""Seconds of a request below which it is not remembered."""


@cache
def own_topic_id(name: str) -> uuid.UUID:
    """Return the id of one of keylane's own topics."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


class _Connection:
    """One client at one broker."""

    def __init__(self, broker: Broker, end: End) -> None:
        self.broker, self.end = broker, end
        self._bytes = bytearray()
        self._requests: deque[bytes] = deque()
        self._asked: deque[tuple[int, float]] = deque()
        """API and time of what is not answered."""
        self._is_busy = False
        end.on_data = self._on_data
        end.on_lost = self._on_lost

    def _on_data(self, data: bytes) -> None:
        self._bytes += data
        while len(self._bytes) >= 4:
            (size,) = struct.unpack_from(">i", self._bytes)
            if len(self._bytes) < 4 + size:
                break
            self._requests.append(bytes(self._bytes[: 4 + size]))
            (key,) = struct.unpack_from(">h", self._bytes, 4)
            self._asked.append((key, self.broker.world.now_s))
            del self._bytes[: 4 + size]
        self.next()

    def _on_lost(self, _error: Exception | None) -> None:
        self.end.is_open = False
        self.broker.connections.pop(self, None)
        if self.broker.shares is not None:
            self.broker.shares.connection_lost(self)
        while self._asked:
            self._note_ended()

    def _note_ended(self) -> None:
        (key, asked_s), now_s = self._asked.popleft(), self.broker.world.now_s
        if now_s - asked_s > HELD_S:
            held = Held(key, self.end.peer.host, self.broker.host, asked_s, now_s)
            self.broker.cluster.held.append(held)

    def next(self) -> None:
        """Begin the next request."""
        broker = self.broker
        if self._is_busy or not self._requests or broker.is_hung or not self.end.is_open:
            return
        self._is_busy = True
        frame = self._requests.popleft()
        broker.world.after(WORK_S, partial(self._handle, frame))

    def _handle(self, frame: bytes) -> None:
        if not self.end.is_open:
            return
        if self.broker.is_hung:
            self.broker.held.append(partial(self._handle, frame))
            return
        header = read_request_header(memoryview(frame)[4:])
        key, version = int(header.api_key), int(header.api_version)
        self.broker.requests[key] = self.broker.requests.get(key, 0) + 1
        low, high = self.broker.versions.get(key, (1, 0))
        assert low <= version <= high, f"API {key} v{version} is not offered"
        answer = partial(self._answer, key, version, header.correlation_id)
        at, shares = header.body_position + 4, self.broker.shares
        if shares is not None and key in SESSIONS:
            shares.handle(self, key, version, frame, at, answer)
        else:
            self.broker.handle(key, version, frame, at, answer)

    def _answer(self, key: int, version: int, correlation_id: int, body: list[Any]) -> None:
        broker = self.broker
        if broker.is_hung:
            broker.held.append(partial(self._answer, key, version, correlation_id, body))
            return
        self._is_busy = False
        if self._asked:
            self._note_ended()
        broker.cluster.note_moment(f"api {key}", self.end.peer.host)
        if broker.loses_answer(key):
            self.end.reset()
            return
        self.end.send(b"".join(write_response(key, version, correlation_id, body)))
        self.next()


class Broker:
    """One broker; what it knows is the cluster's."""

    def __init__(self, cluster: Cluster, broker_id: int) -> None:
        self.cluster, self.broker_id, self.world = cluster, broker_id, cluster.world
        self.host = f"kafka{broker_id}"
        self.is_hung = False
        self.held: list[Callable[[], None]] = []
        self.connections: dict[_Connection, None] = {}
        self.requests: dict[int, int] = {}
        self.lost_answers: dict[int, int] = {}
        """Number of answers, by API, that will get lost with their connection."""
        self.group_handlers = GROUP_HANDLERS
        self.versions = VERSIONS
        self.shares: ShareBroker | None = None
        """None: it has no share groups."""
        self.group_configs: Callable[[str], dict[str, str]] = lambda _: {}
        self.late_commits = 0
        """Number of commits that will be answered with an error, and written some time later."""
        self.world.network.open(self, PORT)

    def offer_shares(self, store: ShareStore) -> None:
        """Have share groups, as brokers of Kafka 4.2 and later have."""
        self.shares = ShareBroker(self, store)
        self.versions = VERSIONS | SHARE_VERSIONS
        self.group_configs = partial(group_configs, store)
        self.group_handlers = GROUP_HANDLERS | {
            SHARE_HEARTBEAT: partial(share_heartbeat, store),
            DESCRIBE_SHARE_OFFSETS: partial(describe_share_offsets, store),
        }

    # The network's side.
    @property
    def is_reachable(self) -> bool:
        return self.broker_id not in self.cluster.down

    def accept(self, end: End) -> None:
        self.connections[_Connection(self, end)] = None

    def loses_answer(self, api_key: int) -> bool:
        """Return whether this one gets lost."""
        left = self.lost_answers.get(api_key, 0)
        if left:
            self.lost_answers[api_key] = left - 1
            self.world.report(f"{self.host}: an answer to API {api_key} is lost")
        return bool(left)

    # Faults.
    def hang(self, seconds: float) -> None:
        """Stop the broker for a while, as by SIGSTOP and SIGCONT."""
        self.is_hung = True

        def wake() -> None:
            self.is_hung = False
            held, self.held = self.held, []
            for do in held:
                do()
            for connection in list(self.connections):
                connection.next()

        self.world.after(seconds, wake)

    def crash(self, down_s: float) -> None:
        """It dies; others lead and coordinate what it did, and it comes back empty-handed."""
        cluster = self.cluster
        coordinated = [g for g in cluster.groups if cluster.coordinator(g) == self.broker_id]
        cluster.down.add(self.broker_id)
        for connection in list(self.connections):
            connection.end.reset()
        self.connections.clear()
        self.held.clear()
        if self.shares is not None:
            self.shares.crash()
        for topic in cluster.topics.values():
            for partition in topic.partitions:
                if partition.leader_id == self.broker_id:
                    cluster.elect(partition)
        for group in coordinated:
            cluster.group(group).fail_over(self.world.rng.uniform(0.1, 1.0))

        def back() -> None:
            cluster.down.discard(self.broker_id)
            self.world.report(f"{self.host} is back")
            for topic in cluster.topics.values():
                for partition in topic.partitions:
                    if partition.leader_id < 0:
                        cluster.elect(partition)

        self.world.after(down_s, back)

    # Requests.
    def handle(
        self, key: int, version: int, frame: bytes, at: int, answer: Callable[[list[Any]], None]
    ) -> None:
        if key == FETCH:
            self._fetch(version, read_fetch(version, frame[at:]), answer)
            return
        request = read_question(key, version, frame[at:])

        def reply(values: dict[str, Any]) -> None:
            answer([write_answer(key, version, values)])

        handler = HANDLERS.get(key) or self.group_handlers[key]
        handler(self, request, reply)

    def _api_versions(self, _request: Any, reply: Reply) -> None:
        keys = [
            {"api_key": key, "min_version": low, "max_version": high}
            for key, (low, high) in self.versions.items()
        ]
        reply({"api_keys": keys})

    def _metadata(self, request: Any, reply: Reply) -> None:
        cluster = self.cluster
        names: list[tuple[str | None, Topic | None]]
        if request.topics is None:
            names = [(name, topic) for name, topic in cluster.topics.items()]
        else:
            names = []
            by_id = {topic.topic_id: topic for topic in cluster.topics.values()}
            for wanted in request.topics:
                topic_id = getattr(wanted, "topic_id", None)
                if wanted.name is not None:
                    names.append((str(wanted.name), cluster.topics.get(str(wanted.name))))
                else:
                    found = by_id.get(topic_id or uuid.UUID(int=0))
                    names.append((None if found is None else found.name, found))
        brokers = [
            {"node_id": each, "host": f"kafka{each}", "port": PORT}
            for each in cluster.broker_ids
            if each not in cluster.down
        ]
        topics = [self._describe(name, topic) for name, topic in names]
        if request.topics is None:
            topics += [self._describe_own(name) for name in cluster.own]
        else:
            topics = [
                self._describe_own(each["name"]) if each["name"] in cluster.own else each
                for each in topics
            ]
        reply({"brokers": brokers, "cluster_id": "sim", "controller_id": 1, "topics": topics})

    def _describe(self, name: str | None, topic: Topic | None) -> dict[str, Any]:
        if topic is None:
            return {"error_code": UNKNOWN_TOPIC if name else UNKNOWN_TOPIC_ID, "name": name}
        partitions = [
            {
                "partition_index": each.index,
                "error_code": 5 if each.leader_id < 0 else 0,
                "leader_id": each.leader_id,
                "leader_epoch": each.epoch,
                "replica_nodes": self.cluster.broker_ids,
                "isr_nodes": self.cluster.broker_ids,
            }
            for each in topic.partitions
        ]
        return {
            "name": topic.name,
            "topic_id": topic.topic_id,
            "partitions": partitions,
            "topic_authorized_operations": ALL_OPERATIONS,
        }

    def _describe_own(self, name: str) -> dict[str, Any]:
        partitions = [
            {"partition_index": index, "leader_id": min(set(self.cluster.broker_ids))}
            for index in range(len(self.cluster.own[name]))
        ]
        return {
            "name": name,
            "topic_id": own_topic_id(name),
            "partitions": partitions,
            "topic_authorized_operations": ALL_OPERATIONS,
        }

    def _find_coordinator(self, request: Any, reply: Reply) -> None:
        if hasattr(request, "coordinator_keys"):
            keys = map(str, request.coordinator_keys)
            reply({"coordinators": [{"key": key, **self._coordinator(key)} for key in keys]})
        else:
            reply(self._coordinator(str(request.key)))

    def _coordinator(self, key: str) -> dict[str, Any]:
        found = self.cluster.coordinator(key)
        if found < 0:
            return {"error_code": COORDINATOR_NOT_AVAILABLE, "node_id": -1, "port": -1}
        return {"node_id": found, "host": f"kafka{found}", "port": PORT}

    def _describe_acls(self, _request: Any, reply: Reply) -> None:
        reply({"error_code": 54})

    def _describe_configs(self, request: Any, reply: Reply) -> None:
        values = {"offsets.retention.minutes": "10080", "offsets.topic.replication.factor": "3"}
        results = []
        for each in request.resources:
            found = values
            if int(each.resource_type) == GROUP_RESOURCE:
                found = self.group_configs(str(each.resource_name))
            configs = [
                {"name": name, "value": found.get(str(name), "0")}
                for name in each.configuration_keys or ()
            ]
            results.append({
                "resource_type": int(each.resource_type),
                "resource_name": str(each.resource_name),
                "configs": configs,
            })  # fmt: skip
        reply({"results": results})

    # Records.
    def partition_of(self, topic: str | None, topic_id: bytes | None, index: int) -> Any:
        """The partition, or an error code."""
        for each in self.cluster.topics.values():
            if each.name == topic or each.topic_id.bytes == topic_id:
                return each.partitions[index] if index < len(each.partitions) else UNKNOWN_TOPIC
        return UNKNOWN_TOPIC if topic is not None else UNKNOWN_TOPIC_ID

    def _fetch(
        self, version: int, request: FetchRequest, answer: Callable[[list[Any]], None]
    ) -> None:
        deadline_s = self.world.now_s + request.max_wait_ms / 1000
        is_answered = False

        def attempt() -> None:
            nonlocal is_answered
            if is_answered:
                return
            topics, size_bytes, has_error, found = [], 0, False, []
            for topic in request.topics:
                answers = []
                for wanted in topic.partitions:
                    place = self.partition_of(topic.name, topic.topic_id, wanted.partition)
                    entry = self._read(place, wanted, request.isolation_level)
                    answers.append(entry)
                    size_bytes += sum(len(part) for part in entry.records or ())
                    has_error |= bool(entry.error_code) or bool(entry.tags != b"\0")
                    if isinstance(place, Partition):
                        found.append(place)
                topics.append(
                    FetchTopicAnswer(
                        name=topic.name, topic_id=topic.topic_id, partitions=tuple(answers)
                    )
                )
            is_over = self.world.now_s >= deadline_s or not request.topics
            if has_error or is_over or size_bytes >= max(1, request.min_bytes):
                is_answered = True
                answer(write_fetch_response(FetchResponse(topics=tuple(topics)), version))
                return
            for place in found:
                place.waiters.append(attempt)

        attempt()
        if not is_answered:
            self.world.after(request.max_wait_ms / 1000, attempt)

    def _read(self, place: Any, wanted: Any, isolation_level: int) -> FetchAnswer:
        if isinstance(place, int):
            return _no_records(wanted.partition, place)
        log = place.log
        if place.leader_id != self.broker_id:
            return _no_records(wanted.partition, NOT_LEADER)
        if wanted.last_fetched_epoch >= 0 and wanted.fetch_offset >= log.log_start:
            end = log.end_of_epoch(wanted.last_fetched_epoch)
            if end.epoch < 0:  # as Partition.readRecords: it is not known
                return _no_records(wanted.partition, OUT_OF_RANGE)
            if end.epoch < wanted.last_fetched_epoch or end.end < wanted.fetch_offset:
                tags = b"\x01\x00\x0d" + struct.pack(">iq", end.epoch, end.end) + b"\0"
                return _no_records(wanted.partition, 0, tags=tags, log=log)
        raw = log.read(
            wanted.fetch_offset,
            wanted.partition_max_bytes,
            isolation_level,
            wanted.current_leader_epoch,
        )
        if raw.error_code:
            return _no_records(wanted.partition, raw.error_code)
        return FetchAnswer(
            wanted.partition, 0, raw.high_watermark, raw.last_stable_offset,
            raw.log_start_offset, raw.aborted if isolation_level else None, -1,
            (bytes(raw.records),),
        )  # fmt: skip

    def _list_offsets(self, request: Any, reply: Reply) -> None:
        topics = []
        for topic in request.topics:
            entries = []
            for wanted in topic.partitions:
                index = int(wanted.partition_index)
                place = self.partition_of(str(topic.name), None, index)
                entry: dict[str, Any] = {"partition_index": index, "offset": -1, "timestamp": -1}
                if isinstance(place, int):
                    entry["error_code"] = place
                elif place.leader_id != self.broker_id:
                    entry["error_code"] = NOT_LEADER
                else:
                    stamp = int(wanted.timestamp)
                    log = place.log
                    entry["leader_epoch"] = place.epoch
                    is_committed = bool(getattr(request, "isolation_level", 0))
                    latest = log.stable if is_committed else log.end
                    entry["offset"] = log.log_start if stamp == -2 else latest
                entries.append(entry)
            topics.append({"name": topic.name, "partitions": entries})
        reply({"topics": topics})

    def _end_of_epoch(self, request: Any, reply: Reply) -> None:
        topics = []
        for topic in request.topics:
            entries = []
            for wanted in topic.partitions:
                index = int(wanted.partition)
                place = self.partition_of(str(topic.topic), None, index)
                entry: dict[str, Any] = {"partition": index, "leader_epoch": -1, "end_offset": -1}
                if isinstance(place, int):
                    entry["error_code"] = place
                elif place.leader_id != self.broker_id:
                    entry["error_code"] = NOT_LEADER
                elif 0 <= int(wanted.current_leader_epoch) != place.epoch:
                    is_old = int(wanted.current_leader_epoch) < place.epoch
                    entry["error_code"] = 74 if is_old else 75
                else:
                    found = place.log.end_of_epoch(int(wanted.leader_epoch))
                    entry["leader_epoch"], entry["end_offset"] = found.epoch, found.end
                entries.append(entry)
            topics.append({"topic": topic.topic, "partitions": entries})
        reply({"topics": topics})


def _no_records(index: int, code: int, *, tags: bytes = b"\0", log: Any = None) -> FetchAnswer:
    ends = (-1, -1, -1) if log is None else (log.end, log.stable, log.log_start)
    end, stable, start = ends
    return FetchAnswer(index, code, end, stable, start, None, -1, (), tags)


HANDLERS: dict[int, Callable[[Broker, Any, Reply], None]] = {
    API_VERSIONS: Broker._api_versions,
    METADATA: Broker._metadata,
    FIND_COORDINATOR: Broker._find_coordinator,
    DESCRIBE_ACLS: Broker._describe_acls,
    DESCRIBE_CONFIGS: Broker._describe_configs,
    LIST_OFFSETS: Broker._list_offsets,
    END_OF_EPOCH: Broker._end_of_epoch,
}
