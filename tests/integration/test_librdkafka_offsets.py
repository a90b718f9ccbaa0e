"""librdkafka asks for committed offsets while a transaction holds them back, and lanes move."""

from __future__ import annotations

import asyncio
import threading
import time

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from tests.integration.flow import beside
from tests.integration.harness import Group, Seen, produce
from tests.integration.test_key_range_assignor import metric

KEYS = [f"key-{number}" for number in range(40)]
LANES = 4
REPEATS = 6
"""Each member repeats its question within a second."""


async def transaction(
    bootstrap: str,
    topic: str,
    ends: dict[int, int],
    is_open: threading.Event,
    stopping: threading.Event,
) -> None:
    """Commit the group's offsets in a transaction that stays open until `stopping` is set."""
    # Its coordinator ends one after a minute by default, and members may take longer to come.
    options = {"transactional_id": topic, "transaction_timeout_ms": 600_000}
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **options)
    offsets = {TopicPartition(topic, lane): OffsetAndMetadata(at, "") for lane, at in ends.items()}
    async with producer, producer.transaction():
        await producer.send_offsets_to_transaction(offsets, f"g-{topic}")
        is_open.set()
        await asyncio.to_thread(stopping.wait)


def is_revoked(seen: Seen) -> bool:
    """Return whether a member has given a lane up; it acknowledges that once it has its offsets."""
    return any(reported["event"] == "revoked" for _, reported in seen.events)


def wait_for_repeats(control: str, *, timeout_s: float = 60) -> None:
    """Wait until keylane has been asked for offsets a few times more."""
    counter = 'keylane_requests_total{api="OffsetFetch"}'
    until_s, wanted = time.monotonic() + timeout_s, metric(control, counter) + REPEATS
    while metric(control, counter) < wanted:
        assert time.monotonic() < until_s, "clients do not ask again"
        time.sleep(0.1)  # a counter of another process gives no event


def test_lanes_of_an_open_transaction_start_behind_it(kafka, shared_keylane, topic) -> None:
    """A member whose lanes change meanwhile would begin anew (docs/clients.md)."""
    name = topic("lanes4")
    old = produce(kafka, name, KEYS, rounds=3)
    how = {"protocol": "consumer", "isolation": "read_committed"}
    with Group(shared_keylane.bootstrap, name, f"g-{name}", **how) as before:
        before.add("confluent")
        before.wait_for_values(old)
        before.wait_for_commits()
    ends = {lane: at for _, _, lane, at in before.seen.commits}

    is_open = threading.Event()

    def hold_back(stopping: threading.Event) -> None:
        asyncio.run(transaction(shared_keylane.bootstrap, name, ends, is_open, stopping))

    with Group(shared_keylane.bootstrap, name, f"g-{name}", **how) as group:
        with beside(hold_back):
            assert is_open.wait(60)
            group.add("confluent")
            group.wait_for_lanes(LANES)
            group.add("confluent")
            group.wait(is_revoked, timeout_s=60, what="a lane that moves")
            wait_for_repeats(shared_keylane.control)
            assert not group.seen.sightings
        group.wait_for_lanes(LANES)
        new = produce(kafka, name, KEYS, rounds=1, first=3)
        group.wait_for_values(new)

    assert sorted(group.seen.values()) == sorted(new)
