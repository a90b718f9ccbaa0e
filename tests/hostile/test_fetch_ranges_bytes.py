"""Key ranges in Fetch requests in any form: answered or refused, never passed on to a broker."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.keyrange.space import HASH_MAX
from keylane.proxy.apis import ROUTES
from keylane.proxy.apis.records.fetch_ranges import part_fetch, read_ranges
from keylane.wire.extensions import ALLOW_KEY_SHARE, KEY_RANGES, OFFSET_RANGES, write_pairs
from keylane.wire.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_request,
    write_fetch_request,
)
from keylane.wire.header import read_request_header
from keylane.wire.messages import write_message
from keylane.wire.primitives import NO_TAGS, write_tags, write_uvarint
from tests.fuzz.entities import random_request
from tests.hostile.test_handlers import RandomContext, familiar, handle, is_one_frame

FETCH = 1
EDGES = (-(2**63), -1, 0, 1, 2**62, HASH_MAX - 1, HASH_MAX)


class WatchedContext(RandomContext):
    """A broker that would fail at a field of keylane's."""

    def answer_frame(self, frame: bytes) -> bytes:
        header = read_request_header(frame, 4)
        if header.api_key == FETCH:
            sent = read_fetch_request(frame, 4 + header.body_position, header.api_version)
            assert part_fetch(sent) is None, "a tag of keylane's reached the broker"
        return super().answer_frame(frame)


def random_section(rng: random.Random) -> bytes:
    """Tagged fields, some of keylane's own with ranges in them, some in a form of no client."""
    kind = rng.randrange(8)
    if kind < 2:
        return NO_TAGS
    pairs = [(rng.choice(EDGES), rng.choice(EDGES)) for _ in range(rng.randrange(4))]
    data = write_pairs([(min(pair), max(pair)) for pair in pairs] if kind < 5 else pairs)
    if kind == 6:
        data = rng.randbytes(rng.randrange(40))
    fields = {KEY_RANGES: data, rng.randrange(OFFSET_RANGES, ALLOW_KEY_SHARE + 1): data}
    if rng.random() < 0.3:
        fields[rng.randrange(3, 100)] = rng.randbytes(3)
    if kind == 7:  # a number in more bytes than it needs, and twice
        long = bytes((KEY_RANGES & 0x7F | 0x80, KEY_RANGES >> 7 | 0x80, 0))
        field = long + write_uvarint(len(data)) + data
        return b"\x02" + field + field
    return write_tags(fields)


def tagged_body(version: int, rng: random.Random, ids: Sequence[Any]) -> bytes:
    """A random fetch of known topics, with such sections wherever there may be some."""
    entity = familiar(random_request(FETCH, version, rng.getrandbits(32)), rng, tuple(ids))
    wanted = read_fetch_request(write_message(entity), 0, version)
    topics = tuple(
        one._replace(
            tags=random_section(rng),
            partitions=tuple(entry._replace(tags=random_section(rng)) for entry in one.partitions),
        )
        for one in wanted.topics
    )
    forgotten = tuple(one._replace(tags=random_section(rng)) for one in wanted.forgotten)
    tags = random_section(rng)
    session_id = 0 if rng.random() < 0.8 else wanted.session_id
    return write_fetch_request(
        replace(wanted, topics=topics, forgotten=forgotten, tags=tags, session_id=session_id)
    )


@settings(max_examples=300)
@given(version=st.integers(12, 17), seed=st.integers(0, 2**32))
async def test_any_ranges_are_answered_and_stay_here(version, seed) -> None:
    """Ranges in any form, at any topic or partition: an answer of one frame, no tag upstream."""
    rng = random.Random(seed)
    context = WatchedContext(rng)
    context.switches.current = replace(
        context.switches.current, topics={"plain": rng.random() < 0.8, "orders": rng.random() < 0.8}
    )
    body = tagged_body(version, rng, context.ids)

    answer = await handle(context, ROUTES[FETCH], version, body)

    assert is_one_frame(answer)
    context.asked_ranges.check()


@settings(max_examples=200)
@given(version=st.integers(12, 17), seed=st.integers(0, 2**32), flips=st.integers(1, 4))
async def test_damaged_requests_with_ranges_are_answered_or_refused(version, seed, flips) -> None:
    """Bytes changed to anything: an answer, or a clean refusal."""
    rng = random.Random(seed)
    context = WatchedContext(rng)
    body = bytearray(tagged_body(version, rng, context.ids))
    for _ in range(flips):
        body[rng.randrange(len(body))] = rng.randrange(256)

    assert is_one_frame(await handle(context, ROUTES[FETCH], version, bytes(body)))


@given(data=st.binary(max_size=100) | st.binary(min_size=1020, max_size=1100))
def test_any_bytes_are_ranges_or_none(data) -> None:
    """Sorted and disjoint if they are; what is remembered is the same as what is read anew."""
    found = read_ranges(data)

    assert found == read_ranges(data)
    if found is not None:
        assert all(one.hi + 1 < other.lo for one, other in pairwise(found))
        assert found


def test_ranges_of_a_request_are_read_once_for_all_its_entries() -> None:
    """10,000 ranges beside 1,000 partitions: all entries have the same object."""
    data = write_pairs([(20 * number, 20 * number + 9) for number in range(10_000)])
    partitions = tuple(FetchPartition(number, -1, 0, -1, -1, 1, NO_TAGS) for number in range(1_000))
    topic = FetchTopic("orders", None, partitions)
    request = FetchRequest(
        version=12, max_wait_ms=0, min_bytes=0, max_bytes=1, isolation_level=0, topics=(topic,),
        tags=write_tags({KEY_RANGES: data}),
    )  # fmt: skip

    parted = part_fetch(request)

    assert parted is not None
    (ranged,) = parted.ranged
    assert len({id(ranges) for ranges in ranged.ranges}) == 1
    assert len(ranged.ranges[0] or ()) == 10_000
