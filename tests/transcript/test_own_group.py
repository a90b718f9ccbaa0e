"""The nodes' own group: refused in every API and version that names a group, unasked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keylane.proxy.apis.shared.own_names import NAMES_GROUP, names_own_group
from keylane.proxy.topics.node_values import GROUP
from tests.transcript.entities import Values
from tests.transcript.fake import FakeContext, Step, call, is_relayed, make_request, versions

REFUSED = 30
DELETE_GROUPS, LEAVE_GROUP = 42, 13
CASES = [(key, version) for key in sorted(NAMES_GROUP) for version in versions(key)]
PROTOCOLS = [{"name": "keylane-nodes", "metadata": b"x"}]
TOPICS = [
    {
        "name": "orders",
        "topic_name": "orders",
        "partitions": [{"partition_index": 0}],
    }
]


def said(api_key: int, group: str) -> Values:
    """A request that a stranger would send."""
    values: Values = {"group_id": group, "member_id": "m", "transactional_id": "t"}
    if api_key == 11:
        values |= {"protocols": PROTOCOLS, "protocol_type": "consumer"}
    if api_key in {8, 28, 47}:
        values["topics"] = TOPICS
    return values


def codes(answer: Any) -> set[int]:
    """Every error code of an answer."""
    if isinstance(answer, dict):
        own = {value for key, value in answer.items() if key == "error_code"}
        return own.union(*(codes(value) for value in answer.values()))
    if isinstance(answer, list):
        return set().union(*(codes(value) for value in answer))
    return set()


@pytest.mark.parametrize(("api_key", "version"), CASES)
async def test_the_nodes_group_is_refused_without_asking(api_key: int, version: int) -> None:
    """With GROUP_AUTHORIZATION_FAILED where each version says it."""
    context = FakeContext()

    answer = await call(context, api_key, version, said(api_key, GROUP))

    assert codes(answer) == {REFUSED}


@pytest.mark.parametrize(("api_key", "version"), CASES)
def test_other_groups_are_seen_as_such(api_key: int, version: int) -> None:
    """Whatever part of their names is the same."""
    for group in (f"{GROUP}2", f"x{GROUP}", GROUP[:-1], "", GROUP * 20):
        assert not names_own_group(make_request(api_key, version, said(api_key, group)))


@pytest.mark.parametrize("version", list(versions(LEAVE_GROUP)))
def test_leaving_another_group_passes_as_bytes(version: int) -> None:
    """As it did before."""
    request = make_request(LEAVE_GROUP, version, said(LEAVE_GROUP, "g"))

    assert is_relayed(FakeContext(), request)


@pytest.mark.parametrize("api_key", [12, 14, 68, 13, 8])
@given(extra=st.integers(1, 3))
def test_a_size_in_more_bytes_than_it_needs_hides_nothing(api_key: int, extra: int) -> None:
    """Brokers take it: a varint may end in zeros."""
    version = versions(api_key)[-1]
    body = bytes(make_request(api_key, version, said(api_key, GROUP)).body)
    assert body[0] == len(GROUP) + 1
    size = bytes([body[0] | 0x80]) + b"\x80" * (extra - 1) + b"\x00"

    assert names_own_group(make_request(api_key, version, size + body[1:]))


@pytest.mark.parametrize("body", [b"", b"\0", b"\x90", b"\x10__keylane", b"\xff\xff\xff\xff\xff"])
def test_a_body_that_cannot_be_read_is_the_brokers_matter(body: bytes) -> None:
    """It refuses it."""
    for api_key in NAMES_GROUP:
        for version in versions(api_key):
            assert not names_own_group(make_request(api_key, version, body))


@pytest.mark.parametrize("version", list(versions(DELETE_GROUPS)))
async def test_deleting_it_among_others(version: int) -> None:
    """The others are deleted."""
    results = [{"group_id": "g", "error_code": 0}]
    context = FakeContext()
    context.world.steps.append(
        Step(api_key=42, wants={"groups_names": ["g"]}, answer={"results": results})
    )

    answer = await call(context, DELETE_GROUPS, version, {"groups_names": [GROUP, "g"]})

    found = {result["group_id"]: result["error_code"] for result in answer["results"]}
    assert found == {"g": 0, GROUP: REFUSED}
