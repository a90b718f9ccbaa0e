"""One stock consumer at a steady load: says each second how many records it got.

`python -m tests.long.attack_member BOOTSTRAP GROUP TOPIC USER PASSWORD`: commits what it has once
a second and waits for the answer, as a careful client does; ends on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Final

from confluent_kafka import Consumer, KafkaException

LOG_INTERVAL_S: Final = 0.5
COMMIT_S: Final = 1.0
STOPPING: Final = threading.Event()


def run(bootstrap: str, group: str, topic: str, user: str, password: str) -> None:
    """Poll, count, commit."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": password,
            "auto.offset.reset": "latest",
            "enable.auto.commit": False,
            "session.timeout.ms": 10_000,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    count, known_s, committed_s = 0, time.monotonic(), time.monotonic()
    while not STOPPING.is_set():
        messages = consumer.consume(500, timeout=0.1)
        count += sum(message.error() is None for message in messages)
        now_s = time.monotonic()
        if now_s - known_s >= LOG_INTERVAL_S:
            os.write(1, f"{now_s:.3f} {count}\n".encode())
            count, known_s = 0, now_s
        if messages and now_s - committed_s >= COMMIT_S:
            committed_s = now_s
            try:
                consumer.commit(asynchronous=False)
            except KafkaException as error:
                sys.stderr.write(f"commit: {error}\n")
    consumer.close()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: STOPPING.set())
    run(*sys.argv[1:6])
