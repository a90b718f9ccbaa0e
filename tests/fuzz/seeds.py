"""Sound inputs of every decoder: where the fuzzer starts."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from keylane.assignor.protocol import (
    SHARE_MARK,
    Subscription,
    write_assignment,
    write_subscription,
)
from keylane.assignor.range_plan import RangePlan, write_plan
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
from keylane.wire.header import ApiKey, write_request
from keylane.wire.messages import write_message
from tests.fuzz.entities import (
    random_request,
    random_request_body,
    random_response,
    random_response_body,
)
from tests.fuzz.peer_seeds import peer_seeds
from tests.fuzz.targets import ENDPOINTS, KNOWN, TARGETS
from tests.reference.batches import CODEC_FORMS, Batch, Record, control_batch, write_batch
from tests.transcript.consumer_protocol import task_data

TARGET_NUMBER = {target.__name__: number for number, target in enumerate(TARGETS)}
STATE = StateKey("group", uuid.UUID(int=7), 3)


def make_seeds() -> Iterator[bytes]:
    """Inputs that every decoder reads."""
    yield _input("fuzz_header", 4, write_request(ApiKey.FETCH, 12, 1, "app", b"x"))
    yield _input("fuzz_header", 4, write_request(ApiKey.METADATA, 4, 1, None, b"x"))
    for version in (4, 5, 7, 9, 11, 12, 13, 15, 17):
        request = random_request_body(ApiKey.FETCH, version, 1)
        yield _input("fuzz_fetch_request", version - 4, request)
        response = write_message(random_response(ApiKey.FETCH, version, 5, items_max=2))
        yield _input("fuzz_fetch_response", version - 4, response)
    for version in (3, 5, 8, 9, 11, 13):
        produce = write_message(random_request(ApiKey.PRODUCE, version, 1, items_max=2))
        yield _input("fuzz_produce_request", version - 3, produce)
        answer = random_response_body(ApiKey.PRODUCE, version, 5)
        yield _input("fuzz_produce_response", version - 3, answer)
    for number, (api_key, version) in enumerate(ENDPOINTS):
        body = write_message(random_response(api_key, version, 5, items_max=2))
        yield _input("fuzz_endpoints", number, body)
    for number in range(0, len(KNOWN), len(KNOWN) // 12):
        high = bytes((number >> 8,))
        yield _input("fuzz_request", number & 255, high + random_request_body(*KNOWN[number], 2))
        yield _input("fuzz_response", number & 255, high + random_response_body(*KNOWN[number], 2))
    for choice in range(4):
        known = (ApiKey.SHARE_ACKNOWLEDGE, ApiKey.SHARE_FETCH)[choice % 2], 1 + choice // 2
        asked = replace(random_request(*known, 5, items_max=2), group_id="g", member_id="m")
        yield _input("fuzz_share_request", choice, write_message(asked))
        answered = write_message(random_response(*known, 5, items_max=2))
        yield _input("fuzz_share_response", choice, answered)
    yield from _journal_seeds()
    yield from _batch_seeds()
    yield from _assignor_seeds()
    for target, choice, data in peer_seeds():
        yield _input(target, choice, data)


def _assignor_seeds() -> Iterator[bytes]:
    lanes = (("orders", 0), ("orders", 5), ("t", 1))
    for version in range(4):
        said = Subscription(
            version=version,
            topics=("orders", "t"),
            user_data=SHARE_MARK + b"\x00" if version % 2 else b"",
            owned=lanes,
            generation_id=7,
            rack="r1",
        )
        yield _input("fuzz_subscription", version, write_subscription(said))
        reported = write_assignment(lanes, version=version, user_data=b"mine")
        yield _input("fuzz_assignment", 0, reported)
        tasks = task_data([(0, index) for _, index in lanes], version=11 - version)
        reported = write_assignment(lanes, version=version, user_data=tasks)
        yield _input("fuzz_assignment", 1, reported)
    cuts = ((100, 2**60), (7, 8))
    plan = RangePlan(topic="t", lane_count=3, cuts=cuts, epoch=1, predicted=((1.5, 2, 3),) * 2)
    yield _input("fuzz_plan", 0, write_plan(plan))
    alike = replace(plan, cuts=(cuts[0],) * 2, is_cut_alike=True, profiled=((0, 9), (3, 3)))
    yield _input("fuzz_plan", 0, write_plan(alike))
    yield _input("fuzz_plan", 1, b"{}")
    yield _input("fuzz_plan", 1, b'{"lanes":3,"cuts":{"0":["5","6"]},"prior":null}')


def _journal_seeds() -> Iterator[bytes]:
    half = Position(offset=3, counted=9, committed=True, metadata="m", leader_epoch=1)
    rest = Position(offset=3, counted=3, committed=False)
    positions = PositionsValue(
        timestamp_ms=1, pushed=3, topic_name="t", positions=((7, half), (HASH_MAX, rest))
    )
    layout = LayoutValue(timestamp_ms=1, topic_id=STATE.topic_id, partition_count=1, lane_count=2)
    for key in (STATE, RangeKey(STATE, 4, 8), LayoutKey("orders")):
        yield _input("fuzz_journal", 0, write_key(key))
    yield _input("fuzz_journal", 1, write_value(positions))
    yield _input("fuzz_journal", 2, write_value(RangeValue(timestamp_ms=1, member_id="m")))
    yield _input("fuzz_journal", 3, write_value(layout))


def _batch_seeds() -> Iterator[bytes]:
    records = tuple(
        Record(n, key, b"value", ((b"h", b"1"),) if n % 2 else ())
        for n, key in enumerate((b"a", None, b"", b"key-7"))
    )
    plain = write_batch(Batch(100, records, producer_id=7, producer_epoch=0, base_sequence=3))
    yield _input("fuzz_batch", 0, plain)
    yield _input("fuzz_batch", 1, plain)
    for number, form in enumerate(CODEC_FORMS):
        batch = write_batch(Batch(100, records, form=form))
        yield _input("fuzz_split", 0x80 | number & 3, batch)
    marker = write_batch(control_batch(104, 7, commit=False))
    yield _input("fuzz_split", 0x82, plain + marker + plain)


def _input(target: str, choice: int, data: bytes) -> bytes:
    return bytes((TARGET_NUMBER[target], choice)) + data


def write_seeds(folder: Path) -> int:
    """Write what is not there yet; return how many seeds there are."""
    folder.mkdir(parents=True, exist_ok=True)
    seeds = list(make_seeds())
    for data in seeds:
        (folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]).write_bytes(data)
    return len(seeds)
