"""Produce v3 to v13 against kio; requests taken apart over lanes, answers put together."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from keylane.errors import FrameInvalid
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_request, read_response
from keylane.wire.parts import ENDPOINTS_TAG, read_endpoints_field
from keylane.wire.primitives import NO_TAGS, read_tags, write_tags
from keylane.wire.produce import (
    Place,
    ProduceAnswer,
    ProducePartition,
    ProducePlan,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicAnswer,
    RecordError,
    Refusal,
    Target,
    merge_answers,
    read_produce_request,
    read_produce_response,
    split_by_partition,
    write_produce_request,
    write_produce_response,
)
from tests.fuzz.entities import random_request_body, random_response_body

VERSIONS = range(3, 14)
TOPIC_ID = uuid.UUID(int=7).bytes
UNKNOWN_TAG = write_tags({99: b"later"})
PARTITION_COUNT = 4


def topic_of(version: int, *partitions: ProducePartition) -> ProduceTopic:
    if version < 13:
        return ProduceTopic("orders", None, partitions)
    return ProduceTopic(None, TOPIC_ID, partitions)


def make_request(version: int, *partitions: ProducePartition) -> ProduceRequest:
    return ProduceRequest(
        version=version,
        transactional_id="tx",
        acks=-1,
        timeout_ms=30_000,
        topics=(topic_of(version, *partitions),),
    )


def make_response(version: int, *answers: ProduceAnswer) -> ProduceResponse:
    topic = topic_of(version)
    return ProduceResponse(
        topics=(ProduceTopicAnswer(topic.name, topic.topic_id, answers),), throttle_ms=3
    )


def lanes(version: int, *indexes: int) -> ProduceRequest:
    """A request that names these lanes, each with its number as records."""
    return make_request(version, *(ProducePartition(i, (b"%d" % i,)) for i in indexes))


def to_partition(topic: ProduceTopic, item: ProducePartition) -> Target | Refusal:
    return Target(topic.name, topic.topic_id, item.partition % PARTITION_COUNT, item.records)


def answer_all(plan: ProducePlan) -> list[ProduceResponse]:
    """A broker that gives offset 1000 * round + partition, topics and partitions reversed."""
    return [
        ProduceResponse(
            topics=tuple(
                ProduceTopicAnswer(
                    topic.name,
                    topic.topic_id,
                    tuple(
                        ProduceAnswer(p.partition, 0, 1000 * n + p.partition)
                        for p in reversed(topic.partitions)
                    ),
                )
                for topic in reversed(one.request.topics)
            ),
            throttle_ms=n,
        )
        for n, one in enumerate(plan.rounds)
    ]


# -- codec --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_kios_requests_read_and_write_back_the_same(version: int) -> None:
    """100 random requests of kio per version come out as the bytes that went in."""
    bodies = [random_request_body(ApiKey.PRODUCE, version, seed) for seed in range(100)]

    requests = [read_produce_request(body, 0, version) for body in bodies]

    assert [b"".join(write_produce_request(request)) for request in requests] == bodies


@pytest.mark.parametrize("version", VERSIONS)
def test_kios_responses_read_and_write_back_the_same(version: int) -> None:
    """100 random responses of kio per version come out as the bytes that went in."""
    bodies = [random_response_body(ApiKey.PRODUCE, version, seed) for seed in range(100)]

    responses = [read_produce_response(body, 0, version) for body in bodies]

    assert [b"".join(write_produce_response(r, version)) for r in responses] == bodies


@pytest.mark.parametrize("version", VERSIONS)
def test_a_request_has_kios_fields(version: int) -> None:
    """kio reads from our buffers every value we put in, records joined."""
    request = make_request(version, ProducePartition(5, (b"head", b"y" * 3000)))

    body = b"".join(write_produce_request(request))
    entity = read_request(ApiKey.PRODUCE, version, memoryview(body))

    topic, partition = entity.topic_data[0], entity.topic_data[0].partition_data[0]
    assert (topic.name == "orders") if version < 13 else (topic.topic_id.bytes == TOPIC_ID)
    assert (entity.transactional_id, entity.acks) == ("tx", -1)
    assert entity.timeout.total_seconds() == 30
    assert (partition.index, partition.records) == (5, b"head" + b"y" * 3000)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_response_has_kios_fields(version: int) -> None:
    """kio reads from our buffers every value we put in that its version has."""
    answer = ProduceAnswer(5, 87, 40, 60_000, 10, (RecordError(2, "bad"),), "all bad")

    body = b"".join(write_produce_response(make_response(version, answer), version))
    entity = read_response(ApiKey.PRODUCE, version, memoryview(body))

    found = entity.responses[0].partition_responses[0]
    assert (found.index, found.error_code, found.base_offset) == (5, 87, 40)
    assert found.log_append_time.timestamp() == 60
    assert entity.throttle_time.total_seconds() == 0.003
    if version >= 5:
        assert found.log_start_offset == 10
    if version >= 8:
        error = found.record_errors[0]
        assert (error.batch_index, error.batch_index_error_message) == (2, "bad")
        assert found.error_message == "all bad"


@pytest.mark.parametrize("version", range(9, 14))
def test_unknown_tags_are_kept(version: int) -> None:
    """Tag 99 of every level of request and response comes back."""
    partition = ProducePartition(1, (b"r",), UNKNOWN_TAG)
    request = make_request(version, partition)
    request = replace(
        request, topics=(request.topics[0]._replace(tags=UNKNOWN_TAG),), tags=UNKNOWN_TAG
    )
    answer = ProduceAnswer(1, 0, 5, -1, 0, (RecordError(0, None, UNKNOWN_TAG),), None, UNKNOWN_TAG)
    response = make_response(version, answer)
    response = replace(
        response, topics=(response.topics[0]._replace(tags=UNKNOWN_TAG),), tags=UNKNOWN_TAG
    )

    request_body = b"".join(write_produce_request(request))
    response_body = b"".join(write_produce_response(response, version))

    assert read_produce_request(request_body, 0, version) == request
    assert read_produce_response(response_body, 0, version) == response


@pytest.mark.parametrize("version", [3, 9, 13])
def test_null_and_empty_records_stay_apart(version: int) -> None:
    """None is written as null and read as None; no piece is written as empty."""
    for records, expected in ((None, None), ((), (b"",))):
        body = b"".join(write_produce_request(make_request(version, ProducePartition(0, records))))

        request = read_produce_request(body, 0, version)

        assert request.topics[0].partitions[0].records == expected


@pytest.mark.parametrize("version", [3, 9, 13])
def test_records_are_views_of_the_frame(version: int) -> None:
    """A byte changed in the frame changes in the records: nothing was copied."""
    written = write_produce_request(make_request(version, ProducePartition(0, (b"#" * 99,))))
    frame = bytearray(b"head" + b"".join(written))
    records = read_produce_request(frame, 4, version).topics[0].partitions[0].records
    assert records is not None

    frame[frame.index(b"#")] = ord("!")

    assert bytes(records[0][:2]) == b"!#"


@pytest.mark.parametrize("version", [2, 14, -1])
def test_an_unknown_version_is_refused(version: int) -> None:
    """FrameInvalid for versions below 3 and above 13, whatever the function."""
    with pytest.raises(FrameInvalid, match="not known"):
        read_produce_request(b"", 0, version)
    with pytest.raises(FrameInvalid, match="not known"):
        read_produce_response(b"", 0, version)
    with pytest.raises(FrameInvalid, match="not known"):
        write_produce_request(replace(make_request(3), version=version))
    with pytest.raises(FrameInvalid, match="not known"):
        write_produce_response(ProduceResponse(topics=()), version)


# -- lanes --------------------------------------------------------------------------------


def test_lanes_of_different_partitions_need_one_round() -> None:
    """Lanes 4, 1, 6 and 11 of 4 partitions go to 0, 1, 2, 3 in one request."""
    plan = split_by_partition(lanes(13, 4, 1, 6, 11), to_partition)

    (one,) = plan.rounds
    partitions = one.request.topics[0].partitions
    assert [(p.partition, p.records) for p in partitions] == [
        (0, (b"4",)),
        (1, (b"1",)),
        (2, (b"6",)),
        (3, (b"11",)),
    ]
    assert one.places == (((0, 0), (0, 1), (0, 2), (0, 3)),)


def test_lanes_of_one_partition_go_in_successive_rounds() -> None:
    """Lanes 0, 8, 4 are partition 0 in rounds 0, 1, 2, in that order; lane 1 in round 0."""
    plan = split_by_partition(lanes(12, 0, 8, 1, 4), to_partition)

    written = [
        [(p.partition, p.records) for p in one.request.topics[0].partitions] for one in plan.rounds
    ]
    assert written == [[(0, (b"0",)), (1, (b"1",))], [(0, (b"8",))], [(0, (b"4",))]]
    assert [one.request.acks for one in plan.rounds] == [-1, -1, -1]
    assert {one.request.transactional_id for one in plan.rounds} == {"tx"}


def test_two_names_of_one_topic_share_its_rounds() -> None:
    """`orders` and `orders.lanes-2` in one request never name a partition twice in a round."""
    request = replace(
        lanes(12, 0),
        topics=(
            ProduceTopic("orders", None, (ProducePartition(0, (b"a",)),)),
            ProduceTopic("orders.lanes-2", None, (ProducePartition(0, (b"b",)),)),
        ),
    )

    plan = split_by_partition(
        request, lambda _, item: Target("orders", None, item.partition, item.records)
    )

    assert [one.request.topics[0].name for one in plan.rounds] == ["orders", "orders"]
    assert [one.places for one in plan.rounds] == [(((0, 0),),), (((1, 0),),)]
    merged = merge_answers(request, plan, answer_all(plan))
    assert [topic.name for topic in merged.topics] == ["orders", "orders.lanes-2"]
    assert [topic.partitions[0].base_offset for topic in merged.topics] == [0, 1000]


def test_answers_come_back_in_the_order_asked() -> None:
    """Lane numbers, offsets of their rounds, the largest throttle time."""
    request = lanes(13, 8, 1, 0, 7, 4)
    plan = split_by_partition(request, to_partition)

    merged = merge_answers(request, plan, answer_all(plan))

    answers = merged.topics[0].partitions
    assert [(a.partition, a.base_offset) for a in answers] == [
        (8, 0),
        (1, 1),
        (0, 1000),
        (7, 3),
        (4, 2000),
    ]
    assert merged.throttle_ms == 2
    assert merged.topics[0].topic_id == TOPIC_ID


def test_a_refused_lane_is_answered_without_the_broker() -> None:
    """Lane 5 gets its error and log start; the others go on; all refused is no round."""
    request = lanes(13, 0, 5)
    refusal = Refusal(59, "unknown producer", 0)

    plan = split_by_partition(
        request, lambda t, item: refusal if item.partition == 5 else to_partition(t, item)
    )
    merged = merge_answers(request, plan, answer_all(plan))
    nothing = split_by_partition(request, lambda *_: refusal)

    assert merged.topics[0].partitions[1] == ProduceAnswer(
        5, 59, log_start_offset=0, error_message="unknown producer"
    )
    assert merged.topics[0].partitions[0].error_code == 0
    assert nothing.rounds == ()
    assert merge_answers(request, nothing, []).throttle_ms == 0


def test_what_the_broker_left_out_may_be_retried() -> None:
    """NETWORK_EXCEPTION for a partition missing in an answer and for a round without one."""
    request = lanes(13, 0, 1, 4)
    plan = split_by_partition(request, to_partition)
    responses = [make_response(13, ProduceAnswer(1, 0, 9))]

    merged = merge_answers(request, plan, responses)

    codes = [answer.error_code for answer in merged.topics[0].partitions]
    assert codes == [ErrorCode.network_exception, 0, ErrorCode.network_exception]


def test_settle_sees_each_answer_with_its_place() -> None:
    """It is called rounds in order, and what it returns is what the client gets."""
    request = lanes(13, 0, 4, 1)
    plan = split_by_partition(request, to_partition)
    seen: list[tuple[Place, int]] = []

    def settle(place: Place, answer: ProduceAnswer) -> ProduceAnswer:
        seen.append((place, answer.base_offset))
        return answer._replace(error_code=19)

    merged = merge_answers(request, plan, answer_all(plan), settle)

    assert seen == [((0, 0), 0), ((0, 2), 1), ((0, 1), 1000)]
    assert {answer.error_code for answer in merged.topics[0].partitions} == {19}


def test_leaders_and_endpoints_of_all_rounds_reach_the_client() -> None:
    """A partition's current leader tag stays; endpoints of two rounds are one field."""
    request = lanes(13, 0, 4)
    plan = split_by_partition(request, to_partition)
    leader = write_tags({0: b"\x00\x00\x00\x02\x00\x00\x00\x05\x00"})
    first = b"\x02\x00\x00\x00\x01\x02a\x00\x00\x00\x09\x00\x00"
    second = b"\x02\x00\x00\x00\x02\x02b\x00\x00\x00\x09\x00\x00"
    responses = [
        replace(make_response(13, ProduceAnswer(0, 6, tags=leader)), tags=write_tags({0: field}))
        for field in (first, second)
    ]

    merged = merge_answers(request, plan, responses)

    assert [answer.tags for answer in merged.topics[0].partitions] == [leader, leader]
    endpoints = read_endpoints_field(read_tags(merged.tags)[ENDPOINTS_TAG])
    assert [(e.node_id, e.host) for e in endpoints] == [(1, "a"), (2, "b")]


def test_an_answer_without_endpoints_has_no_tags() -> None:
    """The merged section is the empty one."""
    request = lanes(13, 0, 1)
    plan = split_by_partition(request, to_partition)

    assert merge_answers(request, plan, answer_all(plan)).tags == NO_TAGS
