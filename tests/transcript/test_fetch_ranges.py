"""Fetch requests that name key ranges themselves: what is read, and what reaches the broker."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from kio.index import load_request_schema

from keylane.config.node import LaneRule
from keylane.keyrange.hash import murmur2_hash
from keylane.keyrange.key_split import NO_OUTPUT, PartitionSplit, even_split
from keylane.keyrange.space import HASH_MAX, WHOLE, KeyRange, split_even
from keylane.proxy.apis.records.fetch_ranges import ROOM_NAME
from keylane.proxy.lanes.fetch_request import LaneFetch
from keylane.proxy.topics.range_splits import RangeSplits
from keylane.wire.extensions import KEY_RANGES, OFFSET_RANGES, write_key_ranges, write_pairs
from keylane.wire.fetch import (
    FetchAnswer,
    FetchRequest,
    FetchResponse,
    ForgottenTopic,
    read_fetch_request,
    read_fetch_response,
    write_fetch_request,
)
from keylane.wire.messages import write_message
from keylane.wire.primitives import NO_TAGS, write_tags
from tests.transcript.entities import Values, build
from tests.transcript.fake import ORDERS, PLAIN, FakeContext, is_relayed, make_request, serve
from tests.transcript.test_fetch import DATA, FETCH, found, lane, request, topic
from tests.transcript.test_key_ranges import assign

FLEXIBLE = range(12, 18)
LOW, MIDDLE, HIGH = split_even(3)
GONE = uuid.UUID(int=0xDEAD)
Asked = Sequence[KeyRange] | bytes | None
CODE = {"refused": 29, "unknown": 3, "unknown id": 100, "invalid": 42, "retry": 6, "no session": 70}


def shared(*rules: LaneRule, **config: Any) -> FakeContext:
    """`plain` may be fetched by ranges, and orders, which has lanes."""
    return FakeContext(*rules, accept_range_fetch=("plain", "unknown"), **config)


def with_ranges(
    version: int, values: Values, ranges: Mapping[int, Asked], general: Asked = None
) -> bytes:
    """A body whose partitions have these ranges, in whatever topic they are; bytes: as they are."""
    body = write_message(build(load_request_schema(FETCH, version), values))
    wanted = read_fetch_request(body, 0, version)
    topics = tuple(
        one._replace(
            partitions=tuple(
                entry._replace(tags=tags_of(ranges.get(entry.partition)))
                for entry in one.partitions
            )
        )
        for one in wanted.topics
    )
    return write_fetch_request(replace(wanted, topics=topics, tags=tags_of(general)))


def tags_of(asked: Asked) -> bytes:
    """The section that names the ranges; None: it has no field."""
    if asked is None:
        return NO_TAGS
    data = asked if isinstance(asked, bytes) else write_key_ranges(asked)
    return write_tags({KEY_RANGES: data})


async def fetch(
    context: FakeContext, version: int, body: bytes, client: str = "client"
) -> FetchResponse:
    """The answer, with its tagged fields."""
    asked = make_request(FETCH, version, body, client)
    frame = await serve(context, asked)
    return read_fetch_response(frame, asked.answer_position(memoryview(frame)), version)


def entries(answer: FetchResponse) -> list[FetchAnswer]:
    """All partitions of an answer."""
    return [entry for one in answer.topics for entry in one.partitions]


def codes(answer: FetchResponse) -> list[tuple[int, int]]:
    """(partition, error code) of each."""
    return [(entry.partition, entry.error_code) for entry in entries(answer)]


def data(answer: FetchResponse) -> list[bytes]:
    """Records of each partition."""
    return [b"".join(map(bytes, entry.records or ())) for entry in entries(answer)]


def reads(context: FakeContext) -> list[LaneFetch]:
    """What was read, of all requests."""
    return [one for asked in context.world.fetched for one in asked.lanes]


def outputs(read: LaneFetch) -> tuple[int, ...]:
    """The output of each interval of its split."""
    return read.key_split.outputs or ()


@pytest.mark.parametrize("version", FLEXIBLE)
async def test_the_keys_in_the_ranges_are_an_output(version) -> None:
    """Two ranges are one share; all other keys are dropped. The broker is not asked."""
    context = shared()
    context.world.lane_answers.append([lane(b"ab", b"c")])
    body = with_ranges(version, request(topic("plain", {1: 41})), {1: [HIGH, LOW]})

    answer = await fetch(context, version, body)

    (read,) = reads(context)
    assert (read.topic, read.topic_id, read.partition) == ("plain", PLAIN, 1)
    assert (read.fetch_offset, read.chosen_name) == (41, ROOM_NAME)
    assert outputs(read) == (0, NO_OUTPUT, 0)
    assert read.key_split.cuts == (MIDDLE.lo, HIGH.lo)
    (entry,) = entries(answer)
    assert (entry.partition, entry.error_code, entry.tags) == (1, 0, NO_TAGS)
    assert entry.high_watermark == 700 and data(answer) == [b"abc"]
    assert answer.session_id == 0 and context.events == ["fetch lanes"]


@pytest.mark.parametrize("version", FLEXIBLE)
async def test_clients_with_disjoint_ranges_share_a_split(version) -> None:
    """The second one waits for the first change to be over; later fetches of both are one read."""
    context = shared()
    context.world.lane_answers += [[lane()] for _ in range(3)]
    low, high = (
        with_ranges(version, request(topic("plain", {0: 1})), {0: [part]}) for part in (LOW, HIGH)
    )

    for body in (low, high, low):
        await fetch(context, version, body)

    before, one, other = reads(context)
    assert outputs(before) == (0, NO_OUTPUT)
    assert one.key_split is other.key_split and {one.output, other.output} == {0, 1}
    assert context.world.retired == [PartitionSplit(PLAIN, 0, before.key_split)]
    assert context.events == ["fetch lanes", "pause", "fetch lanes", "fetch lanes"]


async def test_two_ranges_of_one_partition_in_one_request() -> None:
    """A partition may be named twice, with its own offset for each."""
    context = shared()
    context.world.lane_answers.append([lane(b"a"), lane(b"b")])
    values = request(topic("plain", {0: 5}), topic("plain", {1: 9}))
    wanted = read_fetch_request(with_ranges(12, values, {0: [LOW], 1: [HIGH]}), 0, 12)
    (first,), (second,) = (one.partitions for one in wanted.topics)
    twice = wanted.topics[0]._replace(partitions=(first, second._replace(partition=0)))

    answer = await fetch(context, 12, write_fetch_request(replace(wanted, topics=(twice,))))

    assert [(read.partition, read.fetch_offset) for read in reads(context)] == [(0, 5), (0, 9)]
    assert data(answer) == [b"a", b"b"]


@pytest.mark.parametrize("version", FLEXIBLE)
async def test_an_index_of_a_lane_topic_is_the_brokers_partition(version) -> None:
    """Under the lane name as well, by whose id or name the answer goes."""
    context = shared()
    view = context.lanes("orders.lanes-3")
    context.world.lane_answers += [[lane(b"a")], [lane(b"b")]]
    odd = [KeyRange(5, HASH_MAX - 5)]

    own = await fetch(
        context, version, with_ranges(version, request(topic("orders", {1: 3})), {1: odd})
    )
    named = topic("orders.lanes-3", {1: 3}, view.view_id)
    other = await fetch(context, version, with_ranges(version, request(named), {1: odd}))

    assert [(read.topic, read.topic_id, read.partition) for read in reads(context)] == [
        ("orders", ORDERS, 1)
    ] * 2
    assert reads(context)[0].key_split is reads(context)[1].key_split
    assert data(own) + data(other) == [b"a", b"b"]
    if version >= 13:
        assert [a.topics[0].topic_id for a in (own, other)] == [ORDERS.bytes, view.view_id.bytes]
    else:
        assert [a.topics[0].name for a in (own, other)] == ["orders", "orders.lanes-3"]


async def test_ranges_that_are_one_lane_are_read_with_the_lane() -> None:
    """Stock clients beside it have the same reader, and no bound counts that is not theirs."""
    context = shared()
    context.world.lane_answers += [[lane()], [lane()]]
    ranges = split_even(4)[2:3]

    await fetch(context, 12, with_ranges(12, request(topic("orders", {1: 3})), {1: ranges}))
    view = context.lanes("orders.lanes-3")
    named = topic("orders.lanes-3", {0: 3}, view.view_id)
    await fetch(context, 12, with_ranges(12, request(named), {0: [MIDDLE]}))

    own, other = reads(context)
    assert (own.key_split, own.output, own.chosen_name) == (even_split(4), 2, "")
    assert own.key_split is even_split(4)
    assert (other.key_split, other.output, other.chosen_name) == (
        even_split(3),
        1,
        "orders.lanes-3",
    )


async def test_ranges_of_a_murmur2_topic_are_of_its_own_hash() -> None:
    """As the ranges of its lanes are."""
    context = shared(LaneRule(topic="orders", lanes=4, hash="murmur2"))
    context.world.lane_answers += [[lane()], [lane()]]

    for ranges in ([LOW], split_even(4)[1:2]):
        await fetch(context, 12, with_ranges(12, request(topic("orders", {1: 3})), {1: ranges}))

    odd, lanes = reads(context)
    assert odd.key_split.key_hash == lanes.key_split.key_hash == murmur2_hash(2, 4)
    assert lanes.output == 2  # the second range of the hash space, its bits in reverse


@pytest.mark.parametrize("version", FLEXIBLE)
@pytest.mark.parametrize("ranges", [(), WHOLE, (LOW, MIDDLE, HIGH)], ids=["none", "all", "three"])
@pytest.mark.parametrize("name", ["plain", "orders"])
async def test_no_range_is_the_whole_partition(version, ranges, name) -> None:
    """The broker answers it, in no session, and the switch does not matter."""
    context = FakeContext()
    values = request(topic(name, {1: 5}), session_id=0, session_epoch=0)
    plain_body = with_ranges(version, {**values, "session_epoch": -1}, {})
    context.expect(FETCH, plain_body, {"responses": [found(version, name, {1: DATA})]})

    answer = await fetch(context, version, with_ranges(version, values, {1: ranges}))

    assert data(answer) == [DATA]
    assert context.events == ["send Fetch", "release"]


async def test_the_whole_partition_under_a_lane_name_is_read() -> None:
    """The broker does not know the name."""
    context = shared()
    view = context.lanes("orders.lanes-3")
    context.world.lane_answers.append([lane(b"a")])
    named = topic("orders.lanes-3", {1: 3}, view.view_id)

    answer = await fetch(context, 17, with_ranges(17, request(named), {1: []}))

    (read,) = reads(context)
    assert (read.partition, read.key_split.cuts, read.output) == (1, (), 0)
    assert data(answer) == [b"a"]


async def test_ranges_of_the_request_are_for_partitions_without_their_own() -> None:
    """Of all topics."""
    context = shared()
    context.world.lane_answers.append([lane(), lane(), lane()])
    values = request(topic("plain", {0: 1, 1: 1}), topic("orders", {0: 1}))

    await fetch(context, 12, with_ranges(12, values, {1: [HIGH]}, general=[LOW]))

    shown = [(read.topic, read.partition, outputs(read)) for read in reads(context)]
    assert shown == [
        ("plain", 0, (0, NO_OUTPUT)),
        ("plain", 1, (NO_OUTPUT, 0)),
        ("orders", 0, (0, NO_OUTPUT)),
    ]


@pytest.mark.parametrize("version", FLEXIBLE)
async def test_lanes_ranges_and_plain_partitions_in_one_request(version) -> None:
    """What has no ranges means what it always means; the broker gets no tag."""
    context = shared()
    context.world.lane_answers.append([lane(b"lane"), lane(b"range")])
    values = request(topic("orders", {5: 1, 1: 2}), topic("plain", {2: 3, 0: 4}))
    broker = with_ranges(
        version, request(topic("plain", {2: 3, 0: 4}), wait_ms=100, session_epoch=-1), {}
    )
    context.expect(FETCH, broker, {"responses": [found(version, "plain", {2: DATA, 0: DATA})]})

    answer = await fetch(context, version, with_ranges(version, values, {1: [LOW]}))

    of_lane, of_range = reads(context)
    assert (of_lane.partition, of_lane.output, of_lane.key_split) == (1, 2, even_split(4))
    assert (of_range.partition, outputs(of_range)) == (1, (0, NO_OUTPUT))
    assert data(answer) == [DATA, DATA, b"lane", b"range"]
    assert codes(answer) == [(2, 0), (0, 0), (5, 0), (1, 0)]


@pytest.mark.parametrize("version", FLEXIBLE)
async def test_a_topic_that_refuses_ranges(version) -> None:
    """TOPIC_AUTHORIZATION_FAILED, and the draft's 89 in the entry's tagged fields, as bytes."""
    context = FakeContext()
    body = with_ranges(version, request(topic("plain", {0: 1})), {0: [LOW]})

    answer = await fetch(context, version, body)

    assert codes(answer) == [(0, CODE["refused"])]
    assert entries(answer)[0].tags == bytes.fromhex("01 934e 02 0059")
    assert context.events == []


async def test_a_client_without_read_takes_no_room() -> None:
    """No tag: it is the right that is missing. What others read does not change."""
    context = shared()
    context.world.denied.add("plain")

    answer = await fetch(context, 12, with_ranges(12, request(topic("plain", {0: 1})), {0: [LOW]}))

    assert codes(answer) == [(0, CODE["refused"])] and entries(answer)[0].tags == NO_TAGS
    assert context.asked_ranges.range_count == 0


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b"\x02" + bytes(15),
        b"\x02" + bytes(17),
        b"\xff\xff\xff\xff\x07",
        write_pairs([(5, 4)]),
        write_pairs([(-1, 4)]),
        write_pairs([(4, -1)]),
        bytes(70_000),
    ],
    ids=["empty", "cut", "longer", "count", "upside down", "below", "above", "long"],
)
async def test_ranges_that_are_not_well_formed(asked) -> None:
    """INVALID_REQUEST for the partition; the others are served."""
    context = shared()
    context.world.lane_answers.append([lane(b"a")])
    values = request(topic("plain", {0: 1, 1: 1}))

    answer = await fetch(context, 12, with_ranges(12, values, {0: asked, 1: [LOW]}))

    assert codes(answer) == [(0, CODE["invalid"]), (1, 0)]
    assert len(reads(context)) == 1


async def test_partitions_and_topics_that_do_not_exist() -> None:
    """Each has its own code, as at a broker."""
    context = shared()
    context.world.lane_answers.append([lane(b"a")])
    unknown = topic("unknown", {0: 1}, ORDERS)
    values = request(topic("plain", {3: 1, -1: 1, 2: 1}), unknown, topic("orders", {2: 1}))

    answer = await fetch(context, 12, with_ranges(12, values, {}, general=[LOW]))
    by_id = topic("?", {0: 1}, GONE)
    other = await fetch(context, 17, with_ranges(17, request(by_id), {0: [LOW]}))

    missing = CODE["unknown"]
    assert codes(answer) == [(3, missing), (-1, missing), (2, 0), (0, missing), (2, missing)]
    assert codes(other) == [(0, CODE["unknown id"])] and other.topics[0].topic_id == GONE.bytes


async def test_a_lane_topic_without_a_leader_is_asked_for_again() -> None:
    """The broker's code goes to the client."""
    context = shared()
    context.world.unready["orders"] = 5

    answer = await fetch(context, 12, with_ranges(12, request(topic("orders", {0: 1})), {0: [LOW]}))

    assert codes(answer) == [(0, 5)]


async def test_too_many_ranges_are_asked_for_again() -> None:
    """NOT_LEADER_OR_FOLLOWER, which makes every client wait and come again."""
    context = shared()
    context.asked_ranges = RangeSplits(shares_max=1)
    context.world.lane_answers.append([lane()])

    answers = [
        await fetch(context, 12, with_ranges(12, request(topic("plain", {0: 1})), {0: [part]}))
        for part in (LOW, HIGH)
    ]

    assert [codes(answer) for answer in answers] == [[(0, 0)], [(0, CODE["retry"])]]


@pytest.mark.parametrize("general", [None, [LOW], []])
async def test_such_a_request_is_in_no_session(general) -> None:
    """The client starts over, and then gets session id 0."""
    context = shared()
    ranges: dict[int, Asked] = {0: [LOW]} if general is None else {}
    values = request(topic("plain", {0: 1}), session_id=5, session_epoch=3)

    answer = await fetch(context, 17, with_ranges(17, values, ranges, general))

    assert (answer.error_code, answer.session_id) == (CODE["no session"], 0)
    assert not answer.topics and context.world.sent == []


@pytest.mark.parametrize("version", FLEXIBLE)
async def test_other_fields_of_keylane_are_taken_out(version) -> None:
    """They say nothing in a Fetch: the session goes on, and the broker's own tags stay."""
    context = FakeContext()
    cluster, own = {0: b"\x03id"}, {OFFSET_RANGES: write_pairs([(1, 2)])}
    values = request(topic("plain", {1: 5}), session_id=7, session_epoch=8)
    wanted = read_fetch_request(with_ranges(version, values, {}), 0, version)
    topics = tuple(
        one._replace(
            tags=write_tags(own),
            partitions=tuple(e._replace(tags=write_tags({**own, 9: b"x"})) for e in one.partitions),
        )
        for one in wanted.topics
    )
    tagged = replace(
        wanted, topics=topics, forgotten=_left(wanted, own), tags=write_tags({**cluster, **own})
    )
    clean = replace(
        wanted,
        topics=tuple(
            one._replace(
                partitions=tuple(e._replace(tags=write_tags({9: b"x"})) for e in one.partitions)
            )
            for one in wanted.topics
        ),
        forgotten=_left(wanted, {}),
        tags=write_tags(cluster),
    )
    context.expect(FETCH, write_fetch_request(clean), {"responses": [], "session_id": 7})

    answer = await fetch(context, version, write_fetch_request(tagged))

    assert answer.session_id == 7


def _left(wanted: FetchRequest, own: Mapping[int, bytes]) -> tuple[ForgottenTopic, ...]:
    """A topic that leaves the session, with these fields."""
    (one,) = wanted.topics
    return (ForgottenTopic(one.name, one.topic_id, (2,), write_tags(own) if own else NO_TAGS),)


async def test_brokers_tags_alone_are_relayed() -> None:
    """As bytes: a request of a follower, or of a client of tomorrow."""
    context = FakeContext()
    body = with_ranges(12, request(topic("plain", {1: 5})), {})
    wanted = replace(read_fetch_request(body, 0, 12), tags=write_tags({0: b"\x03id"}))

    assert is_relayed(context, make_request(FETCH, 12, write_fetch_request(wanted)))


async def test_ranges_of_the_request_come_before_those_of_the_client_id() -> None:
    """The client id has the low third by a call; the request asks for the high one."""
    context = shared()
    assign(context, a={0: [LOW]})
    context.world.lane_answers += [[lane(b"h")], [lane(b"l")]]
    asked = request(topic("plain", {0: 1}))

    answer = await fetch(context, 12, with_ranges(12, asked, {0: [HIGH]}), "a")
    own = await fetch(context, 12, with_ranges(12, asked, {}), "a")

    assert data(answer) + data(own) == [b"h", b"l"]
    assert [outputs(read) for read in reads(context)] == [(NO_OUTPUT, 0), (0, NO_OUTPUT)]


async def test_records_are_withheld_after_the_right_is_lost() -> None:
    """In a long wait."""
    context = shared()

    class Waiting(list[Any]):
        def __len__(self) -> int:
            context.world.denied.add("plain")
            return super().__len__()

    context.world.lane_answers.append(Waiting([lane(b"ab")]))

    answer = await fetch(context, 12, with_ranges(12, request(topic("plain", {0: 1})), {0: [LOW]}))

    assert codes(answer) == [(0, CODE["refused"])] and data(answer) == [b""]
