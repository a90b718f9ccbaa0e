"""The producer of the demo: stock confluent-kafka producers, one per codec, at a steady rate."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.cimpl import Message

from keylane.demo.orders import order_key, order_value

CODECS: Final = ("none", "gzip", "lz4", "zstd", "snappy")
"""A customer stays with one producer, so that the order of its records is one producer's."""
CODECS_OF_ALL_CLIENTS: Final = CODECS[:-1]
"""kafka-python reads snappy with a further package only. Lanes are never compressed, so that it
can read them whatever the producer used; directly it can not."""
TICK_S: Final = 0.02
BACKLOG_S_MAX: Final = 1.0
"""After a standstill at most this much is made up for: a burst is not a steady rate."""
FLUSH_TIMEOUT_S: Final = 60.0
SKEW: Final = 0.8
"""Exponent of Zipf's law: of 500 customers the first has 7 % of the orders, 100 have two thirds."""


class OrderProducer:
    """Writes numbered orders until `stop`.

    `acknowledged` counts by customer and is written by the producer's thread alone; a copy
    taken while it runs may be a moment behind.
    """

    def __init__(
        self,
        *,
        bootstrap: str,
        topic: str,
        rate_per_s: float,
        customers: int,
        codecs: Sequence[str] = CODECS,
    ) -> None:
        self._topic, self._rate_per_s = topic, rate_per_s
        self._draw, self._customers = random.Random(1), range(customers)
        self._weights = list(accumulate((rank + 1) ** -SKEW for rank in self._customers))
        self._producers = [_make_producer(bootstrap, codec) for codec in codecs]
        self._numbers = [0] * customers
        self.acknowledged = [0] * customers
        self.error_count = 0
        """Records that no broker acknowledged; the show cannot be judged if there are any."""
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def start(self) -> None:
        """Begin to produce."""
        self._thread.start()

    def stop(self) -> None:
        """Ask for the end; `finished` says when everything was acknowledged."""
        self._stopping.set()

    @property
    def started(self) -> bool:
        """Return whether `start` was called."""
        return self._thread.ident is not None

    @property
    def finished(self) -> bool:
        """Return whether nothing is under way any more."""
        return self.started and not self._thread.is_alive()

    def produced(self) -> dict[int, int]:
        """Acknowledged orders by customer, customers without one left out."""
        return {customer: n for customer, n in enumerate(list(self.acknowledged)) if n}

    def _run(self) -> None:
        before_s, owed = time.monotonic(), 0.0
        while not self._stopping.wait(TICK_S):
            now_s = time.monotonic()
            owed += (now_s - before_s) * self._rate_per_s
            owed = min(owed, self._rate_per_s * BACKLOG_S_MAX)
            before_s = now_s
            try:
                while owed >= 1.0 and self._send(self._next_customer()):
                    owed -= 1.0
            except KafkaException:  # a producer that cannot go on: the show fails, and says so
                self.error_count += 1
                break
            for producer in self._producers:
                producer.poll(0)
        deadline_s = time.monotonic() + FLUSH_TIMEOUT_S
        for producer in self._producers:
            self.error_count += producer.flush(max(0.1, deadline_s - time.monotonic()))

    def _next_customer(self) -> int:
        return self._draw.choices(self._customers, cum_weights=self._weights)[0]

    def _send(self, customer: int) -> bool:
        """Hand over the customer's next order; False when the producer's queue is full."""
        number = self._numbers[customer]

        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.acknowledged[customer] += 1
            else:
                self.error_count += 1

        producer = self._producers[customer % len(self._producers)]
        key, value = order_key(customer), order_value(customer, number)
        try:
            producer.produce(self._topic, value, key, on_delivery=on_delivery)
        except BufferError:
            return False
        self._numbers[customer] += 1
        return True


def _make_producer(bootstrap: str, codec: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": f"demo-producer-{codec}",
            "compression.type": codec,
            # Exactly once into the log, in order, whatever is killed: what the books start from.
            "enable.idempotence": True,
            "linger.ms": 50,
            "queue.buffering.max.messages": 20_000,
            "log_level": 0,
        }
    )
