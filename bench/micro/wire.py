"""Micro-benchmark of the wire codecs: ours against kio, and what a produced batch costs.

    python -m bench.micro.wire

Source: timeit's advice to take the minimum: the rest is other processes' noise.
"""

from __future__ import annotations

import timeit
import uuid
from collections.abc import Callable
from functools import partial
from typing import Final

from google_crc32c import value as crc32c

from keylane.producers.resequence import resequence
from keylane.producers.sequence import SequencedBatch, SequenceMap
from keylane.wire.batch import BATCH_HEADER, BATCH_HEADER_BYTES
from keylane.wire.endpoints import rewrite_brokers
from keylane.wire.fetch import (
    FetchAnswer,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicAnswer,
    fetch_response_tail,
    read_fetch_request,
    read_fetch_response,
    write_fetch_request,
    write_fetch_response,
)
from keylane.wire.header import ApiKey
from keylane.wire.messages import read_request, read_response, write_message
from keylane.wire.produce import (
    ProducePartition,
    ProduceRequest,
    ProduceTopic,
    Target,
    read_produce_request,
    split_by_partition,
    write_produce_request,
)

ROUNDS: Final = 4
VERSION: Final = 17
PRODUCE_VERSION: Final = 13
TOPIC_ID: Final = uuid.UUID(int=7)
RECORDS: Final = bytes(4096)


def microseconds(call: Callable[[], object], calls: int = 500) -> float:
    """Best time of one call."""
    return min(timeit.repeat(call, number=calls, repeat=ROUNDS)) / calls * 1e6


def fetch_request(count: int) -> FetchRequest:
    """One topic, `count` partitions."""
    partitions = tuple(FetchPartition(n, 3, 1000 + n, -1, -1, 1 << 20) for n in range(count))
    topic = FetchTopic(name=None, topic_id=TOPIC_ID.bytes, partitions=partitions)
    return FetchRequest(
        version=VERSION,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=50 << 20,
        isolation_level=0,
        topics=(topic,),
    )


def fetch_response(count: int) -> FetchResponse:
    """One topic, `count` partitions of 4 KiB."""
    partitions = tuple(FetchAnswer(n, 0, 9000, 9000, 0, None, -1, (RECORDS,)) for n in range(count))
    topic = FetchTopicAnswer(name=None, topic_id=TOPIC_ID.bytes, partitions=partitions)
    return FetchResponse(topics=(topic,))


def produce_request(count: int) -> ProduceRequest:
    """One topic, `count` lanes of 4 partitions, 4 KiB each."""
    partitions = tuple(ProducePartition(n, (RECORDS,)) for n in range(count))
    return ProduceRequest(
        version=PRODUCE_VERSION,
        transactional_id=None,
        acks=-1,
        timeout_ms=30_000,
        topics=(ProduceTopic(None, TOPIC_ID.bytes, partitions),),
    )


def bench_codecs(count: int) -> None:
    """Rows for messages of `count` partitions."""
    request, response = fetch_request(count), fetch_response(count)
    request_body = write_fetch_request(request)
    response_body = b"".join(write_fetch_response(response, VERSION))
    produce = produce_request(count)
    produce_body = b"".join(write_produce_request(produce))
    entities = [
        read_request(ApiKey.FETCH, VERSION, memoryview(request_body)),
        read_response(ApiKey.FETCH, VERSION, memoryview(response_body)),
        read_request(ApiKey.PRODUCE, PRODUCE_VERSION, memoryview(produce_body)),
    ]
    row(
        f"fetch request, read, {count}",
        lambda: read_fetch_request(request_body, 0, VERSION),
        lambda: read_request(ApiKey.FETCH, VERSION, memoryview(request_body)),
    )
    row(
        f"fetch request, write, {count}",
        lambda: write_fetch_request(request),
        lambda: write_message(entities[0]),
    )
    row(
        f"fetch response, read, {count}",
        lambda: read_fetch_response(response_body, 0, VERSION),
        lambda: read_response(ApiKey.FETCH, VERSION, memoryview(response_body)),
    )
    row(
        f"fetch response, write, {count}",
        lambda: write_fetch_response(response, VERSION),
        lambda: write_message(entities[1]),
    )
    row(f"fetch response, find tail, {count}", lambda: fetch_response_tail(response_body, 0, 17))
    row(
        f"fetch response, relay check, {count}",
        lambda: rewrite_brokers(
            ApiKey.FETCH, 17, response_body, address_of=lambda _: ("k", 1), id_of=int
        ),
    )
    row(
        f"produce request, read, {count}",
        lambda: read_produce_request(produce_body, 0, PRODUCE_VERSION),
        lambda: read_request(ApiKey.PRODUCE, PRODUCE_VERSION, memoryview(produce_body)),
    )
    row(
        f"produce request, write, {count}",
        lambda: write_produce_request(produce),
        lambda: write_message(entities[2]),
    )
    row(
        f"produce request, split over lanes, {count}",
        lambda: split_by_partition(
            produce, lambda _, p: Target(None, TOPIC_ID.bytes, p.partition % 4, p.records)
        ),
    )


def row(name: str, ours: Callable[[], object], kio: Callable[[], object] | None = None) -> None:
    """Print one row; kio's time includes the guard in front of its reader."""
    own = microseconds(ours)
    if kio is None:
        print(f"{name:40} {own:10.2f}")
        return
    other = microseconds(kio)
    print(f"{name:40} {own:10.2f} {other:10.2f} {other / own:7.1f}x")


def _crc(batch: memoryview) -> int:
    return int(crc32c(bytes(batch[BATCH_HEADER_BYTES:])))


def bench_sequences() -> None:
    """Rows for one batch of an idempotent producer."""
    for size in (1 << 10, 1 << 16, 1 << 20):
        batch = memoryview(
            BATCH_HEADER.pack(0, 49 + size, -1, 2, 0, 0, 9, 5, 6, 77, 3, 40, 10) + bytes(size)
        )
        row(
            f"renumber a batch of {size >> 10} KiB",
            partial(resequence, batch, 7),
        )
        row(
            f"  the same, CRC read anew, {size >> 10} KiB",
            partial(_crc, batch),
        )
    numbers = SequenceMap(seed=1)
    state = [0]

    def assign_and_settle() -> None:
        base = state[0]
        state[0] = base + 10
        batch = SequencedBatch(1, 0, TOPIC_ID, 0, 4, base, 10)
        numbers.assign(batch)
        numbers.settle(batch, 0, base_offset=base)

    row("assign and settle a sequence", assign_and_settle)


if __name__ == "__main__":
    print(f"{'us per message, partitions':40} {'ours':>10} {'kio':>10} {'ratio':>8}")
    for partition_count in (1, 16, 64):
        bench_codecs(partition_count)
    bench_sequences()
