"""Lanes by murmur2: co-partitioned with a real topic, noticed where they are not, asked by key."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Producer

from keylane.cli.main import main
from keylane.embedded.child import ChildEnded
from tests.integration.harness import Group, produce
from tests.integration.share_wire import wait_until
from tests.integration.test_group_handover import log_ends, stable_offsets
from tests.reference.murmur2 import default_partition

KEYS = [f"key-{number}" for number in range(200)]
Rows = Mapping[int, list[tuple[bytes, bytes]]]
"""Keys and values in order, by partition or lane index."""


def write_rule(path: Path, topic: str, lanes: int, **more: object) -> None:
    """Write a configuration with one lane rule by murmur2."""
    rule = {"topic": topic, "lanes": lanes, "hash": "murmur2"}
    path.write_text(json.dumps({"lanes": [rule], **more}), encoding="utf-8")


async def write_both(bootstrap: str, topics: Sequence[str], rounds: int) -> None:
    """Write the same records to all topics, with aiokafka's default partitioner."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(rounds):
            for key in KEYS:
                for topic in topics:
                    await producer.send(topic, b"%s:%d" % (key.encode(), number), key.encode())
        await producer.flush()


async def read_all(bootstrap: str, topic: str) -> Rows:
    """Read a topic to its end, by the partitions that a client sees."""
    found: dict[int, list[tuple[bytes, bytes]]] = defaultdict(list)
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        places = list(consumer.assignment())
        assert places
        ends = await consumer.end_offsets(places)
        left = {place for place in places if ends[place] > 0}
        while left:
            for place, records in (await consumer.getmany(*left, timeout_ms=500)).items():
                found[place.partition] += [(r.key, r.value) for r in records]
            for place in list(left):
                if await consumer.position(place) >= ends[place]:
                    left.discard(place)
    return found


@pytest.mark.parametrize(("partitions", "lanes"), [(1, 6), (2, 8)])
def test_lanes_are_co_partitioned_with_a_real_topic(
    partitions: int, lanes: int, kafka, keylane, topic, tmp_path: Path
) -> None:
    """Each lane index has the keys of that partition of a topic with as many, in their order."""
    name, wide = (
        topic("orders", partitions=partitions),
        topic("wide", partitions=partitions * lanes),
    )
    write_rule(tmp_path / "keylane.yaml", name, lanes)
    asyncio.run(write_both(kafka, [name, wide], rounds=5))
    proxy = keylane(args=["--config", str(tmp_path / "keylane.yaml")])

    by_lane = asyncio.run(read_all(proxy.bootstrap, name))
    by_partition = asyncio.run(read_all(kafka, wide))

    assert sum(map(len, by_lane.values())) == 5 * len(KEYS)
    assert by_lane == by_partition
    assert "key stands in another partition" not in proxy.log


def test_a_group_goes_on_with_twice_the_lanes(kafka, keylane, topic, tmp_path: Path) -> None:
    """Its positions mean the same keys then; another hash is refused, and begins nothing anew."""
    name, config = topic("orders", partitions=2), tmp_path / "keylane.yaml"
    group_id = f"g-{name}"
    write_rule(config, name, 4)
    proxy = keylane(args=["--config", str(config)])
    for lanes, first in ((4, 0), (8, 5)):
        with Group(proxy.bootstrap, name, group_id) as group:
            group.add("aiokafka")
            group.add("confluent")
            # No rebalance comes then, in which a commit could be refused and a record come again.
            group.wait_for_lanes(2 * lanes)
            values = produce(kafka, name, KEYS, 5, first=first)
            group.wait_for_values(values)
            group.wait_for_commits()
            ends = log_ends(kafka, name, 2)
            wait_until(partial(has_offsets, kafka, group_id, name, ends), f"offsets {ends}")
        assert group.seen.values() == dict.fromkeys(values, 1)
        group.seen.assert_keys_in_order()
        for one in group.seen.sightings:
            assert one.key is not None
            assert one.lane == default_partition(one.key.encode(), 2 * lanes)
        proxy.stop()
        write_rule(config, name, 8, accept_layout=[name])
        proxy.start()

    proxy.stop()
    config.write_text(json.dumps({"lanes": [{"topic": name, "lanes": 8}]}), encoding="utf-8")
    with pytest.raises(ChildEnded, match="whose keys had another hash than now"):
        proxy.start()
    config.write_text(
        json.dumps({"lanes": [{"topic": name, "lanes": 8}], "accept_layout": [name]}),
        encoding="utf-8",
    )
    proxy.start()
    with Group(proxy.bootstrap, name, group_id) as group:
        group.add("aiokafka")
        group.wait_for_lanes(16)
        values = produce(kafka, name, KEYS, 5, first=10)
        group.wait_for_values(values)
        group.wait_for_commits()
    assert group.seen.values() == dict.fromkeys(values, 1)


def has_offsets(bootstrap: str, group: str, topic: str, wanted: Sequence[int]) -> bool:
    """Return whether Kafka has these offsets of the group; they may come with a heartbeat."""
    return stable_offsets(bootstrap, group, topic, len(wanted)) == wanted


def test_another_partitioner_is_noticed(kafka, keylane, topic, tmp_path: Path, capsys) -> None:
    """The first record in a wrong partition is logged without its key, counted, and shown."""
    name = topic("orders", partitions=3)
    write_rule(tmp_path / "keylane.yaml", name, 4)
    proxy = keylane(args=["--config", str(tmp_path / "keylane.yaml")])
    placed = [key for key in KEYS if default_partition(key.encode(), 3) == 1]
    odd = next(key for key in KEYS if default_partition(key.encode(), 3) != 1)
    producer = Producer({"bootstrap.servers": kafka})
    for key in [*placed, odd, *placed]:
        producer.produce(name, b"value", key, partition=1)
    assert producer.flush(30) == 0

    rows = asyncio.run(read_all(proxy.bootstrap, name))

    assert sum(map(len, rows.values())) == 2 * len(placed) + 1
    offset = len(placed)
    proxy.wait_for_log(f"topic={name} partition=1 offset={offset} remedy=let all producers")
    assert proxy.log.count("key stands in another partition") == 1
    assert odd not in proxy.log
    assert main(["describe", "--control", proxy.control, "--topics", "-o", "json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)["topics"]
    assert (shown["topic"], shown["hash"]) == (name, "murmur2")
    assert shown["misplaced"] == [{"topic": name, "partition": 1, "offset": offset}]
    with urllib.request.urlopen(f"http://{proxy.control}/metrics", timeout=60) as answer:
        assert re.search(r"(?m)^keylane_blocks_misplaced_total [1-9]", answer.read().decode())


def test_a_key_has_its_member(kafka, keylane, topic, tmp_path: Path, capsys) -> None:
    """The lane that is shown is the one in which the member read the key."""
    name = topic("orders", partitions=2)
    write_rule(tmp_path / "keylane.yaml", name, 4)
    proxy = keylane(args=["--config", str(tmp_path / "keylane.yaml")])
    with Group(proxy.bootstrap, name, f"g-{name}") as group:
        group.add("aiokafka", 3)
        group.wait_for_lanes(8)
        group.wait_for_values(produce(kafka, name, KEYS, 1))

        where = ["--control", proxy.control, "--topic", name, "--record-key", KEYS[7]]
        assert main(["describe", *where, "-o", "json"]) == 0
        held = {member: set(lanes) for member, lanes in group.seen.lanes.items()}

    (shown,) = json.loads(capsys.readouterr().out)
    read = next(one for one in group.seen.sightings if one.key == KEYS[7])
    assert shown["lane_index"] == read.lane == default_partition(KEYS[7].encode(), 8)
    assert shown["partition"] == default_partition(KEYS[7].encode(), 2)
    (owner,) = shown["groups"]
    assert (owner["group"], owner["lane_index"]) == (f"g-{name}", read.lane)
    assert read.lane in held[owner["client_id"]]
    assert KEYS[7] not in proxy.log
