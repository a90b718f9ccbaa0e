"""Tagged fields of keylane's own: the bytes of docs/protocol-extensions.md, and bytes that lie."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.schema.types import TopicName
from kio.static.constants import EntityType
from kio.static.primitive import i32, i64

from keylane.errors import FrameInvalid
from keylane.keyrange.space import HASH_MAX, KeyRange, split_even
from keylane.wire import extensions as x
from keylane.wire.entities import with_unknown_tags
from keylane.wire.messages import write_message
from keylane.wire.offset_commit import (
    CommitAnswer,
    CommitPartition,
    CommitRequest,
    CommitResponse,
    NamedTopic,
    write_commit_request,
    write_commit_response,
)
from keylane.wire.primitives import NO_TAGS, read_tags, write_tags

PAGE = Path("docs/protocol-extensions.md").read_text()
RANGES = ((43, 45), (48, 49))
QUARTER = KeyRange(0, 2**62 - 1)
points = st.integers(0, HASH_MAX)
key_ranges = st.tuples(points, points).map(lambda ends: KeyRange(min(ends), max(ends)))
numbers = st.integers(-(2**63), 2**63 - 1)


def printed() -> list[bytes]:
    """The bytes of all code blocks on the page, without their comments."""
    blocks = re.findall(r"^```\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    lines = (
        [re.split(r"\s{2,}", line.strip())[0] for line in each.splitlines()] for each in blocks
    )
    return [bytes.fromhex("".join(each).replace(" ", "")) for each in lines]


def commit_entry(**fields: Any) -> bytes:
    entry = CommitPartition(3, -1, -1, "", write_tags(fields["tags"]))
    request = CommitRequest("", -1, "", (NamedTopic("t", (entry,)),))
    empty = CommitRequest("", -1, "", (NamedTopic("t", ()),))
    return _between(write_commit_request(request, 9), write_commit_request(empty, 9))


def answer_entry(code: ErrorCode, fields: dict[int, bytes]) -> bytes:
    entry = CommitAnswer(3, code, write_tags(fields))
    answer = CommitResponse((NamedTopic("t", (entry,)),))
    empty = CommitResponse((NamedTopic("t", ()),))
    return _between(write_commit_response(answer, 9), write_commit_response(empty, 9))


def _between(whole: bytes, empty: bytes) -> bytes:
    """What an entry adds: the ends of both are the tags of topic and message."""
    return whole[len(empty) - 2 : -2]


def made_entity(
    type_name: str, api_key: int, version: int, kind: Any, fields: dict[int, bytes], **values: Any
) -> bytes:
    made = getattr(load_payload_module(api_key, version, kind), type_name)(**values)
    return write_message(with_unknown_tags(made, write_tags(fields)))


def expected() -> dict[str, bytes]:
    ranges = {x.OFFSET_RANGES: x.write_pairs(RANGES)}
    stable = {x.STABLE_OFFSET: x.write_int64(40)}
    halves = split_even(2)
    lanes = [x.LaneRange(0, halves[0]), x.LaneRange(1, halves[1])]
    return {
        "commit": commit_entry(tags=ranges),
        "commit of keys": commit_entry(tags=ranges | {x.KEY_RANGES: x.write_key_ranges([QUARTER])}),
        "answer": answer_entry(ErrorCode.none, stable),
        "refusal": answer_entry(
            ErrorCode.rebalance_in_progress, stable | {x.DRAFT_ERROR: x.write_int16(92)}
        ),
        "asked": made_entity(
            "OffsetFetchRequestTopics", 9, 8, EntityType.request,
            {x.PARTITION_KEY_RANGES: x.write_partition_key_ranges({1: [QUARTER]})},
            name=TopicName("orders"), partition_indexes=(i32(0), i32(1)),
        ),
        "answered": made_entity(
            "OffsetFetchResponsePartitions", 9, 8, EntityType.response, ranges | stable,
            partition_index=i32(0), committed_offset=i64(41), committed_leader_epoch=i32(-1),
            metadata="", error_code=ErrorCode.none,
        ),
        "asks": write_tags({x.LANE_RANGES: b""})
        + write_tags({x.LANE_RANGES: b"", x.ALLOW_KEY_SHARE: b"\x00"}),
        "assigned": made_entity(
            "TopicPartitions", 68, 1, EntityType.response,
            {x.LANE_RANGES: x.write_lane_ranges(lanes)},
            topic_id=uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f"),
            partitions=(i32(0), i32(3)),
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(expected()))
def test_the_page_has_the_bytes_that_are_written(name) -> None:
    """Each message of the page is one that this version writes."""
    assert expected()[name] in printed(), expected()[name].hex()


@given(st.lists(st.tuples(numbers, numbers)))
def test_pairs_come_back(pairs) -> None:
    """Any numbers, in their order: bounds are compared by the state."""
    assert x.read_pairs(x.write_pairs(pairs)) == tuple(pairs)


@given(st.lists(key_ranges), st.dictionaries(st.integers(0, 2**31 - 1), st.lists(key_ranges)))
def test_key_ranges_come_back(ranges, by_partition) -> None:
    """Alone, and by partition."""
    assert x.read_key_ranges(x.write_key_ranges(ranges)) == tuple(ranges)
    written = x.write_partition_key_ranges(by_partition)
    assert x.read_partition_key_ranges(written) == {
        partition: tuple(of_partition) for partition, of_partition in by_partition.items()
    }


@given(st.lists(st.builds(x.LaneRange, st.integers(0, 2**31 - 1), key_ranges)))
def test_lane_ranges_come_back(ranges) -> None:
    """The meaning of each lane index, in the order of the indexes."""
    assert x.read_lane_ranges(x.write_lane_ranges(ranges)) == tuple(ranges)


@given(st.dictionaries(st.integers(0, 20_000), st.binary(max_size=9), max_size=5))
def test_own_fields_are_taken_out(fields) -> None:
    """What is not keylane's stays as it was, also beside fields of later versions."""
    own, rest = x.read_extensions(write_tags(fields))

    assert own == {
        tag: data for tag, data in fields.items() if x.OFFSET_RANGES <= tag <= x.ALLOW_KEY_SHARE
    }
    assert read_tags(rest) == {tag: data for tag, data in fields.items() if tag not in own}
    assert read_tags(x.with_extensions(rest, own)) == fields
    assert own or rest in (write_tags(fields), NO_TAGS)


@given(st.binary(max_size=60))
def test_bytes_of_a_stranger_are_read_or_refused(data) -> None:
    """Any bytes: values, or FrameInvalid; a count takes no memory that the bytes do not fill."""
    for read in (
        x.read_pairs, x.read_key_ranges, x.read_partition_key_ranges, x.read_lane_ranges,
        x.read_int64, x.read_int16, x.read_extensions,
    ):  # fmt: skip
        try:
            read(data)
        except FrameInvalid:
            continue


def test_key_ranges_are_bounded() -> None:
    """More than 10,000 of a partition, and ranges that are none."""
    whole = KeyRange(0, HASH_MAX)
    with pytest.raises(FrameInvalid, match="10001 key ranges of a partition"):
        x.read_key_ranges(x.write_key_ranges([whole] * 10_001))
    with pytest.raises(FrameInvalid, match=r"key range \[5, 4\] is none"):
        x.read_key_ranges(x.write_pairs([(5, 4)]))
