"""Offset ranges and key ranges in commits, fetches of offsets and heartbeats, on the wire."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from kio.index import load_request_schema

from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.offsets.txn_metadata import read_note
from keylane.wire.entities import unknown_tags_of, with_unknown_tags
from keylane.wire.extensions import (
    ALLOW_KEY_SHARE,
    DRAFT_ERROR,
    KEY_RANGES,
    LANE_RANGES,
    OFFSET_RANGES,
    PARTITION_KEY_RANGES,
    STABLE_OFFSET,
    LaneRange,
    read_extensions,
    read_int64,
    read_lane_ranges,
    read_pairs,
    write_key_ranges,
    write_pairs,
    write_partition_key_ranges,
)
from keylane.wire.messages import write_message
from keylane.wire.primitives import NO_TAGS, write_tags
from tests.transcript.entities import build
from tests.transcript.fake import ORDERS, FakeContext, make_request, serve
from tests.transcript.lane_group import (
    HEARTBEAT,
    beat,
    described,
    full,
    lanes,
    not_there,
    partial,
    takes,
    topics_of,
)
from tests.transcript.test_offset_commit import GROUP, codes, no_history, pushes, request, topic

COMMIT, FETCH = 8, 9
UPPER = KeyRange(HASH_MAX // 2 + 1, HASH_MAX)
FOREIGN = {77: b"another"}


def with_fields(values: dict[str, Any], version: int, *fields: dict[int, bytes]) -> bytes:
    """The body of a commit whose partitions have these tagged fields, in their order."""
    entity = build(load_request_schema(COMMIT, version), values)
    left = iter(fields)
    topics = tuple(
        replace(
            each,
            partitions=tuple(
                with_unknown_tags(entry, write_tags(next(left))) for entry in each.partitions
            ),
        )
        for each in entity.topics
    )
    return write_message(replace(entity, topics=topics))


async def committed(context: FakeContext, version: int, body: bytes) -> list[tuple[int, int, Any]]:
    """Index, code and own fields of each partition in the answer."""
    asked = make_request(COMMIT, version, body)
    answer = asked.decode_answer(await serve(context, asked))
    return [
        (int(e.partition_index), int(e.error_code), read_extensions(unknown_tags_of(e))[0])
        for each in answer.topics
        for e in each.partitions
    ]


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_own_fields_do_not_reach_the_broker(version) -> None:
    """A lane's ranges become the stable offset; tagged fields of others stay where they were."""
    context = FakeContext()
    no_history(context, 1)
    context.expect(
        COMMIT,
        {"topics": [pushes(version, {1: 0})]},
        {"topics": [codes(version, {1: 0})]},
        version=version,
    )
    fields = {OFFSET_RANGES: write_pairs([(5, 9), (20, 20)]), **FOREIGN}
    body = with_fields(request(topic("orders", {3: -1})), version, fields)

    ((index, code, own),) = await committed(context, version, body)

    assert (index, code) == (3, 0)
    assert read_int64(own[STABLE_OFFSET]) == -1 and DRAFT_ERROR not in own
    (entry,) = context.world.sent[-1]["topics"][0]["partitions"]
    assert entry.get("unknown_tags", NO_TAGS) == write_tags(FOREIGN)
    view = context.lanes("orders")
    state = context.state(GROUP, "orders", 1)
    assert state.ranges(*view.key_ranges(3)) == [(5, 9), (20, 20)]
    assert state.ranges() == [], "other lanes have done nothing of it"


async def test_the_note_of_a_groups_first_ranges_can_be_read() -> None:
    """Nothing was committed before: the lane begins at what is assumed, no other one is lost."""
    context = FakeContext()
    no_history(context, 1)
    context.expect(
        COMMIT, {"topics": [pushes(8, {1: 0})]}, {"topics": [codes(8, {1: 0})]}, version=8
    )
    fields = {OFFSET_RANGES: write_pairs([(5, 9)])}

    await committed(context, 8, with_fields(request(topic("orders", {3: -1, 1: 7})), 8, fields, {}))

    (entry,) = context.world.sent[-1]["topics"][0]["partitions"]
    note = read_note(entry["committed_metadata"], ORDERS, 0)
    assert note is not None
    of_lane = {commit.key_range: commit for commit in note.said}
    view = context.lanes("orders")
    (third,), (first,) = view.key_ranges(3), view.key_ranges(1)
    assert (of_lane[third].offset, of_lane[third].ranges) == (0, ((5, 9),))
    assert of_lane[first].offset == 7


async def test_key_ranges_name_the_brokers_partition() -> None:
    """The same topic in one request: a lane by its index, and keys of partition 1."""
    context = FakeContext()
    no_history(context, 1)
    context.expect(
        COMMIT, {"topics": [pushes(8, {1: 0})]}, {"topics": [codes(8, {1: 0})]}, version=8
    )
    keyed = {KEY_RANGES: write_key_ranges([UPPER]), OFFSET_RANGES: write_pairs([(0, 9)])}
    body = with_fields(request(topic("orders", {3: 4, 1: -1})), 8, {}, keyed)

    answers = await committed(context, 8, body)

    assert [(index, code) for index, code, _ in answers] == [(3, 0), (1, 0)]
    assert [STABLE_OFFSET in own for _, _, own in answers] == [False, True]
    state = context.state(GROUP, "orders", 1)
    assert state.position_of(UPPER).offset == 10
    lane = context.lanes("orders").key_ranges(3)
    assert state.position_of(*lane).offset == 4


async def test_a_partition_that_is_not_there_is_refused() -> None:
    """Key ranges of partition 7, where there are two."""
    context = FakeContext()
    keyed = {KEY_RANGES: write_key_ranges([UPPER]), OFFSET_RANGES: write_pairs([(0, 9)])}
    body = with_fields(request(topic("orders", {7: -1})), 8, keyed)

    assert [(i, code) for i, code, _ in await committed(context, 8, body)] == [(7, 3)]


@pytest.mark.parametrize(
    "fields",
    [
        {OFFSET_RANGES: b"\x05\x00"},
        {OFFSET_RANGES: write_pairs([(1, 2)]) + b"\x00"},
        {KEY_RANGES: write_pairs([(5, 4)])},
        {KEY_RANGES: write_pairs([(-1, 4)]), OFFSET_RANGES: write_pairs([(1, 2)])},
    ],
    ids=["too short", "too long", "reversed keys", "negative keys"],
)
async def test_a_field_that_is_not_well_formed_refuses_its_entry(fields) -> None:
    """INVALID_REQUEST for it alone; a plain entry beside it is committed."""
    context = FakeContext()
    no_history(context, 1)
    context.expect(
        COMMIT, {"topics": [pushes(8, {1: 0})]}, {"topics": [codes(8, {1: 0})]}, version=8
    )
    body = with_fields(request(topic("orders", {3: 4, 1: -1})), 8, {}, fields)

    answers = await committed(context, 8, body)

    assert [(index, code) for index, code, _ in answers] == [(3, 0), (1, 42)]


async def test_a_fetch_of_offsets_says_ranges_where_they_are_asked_for() -> None:
    """With the tagged field: ranges above the lane's position, and the stable offset."""
    context = FakeContext()
    no_history(context, 1)
    context.expect(
        COMMIT, {"topics": [pushes(8, {1: 0})]}, {"topics": [codes(8, {1: 0})]}, version=8
    )
    ranges = {OFFSET_RANGES: write_pairs([(0, 3), (8, 9)])}
    await committed(context, 8, with_fields(request(topic("orders", {3: -1})), 8, ranges))
    values = {
        "groups": [{"group_id": GROUP, "topics": [{"name": "orders", "partition_indexes": [3, 3]}]}]
    }
    asked = build(load_request_schema(FETCH, 8), values)
    (group,) = asked.groups
    field = {PARTITION_KEY_RANGES: write_partition_key_ranges({})}
    tagged = with_unknown_tags(group.topics[0], write_tags(field))
    asked = replace(asked, groups=(replace(group, topics=(tagged,)),))
    entries = [{"partition_index": 1, "committed_offset": 0, "error_code": 0}]
    answered = {
        "groups": [{"group_id": GROUP, "topics": [{"name": "orders", "partitions": entries}]}]
    }
    for body in (write_message(asked), write_message(build(load_request_schema(FETCH, 8), values))):
        context.expect(FETCH, None, answered, version=8)
        fetch = make_request(FETCH, 8, body)
        answer = fetch.decode_answer(await serve(context, fetch))
        assert "unknown_tags" not in context.world.sent[-1]["groups"][0]["topics"][0]
        (of_topic,) = answer.groups[0].topics
        entry = of_topic.partitions[0]
        is_asked = body == write_message(asked)
        assert len(of_topic.partitions) == (1 if is_asked else 2), "many ranges are answered once"
        assert int(entry.committed_offset) == 4
        meaning, _ = read_extensions(unknown_tags_of(of_topic))
        own, _ = read_extensions(unknown_tags_of(entry))
        if is_asked:
            assert read_pairs(own[OFFSET_RANGES]) == ((8, 9),)
            assert read_int64(own[STABLE_OFFSET]) == -1
            lane = context.lanes("orders").key_ranges(3)
            assert read_lane_ranges(meaning[LANE_RANGES]) == (LaneRange(1, *lane),)
        else:
            assert own == meaning == {}, "a stock client is answered as before"


async def test_a_heartbeat_is_answered_what_lanes_stand_for() -> None:
    """With the empty field: partition and keys of each lane index; the broker does not see it."""
    context = FakeContext()
    not_there(context)
    takes(context, 1, member_id="a", assigned=lanes(0, 1))
    described(context, "a")
    entity = build(load_request_schema(HEARTBEAT, 1), full("a", 0))
    asked = make_request(
        HEARTBEAT, 1, write_message(with_unknown_tags(entity, write_tags({LANE_RANGES: b""})))
    )

    answer = asked.decode_answer(await serve(context, asked))

    assert "unknown_tags" not in context.world.sent[-1]
    (given,) = answer.assignment.topic_partitions
    assert given.topic_id == ORDERS
    own, _ = read_extensions(unknown_tags_of(given))
    view = context.lanes("orders")
    assert read_lane_ranges(own[LANE_RANGES]) == tuple(
        LaneRange(view.partition_of(int(index)), *view.key_ranges(int(index)))
        for index in given.partitions
    )


async def test_a_member_that_takes_no_parts_says_so_in_its_heartbeat() -> None:
    """ALLOW_KEY_SHARE of 0: it is not counted among those that share partitions."""
    context = FakeContext()
    not_there(context)
    takes(context, 1, member_id="a", assigned=lanes(0, 1))
    described(context, "a")
    entity = build(load_request_schema(HEARTBEAT, 1), full("a", 0))
    field = write_tags({ALLOW_KEY_SHARE: b"\x00"})
    asked = make_request(HEARTBEAT, 1, write_message(with_unknown_tags(entity, field)))

    await serve(context, asked)

    group = context.consumer_groups.find("g")
    assert group is not None
    (member,) = group.members.values()
    assert not member.shares

    takes(context, 1, member_id="a")
    await beat(context, partial("a", 1, lanes(*range(8))))
    assert not member.shares, "its word counts until it says otherwise"
    takes(context, 1, member_id="a")
    await beat(context, full("a", 1, topic_partitions=topics_of(lanes(*range(8)))))
    assert member.shares, "it has said all again, without it"
