"""Consume, transform, produce: each result is written exactly once.

python exactly_once.py BOOTSTRAP GROUP TOPIC RESULT_TOPIC TRANSACTIONAL_ID
"""

import asyncio
import sys

from aiokafka import AIOKafkaProducer

from keylane.client import Consumer, ConsumerRecord, ExactlyOnce, Output


async def main(bootstrap: str, group: str, topic: str, results: str, transactional_id: str) -> None:
    """Work until SIGTERM or Ctrl-C."""

    async def handle(record: ConsumerRecord) -> list[Output]:
        await asyncio.sleep(0.01)
        return [Output(results, record.key, (record.value or b"").upper())]

    async with (
        # One id per member, and the same after its restart: a former one is fenced.
        AIOKafkaProducer(
            bootstrap_servers=bootstrap, transactional_id=transactional_id
        ) as producer,
        Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            enable_auto_commit=False,  # offsets go with the results
        ) as consumer,
        ExactlyOnce(consumer, handle, producer, commit_interval_s=0.2) as workers,
    ):
        await workers.run()
    print("CLOSED", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
