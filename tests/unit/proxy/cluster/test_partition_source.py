"""A fetch of one partition by keylane itself: its answer's tagged fields."""

from __future__ import annotations

import struct
import uuid
from typing import Any, cast

import pytest

from keylane.errors import UpstreamLost
from keylane.offsets.lineage import EpochEnd
from keylane.proxy.cluster.partition_source import UpstreamSource
from keylane.proxy.lanes.read_memory import ReadRoom
from keylane.proxy.net.upstream import ServiceLink
from keylane.wire.fetch import (
    FetchAnswer,
    FetchResponse,
    FetchTopicAnswer,
    write_fetch_response,
)
from keylane.wire.primitives import NO_TAGS, write_tags

TOPIC_ID = uuid.UUID(int=7)
DIVERGING, UNKNOWN = 0, 4711


class Link:
    """A connection whose broker gives one answer."""

    def __init__(self, tags: bytes) -> None:
        answer = FetchAnswer(
            partition=0,
            error_code=0,
            high_watermark=10,
            last_stable_offset=10,
            log_start_offset=0,
            aborted=None,
            preferred_read_replica=-1,
            records=(b"records",),
            tags=tags,
        )
        topic = FetchTopicAnswer(name=None, topic_id=TOPIC_ID.bytes, partitions=(answer,))
        self.body = b"".join(write_fetch_response(FetchResponse(topics=(topic,)), 17))

    async def request_in_room(self, *_: Any, **__: Any) -> memoryview:
        return memoryview(self.body)


class Room:
    """Room for any answer."""

    broker_id = -1


async def fetch(tags: bytes) -> tuple[EpochEnd | None, bytes]:
    source = UpstreamSource(
        topic="orders",
        topic_id=TOPIC_ID,
        partition=0,
        leader_id=1,
        leader_epoch=3,
        on_moved=lambda: None,
        link=cast("ServiceLink", Link(tags)),
        version=17,
    )
    room = cast("ReadRoom", Room())
    raw = await source.fetch(0, max_wait_ms=0, max_bytes=1, isolation_level=0, room=room)
    return raw.diverging, bytes(raw.records)


@pytest.mark.parametrize(
    ("tags", "diverging"),
    [
        ({}, None),
        ({DIVERGING: struct.pack(">iq", 2, 5) + NO_TAGS}, EpochEnd(2, 5)),
        ({DIVERGING: struct.pack(">iq", -1, -1) + NO_TAGS}, None),
        ({UNKNOWN: b"of tomorrow"}, None),
        ({DIVERGING: struct.pack(">iq", 2, 5) + NO_TAGS, UNKNOWN: b"x"}, EpochEnd(2, 5)),
    ],
    ids=["none", "diverging", "default", "unknown", "both"],
)
async def test_where_the_leaders_log_differs(tags, diverging) -> None:
    """An epoch below 0 is the field's default: the log does not differ, and records count."""
    assert await fetch(write_tags(tags)) == (diverging, b"records")


async def test_a_diverging_epoch_that_is_cut_off() -> None:
    """The connection is given up, with the topic and partition."""
    with pytest.raises(UpstreamLost, match="topic orders partition 0: diverging epoch of 3 bytes"):
        await fetch(write_tags({DIVERGING: b"abc"}))
