"""Work on 16 records at once, one of each key at a time, with retries and dead letters.

python workers.py BOOTSTRAP GROUP TOPIC DEAD_LETTER_TOPIC
"""

import asyncio
import sys

from aiokafka import AIOKafkaProducer

from keylane.client import Consumer, ConsumerRecord, DeadLetters, Retry, Workers

failed_once: set[tuple[int, int]] = set()


async def handle(record: ConsumerRecord) -> None:
    """Work on a record, here a stand-in: "later" fails once, "never" fails each time."""
    await asyncio.sleep(0.01)
    match record.value:
        case b"later" if record[1:3] not in failed_once:
            failed_once.add(record[1:3])
            raise ConnectionError("the other system is away")
        case b"never":
            raise ValueError("no such order")
    print("DONE", (record.key or b"-").decode(), (record.value or b"-").decode(), flush=True)


async def main(bootstrap: str, group: str, topic: str, dead_letter_topic: str) -> None:
    """Work until SIGTERM or Ctrl-C; what is in progress ends, and is committed."""
    async with (
        AIOKafkaProducer(bootstrap_servers=bootstrap) as producer,
        Consumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest"
        ) as consumer,
        Workers(
            consumer,
            handle,
            concurrency=16,
            timeout_s=10.0,
            retry=Retry(attempts=3, backoff_s=0.1, give_up_on=(ValueError,)),
            dead_letters=DeadLetters(dead_letter_topic, producer),
        ) as workers,
    ):
        await workers.run()
    print("CLOSED", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
