"""The loop that `Workers` runs for you, by hand: six steps around each poll.

python by_hand.py BOOTSTRAP GROUP TOPIC
"""

import asyncio
import signal
import sys

from keylane.client import Consumer, ConsumerRecord

AT_WORK_MAX = 64
Task = asyncio.Task[None]


async def work(record: ConsumerRecord, before: Task | None) -> None:
    """Work on a record when the one before it of its key has ended; here a stand-in."""
    if before is not None:
        await asyncio.wait([before])
    await asyncio.sleep(0.01)
    print("DONE", (record.key or b"-").decode(), (record.value or b"-").decode(), flush=True)


async def main(bootstrap: str, group: str, topic: str) -> None:
    """Work until SIGTERM; what has begun is done then. An error ends the program."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    at_work: dict[Task, ConsumerRecord] = {}
    last_of_key: dict[bytes, Task] = {}
    async with (
        Consumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=1_000,
        ) as consumer,
        asyncio.TaskGroup() as tasks,
    ):
        while at_work or not stopping.is_set():
            # 1. Poll. It gives up what was asked back before the last poll, and was not delayed.
            #    Poll also when there is no room: a member that does not poll is put out.
            if stopping.is_set() or len(at_work) >= AT_WORK_MAX:
                consumer.pause(*consumer.assignment())
            else:
                consumer.resume(*consumer.paused())
            records = await consumer.getmany(timeout_ms=10, max_records=16)

            # 2. End the work on what is lost: another member has it already.
            lost = consumer.lost()
            for task in [each for each in at_work if at_work[each].topic_partition in lost]:
                task.cancel()
                del at_work[task]

            # 3. Begin to work. A record waits for the one before it of its key.
            for record in records.all():
                before = None if record.key is None else last_of_key.get(record.key)
                task = tasks.create_task(work(record, before))
                at_work[task] = record
                if record.key is not None:
                    last_of_key[record.key] = task

            # 4. Mark what is finished, in whatever order it ended.
            finished = [task for task in at_work if task.done()]
            consumer.mark_done(*(at_work.pop(task) for task in finished))
            last_of_key = {key: task for key, task in last_of_key.items() if task in at_work}

            # 5. Commit it: here a timer does, and what is given up is committed before.

            # 6. Keep what is asked back for one poll more, while work on it goes on.
            busy = {record.topic_partition for record in at_work.values()}
            consumer.delay_revoke(consumer.to_be_revoked() & busy)
    print("CLOSED", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
