"""The simulated broker answers as a real one does, so that the simulation does not lie."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from keylane.offsets.records.journal import ic_partition
from tests.reference.batches import Record
from tests.simulation.broker import PORT, Broker
from tests.simulation.calls import HEARTBEAT, Line, Script, Talk
from tests.simulation.client import Connection
from tests.simulation.cluster import Cluster
from tests.simulation.consumer_calls import (
    CONSUMER_HEARTBEAT,
    TIMEOUT_MS,
    TRIES_MAX,
    ConsumerScript,
)
from tests.simulation.world import Process, World

from .conftest import TopicFactory

OFFSETS_TOPIC = "__consumer_offsets"
DESCRIBE_TRANSACTIONS = 65
LOADING = (14, 15, 16)
"""Codes of a coordinator that loads, is not available, and is elsewhere."""
RECORDS = [(b"k%d" % number, b"#%d" % number) for number in range(5)]


def test_a_script_of_calls_is_answered_alike(kafka: str, topic: TopicFactory) -> None:
    """Reads, commits, members and transactions, and what a broker refuses of them."""
    name = topic("calls", partitions=1)
    producer = Producer({"bootstrap.servers": kafka, "linger.ms": 100})
    for key, value in RECORDS:
        producer.produce(name, key=key, value=value)
    assert producer.flush(30) == 0
    real = asyncio.run(_play_at_kafka(Script, kafka, name))
    simulated = _play_simulated(Script, name, 1)
    assert simulated == real


def test_a_consumer_group_is_answered_alike(kafka: str, topic: TopicFactory) -> None:
    """Members of KIP-848, their epochs, revocations, commits, places and ends."""
    name = topic("members", partitions=2)
    asyncio.run(_until_assigned(kafka, name))
    real = asyncio.run(_play_at_kafka(ConsumerScript, kafka, name))
    simulated = _play_simulated(ConsumerScript, name, 2)
    assert simulated == real


async def _play_at_kafka(
    script: type[Script | ConsumerScript], kafka: str, topic: str
) -> list[Line]:
    host, port = kafka.split(":")
    here = cast("Process", SimpleNamespace(loop=asyncio.get_running_loop()))
    opened = []

    async def open_talk() -> Talk:
        opened.append(await Connection.open(here, (host, int(port)), "script"))
        return opened[-1]

    group = _group_of(topic)
    talk = await open_talk()
    for key_type in (0, 1):
        await _until_coordinated(talk, group, key_type)
    await _until_loaded(talk, group)
    try:
        return await script(open_talk, topic=topic, group=group).play()
    finally:
        for each in opened:
            each.close()


def _group_of(topic: str) -> str:
    return f"group-of-{topic}"


async def _until_assigned(kafka: str, topic: str) -> None:
    """A coordinator knows a topic some time after it was made: other groups of it wait for that.

    There is a coordinator for each partition of the offsets' topic.
    """
    host, port = kafka.split(":")
    here = cast("Process", SimpleNamespace(loop=asyncio.get_running_loop()))
    talk = await Connection.open(here, (host, int(port)), "waits")
    await _until_coordinated(talk, _group_of(topic), 0)
    offsets = AdminClient({"bootstrap.servers": kafka}).list_topics(OFFSETS_TOPIC, timeout=30)
    count = len(offsets.topics[OFFSETS_TOPIC].partitions)
    wanted = ic_partition(_group_of(topic), count)
    for number in range(TRIES_MAX):
        group = f"waits-{number}-for-{topic}"
        if ic_partition(group, count) != wanted:
            continue
        answer = await talk.ask(
            CONSUMER_HEARTBEAT, 1, group_id=group, member_id="waits", member_epoch=0,
            subscribed_topic_names=[topic], rebalance_timeout=TIMEOUT_MS, topic_partitions=[],
        )  # fmt: skip
        if answer.assignment is not None and answer.assignment.topic_partitions:
            break
    else:
        raise AssertionError("no group is assigned the topic")
    talk.close()


async def _until_coordinated(talk: Talk, name: str, key_type: int) -> None:
    """A broker makes its topics of groups and of transactions when it is first asked."""
    code = -1
    while code != 0:
        code = int((await talk.ask(10, 3, key=name, key_type=key_type)).error_code)


async def _until_loaded(talk: Talk, group: str) -> None:
    """A coordinator that is found has to load what there is of it, and says so until then."""
    code = LOADING[0]
    while code in LOADING:
        answer = await talk.ask(HEARTBEAT, 4, group_id=group, generation_id=1, member_id="unknown")
        code = int(answer.error_code)
    code = LOADING[0]
    while code in LOADING:
        answer = await talk.ask(DESCRIBE_TRANSACTIONS, 0, transactional_ids=[f"txn-{group}"])
        code = int(answer.transaction_states[0].error_code)


def _play_simulated(
    script: type[Script | ConsumerScript], topic: str, partitions: int
) -> list[Line]:
    world = World(1)
    cluster = Cluster(world, 1)
    broker = Broker(cluster, 1)
    log = cluster.create(topic, partitions).partitions[0].log
    log.append(*((record.key, record.value) for record in [Record(0, *each) for each in RECORDS]))
    process = Process(world, "script")
    lines: list[Line] = []

    async def play() -> None:
        async def open_talk() -> Talk:
            return await Connection.open(process, (broker.host, PORT), "script")

        lines.extend(await script(open_talk, topic=topic, group=f"group-of-{topic}").play())

    process.spawn(play(), "script")
    world.run(60.0, until=lambda: bool(lines))
    assert not world.errors
    found: Any = lines
    world.close()
    return list(found)
