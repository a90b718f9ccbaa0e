"""The own codec of OffsetCommit against kio, its slow twin: every version, any message."""

from __future__ import annotations

import random
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema

from keylane.errors import FrameInvalid
from keylane.wire.entities import MILLISECOND, UNKNOWN
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_request, read_response, write_message
from keylane.wire.offset_commit import (
    NO_LEADER_EPOCH,
    NO_RETENTION,
    VERSION_MAX,
    VERSION_MIN,
    CommitRequest,
    CommitResponse,
    read_commit_request,
    read_commit_response,
    write_commit_request,
    write_commit_response,
)
from keylane.wire.primitives import NO_TAGS
from tests.fuzz.entities import random_request, random_response
from tests.fuzz.unknown_tags import with_unknown_tags
from tests.transcript.entities import build

KEY = ApiKey.OFFSET_COMMIT
SEEDS = st.integers(0, 2**64)
VERSIONS = st.integers(VERSION_MIN, VERSION_MAX)
CHANCES = st.sampled_from([0.0, 0.5, 1.0])
"""Of each entity to have tagged fields that no schema knows."""


def shown(value: Any) -> Any:
    """A kio entity or a value of the codec, as names and what they stand for."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return [shown(item) for item in value]
    if is_dataclass(value):
        names = [one.name for one in dataclass_fields(value)]
    elif hasattr(value, "_fields"):
        names = value._fields
    else:
        return int(value) if isinstance(value, int) else value
    fields = {name: shown(getattr(value, name)) for name in names}
    fields["tags"] = fields.pop("tags", fields.pop(UNKNOWN, NO_TAGS))
    for name, unit in (("retention_ms", "retention_time"), ("throttle_ms", "throttle_time")):
        if unit in fields:
            time = fields.pop(unit)
            fields[name] = time if isinstance(time, int) else time // MILLISECOND
    return {name: value for name, value in fields.items() if value != DEFAULTS.get(name, ...)}


DEFAULTS = {
    "committed_leader_epoch": NO_LEADER_EPOCH,
    "retention_ms": NO_RETENTION,
    "group_instance_id": None,
    "throttle_ms": 0,
}
"""What stands in the place of fields that a version lacks."""


@given(VERSIONS, SEEDS, CHANCES)
def test_requests_are_kios(version: int, seed: int, chance: float) -> None:
    """The same values of the same bytes, and these bytes again."""
    entity = with_unknown_tags(
        random_request(KEY, version, seed), random.Random(seed), chance=chance
    )
    body = write_message(entity)

    read = read_commit_request(memoryview(body), version)

    assert shown(read) == shown(read_request(KEY, version, memoryview(body)))
    assert write_commit_request(read, version) == body


@given(VERSIONS, SEEDS, CHANCES)
def test_responses_are_kios(version: int, seed: int, chance: float) -> None:
    """The same for what brokers answer."""
    entity = with_unknown_tags(
        random_response(KEY, version, seed), random.Random(seed), chance=chance
    )
    body = write_message(entity)

    read = read_commit_response(memoryview(body), version)

    assert shown(read) == shown(read_response(KEY, version, memoryview(body)))
    assert write_commit_response(read, version) == body


@given(VERSIONS, SEEDS, st.data())
def test_what_kio_refuses_is_refused(version: int, seed: int, data: st.DataObject) -> None:
    """Bytes that were cut, changed, or go on: both read the same, or neither does."""
    kinds: tuple[tuple[Any, Any, Any], ...] = (
        (random_request, read_request, read_commit_request),
        (random_response, read_response, read_commit_response),
    )
    make, by_kio, by_codec = data.draw(st.sampled_from(kinds))
    body = bytearray(write_message(make(KEY, version, seed)))
    cut = data.draw(st.integers(0, len(body)))
    place = data.draw(st.integers(0, max(0, len(body) - 1)))
    match data.draw(st.sampled_from(["cut", "changed", "longer"])):
        case "cut":
            del body[cut:]
        case "changed":
            body[place] = data.draw(st.integers(0, 255))
        case _:
            body += b"\x00"

    assert _outcome(by_codec, bytes(body), version) == _outcome(
        lambda view, number: by_kio(KEY, number, view), bytes(body), version
    )


def _outcome(read: Any, body: bytes, version: int) -> Any:
    """What is read; None: it is refused."""
    try:
        return shown(read(memoryview(body), version))
    except FrameInvalid:
        return None


@given(VERSIONS)
def test_a_code_without_a_name_passes(version: int) -> None:
    """As the number that it is."""
    key = {"topic_id": None} if version >= 10 else {"name": "t"}
    values = {"topics": [{**key, "partitions": [{"partition_index": 1, "error_code": 0}]}]}
    body = bytearray(write_message(build(load_response_schema(KEY, version), values)))
    at = body.rindex(b"\x00\x00\x00\x01\x00\x00") + 4
    body[at : at + 2] = (30_000).to_bytes(2, "big")

    read = read_commit_response(bytes(body), version)

    assert read.topics[0].partitions[0].error_code == 30_000
    assert write_commit_response(read, version) == bytes(body)


def test_defaults_are_those_of_kafka() -> None:
    """What keylane makes itself needs no more than topics."""
    assert CommitRequest("g", -1, "", ()).retention_ms == NO_RETENTION
    assert CommitResponse(()).throttle_ms == 0
