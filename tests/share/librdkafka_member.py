"""A librdkafka share consumer that works by itself; its lines are those of `ShareMember.java`.

`python -m tests.share.librdkafka_member BOOTSTRAP GROUP TOPIC NAME WORK_MS` ends with its stdin.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from confluent_kafka import KafkaException, ShareConsumer

STOPPING = threading.Event()


def note(event: str, name: str, *fields: Any) -> None:
    """Write one line, in one write: what was written before a kill -9 is not lost."""
    words = (
        event,
        time.monotonic_ns(),
        time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000,
        name,
        *fields,
    )
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def work_on(message: Any, name: str, work_ms: int) -> None:
    """Report the start of the work on a record, work, and report the end."""
    key = "-" if message.key() is None else message.key().decode()
    place = message.offset(), message.partition(), key
    note("S", name, *place, message.delivery_count())
    time.sleep(work_ms / 1000)  # the work itself
    note("E", name, *place, "ACCEPT")


def wait_for_end() -> None:
    """Have `main` end when stdin does."""
    sys.stdin.read()
    STOPPING.set()


def main(bootstrap: str, group: str, topic: str, name: str, work_ms: str) -> None:
    """Poll until stdin ends; a poll accepts the records of the one before."""
    threading.Thread(target=wait_for_end, daemon=True).start()
    consumer = ShareConsumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": name})
    consumer.subscribe([topic])
    note("J", name)
    while not STOPPING.is_set():
        try:
            for message in consumer.poll(0.2):
                if message.error():
                    note("X", name, message.error())
                else:
                    work_on(message, name, int(work_ms))
        except KafkaException as error:
            note("X", name, error)
    consumer.close()
    note("L", name)


if __name__ == "__main__":
    main(*sys.argv[1:])
