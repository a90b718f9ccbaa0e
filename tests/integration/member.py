"""One stock consumer as a child process; reports its events as JSON lines on stdout."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from typing import Any

STOPPING = threading.Event()


def report(event: str, **values: Any) -> None:
    """Write one line at once: a killed member must not have reported less than it committed.

    `at_s` is of the machine's monotonic clock, which all members share. "left": no record follows,
    though lanes may, of a rebalance that was under way.
    """
    line = (json.dumps({"event": event, "at_s": time.monotonic(), **values}) + "\n").encode()
    while line:  # a signal ends a write to a full pipe early
        line = line[os.write(1, line) :]


def report_records(records: Iterable[tuple[int, int, bytes | None, bytes | None]]) -> None:
    """Report `(lane, offset, key, value)` of records that were processed."""
    report(
        "records",
        records=[
            (lane, offset, None if key is None else key.decode(), (value or b"").decode())
            for lane, offset, key, value in records
        ],
    )


async def run_aiokafka(args: argparse.Namespace) -> None:
    """An aiokafka member."""
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            report("revoked", lanes=sorted(tp.partition for tp in revoked))

        async def on_partitions_assigned(self, assigned: Any) -> None:
            report("assigned", lanes=sorted(tp.partition for tp in assigned))

    assignor = {"roundrobin": RoundRobinPartitionAssignor, "sticky": StickyPartitionAssignor}
    consumer = AIOKafkaConsumer(
        bootstrap_servers=args.bootstrap,
        group_id=args.group,
        client_id=args.name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level=args.isolation,
        session_timeout_ms=args.session_timeout_ms,
        heartbeat_interval_ms=args.session_timeout_ms // 3,
        max_poll_records=args.poll_records,
        **({"request_timeout_ms": args.request_timeout_ms} if args.request_timeout_ms else {}),
        partition_assignment_strategy=(assignor.get(args.assignor, RoundRobinPartitionAssignor),),
    )
    consumer.subscribe([args.topic], listener=Listener())
    await consumer.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, STOPPING.set)
    try:
        while not STOPPING.is_set():
            polled = await consumer.getmany(timeout_ms=200)
            if not polled:
                continue
            report_records(
                (r.partition, r.offset, r.key, r.value) for part in polled.values() for r in part
            )
            offsets = {tp: part[-1].offset + 1 for tp, part in polled.items()}
            try:
                await consumer.commit(offsets)
            except KafkaError as error:
                report("commit_failed", error=repr(error))
            else:
                report("committed", offsets={tp.partition: at for tp, at in offsets.items()})
    finally:
        report("left")
        await consumer.stop()


class ConfluentMember:
    """A confluent-kafka (librdkafka) member, which commits again what was refused.

    Brokers refuse commits between a member's JoinGroup and its SyncGroup, and librdkafka gives one
    up after two repeats. An application commits before it gives partitions up, and before its end,
    or others get the records once more.
    """

    LAST_COMMITS_S = 10.0
    """Bound of the end where no broker takes commits."""

    def __init__(self, args: argparse.Namespace) -> None:
        from confluent_kafka import Consumer

        protocol: dict[str, Any] = {
            "session.timeout.ms": args.session_timeout_ms,
            "heartbeat.interval.ms": args.session_timeout_ms // 3,
            "partition.assignment.strategy": args.assignor,
        }
        if args.protocol == "consumer":
            protocol = {"group.protocol": "consumer"}  # the broker decides all of these
        timeout_ms = args.request_timeout_ms
        self.consumer = Consumer(
            {
                "bootstrap.servers": args.bootstrap,
                "group.id": args.group,
                "client.id": args.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": args.isolation,
                **({"socket.timeout.ms": timeout_ms} if timeout_ms else {}),
                **protocol,
                **dict(each.split("=", 1) for each in args.settings.split(",") if each),
            }
        )
        self.poll_records = args.poll_records
        self.processed: dict[int, Any] = {}
        """Commits that are due, by lane."""
        self.consumer.subscribe(
            [args.topic],
            on_assign=lambda _, lanes: report("assigned", lanes=sorted(p.partition for p in lanes)),
            on_revoke=lambda _, lanes: self.give_up(lanes, is_owner=True),
            on_lost=lambda _, lanes: self.give_up(lanes, is_owner=False),
        )

    def run(self) -> None:
        """Process until SIGTERM."""
        while not STOPPING.is_set():
            self.process()
            self.commit()
        deadline_s = time.monotonic() + self.LAST_COMMITS_S
        while self.processed and time.monotonic() < deadline_s:
            self.consumer.poll(0.2)  # a rebalance ends in here; a record that comes is dropped
            self.commit()
        report("left")
        self.consumer.close()

    def process(self) -> None:
        """Report the next records."""
        from confluent_kafka import TopicPartition

        messages = self.consumer.consume(self.poll_records, timeout=0.2)
        good: list[Any] = [message for message in messages if message.error() is None]
        for message in messages:
            if message.error() is not None:
                report("error", error=str(message.error()))
        if good:
            report_records((m.partition(), m.offset(), m.key(), m.value()) for m in good)
        for m in good:
            place = TopicPartition(m.topic(), m.partition(), m.offset() + 1)
            self.processed[m.partition()] = place

    def commit(self) -> None:
        """Commit what is due; what is refused stays due."""
        from confluent_kafka import KafkaException

        if not self.processed:
            return
        offsets = list(self.processed.values())
        try:
            self.consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            report("commit_failed", error=str(error))
        else:
            report("committed", offsets={each.partition: each.offset for each in offsets})
            self.processed.clear()

    def give_up(self, lanes: Any, *, is_owner: bool) -> None:
        """Commit at last, unless the lanes may be at others already."""
        if is_owner:
            self.commit()
        for place in lanes:
            self.processed.pop(place.partition, None)
        report("revoked", lanes=sorted(p.partition for p in lanes))


def run_kafka_python(args: argparse.Namespace) -> None:
    """A kafka-python member."""
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.errors import KafkaError, RetriableError
    from kafka.structs import OffsetAndMetadata

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            report("revoked", lanes=sorted(tp.partition for tp in revoked))

        def on_partitions_assigned(self, assigned: Any) -> None:
            report("assigned", lanes=sorted(tp.partition for tp in assigned))

    cooperative = {"partition_assignment_strategy": [CooperativeStickyAssignor]}
    consumer = KafkaConsumer(
        bootstrap_servers=args.bootstrap,
        group_id=args.group,
        client_id=args.name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level=args.isolation,
        session_timeout_ms=args.session_timeout_ms,
        heartbeat_interval_ms=args.session_timeout_ms // 3,
        max_poll_records=args.poll_records,
        **(cooperative if args.assignor == "cooperative-sticky" else {}),
    )
    consumer.subscribe([args.topic], listener=Listener())
    while not STOPPING.is_set():
        # A poll that ends in the same moment as a rebalance loses its outcome (docs/clients.md).
        try:
            polled = consumer.poll(timeout_ms=10_000)
        except RetriableError as error:  # what its refresh of metadata met (docs/clients.md)
            report("poll_failed", error=repr(error))
            continue
        if not polled:
            continue
        report_records(
            (r.partition, r.offset, r.key, r.value) for part in polled.values() for r in part
        )
        offsets = {tp: OffsetAndMetadata(p[-1].offset + 1, "", -1) for tp, p in polled.items()}
        try:
            consumer.commit(offsets)
        except KafkaError as error:
            report("commit_failed", error=repr(error))
        else:
            report("committed", offsets={tp.partition: at.offset for tp, at in offsets.items()})
    report("left")
    consumer.close()


def main() -> None:
    """Run one member until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=["aiokafka", "confluent", "kafka-python"])
    for name in ("bootstrap", "group", "topic", "name"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--assignor", default="roundrobin")
    parser.add_argument("--protocol", default="classic")
    parser.add_argument("--isolation", default="read_uncommitted")
    parser.add_argument("--poll-records", type=int, default=500)
    parser.add_argument("--session-timeout-ms", type=int, default=10_000)
    parser.add_argument("--request-timeout-ms", type=int, default=0, help="0: the client's own")
    parser.add_argument("--settings", default="", help="of librdkafka: key=value,key=value")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: STOPPING.set())
    if args.library == "aiokafka":
        asyncio.run(run_aiokafka(args))
    elif args.library == "confluent":
        ConfluentMember(args).run()
    else:
        run_kafka_python(args)


if __name__ == "__main__":
    main()
