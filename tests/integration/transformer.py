"""One consume-transform-produce loop as a child process: exactly once, with stock clients.

In:    argv.  Out: what it reads from the topic, in the output topic, in transactions together
       with its offsets; lines {"event": ...} on stdout; ends on SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import threading
from typing import Any

STOPPING = threading.Event()
TRANSACTION_TIMEOUT_MS = 10_000
TIMEOUT_S = 60.0
SESSION_TIMEOUT_MS = 12_000


def report(event: str, **values: Any) -> None:
    """Write one line at once."""
    os.write(1, (json.dumps({"event": event, **values}) + "\n").encode())


class ConfluentLoop:
    """librdkafka: offsets of the members' positions, fenced by the group's generation."""

    def __init__(self, args: argparse.Namespace) -> None:
        from confluent_kafka import Consumer

        self.args = args
        self.consumer = Consumer(
            {
                "bootstrap.servers": args.bootstrap,
                "group.id": args.group,
                "client.id": args.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "session.timeout.ms": 6000,
                "partition.assignment.strategy": args.assignor,
            }
        )
        self.producer = self._make_producer()

    def _make_producer(self) -> Any:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": self.args.bootstrap,
                "transactional.id": f"{self.args.group}-{self.args.name}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "partitioner": "murmur2_random",
            }
        )
        producer.init_transactions(TIMEOUT_S)
        return producer

    def run(self) -> None:
        """Transform until SIGTERM."""
        from confluent_kafka import KafkaException

        self.consumer.subscribe([self.args.topic])
        number = 0
        while not STOPPING.is_set():
            messages = [m for m in self.consumer.consume(self.args.records, 0.2) if not m.error()]
            if not messages:
                report("idle")
                continue
            number += 1
            try:
                self._transact(messages, abort=self.args.abort_every > 0
                               and number % self.args.abort_every == 0)  # fmt: skip
            except KafkaException as error:
                report("failed", error=str(error))
                self._recover(error)
        self.consumer.close()

    def _transact(self, messages: list[Any], *, abort: bool) -> None:
        self.producer.begin_transaction()
        for message in messages:
            self.producer.produce(self.args.output, key=message.key(), value=message.value())
        self.producer.send_offsets_to_transaction(
            self.consumer.position(self.consumer.assignment()),
            self.consumer.consumer_group_metadata(),
            TIMEOUT_S,
        )
        if abort:
            self.producer.abort_transaction(TIMEOUT_S)
            self._rewind()
            report("aborted", count=len(messages))
        else:
            self.producer.commit_transaction(TIMEOUT_S)
            report("committed", count=len(messages))

    def _recover(self, error: Any) -> None:
        """Abort, or start a new producer of the same id, which aborts what the old one left."""
        from confluent_kafka import KafkaException

        try:
            if error.args[0].fatal():
                raise error
            self.producer.abort_transaction(TIMEOUT_S)
        except KafkaException as worse:
            report("producer", error=str(worse))
            self.producer = self._make_producer()
            report("new producer")
        self._rewind()

    def _rewind(self) -> None:
        """Go back to what is committed."""
        from confluent_kafka import OFFSET_BEGINNING, KafkaException

        while True:
            assigned = self.consumer.assignment()
            try:
                for part in self.consumer.committed(assigned, TIMEOUT_S) if assigned else ():
                    part.offset = part.offset if part.offset >= 0 else OFFSET_BEGINNING
                    self.consumer.seek(part)
            except KafkaException as error:
                report("rewind", error=str(error))
            else:
                report("rewound", lanes=[part.partition for part in assigned])
                return


async def run_aiokafka(args: argparse.Namespace) -> None:
    """aiokafka: no generation in its commits, so lanes are given up between transactions."""
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

    busy = asyncio.Lock()

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            await busy.acquire()

        async def on_partitions_assigned(self, assigned: Any) -> None:
            if busy.locked():
                busy.release()

    consumer = AIOKafkaConsumer(
        bootstrap_servers=args.bootstrap,
        group_id=args.group,
        client_id=args.name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        # Nothing fences a member that was given up while it lived: aiokafka sends no generation
        # with the offsets of a transaction. So a rebalance waits longer for it than its
        # transaction may wait for that of a dead member.
        session_timeout_ms=SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=3 * TRANSACTION_TIMEOUT_MS,
        heartbeat_interval_ms=2000,
        max_poll_records=args.records,
        partition_assignment_strategy=(RoundRobinPartitionAssignor,),
    )
    consumer.subscribe([args.topic], listener=Listener())
    await consumer.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, STOPPING.set)
    await _loop_aiokafka(args, consumer, busy)
    await consumer.stop()


async def _loop_aiokafka(args: argparse.Namespace, consumer: Any, busy: asyncio.Lock) -> None:
    from aiokafka.errors import KafkaError

    producer = await _start_aiokafka_producer(args)
    number = 0
    while not STOPPING.is_set():
        async with busy:
            polled = await consumer.getmany(timeout_ms=0)
            if polled:
                number += 1
                is_wanted = args.abort_every == 0 or number % args.abort_every != 0
                try:
                    await _transact(producer, polled, args, is_wanted=is_wanted)
                    report("committed", count=sum(map(len, polled.values())))
                except (KafkaError, _Unwanted) as error:
                    report("failed", error=repr(error))
                    if not isinstance(error, _Unwanted):
                        await producer.stop()
                        producer = await _start_aiokafka_producer(args)
                    for part in polled:
                        offset = await consumer.committed(part)
                        consumer.seek(part, offset or 0)
            else:
                report("idle")
        await asyncio.sleep(0.02 if polled else 0.2)
    await producer.stop()


async def _start_aiokafka_producer(args: argparse.Namespace) -> Any:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=args.bootstrap,
        transactional_id=f"{args.group}-{args.name}",
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
    )
    await producer.start()
    return producer


class _Unwanted(Exception):
    """A transaction that is aborted on purpose."""


async def _transact(
    producer: Any, polled: dict[Any, list[Any]], args: argparse.Namespace, *, is_wanted: bool
) -> None:
    async with producer.transaction():
        futures = [
            await producer.send(args.output, key=record.key, value=record.value)
            for records in polled.values()
            for record in records
        ]
        for future in futures:
            await future
        offsets = {part: records[-1].offset + 1 for part, records in polled.items()}
        await producer.send_offsets_to_transaction(offsets, args.group)
        if not is_wanted:
            raise _Unwanted


def main() -> None:
    """Run the library that argv names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=["aiokafka", "confluent"])
    for name in ("bootstrap", "group", "topic", "output", "name"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--assignor", default="roundrobin")
    parser.add_argument("--records", type=int, default=100)
    parser.add_argument("--abort-every", type=int, default=0)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: STOPPING.set())
    if args.library == "aiokafka":
        asyncio.run(run_aiokafka(args))
    else:
        ConfluentLoop(args).run()


if __name__ == "__main__":
    main()
