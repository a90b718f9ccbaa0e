"""A process of `keylane.client.Workers` on uvloop, with 10 ms of asyncio work per record.

python -m bench.side_by_side.python_workers_member BOOTSTRAP TOPIC GROUP CONCURRENCY WORK_MS
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Final

import uvloop

from keylane.client import Consumer, ConsumerRecord
from keylane.client.workers import Workers

FLUSH_S: Final = 0.05


async def main() -> None:
    """Run until killed."""
    bootstrap, topic, group, concurrency, work_ms = sys.argv[1:]
    work_s, lines = float(work_ms) / 1000, list[str]()

    async def handle(record: ConsumerRecord) -> None:
        started_ns = time.monotonic_ns()
        await asyncio.sleep(work_s)
        value = (record.value or b"").decode()
        lines.append(f"w {value} {started_ns} {time.monotonic_ns()}\n")

    def flush() -> None:
        if lines:
            sys.stdout.writelines(lines)
            lines.clear()
            sys.stdout.flush()
        loop.call_later(FLUSH_S, flush)

    loop = asyncio.get_running_loop()
    sys.stdout.write("ready\n")
    flush()
    async with (
        Consumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
        ) as consumer,
        Workers(consumer, handle, concurrency=int(concurrency), progress=False) as workers,
    ):
        await workers.run()


if __name__ == "__main__":
    uvloop.run(main())
