"""Offsets of a consumer group at the brokers, read and set by the admin client of Spark's jars."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from py4j.protocol import Py4JError

from keylane.errors import KafkaUnavailable
from keylane.pipeline.job import client_settings, first_line, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkGroupOffsets:
    """One group of one cluster. Use it as a context manager, or `close` it."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        group: str,
        options: Mapping[str, str] | None = None,
    ) -> None:
        """Raises KafkaUnavailable when the options cannot be used."""
        self.group = group
        self._jvm, self._bootstrap = jvm_of(spark), bootstrap
        settings = client_settings(self._jvm, bootstrap, options or {})
        try:
            self._admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(settings)
        except Py4JError as error:
            raise KafkaUnavailable(f"{bootstrap}: {first_line(error)}") from None

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

    def close(self) -> None:
        """End its connections."""
        self._admin.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failed(self, error: Py4JError) -> KafkaUnavailable:
        return KafkaUnavailable(f"group {self.group} at {self._bootstrap}: {first_line(error)}")
