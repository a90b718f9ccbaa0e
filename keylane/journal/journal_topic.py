"""keylane's own topics: made beside Kafka's own offsets topic, with the same settings.

Source: docs/decisions/005.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import for_code
from kio.schema.errors import ErrorCode

from keylane.config.source_names import JOURNAL_SEGMENT_BYTES
from keylane.errors import UpstreamLost
from keylane.offsets.records.journal import TOPIC_NAME

log = logging.getLogger("keylane.offsets")

PRIMARY_TOPIC: Final = "__consumer_offsets"
ANY_GROUP: Final = "keylane"
"""Group whose coordinator is looked for; any makes the broker create its offsets topic."""
APPEAR_TIMEOUT_S: Final = 60.0
"""Time that a topic may take to have all leaders; a cold cluster takes a few seconds."""
RETRY_BACKOFF_S: Final = 0.1
"""Kafka clients' `retry.backoff.ms` default; no event says when a topic is there."""
COMPACT: Final = "compact"
DELETE: Final = "delete"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TopicShape:
    """Partitions, replicas and retention of a topic."""

    partition_count: int
    replication_factor: int
    in_sync_min: str
    """Value of `min.insync.replicas`."""
    cleanup_policy: str


async def ensure_journal_topic(admin: AIOKafkaAdminClient) -> int:
    """Create the journal's topic if it is not there; return its partition count.

    Raises:
        UpstreamLost: a broker refuses, or a topic does not come into being in time.
        KafkaError: the cluster cannot be reached.
    """
    config = {"cleanup.policy": COMPACT, "segment.bytes": str(JOURNAL_SEGMENT_BYTES)}
    primary, shape = await ensure_topic(admin, TOPIC_NAME, config)
    if shape.partition_count != primary.partition_count:
        log.warning(
            "partition count is not that of __consumer_offsets topic=%s partitions=%d primary=%d",
            TOPIC_NAME,
            shape.partition_count,
            primary.partition_count,
        )
    return shape.partition_count


async def ensure_topic(
    admin: AIOKafkaAdminClient,
    name: str,
    wanted: Mapping[str, str],
    partition_count: int | None = None,
) -> tuple[TopicShape, TopicShape]:
    """Create or repair a topic; return the shapes of Kafka's own offsets topic, and of this one.

    wanted: settings, with `cleanup.policy`; a topic is as safe as Kafka's own besides.
    partition_count: None for as many as Kafka's own has. Raises as `ensure_journal_topic` does.
    """
    primary = await _until(lambda: _primary_shape(admin), PRIMARY_TOPIC)
    config = {**wanted, "min.insync.replicas": primary.in_sync_min}
    shape = await _shape(admin, name)
    if shape is None:
        count = primary.partition_count if partition_count is None else partition_count
        await _create(
            admin, NewTopic(name, count, primary.replication_factor, topic_configs=config)
        )
        shape = await _until(lambda: _shape(admin, name), name)
    is_kept_so = shape.cleanup_policy == config["cleanup.policy"]
    if not is_kept_so or shape.in_sync_min != primary.in_sync_min:
        # A broker with auto.create.topics makes a deleted topic anew, with its own settings.
        log.warning("topic repair started topic=%s found=%s", name, shape)
        await _until(lambda: _repair(admin, name, config), name)
    return primary, shape


async def _create(admin: AIOKafkaAdminClient, wanted: NewTopic) -> None:
    answer = await admin.create_topics([wanted])
    for _, code, message, *_ in answer.topic_errors:
        if code != ErrorCode.topic_already_exists:  # another node was faster
            _check(code, message, f"creating {wanted.name}")
    log.info(
        "topic created topic=%s partitions=%d replicas=%d",
        wanted.name,
        wanted.num_partitions,
        wanted.replication_factor,
    )


async def _repair(admin: AIOKafkaAdminClient, topic: str, config: dict[str, str]) -> bool | None:
    """Set what the topic's settings should be; None when the broker asked does not know it yet."""
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=config)
    for answer in await admin.alter_configs([resource]):
        for code, message, *_ in answer.resources:
            if code == ErrorCode.unknown_topic_or_partition:
                return None
            _check(code, message, f"configuring {topic}")
    return True


async def _primary_shape(admin: AIOKafkaAdminClient) -> TopicShape | None:
    shape = await _shape(admin, PRIMARY_TOPIC)
    if shape is None:
        # Kafka creates its offsets topic when it is first asked for a group's coordinator.
        try:
            await admin.find_coordinator(ANY_GROUP)
        except Exception as error:
            if not getattr(error, "retriable", False):
                raise
    return shape


async def _shape(admin: AIOKafkaAdminClient, topic: str) -> TopicShape | None:
    """Describe a topic; None while it is missing, or a partition has no leader.

    aiokafka asks any broker each time, and those of a cluster learn of a topic one by one.
    """
    # Asked by name, aiokafka would let the broker create the topic, with its own settings.
    entries = [entry for entry in await admin.describe_topics() if entry["topic"] == topic]
    if not entries or entries[0]["error_code"] or not entries[0]["partitions"]:
        return None
    partitions: list[dict[str, Any]] = entries[0]["partitions"]
    if any(partition["leader"] < 0 for partition in partitions):
        return None
    names = {"min.insync.replicas": None, "cleanup.policy": None}
    resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs=names)
    (answer,) = await admin.describe_configs([resource])
    ((code, message, _, _, settings),) = answer.resources
    if code == ErrorCode.unknown_topic_or_partition:
        return None
    _check(code, message, f"describing {topic}")
    values = {name: value for name, value, *_ in settings}
    return TopicShape(
        partition_count=len(partitions),
        replication_factor=len(partitions[0]["replicas"]),
        in_sync_min=values["min.insync.replicas"],
        cleanup_policy=values["cleanup.policy"],
    )


async def _until(attempt: Callable[[], Awaitable[T | None]], topic: str) -> T:
    """Attempt until it gives a value. Raises: UpstreamLost."""
    try:
        async with asyncio.timeout(APPEAR_TIMEOUT_S):
            while True:
                value = await attempt()
                if value is not None:
                    return value
                await asyncio.sleep(RETRY_BACKOFF_S)
    except TimeoutError:
        reason = f"topic {topic} is not there after {APPEAR_TIMEOUT_S:g} s, or may not be described"
        raise UpstreamLost(reason) from None


def _check(code: int, message: str | None, doing: str) -> None:
    if code:
        raise UpstreamLost(f"{doing}: {message or for_code(code).__name__}")
