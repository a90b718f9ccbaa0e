"""A member of a share group by hand: one connection, one share session, every field in reach.

Source: KIP-932, KIP-1206 (acquire mode), KIP-1222 (renewal), KIP-1226 (lag).
"""

from __future__ import annotations

import itertools
import socket
import struct
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, Self

from kio.index import load_request_schema

from keylane.config.node import split_address
from keylane.wire.header import ApiKey, find_response_body, write_request
from keylane.wire.messages import read_response, write_message
from tests.integration.keylane_process import PATIENCE
from tests.reference.broker_log import read_batches
from tests.transcript.entities import build

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
BATCH_OPTIMIZED, RECORD_LIMIT = range(2)
TIMEOUT_S: Final = 30.0 * PATIENCE
POLL_S: Final = 0.05
"""Pause between two questions to a broker that has no event to wait for."""
STARTING: Final = (5, 6, 14, 15, 16)
"""Codes of partitions without a leader, of one elsewhere, and of coordinators that still load."""
GROUP_CONFIG: Final = 32
"""ConfigResource.Type.GROUP."""

Acks = Sequence[tuple[int, int, Sequence[int]]]
"""(first offset, last offset, types): one type for all of them, or one for each."""
Place = tuple[uuid.UUID, int]
"""A topic's id and a partition."""


class Wire(Protocol):
    """A connection that takes kio requests, such as `RawClient` with its login."""

    def ask(self, entity: Any) -> Any:
        """Send a kio request, return the kio answer."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


class PlainWire:
    """A connection without TLS or login."""

    def __init__(self, bootstrap: str, *, timeout_s: float = TIMEOUT_S) -> None:
        address = split_address(bootstrap.split(",", maxsplit=1)[0])
        self._socket = socket.create_connection(address, timeout=timeout_s)
        self._stream = self._socket.makefile("rb")
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection, at once."""
        self._stream.close()
        self._socket.close()

    def ask(self, entity: Any) -> Any:
        """Send a kio request, return the kio answer. Raises: OSError, also if it is closed."""
        api_key, version = int(entity.__api_key__), int(entity.__version__)
        number = next(self._numbers)
        self._socket.sendall(
            write_request(api_key, version, number, "share-wire", write_message(entity))
        )
        frame = self._read(struct.unpack(">i", self._read(4))[0])
        assert struct.unpack_from(">i", frame) == (number,), "the answer is to another request"
        body = memoryview(frame)[find_response_body(frame, 0, api_key, version) :]
        return read_response(api_key, version, body)

    def _read(self, size: int) -> bytes:
        data = self._stream.read(size)
        if len(data) < size:
            raise ConnectionError("closed")
        return data


def call(wire: Wire, api_key: int, version: int, **values: Any) -> Any:
    """Send a request of plain values (`tests.transcript.entities.build`), return the kio answer."""
    return wire.ask(build(load_request_schema(api_key, version), values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The answer for one partition."""

    error: int = 0
    message: str | None = None
    ack_error: int = 0
    """Of acknowledgements in a ShareFetch; ShareAcknowledge has `error` alone."""
    ack_message: str | None = None
    leader: int = 0
    """Id of the leader, beside the error of a broker that does not lead."""
    acquired: tuple[tuple[int, int, int], ...] = ()
    """(first offset, last offset, delivery count)."""
    batches: tuple[tuple[int, int], ...] = ()
    """First and last offset of each record batch that was sent."""
    records: tuple[tuple[int, bytes | None], ...] = ()
    """Offset and key of each record that was sent, acquired or not."""

    @property
    def counts(self) -> dict[int, int]:
        """Return the delivery count of each acquired offset."""
        return {
            offset: count
            for first, last, count in self.acquired
            for offset in range(first, last + 1)
        }

    @property
    def keys(self) -> list[tuple[int, bytes | None]]:
        """Return offset and key of each acquired record."""
        counts = self.counts
        return [record for record in self.records if record[0] in counts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to a ShareFetch or a ShareAcknowledge."""

    error: int
    message: str | None
    lock_ms: int
    """Duration of acquisition locks; 0 in a refusal."""
    parts: Mapping[Place, Part] = field(default_factory=dict)
    endpoints: Mapping[int, str] = field(default_factory=dict)
    """Addresses of leaders that `Part.leader` names."""

    @property
    def part(self) -> Part:
        """Return the only partition's answer; an empty one if the answer names none."""
        assert len(self.parts) <= 1, "several partitions: look at `parts`"
        return next(iter(self.parts.values()), Part())

    @property
    def acquired(self) -> tuple[tuple[int, int, int], ...]:
        """Return the ranges of the only partition."""
        return self.part.acquired

    @property
    def codes(self) -> tuple[int, int, int]:
        """Return the errors: at the top, of the only partition, of its acknowledgements."""
        return self.error, self.part.error, self.part.ack_error


class ShareClient:
    """A member and its share session; the session's epoch advances with each answer.

    A refusal at the top leaves the epoch as it was. `session_epoch` may be set by a test.
    """

    def __init__(
        self, bootstrap: str, group: str, member_id: str = "", *, wire: Wire | None = None
    ) -> None:
        """Connect; an empty `member_id` is a new one."""
        self.wire = wire or PlainWire(bootstrap)
        self.group, self.member_id = group, member_id or str(uuid.uuid4())
        self.member_epoch = self.session_epoch = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def topic_id(self, topic: str) -> uuid.UUID:
        """Return the id of a topic."""
        (found,) = call(self.wire, ApiKey.METADATA, 12, topics=[{"name": topic}]).topics
        assert found.error_code == 0, found
        assert isinstance(found.topic_id, uuid.UUID)
        return found.topic_id

    def heartbeat(self, topics: Sequence[str] | None = None, *, epoch: int | None = None) -> Any:
        """Send one heartbeat, return the kio answer. None: the topics of before."""
        answer = call(
            self.wire, ApiKey.SHARE_GROUP_HEARTBEAT, 1,
            group_id=self.group, member_id=self.member_id,
            member_epoch=self.member_epoch if epoch is None else epoch,
            subscribed_topic_names=topics,
        )  # fmt: skip
        if answer.error_code == 0:
            self.member_epoch = int(answer.member_epoch)
        return answer

    def join(self, topics: Sequence[str], *, timeout_s: float = TIMEOUT_S) -> set[Place]:
        """Heartbeat until partitions are assigned; return them. Raises: AssertionError."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            # A broker makes the topic of all groups when it is asked for a coordinator first.
            call(self.wire, ApiKey.FIND_COORDINATOR, 6, key_type=0, coordinator_keys=[self.group])
            answer = self.heartbeat(topics)
            if answer.error_code == 0 and answer.assignment is not None:
                places = {
                    (topic.topic_id, int(index))
                    for topic in answer.assignment.topic_partitions
                    for index in topic.partitions
                }
                if places:
                    return places
            assert time.monotonic() < deadline_s, f"no partition was assigned: {answer}"
            time.sleep(POLL_S)  # the broker assigns later; the deadline bounds it

    def fetch_all(
        self, wanted: Mapping[Place, Acks], *, forgotten: Sequence[Place] = (), **options: Any
    ) -> Answer:
        """ShareFetch of partitions with acknowledgements; options are those of `fetch`."""
        version = options.get("version", 2)
        renew = options.get("renew", False)
        values: dict[str, Any] = {
            "max_wait": options.get("max_wait_ms", 0 if renew else 200),
            "min_bytes": options.get("min_bytes", 0 if renew else 1),
            "max_bytes": options.get("max_bytes", 0 if renew else 1 << 20),
            "max_records": options.get("max_records", 0 if renew else 500),
            "batch_size": options.get("batch_size", 500),
            "topics": _topics(wanted),
            "forgotten_topics_data": [
                {"topic_id": topic_id, "partitions": [index]} for topic_id, index in forgotten
            ],
        }
        if version >= 2:
            values |= {"share_acquire_mode": options.get("mode", 0), "is_renew_ack": renew}
        return self._exchange(ApiKey.SHARE_FETCH, version, values, options.get("epoch"))

    def fetch(
        self, topic_id: uuid.UUID, partition: int = 0, *, acks: Acks = (), **options: Any
    ) -> Answer:
        """ShareFetch of one partition.

        options: max_records, batch_size, mode, renew, max_wait_ms, min_bytes, max_bytes, version,
        and epoch in the place of the session's own. With `renew` the four bounds are 0.
        """
        return self.fetch_all({(topic_id, partition): acks}, **options)

    def acquire(
        self, topic_id: uuid.UUID, partition: int = 0, *, count: int = 1, **options: Any
    ) -> Answer:
        """Fetch until at least `count` records were acquired by one answer, or by several.

        The ranges of all answers are in the one that is returned, which is the last one else.
        Raises: AssertionError.
        """
        deadline_s = time.monotonic() + TIMEOUT_S
        acquired: tuple[tuple[int, int, int], ...] = ()
        while True:
            answer = self.fetch(topic_id, partition, **options)
            assert answer.error == 0, answer
            acquired += answer.acquired
            if sum(last - first + 1 for first, last, _ in acquired) >= count:
                parts = {at: replace(part, acquired=acquired) for at, part in answer.parts.items()}
                return replace(answer, parts=parts)
            assert time.monotonic() < deadline_s, f"{acquired} was acquired: {answer}"

    def acknowledge(
        self, topic_id: uuid.UUID, partition: int = 0, *, acks: Acks, **options: Any
    ) -> Answer:
        """ShareAcknowledge of one partition; options: renew, version, epoch."""
        return self.acknowledge_all({(topic_id, partition): acks}, **options)

    def acknowledge_all(
        self,
        acks: Mapping[Place, Acks],
        *,
        renew: bool = False,
        version: int = 2,
        epoch: int | None = None,
    ) -> Answer:
        """ShareAcknowledge of several partitions."""
        values: dict[str, Any] = {"topics": _topics(acks)}
        if version >= 2:
            values["is_renew_ack"] = renew
        return self._exchange(ApiKey.SHARE_ACKNOWLEDGE, version, values, epoch)

    def close(self) -> None:
        """Close the session, leave the group, end the connection. `wire.close` is a crash."""
        if self.session_epoch > 0:
            answer = self.acknowledge_all({}, epoch=-1)
            assert answer.error == 0, answer
        if self.member_epoch > 0:
            self.heartbeat(epoch=-1)
        self.wire.close()

    def _exchange(
        self, api_key: int, version: int, values: dict[str, Any], epoch: int | None
    ) -> Answer:
        sent_epoch = self.session_epoch if epoch is None else epoch
        answer = call(
            self.wire, api_key, version,
            group_id=self.group, member_id=self.member_id, share_session_epoch=sent_epoch,
            **values,
        )  # fmt: skip
        if answer.error_code == 0:
            self.session_epoch = sent_epoch + 1
        lock = getattr(answer, "acquisition_lock_timeout", None)
        return Answer(
            error=int(answer.error_code),
            message=answer.error_message,
            lock_ms=round(lock.total_seconds() * 1000) if lock is not None else 0,
            endpoints={
                int(each.node_id): f"{each.host}:{each.port}" for each in answer.node_endpoints
            },
            parts={
                (topic.topic_id, int(part.partition_index)): _read_part(part)
                for topic in answer.responses
                for part in topic.partitions
            },
        )


def _topics(wanted: Mapping[Place, Acks]) -> list[dict[str, Any]]:
    by_topic: dict[uuid.UUID, list[dict[str, Any]]] = {}
    for (topic_id, index), acks in wanted.items():
        batches = [
            {"first_offset": first, "last_offset": last, "acknowledge_types": list(types)}
            for first, last, types in acks
        ]
        by_topic.setdefault(topic_id, []).append(
            {"partition_index": index, "acknowledgement_batches": batches}
        )
    return [{"topic_id": key, "partitions": parts} for key, parts in by_topic.items()]


def _read_part(part: Any) -> Part:
    fetched = hasattr(part, "acquired_records")
    batches = read_batches(bytes(part.records or b"")) if fetched else []
    return Part(
        error=int(part.error_code),
        message=part.error_message,
        ack_error=int(part.acknowledge_error_code) if fetched else 0,
        ack_message=part.acknowledge_error_message if fetched else None,
        leader=int(part.current_leader.leader_id),
        acquired=tuple(
            (int(each.first_offset), int(each.last_offset), int(each.delivery_count))
            for each in (part.acquired_records if fetched else ())
        ),
        batches=tuple((batch.base, batch.last) for batch in batches),
        records=tuple(
            (record.offset, record.key)
            for batch in batches
            if not batch.is_control
            for record in batch.records
        ),
    )


def share_offsets(bootstrap: str, group: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the start offset and the lag of a share group, by topic and partition.

    Both as they are persisted. A partition that the group never read has -1 and -1.
    A broker that has just started is asked again.
    """

    def describe() -> Any:
        with PlainWire(bootstrap) as wire:
            groups = [{"group_id": group, "topics": None}]
            (found,) = call(wire, ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1, groups=groups).groups
        parts = [part for topic in found.topics for part in topic.partitions]
        codes = {int(each.error_code) for each in (found, *parts)}
        assert codes <= {0, *STARTING}, found
        return found if codes == {0} else None

    found = wait_until(describe, f"offsets of {group}")
    return {
        (str(topic.topic_name), int(part.partition_index)): (int(part.start_offset), int(part.lag))
        for topic in found.topics
        for part in topic.partitions
    }


def alter_group(bootstrap: str, group: str, **configs: str | int) -> None:
    """Set configs of a group, such as `share_auto_offset_reset="earliest"`; they are in force.

    A broker applies them some milliseconds after the answer.
    """
    changes = [
        {"name": name.replace("_", "."), "config_operation": 0, "value": str(value)}
        for name, value in configs.items()
    ]
    named = {"resource_type": GROUP_CONFIG, "resource_name": group}
    wanted = {(change["name"], change["value"]) for change in changes}
    with PlainWire(bootstrap) as wire:

        def in_force() -> bool:
            asked = {**named, "configuration_keys": None}
            found = call(wire, ApiKey.DESCRIBE_CONFIGS, 4, resources=[asked]).results[0]
            assert found.error_code == 0, found
            return wanted <= {(each.name, each.value) for each in found.configs}

        answer = call(
            wire, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[{**named, "configs": changes}]
        )
        assert answer.responses[0].error_code == 0, answer
        wait_until(in_force, f"configs of group {group}")


def wait_until(is_there: Callable[[], Any], text: str, *, timeout_s: float = TIMEOUT_S) -> Any:
    """Ask until the answer is true; return it. Raises: AssertionError."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := is_there()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {text}"
        time.sleep(POLL_S)  # brokers notify no client; the deadline bounds it
    return found
