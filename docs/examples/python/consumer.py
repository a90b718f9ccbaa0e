"""Read a topic as a member of a group, one record after the other.

python consumer.py BOOTSTRAP GROUP TOPIC
"""

import asyncio
import signal
import sys

from keylane.client import Consumer, ConsumerRecord


async def work(record: ConsumerRecord) -> None:
    """Work on a record, here a stand-in."""
    await asyncio.sleep(0.001)
    print("DONE", (record.key or b"-").decode(), (record.value or b"-").decode(), flush=True)


async def main(bootstrap: str, group: str, topic: str) -> None:
    """Read until SIGTERM; then commit what is done, and leave the group."""
    reading = asyncio.current_task()
    assert reading is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, reading.cancel)
    try:
        async with Consumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
        ) as consumer:
            async for record in consumer:
                await work(record)
                consumer.mark_done(record)  # committed within auto_commit_interval_ms, 5 s
    except asyncio.CancelledError:
        print("CLOSED", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
