"""The end of a run of chaos: Kafka's logs, and the groups' offsets.

In:    addresses, groups, lanes.  Out: logs; breaches in words.
All waits have a bound.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.long.chaos_history import Log
from tests.long.chaos_topics import PARTITIONS

END_S: Final = 60.0


def read_logs(bootstrap: str) -> dict[tuple[str, int], Log]:
    """Return Kafka's records of all topics, read by a direct consumer. Raises: AssertionError."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "logs",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    places = [(topic, number) for topic, count in PARTITIONS.items() for number in range(count)]
    found: dict[tuple[str, int], dict[int, tuple[str, int]]] = {place: {} for place in places}
    try:
        starts = {
            place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=30)[0]
            for place in places
        }
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in places])
        left, deadline_s = set(places), time.monotonic() + END_S
        while left:
            assert time.monotonic() < deadline_s, f"no end of {left} at Kafka itself"
            for message in consumer.consume(1000, timeout=1):
                place: Any = (message.topic(), message.partition())
                if message.error() is not None:
                    left.discard(place)
                    continue
                key, value = message.key() or b"", message.value() or b""
                number = int(value.rpartition(b":")[2])
                found[place][message.offset() or 0] = (key.decode(), number)
    finally:
        consumer.close()
    return {place: Log(starts[place], records) for place, records in found.items()}


def ask_positions(bootstrap: str, group: str, lanes: Sequence[TopicPartition]) -> list[str]:
    """One more OffsetFetch of lanes, which the tap sees; a breach when there is no answer."""
    asker = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": f"{group}-end",
            "log_level": 2,
        }
    )
    try:
        asker.committed(list(lanes), timeout=30)
    except KafkaException as error:
        return [f"{group}: positions have no answer at the end: {error}"]
    finally:
        asker.close()
    return []


def await_stable_offsets(
    admin: AdminClient, group: str, topic: str, ends: Mapping[int, int]
) -> list[str]:
    """Kafka's own offsets of a group come to the ends of a topic; a breach when they do not."""
    deadline_s = time.monotonic() + END_S
    pause = threading.Event()
    while True:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        stands = {
            each.partition: each.offset
            for each in asked.result(30).topic_partitions
            if each.topic == topic
        }
        if stands == ends:
            return []
        if time.monotonic() > deadline_s:
            return [f"{group}: offsets {stands} never came to the ends {ends}"]
        pause.wait(0.5)  # Kafka has no event for it
