"""A node that stops, and one that joins: the next owner goes on with the locks of the one before.

Records that no member has had have one delivery at their first hand-out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.integration.made_topics import make_topic
from tests.integration.nodes import Nodes, leading_nodes
from tests.integration.share_sides import append
from tests.integration.share_stage import PROPERTIES
from tests.integration.share_wire import alter_group, share_offsets, wait_until
from tests.reference.batches import Batch, Record
from tests.share.ledger import judge
from tests.share.member import Workers, parse_event

pytestmark = pytest.mark.timeout(400)  # kernels may have to be compiled first
PARTITIONS: Final = 2
SLOW: Final = 40
"""Records of a partition that wait behind each other."""
RULES: Final = ("--set", f"share_groups={json.dumps([{'group': 'give*'}])}")
SERIAL = {"ack": "explicit", "max_poll": 1, "mode": "record_limit", "work_ms": 60}
LONGER = {**SERIAL, "work_ms": 400}
"""So that there are records left when a node has started."""
TIMESTAMP_MS: Final = 1_700_000_000_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker for this module: all nodes of one cluster form one group."""
    with EmbeddedKafka(tmp_path_factory.mktemp("kafka"), properties=PROPERTIES) as running:
        yield running


def prepare(bootstrap: str, name: str) -> tuple[str, str]:
    """Make a topic with one slow key in each partition, and a group that reads it."""
    make_topic(AdminClient({"bootstrap.servers": bootstrap}), NewTopic(name, PARTITIONS, 1))
    group = f"give-{name}"
    alter_group(bootstrap, group, share_auto_offset_reset="earliest")
    for index in range(PARTITIONS):
        keys = [b"slow-%d" % index] * SLOW + [b"last-%d" % index]
        records = tuple(Record(at, key=key, value=b"v") for at, key in enumerate(keys))
        batch = Batch(0, records, base_timestamp=TIMESTAMP_MS, max_timestamp=TIMESTAMP_MS)
        append(bootstrap, name, batch, partition=index)
    return name, group


def work_through(workers: Workers, bootstrap: str, group: str, topic: str) -> None:
    """Wait until all is finished, and judge the order; each first delivery counts once."""

    def is_done() -> bool:
        known = share_offsets(bootstrap, group)
        return all(known.get((topic, index), (-1, -1))[1] == 0 for index in range(PARTITIONS))

    wait_until(is_done, f"{group} has no lag", timeout_s=90)
    workers.stop()
    found = judge([parse_event(line) for line in workers.lines], delivery_limit=5)
    assert found.breaks == []
    first: dict[tuple[int, int], str] = {}
    for event in workers.events:
        if event.kind == "S":
            first.setdefault(event.place, event.text)
    assert len(first) == PARTITIONS * (SLOW + 1)
    twice = {place for place, count in first.items() if count != "1" and place[1] != SLOW}
    assert twice == set()


def begun(workers: Workers, index: int) -> int:
    """Return how many records of a partition members have begun to work on."""
    return len(
        {each.place for each in workers.events if each.kind == "S" and each.place[0] == index}
    )


def test_records_that_wait_keep_their_deliveries_when_their_node_stops(cluster, tmp_path) -> None:
    """A node is stopped with 30 records behind a slow key: the other goes on with their locks."""
    topic, group = prepare(cluster.bootstrap, "stops")
    with (
        Nodes(cluster.bootstrap, (), folder=tmp_path, count=2, args=RULES) as nodes,
        Workers(nodes.bootstrap, group, topic, members=4, options=SERIAL) as workers,
    ):
        owners = leading_nodes(nodes.bootstrap, topic)
        wait_until(lambda: begun(workers, 0) > 5, "some records")

        assert nodes[owners[0]].stop() == 0
        work_through(workers, cluster.bootstrap, group, topic)

        nodes[owners[1]].wait_for_log("goes on from another node")


@pytest.mark.long
def test_records_that_wait_keep_their_deliveries_when_a_node_joins(cluster, tmp_path) -> None:
    """The node that joins gets a partition with the locks of its records."""
    topic, group = prepare(cluster.bootstrap, "joins")
    with (
        Nodes(cluster.bootstrap, (), folder=tmp_path, count=2, args=RULES) as nodes,
        Workers(nodes.bootstrap, group, topic, members=4, options=LONGER) as workers,
    ):
        owners = leading_nodes(nodes.bootstrap, topic)
        joins = owners[0]
        assert nodes[joins].stop() == 0
        wait_until(lambda: begun(workers, 0) > 5, "some records")

        nodes[joins].start()
        work_through(workers, cluster.bootstrap, group, topic)

        nodes[joins].wait_for_log("goes on from another node")
        assert nodes[joins].log.count("goes on from another node") == 1
