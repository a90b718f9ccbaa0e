"""Topics of transactions inside a DescribeTransactions answer: found, and put in again.

In:    the body of a response v0.  Out: where the partitions of each topic stand; a new body.
Next:  `proxy.apis.producers` shows partitions as lanes.
Pure:  no I/O, no clock.
Source: DescribeTransactionsResponse.json; KIP-664.

kio takes no start time of -1, which brokers give to a transaction that has not begun. So the
answer is walked here, and all but the partitions stays as it came.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from keylane.wire.primitives import INT32, Buffer, Reader, Writer

STATE_BYTES_MIN: Final = 33
"""Error, two strings, time-out, start, producer id, epoch, topics, no tags."""
TOPIC_BYTES_MIN: Final = 3


class TopicPlace(NamedTuple):
    """The partitions of one topic in one transaction, and where they stand in the body."""

    topic: str
    partitions: tuple[int, ...]
    start: int
    end: int


def find_transaction_topics(body: Buffer) -> list[TopicPlace]:
    """Every topic of every transaction, in the order of the answer.

    Raises:
        FrameInvalid: a length or count passes the end, or bytes are left over.
    """
    reader = Reader(body, flexible=True)
    places = []
    reader.advance(INT32.size)  # throttle time
    for _ in range(reader.count(STATE_BYTES_MIN)):
        reader.int16()  # error code
        reader.string()  # transactional id
        reader.string()  # state
        reader.advance(4 + 8 + 8 + 2)  # time-out, start, producer id and epoch
        for _ in range(reader.count(TOPIC_BYTES_MIN)):
            topic, start = reader.string(), reader.position
            partitions = tuple(reader.int32() for _ in range(reader.count(INT32.size)))
            places.append(TopicPlace(topic, partitions, start, reader.position))
            reader.tags()
        reader.tags()
    reader.tags()
    reader.end()
    return places


def with_partitions(
    body: Buffer, changes: Iterable[tuple[TopicPlace, Sequence[int]]]
) -> list[Buffer]:
    """The body with other partitions in some places, which ascend."""
    view, parts, position = memoryview(body), list[Buffer](), 0
    for place, partitions in changes:
        writer = Writer(flexible=True)
        writer.count(len(partitions))
        for partition in partitions:
            writer.int32(partition)
        parts += view[position : place.start], writer.to_bytes()
        position = place.end
    parts.append(view[position:])
    return parts
