"""Sound inputs of the decoders in `peers`: where mutations of them start."""

from __future__ import annotations

import base64
import json
import struct
import uuid
from collections.abc import Iterator

import numpy as np

from keylane.keyrange.key_split import KeySplit, PartitionSplit, even_split
from keylane.keyrange.space import HASH_MAX
from keylane.offsets.records.journal import (
    LayoutKey,
    LayoutValue,
    PositionsValue,
    RangeKey,
    RangeValue,
    StateKey,
    write_key,
    write_value,
)
from keylane.offsets.values import Position
from keylane.proxy.nodes.messages import write_hello, write_membership, write_refusal
from keylane.proxy.scans.records import Cut, Scan, Sender, write_packets
from keylane.proxy.topics.node_values import Hello, Membership, NodeInfo, NodeRule, OwnershipClaim
from keylane.share.handover import HandOver, HeldRange, NotedPlace, Thanks, write_note
from keylane.wire.header import write_request
from tests.fuzz.peers import GENERATION, HALF

STATE = StateKey("group", uuid.UUID(int=7), 0)
NODE = NodeInfo(
    number=0,
    bootstrap=("node-0.test", 9092),
    brokers={1: ("node-0.test", 9093), 2: ("node-0.test", 9094)},
    rules=(NodeRule(topic="orders", lanes=4),),
    lane_name_pattern="{topic}.lanes-{lanes}",
    pinned={str(uuid.UUID(int=9)): 4},
    control="https://node-0.test:9640",
    version="1.0",
)

Seed = tuple[str, int, bytes]


def peer_seeds() -> Iterator[Seed]:
    """Inputs that every decoder of `peers` reads."""
    yield from _settings()
    yield from _scans()
    yield from _notes()
    yield from _nodes()
    yield from _logins()
    yield "fuzz_table", 0, _journal()
    whole = b"".join(
        bytes(write_request(key, 0, number, "app", bytes(20)))
        for number, key in enumerate((3, 18, 1))
    )
    yield "fuzz_frames", 255, whole
    yield "fuzz_frames", 0, struct.pack(">i", 300) + bytes(300)


def _settings() -> Iterator[Seed]:
    assignment = {"format": 1, "topics": {"orders": {"0": [["0", "7"], ["9", str(HASH_MAX)]]}}}
    switches = {"format": 1, "version": 3, "accept.range.fetch": {"orders": True}}
    yield "fuzz_settings", 0, _record(["assignment", "client"], assignment)
    yield "fuzz_settings", 0, _record(["switches"], switches)
    yield "fuzz_settings", 0, _record(["fence"], {"format": 1})
    both = _record(["assignment", "a"], assignment), _record(["assignments"], {"format": 1})
    yield "fuzz_settings", 0, b"\x01".join(both)


def _record(key: object, value: object) -> bytes:
    return json.dumps(key).encode() + b"\0" + json.dumps(value).encode()


def _scans() -> Iterator[Seed]:
    for split in (even_split(8), KeySplit((5, 9), (0, 1, 0))):
        columns = np.zeros((3, split.output_count), np.int64)
        columns[0] = -1
        columns[:, 1] = (105, 3, 900)
        scan = Scan(
            topic="orders",
            at=PartitionSplit(uuid.UUID(int=7), 0, split),
            start=100,
            end=120,
            columns=columns,
            holes=((107, 109),),
            log_start_offset=0,
            leader_epoch=1,
        )
        cut = Cut((uuid.UUID(int=7), 0), 50, 2)
        for packet in write_packets(Sender(0, b"x" * 16), [scan, cut], lambda _: False):
            yield "fuzz_scans", 0, packet


def _notes() -> Iterator[Seed]:
    at = NotedPlace(
        number=1, group="billing", topic="orders", topic_id=uuid.UUID(int=7), partition=0
    )
    ranges = HeldRange(3, 9, 1), HeldRange(12, 12, 2, 500)
    offer = HandOver(
        at=at, leader_epoch=4, session_epoch=77, end_offset=20, quiet_ms=0, ranges=ranges
    )
    for note in (offer, Thanks(at)):
        yield "fuzz_scans", 0, write_note(note)


def _nodes() -> Iterator[Seed]:
    claim = OwnershipClaim(generation_id=3, partitions=frozenset((0, 2)))
    hello = Hello(node=NODE, ic_partition_count=5, since=2, claim=claim)
    yield "fuzz_hello", 0, write_hello(hello)
    said = {"number": 0, "bootstrap": ["node-0.test", 9092], "brokers": {"1": ["h", 1]}}
    yield "fuzz_hello", 1, _json({"format": 1, "node": said, "ic_partition_count": 5})
    membership = Membership(generation_id=GENERATION, nodes=(NODE,), owners=(0, 0, -1))
    yield "fuzz_verdict", 0, write_membership(membership, 0)
    yield "fuzz_verdict", 0, write_refusal(GENERATION, "another node has this number")
    reported = {"format": 1, "generation_id": GENERATION, "nodes": [said], "owners": [0]}
    yield "fuzz_verdict", 3, _json(reported)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _logins() -> Iterator[Seed]:
    yield "fuzz_login", 0, b"\0alice\0alice-password"
    yield "fuzz_login", 1, b"n,,n=alice,r=abcdefgh"
    yield "fuzz_login", 2, b"n,a=bob,n=al=2Cice,r=abcdefgh,tokenauth=true"
    claims = base64.urlsafe_b64encode(b'{"sub":"alice","exp":1}').rstrip(b"=")
    yield "fuzz_login", 3, b"n,,\x01auth=Bearer e30." + claims + b".\x01\x01"


def _journal() -> bytes:
    half = Position(offset=3, counted=9, committed=True, metadata="m", leader_epoch=1)
    rest = Position(offset=3, counted=3, committed=False)
    positions = PositionsValue(
        timestamp_ms=1, pushed=3, topic_name="t", positions=((7, half), (HASH_MAX, rest))
    )
    layout = LayoutValue(timestamp_ms=1, topic_id=STATE.topic_id, partition_count=1, lane_count=2)
    pairs = (
        (write_key(STATE), write_value(positions)),
        (write_key(RangeKey(STATE, 4, 8)), write_value(RangeValue(timestamp_ms=1, member_id="m"))),
        (write_key(LayoutKey("orders")), write_value(layout)),
    )
    return b"".join(HALF.pack(len(k)) + HALF.pack(len(v)) + k + v for k, v in pairs)
