"""Acknowledgements of share requests by type: the same as by reading the whole request."""

from __future__ import annotations

import pytest

from keylane.errors import FrameInvalid
from keylane.wire.header import ApiKey
from keylane.wire.parts import KeyedTopic
from keylane.wire.share import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    AckBatch,
    ShareAcknowledgeRequest,
    ShareFetchRequest,
    SharePartition,
    ShareTopic,
    write_share_acknowledge_request,
    write_share_fetch_request,
)
from keylane.wire.share_acks import NONE, OFFSETS_MAX, count_acks, group_of

TOPIC = bytes(16)
GROUP = {"group": "billing", "member_id": "m" * 36, "epoch": 3}


def topics(*acks: tuple[AckBatch, ...]) -> tuple[ShareTopic, ...]:
    """One topic with a partition for each of these."""
    entries = tuple(SharePartition(number, each) for number, each in enumerate(acks))
    return (KeyedTopic(None, TOPIC, entries),)


def fetch(version: int, named: tuple[ShareTopic, ...]) -> bytes:
    request = ShareFetchRequest(**GROUP, max_wait_ms=500, topics=named)  # type: ignore[arg-type]
    return write_share_fetch_request(request, version)


def acknowledge(version: int, named: tuple[ShareTopic, ...]) -> bytes:
    request = ShareAcknowledgeRequest(**GROUP, topics=named)  # type: ignore[arg-type]
    return write_share_acknowledge_request(request, version)


BOTH = [
    (ApiKey.SHARE_FETCH, fetch, 1),
    (ApiKey.SHARE_FETCH, fetch, 2),
    (ApiKey.SHARE_ACKNOWLEDGE, acknowledge, 1),
    (ApiKey.SHARE_ACKNOWLEDGE, acknowledge, 2),
]


@pytest.mark.parametrize(("api_key", "write", "version"), BOTH)
def test_offsets_are_counted_by_type(api_key, write, version) -> None:
    """One type for a range, one for each offset, several batches, several partitions."""
    each = bytes((ACCEPT, RELEASE, RENEW, ACCEPT))
    many = bytes((REJECT,)) * 300
    named = topics(
        (AckBatch(5, 9, bytes((ACCEPT,))), AckBatch(12, 15, each)),
        (),
        (AckBatch(0, 299, many),),
    )

    counts = count_acks(b"head" + write(version, named), 4, api_key, version)

    assert list(counts) == [0, 5 + 2, 1, 300, 1]


@pytest.mark.parametrize(("api_key", "write", "version"), BOTH)
def test_a_request_without_acknowledgements_counts_nothing(api_key, write, version) -> None:
    """Neither one that names no topic, nor one that names partitions alone."""
    assert count_acks(write(version, ()), 0, api_key, version) == NONE
    assert list(count_acks(write(version, topics((), ())), 0, api_key, version)) == [0] * 5


@pytest.mark.parametrize(
    "acks",
    [
        (AckBatch(9, 5, b"\x01"),),
        (AckBatch(5, 9, b"\x01"), AckBatch(7, 11, b"\x01")),
        (AckBatch(5, 9, b"\x01\x01"),),
        (AckBatch(5, 9, b"\x05"),),
        (AckBatch(5, 9, b"\xff"),),
        (AckBatch(5, 9, b""),),
        (AckBatch(0, OFFSETS_MAX, b"\x01"),),
        (AckBatch(0, 2**62, b"\x01"),),
    ],
)
def test_batches_that_no_broker_takes_do_not_count(acks) -> None:
    """Of their partition nothing counts, of another one all."""
    named = topics(acks, (AckBatch(1, 1, bytes((RELEASE,))),))

    assert list(count_acks(fetch(2, named), 0, ApiKey.SHARE_FETCH, 2)) == [0, 0, 1, 0, 0]


def test_a_request_that_ends_early_is_refused_to_the_caller() -> None:
    """At each byte up to its last batch, and with a count beyond the end."""
    whole = acknowledge(2, topics((AckBatch(5, 9, b"\x01"),)))

    for size in range(len(whole) - 3):
        if size < len(whole) - 24:
            with pytest.raises(FrameInvalid):
                count_acks(whole[:size], 0, ApiKey.SHARE_ACKNOWLEDGE, 2)
    with pytest.raises(FrameInvalid):
        count_acks(whole[:30] + b"\x7f" * 40, 0, ApiKey.SHARE_FETCH, 2)


def test_the_group_is_read_alone() -> None:
    """It is the first field of both requests."""
    body = fetch(2, ())

    assert group_of(b"head" + body, 4) == "billing"
    for wrong in (b"\x00", b"\x09short", b"\x03\xff\xff"):
        with pytest.raises(FrameInvalid):
            group_of(wrong, 0)
