"""Read a part of a partition's keys, without a group's assignment; commit offset ranges.

python ranges.py BOOTSTRAP GROUP TOPIC PART PARTS
"""

import asyncio
import signal
import sys

from keylane.client import Consumer, TopicPartition
from keylane.keyrange.space import split_even


async def main(bootstrap: str, group: str, topic: str, part: str, parts: str) -> None:
    """Read partition 0 until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    place = TopicPartition(topic, 0)
    consumer = Consumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.assign({place: [split_even(int(parts))[int(part)]]})
    async with consumer:
        first = await consumer.position(place)
        while not stopping.is_set():
            for record in (await consumer.getmany(timeout_ms=200)).all():
                key, value = (each or b"-" for each in (record.key, record.value))
                if value != b"later":
                    # From behind the record before it: there are none of these keys in between.
                    await consumer.commit({place: [(first, record.offset)]})
                    print("DONE", key.decode(), value.decode(), flush=True)
                first = record.offset + 1
        committed = await consumer.committed(place)
    print("CLOSED", committed and (committed.offset, committed.ranges), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
