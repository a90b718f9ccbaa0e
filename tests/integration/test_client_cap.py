"""More ranges than a group may have: a member gives way, and the group goes on without it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from keylane.client import Consumer, ConsumerRecord, PartitionLost, TopicPartition
from keylane.embedded import EmbeddedKafka
from tests.integration.conftest import make_topic_factory
from tests.integration.harness import produce
from tests.integration.keylane_process import PATIENCE
from tests.integration.nodes import Nodes
from tests.integration.test_client_groups import QUICK
from tests.integration.test_group_handover import stable_offsets

KEYS = [f"key-{number}" for number in range(40)]
COUNT = 400
SESSION_MS = 10_000
WAIT_S = 60.0 * PATIENCE
IDLE_MEMBER = """
import asyncio, sys
from keylane.client import Consumer
async def main(bootstrap, topic, group, protocol):
    async with Consumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest",
        group_protocol=protocol, session_timeout_ms={session_ms}, enable_auto_commit=False,
    ) as consumer:
        while True:
            await consumer.getmany(timeout_ms=200)
            print(len(consumer.assignment()), flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def idle_member(
    bootstrap: str, topic: str, group: str, protocol: str
) -> Iterator[subprocess.Popen[str]]:
    """A process that reads its lanes and never commits."""
    program = IDLE_MEMBER.format(session_ms=SESSION_MS)
    process = subprocess.Popen(
        [sys.executable, "-c", program, bootstrap, topic, group, protocol],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        with process:
            pass


def await_lanes(process: subprocess.Popen[str], count: int) -> None:
    """Wait until the process has so many lanes."""
    assert process.stdout is not None
    deadline_s = time.monotonic() + WAIT_S
    for line in process.stdout:
        if int(line) == count:
            return
        assert time.monotonic() < deadline_s, f"not within {WAIT_S:g} s: {line}"
    raise AssertionError("the member has ended")


async def play(kafka: str, bootstrap: str, name: str, protocol: str = "classic") -> int:
    """Fill the ranges beside a member that never commits; kill it; finish. Counts refusals."""
    group = f"cap-{uuid.uuid4()}"
    options: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "group_protocol": protocol,
        "session_timeout_ms": SESSION_MS,
        "enable_auto_commit": False,
    }
    refused = 0
    done: set[int] = set()
    with idle_member(bootstrap, name, group, protocol) as idle:
        await asyncio.to_thread(await_lanes, idle, 2)
        async with Consumer(name, **options) as consumer, asyncio.timeout(WAIT_S):
            seen: list[ConsumerRecord] = []
            while len(seen) < 40:
                seen += (await consumer.getmany(timeout_ms=500)).all()
            assert len(consumer.assignment()) == 1, "a lane for each"
            gaps = seen[1:40:2]
            await consumer.commit(gaps[:10])
            done |= {record.offset for record in gaps[:10]}
            with pytest.raises(PartitionLost):
                await consumer.commit(gaps[10:])
            refused += 1
            assert consumer.metrics()["lost"] > 0, "the member gave way"
            os.kill(idle.pid, signal.SIGKILL)
            while stable_offsets(kafka, group, name, 1) != [COUNT]:
                records = list((await consumer.getmany(timeout_ms=500)).all())
                try:
                    await consumer.commit(records)
                except PartitionLost:
                    continue  # they come again
                done |= {record.offset for record in records}
            assert len(consumer.assignment()) == 2
            assert await consumer.committed(TopicPartition(name, 0)) is not None
    assert done == set(range(COUNT)), "nothing is lost"
    return refused


async def test_a_group_goes_on_when_its_dead_member_is_gone(kafka, keylane, topic) -> None:
    """At most ten ranges: the eleventh gap is refused, and all is done after the session's end."""
    name: str = topic("orders", partitions=1)
    produce(kafka, name, KEYS, COUNT // len(KEYS))
    proxy = keylane(f"{name}=2", args=["--set", "individual_commits_max=10"])

    assert await play(kafka, proxy.bootstrap, name) == 1
    assert "the group has too many ranges" not in proxy.log, "the client says it, not the proxy"


@pytest.mark.long
async def test_a_group_of_the_consumer_protocol_goes_on(tmp_path, keylane) -> None:
    """The same, where the broker's settings have the session's length."""
    with EmbeddedKafka(tmp_path / "kafka", properties=QUICK) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        name = make_topic_factory(admin, "cap")("orders", partitions=1)
        produce(broker.bootstrap, name, KEYS, COUNT // len(KEYS))
        args = ["--set", "individual_commits_max=10"]
        proxy = keylane(f"{name}=2", bootstrap=broker.bootstrap, args=args)
        assert await play(broker.bootstrap, proxy.bootstrap, name, "consumer") == 1


@pytest.mark.long
async def test_a_group_goes_on_among_three_nodes(kafka, topic, tmp_path) -> None:
    """The same, where another node may read the partition than the one that has the group."""
    name: str = topic("orders", partitions=1)
    produce(kafka, name, KEYS, COUNT // len(KEYS))
    args = ["--set", "individual_commits_max=10"]
    with Nodes(kafka, [f"{name}=2"], folder=tmp_path, count=3, args=args) as nodes:
        assert await play(kafka, nodes.bootstrap, name) == 1
