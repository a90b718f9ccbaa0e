"""Refusals: error codes at every place that a schema has for them, and what was asked for."""

from __future__ import annotations

from typing import Any

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from keylane.wire.header import ApiKey
from keylane.wire.messages import write_message
from keylane.wire.refused import entries_of, has_code, refuse, results_of
from tests.transcript.entities import Values, build, plain

DENIED = ErrorCode.topic_authorization_failed
OFFSETS: Values = {"group_id": "g", "topics": [{"name": "orders", "partition_indexes": [0, 3]}]}


def refused(api_key: ApiKey, version: int, asked: Values, **values: Any) -> Values:
    """A whole request refused, as plain values; it can be written."""
    wanted = build(load_request_schema(api_key, version), asked)
    answer = refuse(load_response_schema(api_key, version), wanted, DENIED, "no", **values)
    write_message(answer)
    return plain(answer)


def test_each_entry_is_named_with_the_code() -> None:
    """Where there is no code of the whole answer."""
    answer = refused(ApiKey.OFFSET_FETCH, 1, OFFSETS)

    entries = answer["topics"][0]["partitions"]
    assert answer["topics"][0]["name"] == "orders"
    assert [(one["partition_index"], one["error_code"]) for one in entries] == [(0, 29), (3, 29)]
    assert {(one["committed_offset"], one["metadata"]) for one in entries} == {(-1, "")}


@pytest.mark.parametrize("whole", [None, ErrorCode.none, DENIED])
def test_entries_beside_a_code_are_named_on_demand(whole: ErrorCode | None) -> None:
    """They have the code that refuses them, whatever stands above."""
    answer = refused(ApiKey.OFFSET_FETCH, 7, OFFSETS, whole=whole)

    codes = [one["error_code"] for topic in answer["topics"] for one in topic["partitions"]]
    assert answer["error_code"] == (DENIED if whole is None else whole)
    assert codes == ([] if whole is None else [29, 29])


@pytest.mark.parametrize("version", [4, 5, 7])
def test_a_result_has_nothing_of_what_was_asked_but_its_name(version: int) -> None:
    """The configuration of a topic that is not created is not said."""
    topic = {"name": "a", "num_partitions": 7, "configs": [{"name": "c", "value": "v"}]}

    answer = refused(ApiKey.CREATE_TOPICS, version, {"topics": [topic]})

    (result,) = answer["topics"]
    assert (result["name"], result["error_code"], result["error_message"]) == ("a", 29, "no")
    assert version < 5 or (result["num_partitions"], result["configs"]) == (-1, [])


def test_values_replace_what_the_walk_finds() -> None:
    """Of the entity itself, also where the schema has a default."""
    join = load_response_schema(ApiKey.JOIN_GROUP, 7)
    heartbeat = load_response_schema(ApiKey.SHARE_GROUP_HEARTBEAT, 1)

    answer = refuse(join, None, DENIED, member_id="m")

    assert (answer.member_id, answer.members, answer.protocol_name) == ("m", (), None)
    assert refuse(heartbeat, None, DENIED).member_id is None
    assert refuse(heartbeat, None, DENIED, member_id="m").member_id == "m"


def test_places_of_codes_and_entries() -> None:
    """Fields are found by their names and types."""
    topics = load_request_schema(ApiKey.DELETE_TOPICS, 5)
    response = load_response_schema(ApiKey.DELETE_TOPICS, 5)

    assert entries_of(build(topics, {"topic_names": ["a"]})) == ("topic_names", ("a",))
    assert results_of(response)[0] == "responses"
    assert not has_code(response)
    assert has_code(results_of(response)[1])
