"""Attacks with records and memberships that only keylane itself should write.

In:    where to, how long.  Out: results of the attacker.
"""

from __future__ import annotations

import random
import struct
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import zstandard
from google_crc32c import value as crc32c

from keylane.keyrange.space import HASH_MAX
from keylane.offsets.records.journal import (
    PositionsValue,
    RangeKey,
    RangeValue,
    StateKey,
    write_key,
    write_value,
)
from keylane.offsets.values import Position
from keylane.proxy.nodes.messages import write_hello
from keylane.proxy.topics.node_values import Hello, NodeInfo, NodeRule, OwnershipClaim
from tests.long.attack_client import HARM, AttackClient, Places, say
from tests.reference.batches import Batch, Record, write_batch

Got = Counter[str]
Pairs = Sequence[tuple[bytes, bytes]]
NODES: Final = "__keylane_nodes"
PRODUCE, FETCH, METADATA, COORDINATOR, JOIN, HEARTBEAT, SYNC = 0, 1, 3, 10, 11, 12, 14
STRANGER_PORT: Final = 9
"""Port of the address to which a fake node leads clients; it has no listener."""
JOURNAL_PARTITIONS: Final = 5
"""keylane's default."""
PAUSE_S: Final = 0.2
ZSTD: Final = 4
UNKNOWN_NAME: Final = b'{"format":1,"topics":{"orders":{"0":[[Infinity,1]]}}}'


def poison(places: Places, until_s: float, topic: str) -> Got:
    """Records by alice, at the brokers and through keylane, until the attack ends."""
    got: Got = Counter()
    chance = random.Random(1)
    pairs = {
        "__keylane_settings": settings_pairs(),
        "__individual_commit_offsets": journal_pairs(places),
        "__keylane_scans": [(b"", chance.randbytes(size)) for size in (1, 30, 300, 100_000)],
    }[topic]
    number = 0
    while time.monotonic() < until_s:
        number += 1
        place = places.brokers if number % 2 else places.keylane
        where = "direct" if number % 2 else "through keylane"
        partition = (
            number // 2 % JOURNAL_PARTITIONS if topic == "__individual_commit_offsets" else 0
        )
        try:
            with AttackClient(place).log_in("alice") as client:
                code = produce(client, topic, partition, pairs)
                is_taken = code == 0 and place == places.keylane
                got[f"{HARM if is_taken else ''}{where}: {code}"] += 1
        except OSError as error:
            got[f"{where}: {say(error)}"] += 1
        time.sleep(PAUSE_S)
    return got


def produce(client: AttackClient, topic: str, partition: int, pairs: Pairs) -> int:
    """One batch; the broker's error code."""
    records = tuple(Record(number, key, value) for number, (key, value) in enumerate(pairs))
    return produce_batch(client, topic, partition, write_batch(Batch(0, records)))


def produce_batch(client: AttackClient, topic: str, partition: int, batch: bytes) -> int:
    """Produce a batch given as bytes; return the broker's error code."""
    data = [{"name": topic, "partition_data": [{"index": partition, "records": batch}]}]
    values = {"transactional_id": None, "acks": 1, "timeout": 10_000, "topic_data": data}
    (found,) = client.ask(PRODUCE, 9, values).responses
    return int(found.partition_responses[0].error_code)


def settings_pairs() -> Pairs:
    """Keys and values that parsers trip over."""
    assignment = b'["assignment","c"]'
    return (
        (b"[" * 100_000, b"{}"),
        (assignment, b"[" * 100_000),
        (assignment, UNKNOWN_NAME),
        (assignment, b'{"format":1,"topics":{"orders":{"0":[["' + b"9" * 5000 + b'","1"]]}}}'),
        (b'["switches"]', b'{"format":1,"version":1,"accept.range.fetch":{"\\ud800":true}}'),
        (b'["assignments"]', b'{"format":1,"version":' + b"9" * 4000 + b"}"),
        (b"\xff\xfe[\x00", b""),
    )


def journal_pairs(places: Places) -> Pairs:
    """A range from nothing to the end, and a state that no commit made."""
    state = StateKey(places.load_group, uuid.UUID(int=7), 0)
    position = Position(offset=2**62, counted=2**62, committed=True)
    value = PositionsValue(
        timestamp_ms=1, pushed=0, topic_name="orders", positions=((HASH_MAX, position),)
    )
    whole = RangeKey(state, 0, 2**63 - 1)
    return (
        (write_key(state), write_value(value)),
        (write_key(whole), write_value(RangeValue(timestamp_ms=1, member_id="m"))),
        (b"\xff" * 30, b"\xff" * 30),
    )


def squat(places: Places, until_s: float, *, is_node: bool) -> Got:
    """Stay in the nodes' group; `is_node`: with what a node says, else as any consumer."""
    got: Got = Counter()
    while time.monotonic() < until_s:
        try:
            with AttackClient(places.brokers, timeout_s=30.0).log_in("alice") as client:
                _stay(client, places, until_s, got, is_node=is_node)
        except OSError as error:
            got[say(error)] += 1
            time.sleep(1.0)
    return got


def led_astray(places: Places) -> Got:
    """Count lanes and coordinators that clients of keylane would look for at the stranger's."""
    got: Got = Counter()
    try:
        with AttackClient(places.keylane).log_in("alice") as client:
            asked = {"topics": [{"name": "orders"}], "allow_auto_topic_creation": False}
            answer = client.ask(METADATA, 9, asked)
            strangers = {one.node_id for one in answer.brokers if one.port == STRANGER_PORT}
            parts = [part for topic in answer.topics for part in topic.partitions]
            got[f"{HARM}lanes led to the stranger"] += sum(
                part.leader_id in strangers for part in parts
            )
            names = [f"group-{number}" for number in range(10)]
            found = client.ask(COORDINATOR, 4, {"key_type": 0, "coordinator_keys": names})
            got[f"{HARM}groups led to the stranger"] += sum(
                one.port == STRANGER_PORT for one in found.coordinators
            )
    except OSError as error:
        got[f"metadata: {say(error)}"] += 1
    return Counter({name: count for name, count in got.items() if count})


def _stay(client: AttackClient, places: Places, until_s: float, got: Got, *, is_node: bool) -> None:
    member_id = ""
    metadata = fake_hello() if is_node else struct.pack(">hii", 0, 0, 0)
    name = "keylane-nodes" if is_node else "range"
    values: dict[str, Any] = {
        "group_id": NODES, "session_timeout": 6000, "rebalance_timeout": 6000,
        "group_instance_id": None, "protocol_type": "consumer",
        "protocols": [{"name": name, "metadata": metadata}],
    }  # fmt: skip
    while time.monotonic() < until_s:
        joined = client.ask(JOIN, 5, {**values, "member_id": member_id})
        got[f"join: {int(joined.error_code)}"] += 1
        member_id = joined.member_id or member_id
        if joined.error_code != 0:
            time.sleep(0.5)
            continue
        same = {"group_id": NODES, "generation_id": joined.generation_id, "member_id": member_id,
                "group_instance_id": None}  # fmt: skip
        synced = client.ask(SYNC, 3, {**same, "assignments": []})
        got[f"sync: {int(synced.error_code)}"] += 1
        while time.monotonic() < until_s:
            if client.ask(HEARTBEAT, 3, same).error_code != 0:
                break  # the group begins a new round
            got.update(led_astray(places))
            time.sleep(1.0)


def fake_hello() -> bytes:
    """Return the subscription of a node whose address is the attacker's."""
    node = NodeInfo(
        number=7,
        bootstrap=("127.0.0.1", STRANGER_PORT),
        brokers={1: ("127.0.0.1", STRANGER_PORT)},
        rules=tuple(NodeRule(topic=name, lanes=4) for name in ("orders", "orders2", "secret")),
        lane_name_pattern="{topic}.lanes-{lanes}",
        control=f"http://127.0.0.1:{STRANGER_PORT}",
        version="x",
    )
    claim = OwnershipClaim(generation_id=-1, partitions=frozenset())
    return write_hello(Hello(node=node, ic_partition_count=5, since=-1, claim=claim))


def zstd_bomb(places: Places, until_s: float, *, megabytes: int) -> Got:
    """Write it at a broker, then read lanes of its partition through keylane."""
    got: Got = Counter()
    batch = bomb_batch(megabytes * 1_000_000)
    with AttackClient(places.brokers).log_in("alice") as client:
        got[f"produce {len(batch) >> 10} KiB: {produce_batch(client, 'orders2', 0, batch)}"] += 1
    while time.monotonic() < until_s:
        for lane in range(4):
            try:
                with AttackClient(places.keylane, timeout_s=60.0).log_in("alice") as client:
                    answer = client.ask(FETCH, 11, _fetch("orders2", lane * 4))
                    for topic in answer.responses:
                        for part in topic.partitions:
                            got[f"fetch: {int(part.error_code)}"] += 1
                            got["bytes of lanes"] += len(part.records or b"")
            except OSError as error:
                got[f"fetch: {say(error)}"] += 1
        time.sleep(2.0)
    return got


def _fetch(topic: str, lane: int) -> dict[str, Any]:
    entry = {
        "partition": lane, "fetch_offset": 0, "partition_max_bytes": 1 << 20,
        "current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1,
    }  # fmt: skip
    return {
        "replica_id": -1, "max_wait": 500, "min_bytes": 1, "max_bytes": 1 << 20, "rack_id": "",
        "session_id": 0, "session_epoch": -1, "isolation_level": 0, "forgotten_topics_data": [],
        "topics": [{"topic": topic, "partitions": [entry]}],
    }  # fmt: skip


def _varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes(out) + bytes((number,))


def bomb_batch(value_bytes: int) -> bytes:
    """A batch of one record of zeros, compressed; its plain bytes are never whole in memory."""
    head = b"\0" + _varint(0) + _varint(0) + _varint(1) + b"k" + _varint(value_bytes)
    record = _varint(len(head) + value_bytes + 1) + head
    packer = zstandard.ZstdCompressor(level=3).compressobj(size=len(record) + value_bytes + 1)
    packed = [packer.compress(record)]
    zeros, left = bytes(1 << 20), value_bytes
    while left > 0:
        packed.append(packer.compress(zeros[: min(left, len(zeros))]))
        left -= len(zeros)
    packed += [packer.compress(b"\0"), packer.flush()]
    now_ms = time.time_ns() // 1_000_000
    rest = struct.pack(">hiqqqhii", ZSTD, 0, now_ms, now_ms, -1, -1, -1, 1) + b"".join(packed)
    return struct.pack(">qiibI", 0, 4 + 1 + 4 + len(rest), -1, 2, crc32c(rest)) + rest
