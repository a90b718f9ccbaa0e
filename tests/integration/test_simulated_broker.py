"""The simulated broker answers as a real one does, so that the simulation does not lie."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from confluent_kafka import Producer

from tests.reference.batches import Record
from tests.simulation.broker import PORT, Broker
from tests.simulation.calls import Line, Script, Talk
from tests.simulation.client import Connection
from tests.simulation.cluster import Cluster
from tests.simulation.consumer_calls import ConsumerScript
from tests.simulation.world import Process, World

from .conftest import TopicFactory

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

    group = f"group-of-{topic}"
    talk = await open_talk()
    for key_type in (0, 1):
        await _until_coordinated(talk, group, key_type)
    try:
        return await script(open_talk, topic=topic, group=group).play()
    finally:
        for each in opened:
            each.close()


async def _until_coordinated(talk: Talk, name: str, key_type: int) -> None:
    """A broker makes its topics of groups and of transactions when it is first asked."""
    code = -1
    while code != 0:
        code = int((await talk.ask(10, 3, key=name, key_type=key_type)).error_code)


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
