"""Ask brokers for partitions with a record in a range of offsets, without Spark's executors.

Source: Kafka, `KafkaConsumer.poll`: returns early when a position advances, also over offsets
without a record (control records, compacted or aborted ones).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from keylane.errors import JobFailed
from keylane.pipeline.job import ASK_TIMEOUT_MS, client_settings, jvm_of
from keylane.pipeline.topic_range import TopicRange

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POLL_MS: Final = 1_000


def partitions_with_records(
    spark: SparkSession, chosen: TopicRange, partitions: Sequence[int]
) -> list[int]:
    """Those of `partitions` with a record in `chosen`; one poll each, more over empty stretches.

    Raises:
        JobFailed: no broker answers.
        Py4JError: a broker refuses, or the range has been removed meanwhile.
    """
    if not partitions:
        return []
    jvm = jvm_of(spark)
    with _consumer(jvm, chosen) as consumer:
        return [at for at in partitions if _has_record(jvm, consumer, chosen, at)]


def _has_record(jvm: Any, consumer: Any, chosen: TopicRange, partition: int) -> bool:
    place = jvm.org.apache.kafka.common.TopicPartition(chosen.topic, partition)
    places = jvm.java.util.ArrayList()
    places.add(place)
    consumer.assign(places)
    consumer.seek(place, chosen.starts[partition])
    at, end, idle_ms = chosen.starts[partition], chosen.ends[partition], 0
    while at < end:
        found = consumer.poll(jvm.java.time.Duration.ofMillis(POLL_MS)).records(place)
        if not found.isEmpty():
            return bool(found.get(0).offset() < end)
        before, at = at, int(consumer.position(place))
        idle_ms = 0 if at > before else idle_ms + POLL_MS
        if idle_ms > ASK_TIMEOUT_MS:
            raise JobFailed(
                f"no broker answers what {chosen.topic} partition {partition} holds at offset {at}"
            )
    return False


@contextmanager
def _consumer(jvm: Any, chosen: TopicRange) -> Iterator[Any]:
    settings = client_settings(jvm, chosen.bootstrap, chosen.options)
    settings.put("enable.auto.commit", "false")
    settings.put("auto.offset.reset", "none")
    settings.put("max.poll.records", "1")
    bytes_as_they_are = jvm.org.apache.kafka.common.serialization.ByteArrayDeserializer
    consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(
        settings, bytes_as_they_are(), bytes_as_they_are()
    )
    try:
        yield consumer
    finally:
        consumer.close()
