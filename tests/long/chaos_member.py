"""One stock consumer of several topics as a child process; publishes what it does on stdout.

Plain use of each library, without a care that its documentation does not ask for: commits after
each poll, `auto.offset.reset` earliest, no offsets in the assignment callback.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Iterable
from typing import Any

from tests.integration.member import STOPPING, report

POLL_RECORDS = 100
POLL_S = 0.2


def publish_records(records: Iterable[tuple[str, int, int, bytes, bytes]]) -> None:
    """Publish `(topic, lane, offset, key, value)` of records that were processed."""
    report("records", records=[(*where, k.decode(), v.decode()) for *where, k, v in records])


def publish_lanes(event: str, lanes: Iterable[Any]) -> None:
    """Publish lanes that were assigned or revoked."""
    report(event, lanes=sorted((each.topic, each.partition) for each in lanes))


async def run_aiokafka(args: argparse.Namespace) -> None:
    """An aiokafka member."""
    from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
    from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from aiokafka.errors import KafkaError

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: Any) -> None:
            publish_lanes("revoked", revoked)

        async def on_partitions_assigned(self, assigned: Any) -> None:
            publish_lanes("assigned", assigned)

    consumer = AIOKafkaConsumer(
        bootstrap_servers=args.bootstrap,
        group_id=args.group,
        client_id=args.name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=args.session_timeout_ms,
        heartbeat_interval_ms=args.session_timeout_ms // 4,
        request_timeout_ms=args.request_timeout_ms,
        metadata_max_age_ms=args.metadata_ms,
        max_poll_records=POLL_RECORDS,
        partition_assignment_strategy=(RoundRobinPartitionAssignor,),
    )
    consumer.subscribe(args.topics, listener=Listener())
    await consumer.start()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, STOPPING.set)
    try:
        while not STOPPING.is_set():
            polled = await consumer.getmany(timeout_ms=round(POLL_S * 1000))
            if not polled:
                continue
            publish_records(
                (r.topic, r.partition, r.offset, r.key, r.value)
                for part in polled.values()
                for r in part
            )
            try:
                await consumer.commit({tp: part[-1].offset + 1 for tp, part in polled.items()})
            except KafkaError as error:
                report("commit_failed", error=repr(error))
    finally:
        await consumer.stop()


def run_confluent(args: argparse.Namespace) -> None:
    """A confluent-kafka (librdkafka) member."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": args.bootstrap,
            "group.id": args.group,
            "client.id": args.name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": args.session_timeout_ms,
            "heartbeat.interval.ms": args.session_timeout_ms // 4,
            "socket.timeout.ms": args.request_timeout_ms,
            "topic.metadata.refresh.interval.ms": args.metadata_ms,
            "partition.assignment.strategy": "roundrobin",
        }
    )
    consumer.subscribe(
        args.topics,
        on_assign=lambda _, lanes: publish_lanes("assigned", lanes),
        on_revoke=lambda _, lanes: publish_lanes("revoked", lanes),
        on_lost=lambda _, lanes: publish_lanes("lost", lanes),
    )
    while not STOPPING.is_set():
        messages = consumer.consume(POLL_RECORDS, timeout=POLL_S)
        good = [message for message in messages if message.error() is None]
        for message in messages:
            if message.error() is not None:
                report("error", error=str(message.error()))
        if not good:
            continue
        records: list[Any] = [
            (m.topic(), m.partition(), m.offset(), m.key(), m.value()) for m in good
        ]
        publish_records(records)
        ends = {(topic, lane): offset + 1 for topic, lane, offset, _, _ in records}
        offsets = [TopicPartition(*lane, at) for lane, at in ends.items()]
        try:
            consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            report("commit_failed", error=str(error))
    consumer.close()


def run_kafka_python(args: argparse.Namespace) -> None:
    """A kafka-python member."""
    from kafka import ConsumerRebalanceListener, KafkaConsumer
    from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
    from kafka.errors import KafkaError, RetriableError
    from kafka.structs import OffsetAndMetadata

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            publish_lanes("revoked", revoked)

        def on_partitions_assigned(self, assigned: Any) -> None:
            publish_lanes("assigned", assigned)

    consumer = KafkaConsumer(
        bootstrap_servers=args.bootstrap,
        group_id=args.group,
        client_id=args.name,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=args.session_timeout_ms,
        heartbeat_interval_ms=args.session_timeout_ms // 4,
        metadata_max_age_ms=args.metadata_ms,
        max_poll_records=POLL_RECORDS,
        partition_assignment_strategy=[RoundRobinPartitionAssignor],
    )
    consumer.subscribe(args.topics, listener=Listener())
    while not STOPPING.is_set():
        # A poll that ends in the same moment as a rebalance loses its outcome (docs/clients.md).
        try:
            polled = consumer.poll(timeout_ms=10_000)
        except RetriableError as error:  # what its refresh of metadata met (docs/clients.md)
            report("poll_failed", error=repr(error))
            continue
        if not polled:
            continue
        publish_records(
            (r.topic, r.partition, r.offset, r.key, r.value)
            for part in polled.values()
            for r in part
        )
        ends = {tp: OffsetAndMetadata(part[-1].offset + 1, "", -1) for tp, part in polled.items()}
        try:
            consumer.commit(ends)
        except KafkaError as error:
            report("commit_failed", error=repr(error))
    consumer.close()


def main() -> None:
    """Run one member until SIGTERM."""
    parser = argparse.ArgumentParser()
    parser.add_argument("library", choices=["aiokafka", "confluent", "kafka-python"])
    for name in ("bootstrap", "group", "name"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--topic", action="append", dest="topics", required=True)
    parser.add_argument("--session-timeout-ms", type=int, default=6000)
    parser.add_argument("--request-timeout-ms", type=int, default=8000)
    parser.add_argument("--metadata-ms", type=int, default=5000)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: STOPPING.set())
    if args.library == "aiokafka":
        asyncio.run(run_aiokafka(args))
    elif args.library == "confluent":
        run_confluent(args)
    else:
        run_kafka_python(args)


if __name__ == "__main__":
    main()
