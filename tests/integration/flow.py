"""Records at an even rate, over kills of brokers."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import Producer

KEYS: Final = [f"key-{number}" for number in range(500)]
TICK_S: Final = 0.01


@contextmanager
def steady_flow(
    bootstrap: str, topic: str, per_s: int, **settings: str | int
) -> Iterator[list[str]]:
    """Produce numbered values of all keys at an even rate until the block ends.

    settings: more of the producer's.
    """
    values: list[str] = []

    def run(stopping: threading.Event) -> None:
        # Without, a broker that is killed has batches written in another order.
        options = {"enable.idempotence": True, "partitioner": "murmur2_random"}
        producer = Producer({"bootstrap.servers": bootstrap, **options, **settings})
        rng, numbers = random.Random(1), dict.fromkeys(KEYS, 0)
        began_s, sent = time.monotonic(), 0
        while not stopping.wait(TICK_S):
            while sent < (time.monotonic() - began_s) * per_s:
                key = rng.choice(KEYS)
                value = f"{key}:{numbers[key]}"
                numbers[key] += 1
                producer.produce(topic, key=key, value=value)
                values.append(value)
                sent += 1
            producer.poll(0)
        assert producer.flush(120) == 0, "records were not produced"

    with beside(run):
        yield values


@contextmanager
def beside(run: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run in a thread for as long as the block; the event is set at its end."""
    stopping = threading.Event()
    thread = threading.Thread(target=run, args=(stopping,))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
