"""SyncGroup: its assignments are found in every version, and bytes that are none are refused."""

from __future__ import annotations

import pytest
from kio.index import load_request_schema, load_response_schema

from keylane.errors import FrameInvalid
from keylane.wire.group_syncs import (
    PROTOCOL_VERSION,
    read_sync_answer,
    read_sync_request,
)
from keylane.wire.messages import write_message
from tests.transcript.entities import Values, build

SYNC = 14
VERSIONS = range(6)
REQUEST: Values = {
    "group_id": "g",
    "generation_id": 7,
    "member_id": "m",
    "group_instance_id": "i",
    "protocol_type": "consumer",
    "protocol_name": "stream",
    "assignments": [
        {"member_id": "m", "assignment": b"one"},
        {"member_id": "n", "assignment": b""},
    ],
}


def request_bytes(version: int) -> bytes:
    return write_message(build(load_request_schema(SYNC, version), REQUEST))


def answer_bytes(version: int, error_code: int = 0) -> bytes:
    values = {
        "error_code": error_code,
        "protocol_type": "consumer",
        "protocol_name": "stream",
        "assignment": b"mine",
    }
    return write_message(build(load_response_schema(SYNC, version), values))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_leaders_plan_is_found(version) -> None:
    """One assignment per member, and the protocol where the version has it."""
    sync = read_sync_request(request_bytes(version), version)

    assert (sync.group_id, sync.generation_id, sync.member_id) == ("g", 7, "m")
    assert sync.instance_id == ("i" if version >= 3 else None)
    assert sync.protocol_name == ("stream" if version >= PROTOCOL_VERSION else None)
    assert [bytes(one) for one in sync.assignments] == [b"one", b""]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_has_an_assignment(version) -> None:
    """Of an error nothing is taken."""
    given = read_sync_answer(answer_bytes(version), version)
    refused = read_sync_answer(answer_bytes(version, error_code=27), version)

    assert (bytes(given), bytes(refused)) == (b"mine", b"")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_cut_body_is_refused(version) -> None:
    """Wherever the bytes end, nothing is read beyond them."""
    body, answer = request_bytes(version), answer_bytes(version)
    tags_bytes = int(version >= 4)

    for end in range(len(body) - tags_bytes):
        with pytest.raises(FrameInvalid):
            read_sync_request(body[:end], version)
    for end in range(len(answer) - tags_bytes):
        with pytest.raises(FrameInvalid):
            read_sync_answer(answer[:end], version)
