"""Fetch v4-17: lanes from keylane, all else from the broker, both in one answer."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from keylane.cache.lane_values import GapForm
from keylane.config.node import LaneRule
from keylane.proxy.apis.records.fetch import MIXED_WAIT_MS_MAX
from keylane.proxy.lanes.fetch_request import LaneAnswer
from tests.transcript.entities import plain
from tests.transcript.fake import (
    ORDERS,
    PLAIN,
    FakeContext,
    call,
    check,
    is_relayed,
    make_request,
    serve,
    versions,
)

FETCH, LIST_OFFSETS = 1, 2
IDS = {"orders": ORDERS, "plain": PLAIN}
DATA = b"some batches"
LEADER = {"leader_id": 2, "leader_epoch": 9}
ENDPOINT = {"node_id": 2, "host": "kafka2", "port": 9092, "rack": "r"}


def topic(
    name: str, offsets: dict[int, int], topic_id: uuid.UUID | None = None, max_bytes: int = 1000
) -> dict[str, Any]:
    """A topic of a request; the version takes name or id."""
    entries = [
        {"partition": i, "fetch_offset": offset, "partition_max_bytes": max_bytes}
        for i, offset in offsets.items()
    ]
    return {"topic": name, "topic_id": topic_id or IDS[name], "partitions": entries}


def request(*topics: Any, wait_ms: int = 500, **fields: Any) -> dict[str, Any]:
    return {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 50_000_000,
        "isolation_level": 1,
        "topics": list(topics),
        **fields,
    }


def named(version: int, name: str, topic_id: uuid.UUID | None = None) -> dict[str, Any]:
    return {"topic_id": topic_id or IDS[name]} if version >= 13 else {"topic": name}


def found(version: int, name: str, records: dict[int, bytes], **fields: Any) -> dict[str, Any]:
    """A topic of an answer."""
    entries = [
        {"partition_index": i, "high_watermark": 70, "last_stable_offset": 60, "records": data,
         "error_code": 0, "aborted_transactions": None, **fields}
        for i, data in records.items()
    ]  # fmt: skip
    return {**named(version, name), "partitions": entries}


def lane(*records: bytes, error_code: int = 0, aborted: Any = ((7, 3),)) -> LaneAnswer:
    return LaneAnswer(error_code, 700, 600, 50, aborted, records, sum(map(len, records)))


@pytest.mark.parametrize("version", versions(FETCH))
async def test_plain_topics_are_relayed(version) -> None:
    """No handler, the same bytes both ways."""
    context = FakeContext()
    asked = make_request(FETCH, version, request(topic("plain", {0: 5})))
    context.expect(FETCH, bytes(asked.body), {"responses": [found(version, "plain", {0: DATA})]})

    assert is_relayed(context, asked)
    frame = await serve(context, asked)

    check({"responses": [found(version, "plain", {0: DATA})]}, plain(asked.decode_answer(frame)))


@pytest.mark.parametrize("version", range(16, 18))
async def test_new_leaders_in_a_relayed_answer_are_reached_through_keylane(version) -> None:
    """Nothing else of the answer changes."""
    context = FakeContext()
    asked = make_request(FETCH, version, request(topic("plain", {0: 5})))
    moved = found(version, "plain", {0: b""}, error_code=6, current_leader=LEADER)
    answer = {"responses": [moved], "node_endpoints": [ENDPOINT], "session_id": 8}
    context.expect(FETCH, bytes(asked.body), answer)

    seen = plain(asked.decode_answer(await serve(context, asked)))

    check({"responses": [moved], "session_id": 8}, seen)
    check({"node_endpoints": [{**ENDPOINT, "host": "lane.example", "port": 20_002}]}, seen)


@pytest.mark.parametrize("version", versions(FETCH))
async def test_lanes(version) -> None:
    """Lane 5 of 2 partitions is lane 2 of partition 1; the answer speaks of lanes again."""
    context = FakeContext()
    context.world.lane_answers.append([lane(b"ab", b"cd"), lane(aborted=None)])

    seen = await call(
        context, FETCH, version, request(topic("orders", {5: 41, 0: 9}), rack_id="r", wait_ms=250)
    )

    asked = context.world.fetched[0]
    assert [(one.partition, one.output, one.fetch_offset) for one in asked.lanes] == [
        (1, 2, 41),
        (0, 0, 9),
    ]
    assert {(one.topic, one.topic_id, one.reserve) for one in asked.lanes} == {
        ("orders", ORDERS, True)
    }
    assert (asked.max_wait_ms, asked.min_bytes, asked.isolation_level) == (250, 1, 1)
    assert (asked.max_bytes, asked.cursor_id) == (context.config.fetch_answer_bytes_max, "s1")
    aborted = [{"producer_id": 7, "first_offset": 3}]
    lanes = [
        {"partition_index": 5, "records": b"abcd", "aborted_transactions": aborted},
        {"partition_index": 0, "records": b"", "aborted_transactions": None},
    ]
    numbers = {"high_watermark": 700, "last_stable_offset": 600, "error_code": 0}
    if version >= 5:
        numbers["log_start_offset"] = 50
    expected = {**named(version, "orders"), "partitions": [{**e, **numbers} for e in lanes]}
    check({"responses": [expected]}, seen)
    if version >= 7:
        check({"session_id": 0, "error_code": 0}, seen)
    assert context.events == ["fetch lanes"]


@pytest.mark.parametrize(("version", "known"), [(8, -1), (9, 6), (11, 6), (17, 6)])
async def test_the_leader_that_a_client_knows_is_compared(version, known) -> None:
    """From v9 on fetches name it (KIP-320)."""
    context = FakeContext()
    context.world.lane_answers.append([lane()])
    asked = topic("orders", {0: 9})
    asked["partitions"][0]["current_leader_epoch"] = 6

    await call(context, FETCH, version, request(asked))

    assert [each.leader_epoch for each in context.world.fetched[0].lanes] == [known]


@pytest.mark.parametrize("is_librdkafka", [True, False])
async def test_librdkafka_gets_gaps_as_control_batches(is_librdkafka) -> None:
    """Other clients take an empty control batch for damage, librdkafka any other empty one."""
    context = FakeContext()
    context.is_librdkafka = is_librdkafka
    context.world.lane_answers.append([lane()])

    await call(context, FETCH, 11, request(topic("orders", {0: 9})))

    form = context.world.fetched[0].gap_form
    assert form is (GapForm.CONTROL if is_librdkafka else GapForm.EMPTY)


@pytest.mark.parametrize(
    ("version", "changes", "form"),
    [
        (10, {}, GapForm.PASSED),
        (5, {}, GapForm.PASSED),
        (4, {}, GapForm.EMPTY),
        (9, {}, GapForm.EMPTY),
        (11, {}, GapForm.EMPTY),
        (10, {"log_start_offset": -1}, GapForm.EMPTY),
        (10, {"partition_max_bytes": 999}, GapForm.EMPTY),
        (10, {"session_epoch": 0}, GapForm.EMPTY),
    ],
)
async def test_kafka_go_gets_no_empty_batch(version, changes, form) -> None:
    """It is known by the form of its fetches; others get empty batches."""
    context = FakeContext()
    context.world.lane_answers.append([lane()])
    asked = topic("orders", {0: 9}, max_bytes=5_000_066)
    own = {"log_start_offset": 0, **changes}
    session_epoch = own.pop("session_epoch", -1)
    asked["partitions"][0].update(own)

    await call(
        context,
        FETCH,
        version,
        request(asked, wait_ms=8999, max_bytes=5_000_066, session_epoch=session_epoch),
    )

    (found,) = context.world.fetched
    assert found.gap_form is form
    is_kafka_go = form is GapForm.PASSED
    assert (found.max_wait_ms, found.max_bytes) == (
        (8499, 1 << 20) if is_kafka_go else (8999, 5_000_066)
    )


@pytest.mark.parametrize("version", versions(FETCH))
async def test_lane_name_and_own_name_in_one_request(version) -> None:
    """Both are lanes of one topic, cut differently; each is answered as it was named."""
    context = FakeContext(
        LaneRule(topic="orders", lanes=4, reserve_message_value=False), fetch_answer_bytes_max=2048
    )
    view = context.lanes("orders.lanes-3")
    context.world.lane_answers.append([lane(b"a"), lane(b"b")])
    asked = request(topic("orders.lanes-3", {4: 1}, view.view_id), topic("orders", {3: 2}))

    seen = await call(context, FETCH, version, asked)

    places = [
        (one.key_split.output_count, one.partition, one.output, one.reserve)
        for one in context.world.fetched[0].lanes
    ]
    assert places == [(3, 0, 2, False), (4, 1, 1, False)]
    names = [named(version, "orders.lanes-3", view.view_id), named(version, "orders")]
    check({"responses": names}, seen)
    assert context.world.fetched[0].max_bytes == 2048


@pytest.mark.parametrize("version", versions(FETCH))
async def test_lanes_and_plain_topics(version) -> None:
    """The broker gets the plain ones without a session; one answer, session id 0."""
    context = FakeContext()
    context.expect(
        FETCH,
        {
            "max_wait": MIXED_WAIT_MS_MAX,
            "topics": [{"partitions": [{"partition": 2, "fetch_offset": 5}]}],
            **({"session_id": 0, "session_epoch": -1} if version >= 7 else {}),
        },
        {"responses": [found(version, "plain", {2: DATA})], "throttle_time": 4},
        version=version,
    )
    context.world.lane_answers.append([lane(b"x")])
    asked = request(topic("orders", {1: 7}), topic("plain", {2: 5}), session_epoch=0)

    seen = await call(context, FETCH, version, asked)

    assert context.world.fetched[0].max_wait_ms == 0  # there is data already
    check(found(version, "plain", {2: DATA}), seen["responses"][0])
    check({**named(version, "orders"), "partitions": [{"partition_index": 1, "records": b"x"}]},
          seen["responses"][1])  # fmt: skip
    check({"throttle_time": 4}, seen)


async def test_lanes_and_plain_topics_are_waited_for_in_turns() -> None:
    """Nothing, nothing, then a lane has data: answered at once, before the wait is over."""
    context = FakeContext()
    context.world.wait_s = 0.1
    for _ in range(2):
        context.expect(FETCH, {"max_wait": 100}, {"responses": [found(12, "plain", {0: b""})]})
    context.world.lane_answers += [[lane()], [lane(b"x")]]

    await call(context, FETCH, 12, request(topic("orders", {0: 1}), topic("plain", {0: 1})))

    assert [asked.max_wait_ms for asked in context.world.fetched] == [100, 100]


async def test_a_mixed_wait_ends() -> None:
    """500 ms without data, each answer takes 250: 100, 100, none, and the empty answer."""
    context = FakeContext()
    context.world.wait_s = 0.25
    for wait_ms in (100, 100, 0):
        wanted = {"max_wait": wait_ms}
        context.expect(FETCH, wanted, {"responses": [found(12, "plain", {0: b""})]})
        context.world.lane_answers.append([lane()])

    seen = await call(
        context, FETCH, 12,
        request(topic("orders", {0: 1}), topic("plain", {0: 1}), wait_ms=500),
    )  # fmt: skip

    assert [len(entry["partitions"]) for entry in seen["responses"]] == [1, 1]


async def test_a_fetch_with_a_request_behind_it_does_not_wait() -> None:
    """Neither for lanes alone, nor in turns with plain topics."""
    context = FakeContext()
    context.backlog.append(make_request(LIST_OFFSETS, 1, b"").frame)
    context.world.lane_answers += [[lane()], [lane()]]

    await call(context, FETCH, 12, request(topic("orders", {0: 1})))
    context.expect(FETCH, {"max_wait": 0}, {"responses": [found(12, "plain", {0: b""})]})
    await call(context, FETCH, 12, request(topic("orders", {0: 1}), topic("plain", {0: 1})))

    assert [asked.max_wait_ms for asked in context.world.fetched] == [0, 0]


def test_a_context_hurries_its_connections_fetch() -> None:
    """Only while another request waits behind it."""
    context = FakeContext()
    hurried: list[str] = []
    context._shared.fetcher.hurry = hurried.append  # type: ignore[assignment]

    context.hurry_fetch()
    context.backlog.append(make_request(LIST_OFFSETS, 1, b"").frame)
    context.hurry_fetch()

    assert hurried == ["s1"]


@pytest.mark.parametrize(
    "news",
    [
        {"error_code": 6},
        {"preferred_read_replica": 3},
        {"diverging_epoch": {"epoch": 1, "end_offset": 2}},
        {"current_leader": LEADER},
    ],
)
async def test_what_a_mixed_fetch_does_not_wait_for(news) -> None:
    """The broker has something to say other than records: the client gets it now."""
    context = FakeContext()
    context.expect(FETCH, None, {"responses": [found(12, "plain", {0: b""}, **news)]})
    context.world.lane_answers.append([lane()])

    seen = await call(context, FETCH, 12, request(topic("orders", {0: 1}), topic("plain", {0: 1})))

    check(found(12, "plain", {0: b""}, **news), seen["responses"][0])


@pytest.mark.parametrize("version", range(16, 18))
async def test_a_mixed_answer_has_no_broker_addresses(version) -> None:
    """The client learns the new leader's id, and where it is from keylane's Metadata."""
    context = FakeContext()
    moved = found(version, "plain", {0: b""}, error_code=6, current_leader=LEADER)
    context.expect(FETCH, None, {"responses": [moved], "node_endpoints": [ENDPOINT]})
    context.world.lane_answers.append([lane(b"x")])
    asked = request(topic("plain", {0: 1}), topic("orders", {0: 1}))

    seen = await call(context, FETCH, version, asked)

    check({"node_endpoints": []}, seen)
    check(moved, seen["responses"][0])


@pytest.mark.parametrize("version", range(7, 18))
async def test_lanes_that_join_a_broker_session_start_it_over(version) -> None:
    """The client then names everything in each request."""
    context = FakeContext()
    asked = request(topic("orders", {0: 1}), session_id=8, session_epoch=3)

    seen = await call(context, FETCH, version, asked)

    check({"error_code": 70, "session_id": 0, "responses": []}, seen)
    assert context.events == []


@pytest.mark.parametrize("version", range(7, 18))
async def test_a_session_of_plain_topics_goes_on(version) -> None:
    """An incremental request that names nothing, or forgets, is the broker's business."""
    context = FakeContext()
    gone = {"topic": "plain", "topic_id": PLAIN, "partitions": [2]}
    fields: dict[str, Any] = {"session_id": 8, "session_epoch": 3, "forgotten_topics_data": [gone]}
    asked = make_request(FETCH, version, request(**fields))
    context.expect(FETCH, bytes(asked.body), {"responses": [], "session_id": 8})

    assert is_relayed(context, asked)
    check({"session_id": 8}, plain(asked.decode_answer(await serve(context, asked))))


@pytest.mark.parametrize("version", versions(FETCH))
async def test_no_right_to_read(version) -> None:
    """TOPIC_AUTHORIZATION_FAILED per lane, at once, and nothing is fetched for it."""
    context = FakeContext()
    context.world.denied.add("orders")

    seen = await call(context, FETCH, version, request(topic("orders", {0: 1, 9: 1})))

    lanes = [{"partition_index": i, "error_code": 29, "records": b""} for i in (0, 9)]
    check({"responses": [{**named(version, "orders"), "partitions": lanes}]}, seen)
    assert context.events == []


@pytest.mark.parametrize("version", versions(FETCH))
async def test_no_right_to_read_lanes_beside_a_plain_topic(version) -> None:
    """The plain topic is the broker's to allow."""
    context = FakeContext()
    context.world.denied.add("orders")
    context.expect(FETCH, None, {"responses": [found(version, "plain", {0: DATA})]})

    seen = await call(
        context, FETCH, version, request(topic("orders", {0: 1}), topic("plain", {0: 1}))
    )

    assert [entry["partitions"][0]["error_code"] for entry in seen["responses"]] == [0, 29]


@pytest.mark.parametrize("version", versions(FETCH))
async def test_lanes_out_of_range_and_lanes_with_errors(version) -> None:
    """Each has its own error; the others are served."""
    context = FakeContext()
    context.world.lane_answers.append([lane(b"x"), lane(error_code=1)])

    seen = await call(
        context, FETCH, version, request(topic("orders", {8: 1, 0: 1, 3: 999, -1: 0}))
    )

    entries = seen["responses"][0]["partitions"]
    assert [(e["partition_index"], e["error_code"]) for e in entries] == [
        (8, 3),
        (0, 0),
        (3, 1),
        (-1, 3),
    ]


@pytest.mark.parametrize("version", range(13, 18))
async def test_an_unknown_id_goes_to_the_broker(version) -> None:
    """It says UNKNOWN_TOPIC_ID; a lane name's id after a restart is found again by name."""
    context = FakeContext()
    unknown = uuid.UUID(int=0xDEAD)
    asked = make_request(FETCH, version, request(topic("?", {0: 1}, unknown)))
    entry = {"partition_index": 0, "error_code": 100, "high_watermark": -1, "records": b"",
             "aborted_transactions": None}  # fmt: skip
    answer = {"responses": [{"topic_id": unknown, "partitions": [entry]}]}
    context.expect(FETCH, bytes(asked.body), answer)

    assert not is_relayed(context, asked)
    check(answer, plain(asked.decode_answer(await serve(context, asked))))
    assert context.events == ["send Fetch", "release"]


@pytest.mark.parametrize("version", range(4, 13))
async def test_a_lane_topic_that_does_not_exist_is_answered_as_a_broker_does(version) -> None:
    """It says UNKNOWN_TOPIC_OR_PARTITION."""
    context = FakeContext()
    context.registry.forget("orders")
    asked = make_request(FETCH, version, request(topic("orders", {0: 1})))
    answer = {"responses": [{"partitions": [{"partition_index": 0, "error_code": 3}]}]}

    check(answer, plain(asked.decode_answer(await serve(context, asked))))


@pytest.mark.parametrize("version", versions(FETCH))
async def test_an_empty_request(version) -> None:
    """No topic at all is relayed; a lane topic without partitions is answered as such."""
    context = FakeContext()
    asked = make_request(FETCH, version, request())
    context.expect(FETCH, bytes(asked.body), {"responses": []})
    await serve(context, asked)

    seen = await call(context, FETCH, version, request(topic("orders", {})))

    check({"responses": [{**named(version, "orders"), "partitions": []}]}, seen)
