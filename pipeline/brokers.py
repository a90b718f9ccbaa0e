"""Kafka clients inside Spark's JVM: they take the `kafka.*` options as they are.

Source: Kafka, `KafkaConsumer.poll`: returns early when a position advances, also over offsets
without a record (control records, compacted or aborted ones).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from py4j.protocol import Py4JError

from keylane.errors import ConfigInvalid, JobFailed, KafkaUnavailable
from keylane.pipeline.job import first_line, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keylane.pipeline.topic_range import TopicRange

ASK_TIMEOUT_MS: Final = 20_000
"""A third of Kafka's own default: enough to say that no broker answers."""
POLL_MS: Final = 1_000
ISOLATION: Final = "kafka.isolation.level"
READ_COMMITTED: Final = "read_committed"
NO_TOPIC: Final = ("UnknownTopicOrPartition", "InvalidTopic")
"""Kafka's errors for a name without a topic."""
NO_RIGHT: Final = "TopicAuthorization"
"""The error for that where a client may not see such a topic, whether it is there or not."""


class TopicIdentity(NamedTuple):
    """A topic as the brokers know it."""

    topic_id: str
    """Another topic of the same name has another one (KIP-516)."""
    partition_count: int


class SparkAdmin:
    """Kafka's admin client. Use it as a context manager, or `close` it."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, options: Mapping[str, str] | None = None
    ) -> None:
        """Raises ConfigInvalid for options that cannot be used."""
        self._jvm, self.bootstrap, self._options = jvm_of(spark), bootstrap, dict(options or {})
        settings = _client_settings(self._jvm, bootstrap, self._options)
        try:
            self._admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        except Py4JError as error:
            raise ConfigInvalid(f"{bootstrap}: {first_line(error)}") from None

    def describe(self, topic: str) -> TopicIdentity:
        """Id and partitions of the topic now. Raises ConfigInvalid when none is there, or shown."""
        try:
            return self._describe(topic)
        except Py4JError as error:
            raise self._refused(topic, error) from None

    def find(self, topic: str) -> TopicIdentity | None:
        """The same; None when none is there, or shown. Raises ConfigInvalid: it is not known."""
        try:
            return self._describe(topic)
        except Py4JError as error:
            if any(name in first_line(error) for name in (*NO_TOPIC, NO_RIGHT)):
                return None
            raise self._refused(topic, error) from None

    def _describe(self, topic: str) -> TopicIdentity:
        names = self._jvm.java.util.ArrayList()
        names.add(topic)
        described = self._admin.describeTopics(names).allTopicNames().get().get(topic)
        return TopicIdentity(
            str(described.topicId().toString()), int(described.partitions().size())
        )

    def list_offsets(self, topic: str, partition_count: int, place: str | int) -> list[int]:
        """Offsets of partitions 0, 1, ...: earliest, latest, or by time in ms (-1: none).

        With `kafka.isolation.level=read_committed` the latest is the last stable offset: a
        consumer gets nothing of what lies behind it.
        """
        clients = self._jvm.org.apache.kafka.clients.admin
        common = self._jvm.org.apache.kafka.common
        spec = clients.OffsetSpec
        wanted = spec.forTimestamp(place) if isinstance(place, int) else getattr(spec, place)()
        level = common.IsolationLevel.READ_UNCOMMITTED
        if self._options.get(ISOLATION) == READ_COMMITTED:
            level = common.IsolationLevel.READ_COMMITTED
        partitions = [common.TopicPartition(topic, number) for number in range(partition_count)]
        asked = self._jvm.java.util.HashMap()
        for partition in partitions:
            asked.put(partition, wanted)
        try:
            found = self._admin.listOffsets(asked, clients.ListOffsetsOptions(level)).all().get()
        except Py4JError as error:
            raise self._refused(topic, error) from None
        return [int(found.get(partition).offset()) for partition in partitions]

    def is_compacted(self, topic: str) -> bool | None:
        """Return if records of the topic may be compacted away; None when that is not shown."""
        resources = self._jvm.org.apache.kafka.common.config
        resource = resources.ConfigResource(resources.ConfigResource.Type.TOPIC, topic)
        asked = self._jvm.java.util.ArrayList()
        asked.add(resource)
        try:
            described = self._admin.describeConfigs(asked).all().get().get(resource)
        except Py4JError:  # without the right to it, which a read does not need
            return None
        return "compact" in str(described.get("cleanup.policy").value())

    def committed(self, group: str, topic: str) -> dict[int, int]:
        """Committed offset (of the next record) by partition; none for what has none.

        Raises:
            KafkaUnavailable: the coordinator does not answer, or refuses.
        """
        try:
            asked = self._admin.listConsumerGroupOffsets(group)
            found = asked.partitionsToOffsetAndMetadata().get()
        except Py4JError as error:
            raise self._group_refused(group, error) from None
        return {
            int(place.partition()): int(found.get(place).offset())
            for place in found
            if place.topic() == topic and found.get(place) is not None
        }

    def commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
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
            self._admin.alterConsumerGroupOffsets(group, asked).all().get()
        except Py4JError as error:
            raise self._group_refused(group, error) from None

    def close(self) -> None:
        """End its connections."""
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refused(self, topic: str, error: Py4JError) -> ConfigInvalid:
        cause = first_line(error)
        if any(name in cause for name in NO_TOPIC):
            return ConfigInvalid(f"topic {topic}: {self.bootstrap} has no such topic")
        if "TimeoutException" in cause:
            return ConfigInvalid(f"{self.bootstrap}: no broker answers ({cause})")
        return ConfigInvalid(f"topic {topic} at {self.bootstrap}: {cause}")

    def _group_refused(self, group: str, error: Py4JError) -> KafkaUnavailable:
        return KafkaUnavailable(f"group {group} at {self.bootstrap}: {first_line(error)}")


class Stretch(NamedTuple):
    """Offsets [start, end) of a partition."""

    partition: int
    start: int
    end: int


class OffsetsGone(Exception):
    """The brokers do not hold these offsets any more."""


@contextmanager
def open_reader(spark: SparkSession, chosen: TopicRange) -> Iterator[RecordReader]:
    """A consumer of the topic of `chosen`, which is closed at the end."""
    jvm = jvm_of(spark)
    settings = _client_settings(jvm, chosen.bootstrap, chosen.options)
    settings.put("enable.auto.commit", "false")
    settings.put("auto.offset.reset", "none")
    settings.put("max.poll.records", "1")
    bytes_as_they_are = jvm.org.apache.kafka.common.serialization.ByteArrayDeserializer
    consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(
        settings, bytes_as_they_are(), bytes_as_they_are()
    )
    try:
        yield RecordReader(jvm, consumer, chosen.topic)
    finally:
        consumer.close()


def check_readable(spark: SparkSession, chosen: TopicRange) -> None:
    """Read one offset, since a right to describe a topic is none to read it.

    On a cluster it would take four attempts of a task to find that out.

    Raises:
        ConfigInvalid: the user may not read the topic, which the text names.
        JobFailed: no broker answers.
    """
    places = zip(chosen.starts, chosen.ends, strict=True)
    for partition, (start, end) in enumerate(places):
        if start < end:
            with open_reader(spark, chosen) as reader, suppress(OffsetsGone):
                reader.first_offset(Stretch(partition, start, start + 1))
            return


class RecordReader:
    """Looks for single records. Get one from `open_reader`."""

    def __init__(self, jvm: Any, consumer: Any, topic: str) -> None:
        self._jvm, self._consumer, self._topic = jvm, consumer, topic

    def first_offset(self, span: Stretch) -> int | None:
        """Offset of the first record inside; None when the consumer's position passes them all.

        Raises:
            OffsetsGone: retention has removed the start, or the log ends before it.
            ConfigInvalid: the user may not read the topic.
            JobFailed: no broker answers, or it refuses for another reason.
        """
        jvm, consumer = self._jvm, self._consumer
        place = jvm.org.apache.kafka.common.TopicPartition(self._topic, span.partition)
        places = jvm.java.util.ArrayList()
        places.add(place)
        at, idle_ms = span.start, 0
        try:
            consumer.assign(places)
            consumer.seek(place, at)
            while at < span.end:
                found = consumer.poll(jvm.java.time.Duration.ofMillis(POLL_MS)).records(place)
                if not found.isEmpty():
                    offset = int(found.get(0).offset())
                    return offset if offset < span.end else None
                before, at = at, int(consumer.position(place))
                idle_ms = 0 if at > before else idle_ms + POLL_MS
                if idle_ms > ASK_TIMEOUT_MS:
                    raise JobFailed(
                        f"no broker answers what {self._topic} partition {span.partition} holds"
                        f" at offset {at}"
                    )
        except Py4JError as error:
            cause = first_line(error)
            if "OffsetOutOfRange" in cause:
                raise OffsetsGone from None
            if "AuthorizationException" in cause:
                raise ConfigInvalid(f"topic {self._topic}: {cause}") from None
            raise JobFailed(f"topic {self._topic}: {cause}") from None
        return None


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
