"""Stock confluent-kafka members of one group that work 10 ms on each record.

python -m bench.side_by_side.slow_work_member BOOTSTRAP TOPIC GROUP MEMBERS WORK_MS
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Final

from confluent_kafka import Consumer, TopicPartition

POLL_S: Final = 0.5
FLUSH_S: Final = 0.05


def main() -> None:
    """Run until killed."""
    bootstrap, topic, group, members, work_ms = sys.argv[1:]
    for number in range(int(members)):
        arguments = (bootstrap, topic, group, number, float(work_ms) / 1000)
        threading.Thread(target=work, args=arguments, daemon=True).start()
    sys.stdout.write("ready\n")
    while True:
        sys.stdout.flush()
        time.sleep(FLUSH_S)


def work(bootstrap: str, topic: str, group: str, number: int, work_s: float) -> None:
    """One member."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    )

    def report(_: Consumer, partitions: list[TopicPartition]) -> None:
        sys.stdout.write(f"a {number} {len(partitions)}\n")

    consumer.subscribe([topic], on_assign=report)
    while True:
        message = consumer.poll(POLL_S)
        if message is None or message.error() is not None:
            continue
        started_ns = time.monotonic_ns()
        time.sleep(work_s)
        value = (message.value() or b"").decode()
        sys.stdout.write(f"w {value} {started_ns} {time.monotonic_ns()}\n")


if __name__ == "__main__":
    main()
