"""Codecs are exact inverses: of kio's bytes, of their own, and of a CRC read anew."""

from __future__ import annotations

import random

from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from keylane.producers.resequence import append_zeros, resequence
from keylane.wire.batch import BATCH_HEADER
from keylane.wire.fetch import (
    read_fetch_request,
    read_fetch_response,
    write_fetch_request,
    write_fetch_response,
)
from keylane.wire.header import ApiKey
from keylane.wire.messages import write_message
from keylane.wire.primitives import UVARINT_MAX, read_tags, read_uvarint, write_tags, write_uvarint
from keylane.wire.produce import (
    PRODUCE_VERSION_MIN,
    ProduceAnswer,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicAnswer,
    Target,
    merge_answers,
    read_produce_request,
    read_produce_response,
    split_by_partition,
    write_produce_request,
    write_produce_response,
)
from tests.fuzz.entities import (
    random_request,
    random_request_body,
    random_response,
    random_response_body,
)
from tests.fuzz.unknown_tags import with_unknown_tags

SEEDS = st.integers(0, 2**64)


@given(st.integers(4, 18), SEEDS)
def test_fetch_is_kios_byte_for_byte(version: int, seed: int) -> None:
    """decode and encode give back what kio wrote, request and response."""
    request = random_request_body(ApiKey.FETCH, version, seed)
    response = random_response_body(ApiKey.FETCH, version, seed)

    assert write_fetch_request(read_fetch_request(request, 0, version)) == request
    assert b"".join(write_fetch_response(read_fetch_response(response, 0, version), version)) == (
        response
    )


@given(st.integers(3, 13), SEEDS)
def test_produce_is_kios_byte_for_byte(version: int, seed: int) -> None:
    """The same for Produce."""
    request = random_request_body(ApiKey.PRODUCE, version, seed)
    response = random_response_body(ApiKey.PRODUCE, version, seed)

    assert b"".join(write_produce_request(read_produce_request(request, 0, version))) == request
    again = write_produce_response(read_produce_response(response, 0, version), version)
    assert b"".join(again) == response


@given(st.integers(12, 18), st.integers(9, 13), SEEDS)
def test_fetch_and_produce_keep_unknown_tagged_fields(fetch: int, produce: int, seed: int) -> None:
    """At every level, of requests and responses: the same bytes again."""
    rng = random.Random(seed)
    request = write_message(with_unknown_tags(random_request(ApiKey.FETCH, fetch, seed), rng))
    response = write_message(with_unknown_tags(random_response(ApiKey.FETCH, fetch, seed), rng))
    produced = write_message(with_unknown_tags(random_request(ApiKey.PRODUCE, produce, seed), rng))
    answer = write_message(with_unknown_tags(random_response(ApiKey.PRODUCE, produce, seed), rng))

    assert write_fetch_request(read_fetch_request(request, 0, fetch)) == request
    again = write_fetch_response(read_fetch_response(response, 0, fetch), fetch)
    assert b"".join(again) == response
    assert b"".join(write_produce_request(read_produce_request(produced, 0, produce))) == produced
    again = write_produce_response(read_produce_response(answer, 0, produce), produce)
    assert b"".join(again) == answer


@given(st.integers(0, UVARINT_MAX), st.dictionaries(st.integers(0, 2**31 - 1), st.binary()))
def test_varints_and_tags_come_back(value: int, tags: dict[int, bytes]) -> None:
    """decode(encode(x)) = x."""
    data = write_uvarint(value)

    assert read_uvarint(data, 0, len(data)) == (value, len(data))
    assert read_tags(write_tags(tags)) == tags


@given(
    st.binary(max_size=5000),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.integers(-1, 2**15 - 1),
)
def test_a_renumbered_batch_has_the_crc_of_a_whole_reading(
    records: bytes, old: int, new: int, epoch: int
) -> None:
    """Header, records and CRC equal those of a batch built with the new fields."""

    def build(sequence: int, producer_epoch: int) -> bytes:
        fields = (1, 49 + len(records), 2, 2, 0, 0x10, 3, 4, 5, 6, producer_epoch, sequence, 4)
        head = BATCH_HEADER.pack(*fields)
        body = head[21:] + records
        return head[:17] + crc32c(body).to_bytes(4, "big") + body

    assert b"".join(resequence(memoryview(build(old, 2)), new, epoch)) == build(new, epoch)


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**28), st.integers(0, 2**28))
def test_zeros_add_up(state: int, first: int, second: int) -> None:
    """Appending a and then b zeros is appending a + b."""
    assert append_zeros(append_zeros(state, first), second) == append_zeros(state, first + second)


@given(st.lists(st.lists(st.integers(0, 63), max_size=12), max_size=4), st.integers(1, 5), SEEDS)
def test_every_lane_is_sent_once_and_answered_in_its_place(
    topics: list[list[int]], partition_count: int, seed: int
) -> None:
    """Rounds name a partition once, keep the order of its lanes; answers stand as asked."""
    request = ProduceRequest(
        version=PRODUCE_VERSION_MIN,
        transactional_id=None,
        acks=-1,
        timeout_ms=1,
        topics=tuple(
            ProduceTopic(
                f"t{n % 2}", None, tuple(ProducePartition(i, (b"%d/%d" % (n, i),)) for i in lanes)
            )
            for n, lanes in enumerate(topics)
        ),
    )

    plan = split_by_partition(
        request,
        lambda topic, item: Target(
            topic.name, None, item.partition % partition_count, item.records
        ),
    )

    log: dict[tuple[str | None, int], list[object]] = {}
    rng, responses = random.Random(seed), []
    for one in plan.rounds:
        answered = []
        for topic in one.request.topics:
            numbers = [partition.partition for partition in topic.partitions]
            assert len(set(numbers)) == len(numbers)
            answers = []
            for partition in topic.partitions:
                rows = log.setdefault((topic.name, partition.partition), [])
                answers.append(ProduceAnswer(partition.partition, 0, len(rows)))
                rows.append(partition.records)
            rng.shuffle(answers)
            answered.append(ProduceTopicAnswer(topic.name, None, tuple(answers)))
        responses.append(ProduceResponse(topics=tuple(answered)))
    merged = merge_answers(request, plan, responses)
    assert len(merged.topics) == len(request.topics)
    last: dict[tuple[str | None, int], int] = {}
    for asked, given_back in zip(request.topics, merged.topics, strict=True):
        assert [a.partition for a in given_back.partitions] == [
            p.partition for p in asked.partitions
        ]
        for partition, answer in zip(asked.partitions, given_back.partitions, strict=True):
            key = asked.name, partition.partition % partition_count
            assert log[key][answer.base_offset] == partition.records
            assert answer.base_offset > last.get(key, -1)
            last[key] = answer.base_offset
