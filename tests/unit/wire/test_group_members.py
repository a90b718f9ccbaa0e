"""Members of JoinGroup and DescribeGroups: found in every version, changed at their place only."""

from __future__ import annotations

import pytest
from kio.index import load_request_schema, load_response_schema

from keylane.errors import FrameInvalid
from keylane.wire.group_members import (
    DESCRIBE_FLEXIBLE_VERSION,
    JOIN_FLEXIBLE_VERSION,
    keep_members,
    read_described_groups,
    read_join_answer,
    read_join_request,
    replace_bytes,
    splice,
)
from keylane.wire.messages import read_request, read_response, write_message
from tests.transcript.entities import build, plain

JOIN, DESCRIBE = 11, 15
JOIN_VERSIONS, DESCRIBE_VERSIONS = range(10), range(7)
LONG = bytes(300)
"""Its length takes two bytes where lengths are varints."""


def join_request(version: int) -> bytes:
    return write_message(
        build(
            load_request_schema(JOIN, version),
            {
                "group_id": "g",
                "member_id": "m",
                "group_instance_id": "i",
                "protocol_type": "consumer",
                "protocols": [
                    {"name": "range", "metadata": b"one"},
                    {"name": "sticky", "metadata": b""},
                ],
                "reason": "why",
            },
        )
    )


def join_answer(version: int) -> bytes:
    return write_message(
        build(
            load_response_schema(JOIN, version),
            {
                "error_code": 0,
                "generation_id": 7,
                "protocol_type": "consumer",
                "protocol_name": "range",
                "leader": "a",
                "member_id": "a",
                "skip_assignment": True,
                "members": [
                    {"member_id": name, "group_instance_id": None, "metadata": name.encode()}
                    for name in "abc"
                ],
            },
        )
    )


def described(version: int) -> bytes:
    return write_message(
        build(
            load_response_schema(DESCRIBE, version),
            {
                "groups": [
                    {
                        "group_id": group,
                        "group_state": "Stable",
                        "protocol_type": "consumer",
                        "protocol_data": "range",
                        "authorized_operations": 5,
                        "members": [
                            {
                                "member_id": "a",
                                "client_id": "c",
                                "client_host": "/h",
                                "member_metadata": b"said",
                                "member_assignment": b"given",
                            }
                        ],
                    }
                    for group in ("g", "h")
                ]
            },
        )
    )


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_metadata_of_a_join_is_replaced(version) -> None:
    """One protocol's bytes change their length; all other fields are read back the same."""
    body = join_request(version)
    join = read_join_request(body, version)
    (_, first), (_, second) = join.protocols
    flexible = version >= JOIN_FLEXIBLE_VERSION

    changed = splice(body, [replace_bytes(second, LONG, flexible=flexible)])

    assert (join.group_id, join.member_id, join.protocol_type) == ("g", "m", "consumer")
    assert join.instance_id == ("i" if version >= 5 else None)
    assert [(name, bytes(span.data)) for name, span in join.protocols] == [
        ("range", b"one"),
        ("sticky", b""),
    ]
    wanted = plain(read_request(JOIN, version, memoryview(body)))
    wanted["protocols"][1]["metadata"] = LONG
    assert plain(read_request(JOIN, version, memoryview(changed))) == wanted
    assert splice(changed, []) == changed
    assert bytes(first.data) == b"one"


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_members_of_an_answer_are_changed_and_dropped(version) -> None:
    """The leader reads a shorter list; what it knows of the others is the same."""
    body = join_answer(version)
    answer = read_join_answer(body, version)
    flexible = version >= JOIN_FLEXIBLE_VERSION

    edits = [replace_bytes(answer.members[2].metadata, LONG, flexible=flexible)]
    changed = splice(body, edits + keep_members(answer, answer.members[:2], flexible=flexible))

    assert (answer.error_code, answer.generation_id, answer.leader) == (0, 7, "a")
    assert (answer.protocol_name, answer.member_id) == ("range", "a")
    assert [one.member_id for one in answer.members] == ["a", "b", "c"]
    wanted = plain(read_response(JOIN, version, memoryview(body)))
    wanted["members"] = [wanted["members"][2] | {"metadata": LONG}]
    assert plain(read_response(JOIN, version, memoryview(changed))) == wanted
    assert keep_members(answer, [], flexible=flexible) == []


@pytest.mark.parametrize("version", DESCRIBE_VERSIONS)
def test_metadata_of_described_members_is_replaced(version) -> None:
    """Of the second group only."""
    body = described(version)
    groups = read_described_groups(body, version)
    flexible = version >= DESCRIBE_FLEXIBLE_VERSION

    edit = replace_bytes(groups[1].members[0].metadata, b"", flexible=flexible)
    changed = splice(body, [edit])

    assert [(one.group_id, one.protocol_type) for one in groups] == [
        ("g", "consumer"),
        ("h", "consumer"),
    ]
    wanted = plain(read_response(DESCRIBE, version, memoryview(body)))
    wanted["groups"][1]["members"][0]["member_metadata"] = b""
    assert plain(read_response(DESCRIBE, version, memoryview(changed))) == wanted


@pytest.mark.parametrize("version", JOIN_VERSIONS)
def test_a_body_that_ends_early_is_refused(version) -> None:
    """At every byte; no count or length takes memory before it is compared with what is there."""
    for body, read in ((join_request(version), read_join_request),
                       (join_answer(version), read_join_answer)):  # fmt: skip
        needed = len(body) - (version >= 8 and read is read_join_request) * len("\4why")
        for size in range(needed - 1 - (version >= JOIN_FLEXIBLE_VERSION)):
            with pytest.raises(FrameInvalid):
                read(body[:size], version)
