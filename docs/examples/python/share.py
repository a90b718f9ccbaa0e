"""The same handler over a share group in key order: one argument of `Workers` is another.

python share.py BOOTSTRAP GROUP TOPIC
"""

import asyncio
import sys

from keylane.client import ConsumerRecord, Retry, ShareSource, Workers


async def handle(record: ConsumerRecord) -> None:
    """Work on a record, here a stand-in."""
    await asyncio.sleep(0.01)
    print("DONE", (record.key or b"-").decode(), (record.value or b"-").decode(), flush=True)


async def main(bootstrap: str, group: str, topic: str) -> None:
    """Work until SIGTERM or Ctrl-C; what has not begun goes to another member."""
    config = {"bootstrap.servers": bootstrap, "group.id": group, "max.poll.records": 32}
    async with (
        ShareSource(config, [topic]) as source,
        Workers(source, handle, concurrency=16, retry=Retry(attempts=3)) as workers,
    ):
        await workers.run()
    print("CLOSED", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
