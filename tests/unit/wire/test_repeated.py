"""Partitions of a topic that are shown several times over are written once, and numbered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_response_schema

from keylane.wire.messages import read_response, write_message
from keylane.wire.repeated import Repeated
from tests.transcript.entities import build

METADATA, DESCRIBE_TOPICS = 3, 75
VERSIONS = [(METADATA, 0), (METADATA, 8), (METADATA, 12), (DESCRIBE_TOPICS, 0)]


def answer_of(api_key: int, version: int, indexes: list[int]) -> Any:
    """One topic with these partitions, of which no two are alike."""
    partitions = [
        {"error_code": index % 3, "partition_index": index, "leader_id": 7 + index,
         "replica_nodes": list(range(index % 4)), "isr_nodes": [1]}
        for index in indexes
    ]  # fmt: skip
    topic = {"name": "orders", "partitions": partitions}
    return build(load_response_schema(api_key, version), {"topics": [topic]})


@pytest.mark.parametrize(("api_key", "version"), VERSIONS)
@given(
    indexes=st.lists(st.integers(0, 50), max_size=6, unique=True),
    copies=st.integers(1, 5),
    step=st.integers(0, 2000),
)
def test_it_is_written_as_the_entities_one_by_one(
    api_key: int, version: int, indexes: list[int], copies: int, step: int
) -> None:
    """The naive twin is a tuple of all entities, each with its own index."""
    answer = answer_of(api_key, version, indexes)
    (topic,) = answer.topics
    naive = tuple(
        replace(
            entry, partition_index=type(entry.partition_index)(copy * step + entry.partition_index)
        )
        for copy in range(copies)
        for entry in topic.partitions
    )
    repeated = Repeated(topic.partitions, copies=copies, step=step)

    written = write_message(replace(answer, topics=(replace(topic, partitions=repeated),)))

    assert tuple(repeated) == naive and len(repeated) == len(naive)
    assert repeated[:3] == naive[:3]
    assert written == write_message(replace(answer, topics=(replace(topic, partitions=naive),)))
    assert read_response(api_key, version, memoryview(written)).topics[0].partitions == naive
