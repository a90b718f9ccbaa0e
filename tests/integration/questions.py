"""Generated requests of every API and version: names, ids, null, empty, many, unknown.

In:    an API, a version, a number.  Out: the bytes of a request, with marks for what differs
       between two sides that are to be in the same state.
Source: kio's schemas, which equal those of Kafka 4.3.1 field by field.

What changes state is asked on twins: names hold `MARK`, which stands for either side, and topics
have ids by which they are asked for, `ID_MARKS`. Marks are replaced in the bytes, at equal length.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import MISSING, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.index import load_request_schema
from kio.schema.types import BrokerId, GroupId, ProducerId, TopicName, TransactionalId
from kio.serial._introspect import (
    EntityField,
    EntityTupleField,
    classify_field,
    get_field_tag,
    get_schema_field_type,
    is_optional,
)

from keylane.wire.messages import write_message

MARK: Final = b"-@@-"
SIDES: Final = (b"-dd-", b"-tt-")
"""Direct and through keylane."""
TOPICS: Final = {"diff-@@-one": 1, "diff-@@-three": 3, "diff-@@-empty": 2}
"""Their partitions; the last one has no records."""
ID_MARKS: Final = {name: uuid.UUID(int=0xA11CE << 64 | n) for n, name in enumerate(TOPICS)}
GROUP: Final = "diff-@@-group"
TOPIC_POOL: Final = (*TOPICS, *TOPICS, "diff-@@-none", "no name!", "", "x" * 250)
NEW_TOPICS: Final = ("diff-@@-new0", "diff-@@-new1", "diff-@@-new2", *TOPIC_POOL)
GROUP_POOL: Final = (GROUP, GROUP, "diff-@@-absent", "")
MEMBER_POOL: Final = ("", "diff-@@-member", "AAAAAAAAAAAAAAAAAAAAAA")
WORDS: Final = ("", "diff-@@-word", "ümlaut", "x" * 300)

CREATE_TOPICS, DELETE_TOPICS, ELECT_LEADERS = 19, 20, 43
JOINING: Final = frozenset({11, 68, 76, 88})
"""APIs whose members wait for those of earlier questions, so each question has its own group."""
NO_DOUBLES: Final = frozenset({11, 33, 90})
"""A broker never answers these when a protocol, resource or group is named twice."""
OWN_GROUPS: Final = frozenset({42, 47, 78, 79, 91, 92})
"""The group of the name "" would be one for both sides, and what the first one does to it shows."""
HARMFUL_NULLS: Final = frozenset({("cluster_id", 80), ("cluster_id", 81)})
WAITS: Final = (0, 5, 20)
"""Milliseconds that a broker may take."""

STRINGS: Final[dict[str, tuple[str, ...]]] = {
    "key": GROUP_POOL,
    "coordinator_keys": GROUP_POOL,
    "groups": GROUP_POOL,
    "groups_names": GROUP_POOL,
    "transactional_id": ("diff-@@-txn", ""),
    "configuration_keys": ("retention.ms", "no.such.key"),
    "resource_name": (*TOPIC_POOL, "1", "99", GROUP),
    "mechanism": ("PLAIN", "no-such"),
    "assignor": ("range", "no-such"),
    "server_assignor": ("uniform", "range", "no-such"),
    "subscribed_topic_regex": ("diff-@@-.*", "(", ""),
    "protocol_type": ("consumer", ""),
    "protocol_name": ("range", ""),
    "rack_id": ("", "diff-rack"),
    "entity_type": ("client-id", "user", "no-such"),
    "feature": ("no.such.feature",),
    "path": ("/no/such/path",),
    "principal": ("User:diff", ""),
    "host": ("localhost", "*", ""),
    "cluster_id": ("no-such-cluster",),
    "states_filter": ("Empty", "Stable", "no-such"),
    "types_filter": ("classic", "consumer", "no-such"),
    "state_filters": ("Ongoing", "no-such"),
    "client_software_name": ("diff",),
    "client_software_version": ("1.0",),
    "group_instance_id": ("diff-@@-static", ""),
    "instance_id": ("diff-@@-static",),
    "topics": TOPIC_POOL,
    "topic_names": NEW_TOPICS,
    "subscribed_topic_names": TOPIC_POOL,
    "source_topics": TOPIC_POOL,
    "topic_name": TOPIC_POOL,
    "topic": TOPIC_POOL,
}
CONFIGS: Final = ("retention.ms", "min.insync.replicas", "no.such.key", "")
NUMBERS: Final[dict[str, tuple[int, ...]]] = {
    "replica_id": (-1,),
    "acks": (-1, 1, 2),
    "max_bytes": (0, 500, 1 << 20),
    "partition_max_bytes": (1, 500, 1 << 20),
    "min_bytes": (0, 1),
    "timestamp": (-1, -2, -3, -4, -5, -6, 0, 10**13),
    "isolation_level": (0, 1, 2),
    "resource_type": (2, 2, 4, 8, 16, 32, 0, 99),
    "key_type": (0, 1, 2, 3),
    "num_partitions": (1, 2, -1, 0),
    "count": (1, 4, 0),
    "replication_factor": (1, -1, 3),
    "broker_id": (99,),
    "voter_id": (99,),
    "session_id": (0, 0, 77),
    "session_epoch": (-1, 0),
    "share_session_epoch": (0, -1, 7),
    "iterations": (4096, 1),
    "config_operation": (0, 1, 2, 3),
    "topology_epoch": (0, 1),
    "batch_size": (1, 10),
    "max_records": (1, 100),
    "resource_pattern_type": (3, 1, 4, 99),
    "election_type": (0, 1, 2),
}
INDEXES: Final = (0, 0, 0, 1, 2, 99, -1)
OFFSETS: Final = (0, 1, 3, 99, -1, -2)
EPOCHS: Final = (-1, 0, 0, 1, 7)
SMALL: Final = (0, 1, 2, 3, -1, 7)
BROKERS: Final = (1, 1, 99, -1)


class Question(NamedTuple):
    """One request, with marks."""

    api_key: int
    version: int
    number: int
    body: bytes

    def on(self, side: int, ids: dict[str, uuid.UUID]) -> bytes:
        """The body for one side, whose topics have these ids by marked name."""
        body = self.body.replace(MARK, SIDES[side])
        for name, mark in ID_MARKS.items():
            body = body.replace(mark.bytes, ids[name].bytes)
        return body


def make_question(api_key: int, version: int, number: int, seed: int) -> Question:
    """Return a question: the same one for equal arguments, on any machine."""
    rng = random.Random(f"{seed} {api_key} {version} {number}")
    maker = _Maker(api_key, number, rng)
    entity = maker.entity(load_request_schema(api_key, version))
    return Question(api_key, version, number, write_message(entity))


def a_batch() -> bytes:
    """Two records, as a producer sends them."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 16)
    for number in range(2):
        builder.append(number, 1_700_000_000_000, b"key", b"value", [])
    return bytes(builder.build())


class _Maker:
    """Draws values for the fields of one request."""

    def __init__(self, api_key: int, number: int, rng: random.Random) -> None:
        self._api_key, self._number, self._rng = api_key, number, rng

    def entity(self, entity_type: Any) -> Any:
        values = {}
        for one in fields(entity_type):
            is_tagged = get_field_tag(one) is not None
            if is_tagged and one.default is not MISSING and self._rng.random() < 0.7:
                continue
            values[one.name] = self._field(one, entity_type.__name__)
        return entity_type(**values)

    def _field(self, one: Any, owner: str) -> Any:
        kind, rng = classify_field(one), self._rng
        is_entity = isinstance(kind, EntityField | EntityTupleField)
        kafka_type = "" if is_entity else get_schema_field_type(one)
        # A broker never answers null records, and AddRaftVoter without a cluster id ends it.
        is_harmful = kafka_type == "records" or (one.name, self._api_key) in HARMFUL_NULLS
        is_nullable = is_optional(one) and kafka_type != "uuid" and not is_harmful
        if is_nullable and rng.random() < 0.2:
            return None

        def draw() -> Any:
            if is_entity:
                return self.entity(kind.type_)
            return self._primitive(one.name, kafka_type, kind.type_, owner)

        if not kind.is_array:
            return draw()
        counts = (0, 1) if self._api_key in NO_DOUBLES else (0, 1, 1, 2, 3)
        return tuple(draw() for _ in range(rng.choice(counts)))

    def _primitive(self, name: str, kafka_type: str, kio_type: Any, owner: str) -> Any:
        rng = self._rng
        match kafka_type:
            case "string":
                return self._string(name, kio_type, owner)
            case "bool":
                return rng.random() < 0.5
            case "uuid":
                return rng.choice((*ID_MARKS.values(), *ID_MARKS.values(), None, uuid.UUID(int=9)))
            case "bytes":
                return rng.choice((b"", b"\x00\x00", b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"))
            case "records":
                return rng.choice((a_batch(), a_batch(), b"", b"damage" * 20))
            case "error_code":
                return 0
            case "float64":
                return 1e9
            case "timedelta_i32" | "timedelta_i64":
                return timedelta(milliseconds=self._interval(name))
            case "datetime_i64":
                return datetime(2020, 1, 1, tzinfo=UTC)
        number = self._number_of(name, kio_type, owner)
        return max(0, number) if kafka_type.startswith("uint") else number

    def _string(self, name: str, kio_type: Any, owner: str) -> str:
        rng = self._rng
        if self._api_key in JOINING and name == "group_id":
            return f"diff-@@-joins-{self._api_key}-{self._number}-{rng.getrandbits(32)}"
        if self._api_key in OWN_GROUPS and "group" in name:
            return rng.choice(GROUP_POOL[:-1])
        if name == "name" and "Config" in owner:
            return rng.choice(CONFIGS)
        if "Feature" in owner:
            return "no.such.feature"
        if name in {"name", "topic_names"} and self._api_key in (CREATE_TOPICS, DELETE_TOPICS):
            return rng.choice(NEW_TOPICS)
        if name in STRINGS:
            return rng.choice(STRINGS[name])
        if kio_type is TopicName or (name == "name" and "Topic" in owner):
            return rng.choice(TOPIC_POOL)
        if kio_type is GroupId or "group" in name:
            return rng.choice(GROUP_POOL)
        if kio_type is TransactionalId:
            return "diff-@@-txn"
        return rng.choice(MEMBER_POOL if "member" in name else WORDS)

    def _interval(self, name: str) -> int:
        if "session_timeout" in name or "rebalance_timeout" in name:
            return self._rng.choice((6000, 10_000, 1))
        return self._rng.choice((1000, 60_000)) if "transaction" in name else self._wait(name)

    def _wait(self, name: str) -> int:
        # A broker answers these with its own time-out when there is no time at all.
        return 1000 if name in {"timeout", "timeout_ms"} else self._rng.choice(WAITS)

    def _number_of(self, name: str, kio_type: Any, owner: str) -> int:
        rng = self._rng
        if name in NUMBERS:
            return rng.choice(NUMBERS[name])
        if kio_type is ProducerId:
            return rng.choice((-1, 10**12))  # the broker gives out others to each twin
        if kio_type is BrokerId or name in {"replicas", "broker_ids"}:
            return rng.choice(BROKERS)
        for part, pool in (("partition", INDEXES), ("epoch", EPOCHS), ("offset", OFFSETS)):
            if part in name:
                return rng.choice(pool)
        return rng.choice(INDEXES if "Partition" in owner else SMALL)
