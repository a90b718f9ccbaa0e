"""Every own decoder, as the fuzzer calls it, with the errors that it may raise."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np

from keylane.assignor.model import NO_GENERATION, Lane
from keylane.assignor.protocol import (
    Subscription,
    read_allow_key_share,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from keylane.assignor.range_plan import HASH_FORM, PLAN_FORMAT, read_plan, write_plan
from keylane.assignor.streams import read_subtopologies
from keylane.errors import BatchCorrupt, ConfigInvalid, FrameInvalid, JournalInvalid
from keylane.kernel.block import SplitBlock
from keylane.kernel.pick import index_records
from keylane.kernel.split import split_block
from keylane.keyrange.lane import LaneLayout
from keylane.keyrange.space import HASH_MAX
from keylane.offsets.records.journal import read_key, read_layout, read_positions, read_range
from keylane.producers.resequence import resequence
from keylane.proxy.groups.dealing import read_sticky_data
from keylane.wire.batch import read_batch_header
from keylane.wire.endpoints import read_endpoints, rewrite_brokers
from keylane.wire.fetch import (
    fetch_response_tail,
    read_fetch_request,
    read_fetch_response,
    write_fetch_request,
    write_fetch_response,
)
from keylane.wire.header import ApiKey, read_request_header
from keylane.wire.messages import read_request, read_response
from keylane.wire.parts import merge_endpoint_tags
from keylane.wire.primitives import read_tags
from keylane.wire.produce import (
    read_produce_request,
    read_produce_response,
    write_produce_request,
    write_produce_response,
)
from keylane.wire.share import (
    read_share_acknowledge_request,
    read_share_acknowledge_response,
    read_share_fetch_request,
    read_share_fetch_response,
    write_share_acknowledge_request,
    write_share_acknowledge_response,
    write_share_fetch_request,
    write_share_fetch_response,
)
from tests.fuzz.entities import known_versions
from tests.fuzz.peers import PEER_ALLOWED, PEER_TARGETS

Target = Callable[[int, bytes], None]

PLAN: Final = {
    "format": PLAN_FORMAT,
    "version": 1,
    "topic": "orders",
    "partitions": 1,
    "lanes": 2,
    "hash": HASH_FORM,
    "scope": "partition",
    "cuts": {"0": ["100"]},
    "epoch": 0,
}
SPLITS: Final = [LaneLayout(1, count).key_split(0) for count in (1, 2, 4, 16)]
KNOWN: Final = known_versions()
ENDPOINTS: Final = (
    *((ApiKey.FETCH, v) for v in (16, 17, 18)),
    *((ApiKey.PRODUCE, v) for v in (10, 11, 12, 13)),
    *((key, v) for key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE) for v in (1, 2)),
)


def fuzz_header(choice: int, data: bytes) -> None:
    read_request_header(data, choice % 8)


def fuzz_tags(choice: int, data: bytes) -> None:
    if choice % 2:
        read_tags(data)
    else:
        merge_endpoint_tags([data, data])


def fuzz_fetch_request(choice: int, data: bytes) -> None:
    request = read_fetch_request(data, 0, 4 + choice % 15)
    assert read_fetch_request(write_fetch_request(request), 0, request.version) == request


def fuzz_fetch_response(choice: int, data: bytes) -> None:
    version = 4 + choice % 15
    response = read_fetch_response(data, 0, version)
    again = b"".join(write_fetch_response(response, version))
    assert read_fetch_response(again, 0, version) == response
    tail = fetch_response_tail(data, 0, version)
    assert version < 12 or data[tail:] == response.tags


def fuzz_fetch_tail(choice: int, data: bytes) -> None:
    fetch_response_tail(data, 0, 12 + choice % 7)


def fuzz_produce_request(choice: int, data: bytes) -> None:
    request = read_produce_request(data, 0, 3 + choice % 11)
    again = b"".join(write_produce_request(request))
    assert read_produce_request(again, 0, request.version) == request


def fuzz_produce_response(choice: int, data: bytes) -> None:
    version = 3 + choice % 11
    response = read_produce_response(data, 0, version)
    again = b"".join(write_produce_response(response, version))
    assert read_produce_response(again, 0, version) == response


def fuzz_share_request(choice: int, data: bytes) -> None:
    version = 1 + choice // 2 % 2
    if choice % 2:
        asked = read_share_fetch_request(data, 0, version)
        body = write_share_fetch_request(asked, version)
        assert read_share_fetch_request(body, 0, version) == asked
    else:
        said = read_share_acknowledge_request(data, 0, version)
        body = write_share_acknowledge_request(said, version)
        assert read_share_acknowledge_request(body, 0, version) == said


def fuzz_share_response(choice: int, data: bytes) -> None:
    version = 1 + choice // 2 % 2
    if choice % 2:
        response = read_share_fetch_response(data, 0)
        again = b"".join(write_share_fetch_response(response))
        assert read_share_fetch_response(again, 0) == response
    else:
        response = read_share_acknowledge_response(data, 0, version)
        again = b"".join(write_share_acknowledge_response(response, version))
        assert read_share_acknowledge_response(again, 0, version) == response


def fuzz_endpoints(choice: int, data: bytes) -> None:
    api_key, version = ENDPOINTS[choice % len(ENDPOINTS)]
    buffers = rewrite_brokers(
        api_key, version, data, address_of=lambda node_id: (f"n{node_id}", 9), id_of=int
    )
    if buffers is not None:
        found = read_endpoints(api_key, version, b"".join(buffers))
        assert all(endpoint.host == f"n{endpoint.node_id}" for endpoint in found)


def fuzz_request(choice: int, data: bytes) -> None:
    read_request(*_known(choice, data), memoryview(data)[1:])


def fuzz_response(choice: int, data: bytes) -> None:
    read_response(*_known(choice, data), memoryview(data)[1:])


def _known(choice: int, data: bytes) -> tuple[int, int]:
    return KNOWN[(choice | (data[0] if data else 0) << 8) % len(KNOWN)]


def fuzz_journal(choice: int, data: bytes) -> None:
    read = (read_key, read_positions, read_range, read_layout)[choice % 4]
    read(data)


def fuzz_subscription(choice: int, data: bytes) -> None:
    read_sticky_data(data)
    if choice % 2:
        read_allow_key_share(data)
    said = read_subscription(data)
    known = replace(said, owned=_grouped(said.owned))
    assert read_subscription(write_subscription(known)) == _fit_to_version(known)


def fuzz_assignment(choice: int, data: bytes) -> None:
    reported = read_assignment(data)
    written = write_assignment(
        reported.lanes, version=reported.version, user_data=reported.user_data
    )
    assert read_assignment(written) == replace(reported, lanes=_grouped(reported.lanes))
    if choice % 2:
        topics = {topic for topic, _ in reported.lanes}
        assert frozenset[str]().union(*read_subtopologies(reported).values()) == topics


def _grouped(lanes: tuple[Lane, ...]) -> tuple[Lane, ...]:
    """A topic that stood twice stands once, with all of its lanes, when it is written."""
    names = dict.fromkeys(name for name, _ in lanes)
    return tuple(lane for name in names for lane in lanes if lane[0] == name)


def _fit_to_version(said: Subscription) -> Subscription:
    """Return it without the fields for which its version has no place."""
    if said.version < 1:
        said = replace(said, owned=())
    if said.version < 2:
        said = replace(said, generation_id=NO_GENERATION)
    return said if said.version >= 3 else replace(said, rack=None)


def fuzz_plan(choice: int, data: bytes) -> None:
    """A file, or fields of a sound one replaced, which JSON of chance never reaches."""
    if choice % 2:
        data = _mend_plan(data)
    plan = read_plan(data)
    again = read_plan(write_plan(plan))
    assert again == plan and again.plan_id == plan.plan_id
    for partition in range(min(plan.partition_count, 3)):
        key_ranges = plan.layout().key_split(partition).key_ranges()
        assert key_ranges[0].lo == 0 and key_ranges[-1].hi == HASH_MAX
        assert all(low.hi + 1 == high.lo for low, high in pairwise(key_ranges))


def _mend_plan(data: bytes) -> bytes:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return data
    return json.dumps({**PLAN, **fields}).encode() if isinstance(fields, dict) else data


def fuzz_batch(choice: int, data: bytes) -> None:
    if choice % 2:
        read_batch_header(data, 0)
    else:
        pieces = resequence(memoryview(data), 7, 1)
        assert sum(map(len, pieces)) == len(data)


def fuzz_split(choice: int, data: bytes) -> None:
    """Batches with the CRC they should have, so that the walk behind it is reached."""
    patched = bytearray(data)
    if choice & 0x80:
        _mend_crcs(patched)
    block = split_block(
        bytes(patched), SPLITS[choice % 4], plain_bytes_max=1 << 16, batch_bytes_max=1 << 16
    )
    if block is not None:
        assert 0 < block.wire_bytes <= len(patched)
        assert block.base_offset < block.next_offset
        kept = sum(lane.record_count for lane in block.outputs if lane is not None)
        assert kept <= block.record_count + 16 * len(block.abort_markers) + 16 * 64
        assert all(np.all(lane.ends > 0) for lane in block.outputs if lane is not None)
        _pick_records(bytes(patched), block)


def _pick_records(data: bytes, split: SplitBlock) -> None:
    """Hold the same records one by one: as many, and what is picked is read as good batches."""
    held = index_records(data, plain_bytes_max=1 << 16, batch_bytes_max=1 << 16)
    assert held is not None and held.wire_bytes == split.wire_bytes
    assert held.next_offset == split.next_offset and len(held.offsets) == split.record_count
    rows = np.arange(0, len(held.offsets), 2)
    if rows.size:
        picked = held.pick(rows)
        again = index_records(picked, plain_bytes_max=len(picked), batch_bytes_max=len(picked))
        assert again is not None and again.wire_bytes == len(picked)
        assert np.array_equal(again.offsets, held.offsets[rows])
        assert np.array_equal(again.points, held.points[rows])
        assert held.compact(rows).pick(range(rows.size)) == picked


def _mend_crcs(data: bytearray) -> None:
    from google_crc32c import value as crc32c

    position = 0
    while position + 61 <= len(data):
        size = 12 + int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
        if size < 61 or position + size > len(data):
            return
        body = bytes(data[position + 21 : position + size])
        data[position + 17 : position + 21] = crc32c(body).to_bytes(4, "big")
        position += size


TARGETS: Final[tuple[Target, ...]] = (
    fuzz_header, fuzz_tags, fuzz_fetch_request, fuzz_fetch_response, fuzz_fetch_tail,
    fuzz_produce_request, fuzz_produce_response, fuzz_endpoints, fuzz_request, fuzz_response,
    fuzz_journal, fuzz_batch, fuzz_split, fuzz_subscription, fuzz_assignment, fuzz_plan,
    *PEER_TARGETS, fuzz_share_request, fuzz_share_response,
)  # fmt: skip
ALLOWED: Final = (FrameInvalid, BatchCorrupt, JournalInvalid, ConfigInvalid, *PEER_ALLOWED)


def run_one(data: bytes) -> str:
    """Give `data` to the decoder that it chooses; "read" or "refused".

    Raises:
        Exception: a finding; anything but the errors of keylane.errors.
    """
    if len(data) < 2:
        return "refused"
    try:
        TARGETS[data[0] % len(TARGETS)](data[1], data[2:])
    except ALLOWED:
        return "refused"
    return "read"
