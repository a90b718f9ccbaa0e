"""Kafka clients inside Spark's JVM: they take the `kafka.*` options as they are.

Source: Kafka, `KafkaConsumer.poll`: returns early when a position advances, also over offsets
without a record (control records, compacted or aborted ones).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, cast

from py4j.protocol import Py4JError

from keylane.errors import ConfigInvalid, JobFailed, KafkaUnavailable
from keylane.pipeline.job import first_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylane.pipeline.topic_range import TopicRange

ASK_TIMEOUT_MS: Final = 20_000
"""A third of Kafka's own default: enough to say that no broker answers."""
POLL_MS: Final = 1_000


class _SparkAdmin:
    """Kafka's admin client. Use it as a context manager, or `close` it."""

    failure: ClassVar[type[ConfigInvalid | KafkaUnavailable]]
    """Error for options that cannot be used."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, options: Mapping[str, str] | None
    ) -> None:
        self._jvm, self._bootstrap = _jvm_of(spark), bootstrap
        settings = _client_settings(self._jvm, bootstrap, options or {})
        try:
            self._admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        except Py4JError as error:
            raise self.failure(f"{bootstrap}: {first_line(error)}") from None

    def close(self) -> None:
        """End its connections."""
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SparkTopics(_SparkAdmin):
    """Partitions and offsets of topics. Raises ConfigInvalid for options that cannot be used."""

    failure = ConfigInvalid

    def count_partitions(self, topic: str) -> int:
        """Return the number of partitions of the topic."""
        return int(self._describe(topic).partitions().size())

    def topic_id(self, topic: str) -> uuid.UUID:
        """Return the id of the topic, which another topic of the same name does not have."""
        found = self._describe(topic).topicId()
        bits = (found.getMostSignificantBits(), found.getLeastSignificantBits())
        return uuid.UUID(bytes=struct.pack(">qq", *map(int, bits)))

    def list_offsets(self, topic: str, partition_count: int, place: str | int) -> list[int]:
        """Offsets of partitions 0, 1, ...: earliest, latest, or by time in ms (-1: none)."""
        jvm = self._jvm
        spec = jvm.org.apache.kafka.clients.admin.OffsetSpec
        wanted = spec.forTimestamp(place) if isinstance(place, int) else getattr(spec, place)()
        partitions = [
            jvm.org.apache.kafka.common.TopicPartition(topic, number)
            for number in range(partition_count)
        ]
        asked = jvm.java.util.HashMap()
        for partition in partitions:
            asked.put(partition, wanted)
        try:
            found = self._admin.listOffsets(asked).all().get()
        except Py4JError as error:
            raise self._unreachable(first_line(error)) from None
        return [int(found.get(partition).offset()) for partition in partitions]

    def _describe(self, topic: str) -> Any:
        names = self._jvm.java.util.ArrayList()
        names.add(topic)
        try:
            return self._admin.describeTopics(names).allTopicNames().get().get(topic)
        except Py4JError as error:
            cause = first_line(error)
            if "UnknownTopicOrPartition" in cause or "InvalidTopic" in cause:
                raise ConfigInvalid(f"topic {topic}: {self._bootstrap} has no such topic") from None
            raise self._unreachable(cause) from None

    def _unreachable(self, cause: str) -> ConfigInvalid:
        if "TimeoutException" in cause:
            return ConfigInvalid(f"{self._bootstrap}: no broker answers ({cause})")
        return ConfigInvalid(f"{self._bootstrap}: {cause}")


class SparkGroupOffsets(_SparkAdmin):
    """Offsets of one group. Raises KafkaUnavailable for options that cannot be used."""

    failure = KafkaUnavailable

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        group: str,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(spark, bootstrap, options)
        self.group = group

    def read(self, topic: str) -> dict[int, int]:
        """Committed offset (of the next record) by partition; none for what has none.

        Raises:
            KafkaUnavailable: the coordinator does not answer, or refuses.
        """
        try:
            asked = self._admin.listConsumerGroupOffsets(self.group)
            found = asked.partitionsToOffsetAndMetadata().get()
        except Py4JError as error:
            raise self._failed(error) from None
        return {
            int(place.partition()): int(found.get(place).offset())
            for place in found
            if place.topic() == topic and found.get(place) is not None
        }

    def set(self, topic: str, offsets: Mapping[int, int]) -> None:
        """Commit these offsets; the group must have no members.

        Raises:
            KafkaUnavailable: the coordinator does not answer, or refuses.
        """
        asked = self._jvm.java.util.HashMap()
        for partition, offset in offsets.items():
            place = self._jvm.org.apache.kafka.common.TopicPartition(topic, partition)
            reported = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset)
            asked.put(place, reported)
        try:
            self._admin.alterConsumerGroupOffsets(self.group, asked).all().get()
        except Py4JError as error:
            raise self._failed(error) from None

    def _failed(self, error: Py4JError) -> KafkaUnavailable:
        return KafkaUnavailable(f"group {self.group} at {self._bootstrap}: {first_line(error)}")


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
    jvm = _jvm_of(spark)
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
    settings = _client_settings(jvm, chosen.bootstrap, chosen.options)
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


def _client_settings(jvm: Any, bootstrap: str, options: Mapping[str, str]) -> Any:
    """Return Java properties of a Kafka client inside Spark's JVM, with the `kafka.*` options."""
    settings = jvm.java.util.HashMap()
    for key, value in options.items():
        if key.startswith("kafka."):
            settings.put(key.removeprefix("kafka."), value)
    settings.put("bootstrap.servers", bootstrap)
    settings.put("client.id", "keylane-spark")
    settings.put("default.api.timeout.ms", str(ASK_TIMEOUT_MS))
    settings.put("request.timeout.ms", str(ASK_TIMEOUT_MS // 2))
    return settings


def _jvm_of(spark: SparkSession) -> Any:
    """Return Spark's JVM, in the way in which all of Spark's own Python reaches it."""
    return cast("Any", spark.sparkContext._jvm)  # noqa: SLF001
