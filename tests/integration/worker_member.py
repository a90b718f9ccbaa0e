"""A process of `Workers` whose work is a sleep, and which prints each record that it has done.

python -m tests.integration.worker_member BOOTSTRAP TOPIC GROUP PROTOCOL CONCURRENCY COMMIT_S

A record's value is "MILLISECONDS NUMBER". Lines: "done KEY NUMBER OFFSET START_NS END_NS LANE",
"began ..." for work that may be killed, "lanes COUNT" after each poll that changed them, "left".
"""

from __future__ import annotations

import asyncio
import sys
import time

from keylane.client import Consumer, ConsumerRecord, RebalanceListener, TopicPartition, Workers


class Noting(RebalanceListener):
    """Prints the lanes that are there after each change."""

    def __init__(self) -> None:
        self.count = 0

    async def on_partitions_assigned(self, parts: frozenset[TopicPartition]) -> None:
        self._note(len(parts))

    async def on_partitions_revoked(self, parts: frozenset[TopicPartition]) -> None:
        self._note(-len(parts))

    def _note(self, change: int) -> None:
        self.count += change
        print("lanes", self.count, flush=True)


async def handle(record: ConsumerRecord) -> None:
    """Sleep as long as the value says."""
    work_ms, number = (record.value or b"").decode().split()
    key = (record.key or b"").decode()
    place = f"{key} {number} {record.offset}"
    start_ns = time.monotonic_ns()
    print("began", place, flush=True)
    await asyncio.sleep(float(work_ms) / 1000)
    print("done", place, start_ns, time.monotonic_ns(), record.partition, flush=True)


async def main() -> None:
    """Run until SIGTERM."""
    bootstrap, topic, group, protocol, concurrency, commit_s = sys.argv[1:]
    async with (
        Consumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest",
            group_protocol=protocol, session_timeout_ms=10_000, listener=Noting(),
        ) as consumer,
        Workers(
            consumer, handle, concurrency=int(concurrency), commit_interval_s=float(commit_s),
            progress=False,
        ) as workers,
    ):  # fmt: skip
        await workers.run()
    print("left", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
