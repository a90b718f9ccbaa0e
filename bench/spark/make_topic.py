"""A topic with keys of zipf's law, for benchmarks of the pipeline."""

from __future__ import annotations

import numpy as np
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

KEY_COUNT = 200_000
EXPONENT = 1.05
VALUE_BYTES = (20, 181)


def make_topic(bootstrap: str, topic: str, *, partitions: int, records: int, seed: int = 6) -> None:
    """Create and fill `topic`: lz4, values of 20 to 180 bytes, keys `user-000001` and so on."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
    chance = np.random.default_rng(seed)
    weights = 1.0 / np.arange(1, KEY_COUNT + 1) ** EXPONENT
    keys = chance.choice(KEY_COUNT, size=records, p=weights / weights.sum())
    sizes = chance.integers(*VALUE_BYTES, size=records)
    value = chance.integers(32, 127, size=VALUE_BYTES[1], dtype=np.uint8).tobytes()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": "lz4",
            "linger.ms": 20,
            "batch.size": 262_144,
            "queue.buffering.max.messages": 1_000_000,
            "partitioner": "murmur2_random",
        }
    )
    for number, (key, size) in enumerate(zip(keys.tolist(), sizes.tolist(), strict=True)):
        while True:
            try:
                producer.produce(topic, key=b"user-%06d" % key, value=value[:size])
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(300)
    if left:
        raise RuntimeError(f"{left} records were not produced")
