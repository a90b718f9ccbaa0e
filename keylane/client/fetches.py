"""Fetch requests of the consumer, and what their answers say. Pure.

Full requests, without sessions (KIP-227): a request names what is wanted now, so that a partition
whose records wait is left out.
Source: FetchRequest.json of Apache Kafka 4.3; KIP-320 (leader epochs), KIP-516 (topic ids).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from keylane.client import errors as e
from keylane.client.reading import Reading
from keylane.client.settings import ConsumerSettings
from keylane.client.values import TopicPartition
from keylane.errors import BatchCorrupt
from keylane.kernel.fetched import FetchedRecords, Survey, read_fetched, survey
from keylane.wire.extensions import (
    DRAFT_ERROR,
    KEY_RANGES,
    read_int16,
    with_extensions,
    write_key_ranges,
)
from keylane.wire.fetch import (
    FetchAnswer,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    read_fetch_response,
    write_fetch_request,
)
from keylane.wire.primitives import NO_TAGS, read_tags

VERSION_MIN: Final = 12
VERSION_MAX: Final = 17
TOPIC_ID_FROM: Final = 13
PLAIN_BYTES_MAX: Final = 64 << 20
"""Bytes of one answer's records when decompressed; the rest is fetched again."""
BATCH_BYTES_MAX: Final = 1 << 30
"""Bytes of one batch when decompressed: Kafka's own limits end below."""
PLAIN_BYTES_PER_US: Final = 16_000
COMPRESSED_BYTES_PER_US: Final = 80
BATCHES_PER_US: Final = 12
RECORDS_PER_US: Final = 120
"""Bytes are checked, decompressed, and their records listed at about these rates, or faster."""
NO_LOG_START: Final = -1


class FetchAsked(NamedTuple):
    """One partition of a request, as it was when the request left."""

    reading: Reading
    life: int
    offset: int

    @property
    def is_stale(self) -> bool:
        """The position was moved since: the answer is of no use."""
        return self.reading.life != self.life


@dataclass(frozen=True, slots=True)
class FetchCall:
    """A request to one node."""

    version: int
    body: bytes
    asked: dict[tuple[str | bytes, int], FetchAsked]
    """By the topic's name, or its id from v13 on."""


class FetchOutcome(NamedTuple):
    """An answer for one partition, its batches not read yet."""

    asked: FetchAsked
    error_code: int
    draft_code: int
    log_end: int
    """The high watermark, or with read_committed the last stable offset, as KIP-695 has it."""
    data: memoryview
    """Batches, the last one may be cut."""
    whole: Survey | None
    """Survey of the others; None: there are none."""
    aborted: Sequence[tuple[int, int]]

    @property
    def reading_us(self) -> float:
        """About how long it takes to read the batches, in microseconds."""
        if self.whole is None:
            return 0
        return (
            len(self.data) / PLAIN_BYTES_PER_US
            + self.whole.compressed_bytes / COMPRESSED_BYTES_PER_US
            + self.whole.batch_count / BATCHES_PER_US
            + self.whole.record_count / RECORDS_PER_US
        )


class ReadBatches(NamedTuple):
    """The batches of an outcome, read."""

    fields: FetchedRecords | None
    """None: there is no whole batch, or it is corrupt."""
    corrupt: BatchCorrupt | None = None
    """The first batch cannot be read."""


def plan_fetch(
    readings: Iterable[Reading],
    settings: ConsumerSettings,
    *,
    version: int,
    max_wait_ms: int,
    max_bytes: int,
    topic_id: Callable[[str], uuid.UUID | None],
    leader_epoch: Callable[[TopicPartition], int],
) -> FetchCall:
    """Return the request for these partitions of one node; each has a position."""
    by_topic: dict[str, list[Reading]] = {}
    for reading in readings:
        by_topic.setdefault(reading.part.topic, []).append(reading)
    ids = {topic: topic_id(topic) for topic in by_topic}
    if version >= TOPIC_ID_FROM and None in ids.values():
        version = VERSION_MIN
    asked: dict[tuple[str | bytes, int], FetchAsked] = {}
    topics = []
    for topic, of_topic in by_topic.items():
        found = ids[topic]
        is_named = version < TOPIC_ID_FROM or found is None
        key: str | bytes = topic if found is None or is_named else found.bytes
        partitions = []
        for each in of_topic:
            asked[key, each.part.partition] = FetchAsked(each, each.life, each.fetch_offset)
            partitions.append(_partition(each, leader_epoch(each.part), settings))
        topics.append(
            FetchTopic(
                topic if is_named else None, None if isinstance(key, str) else key,
                tuple(partitions),
            )
        )  # fmt: skip
    request = FetchRequest(
        version=version,
        max_wait_ms=max_wait_ms,
        min_bytes=settings.fetch_min_bytes,
        max_bytes=min(max_bytes, settings.fetch_max_bytes),
        isolation_level=settings.isolation,
        topics=tuple(topics),
    )
    return FetchCall(version, write_fetch_request(request), asked)


def _partition(reading: Reading, leader_epoch: int, settings: ConsumerSettings) -> FetchPartition:
    tags = NO_TAGS
    if reading.key_ranges:
        tags = with_extensions(NO_TAGS, {KEY_RANGES: write_key_ranges(reading.key_ranges)})
    return FetchPartition(
        reading.part.partition,
        leader_epoch,
        reading.fetch_offset,
        -1,
        NO_LOG_START,
        settings.max_partition_fetch_bytes,
        tags,
    )


def read_answer(
    plan: FetchCall, body: memoryview, *, read_committed: bool
) -> tuple[int, list[FetchOutcome]]:
    """Return an answer's own error code, and its outcomes; records stay views of the answer.

    Partitions that were not asked for are left out. Raises: FrameInvalid.
    """
    response = read_fetch_response(body, 0, plan.version)
    found = []
    for topic in response.topics:
        key = topic.topic_id if topic.name is None else topic.name
        assert key is not None, "a topic has a name or an id"
        for answer in topic.partitions:
            asked = plan.asked.get((key, answer.partition))
            if asked is not None:
                found.append(_outcome(asked, answer, read_committed=read_committed))
    return response.error_code, found


def _outcome(asked: FetchAsked, answer: FetchAnswer, *, read_committed: bool) -> FetchOutcome:
    draft = e.NONE
    if answer.tags != NO_TAGS:
        tags = read_tags(answer.tags)
        draft = read_int16(tags[DRAFT_ERROR]) if DRAFT_ERROR in tags else e.NONE
    pieces = answer.records or ()
    data = memoryview(pieces[0]) if len(pieces) == 1 else memoryview(b"".join(pieces))
    aborted: Sequence[tuple[int, int]] = ()
    log_end = answer.high_watermark
    if read_committed:
        log_end = answer.last_stable_offset
        aborted = [(each[0], each[1]) for each in answer.aborted or ()]
    whole = survey(data) if data else None
    return FetchOutcome(asked, answer.error_code, draft, log_end, data, whole, aborted)


def read_batches(outcome: FetchOutcome) -> ReadBatches:
    """Check, decompress and list the batches of an outcome, most of it without the GIL."""
    if not outcome.data:
        return ReadBatches(None)
    try:
        fields = read_fetched(
            outcome.data,
            from_offset=outcome.asked.offset,
            aborted=outcome.aborted,
            plain_bytes_max=PLAIN_BYTES_MAX,
            batch_bytes_max=BATCH_BYTES_MAX,
        )
    except BatchCorrupt as error:
        return ReadBatches(None, error)
    return ReadBatches(fields)
