"""OffsetFetch of lanes that cannot be resolved, beside what the real broker says of it."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kio.index import load_request_schema

from keylane.wire.header import response_body_position, write_request
from keylane.wire.messages import read_response, write_message
from tests.integration.test_plain_topics import ask
from tests.transcript.entities import build, plain

FETCH = 9


def offsets(bootstrap: str, version: int, name: str, indexes: list[int]) -> list[Any]:
    """Offset and error of each index, for a group that has none."""
    topics = [{"name": name, "partition_indexes": indexes}]
    question = {"group_id": f"group-{uuid.uuid4()}", "topics": topics}
    wanted = question if version < 8 else {"groups": [question]}
    body = write_message(build(load_request_schema(FETCH, version), wanted))
    answer = ask(bootstrap, write_request(FETCH, version, 77, "raw", body))
    start = response_body_position(FETCH, version)
    found = plain(read_response(FETCH, version, memoryview(answer)[start:]))
    (topic,) = found["topics"] if version < 8 else found["groups"][0]["topics"]
    return [(entry["committed_offset"], entry["error_code"]) for entry in topic["partitions"]]


@pytest.mark.parametrize(("version", "code"), [(1, 14), (5, 14), (7, 88), (9, 88)])
@pytest.mark.parametrize("form", ["lanes4-{}", "{}.lanes-8"])
def test_a_broker_has_no_offset_and_keylane_says_later(
    version, code, form, kafka, shared_keylane
) -> None:
    """The same question to a topic that is not there: -1 without an error, and ask again."""
    name = form.format(uuid.uuid4())

    direct = offsets(kafka, version, name, [0, 5])
    proxied = offsets(shared_keylane.bootstrap, version, name, [0, 5])

    assert direct == [(-1, 0), (-1, 0)]
    assert proxied == [(-1, code), (-1, code)]
