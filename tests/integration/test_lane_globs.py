"""Globs of lanes beside topics that Kafka Streams has made: these keep their partitions."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded.child import ChildEnded
from tests.integration.harness import Group, produce
from tests.integration.made_topics import make_topic

KEYS = [f"key-{number}" for number in range(20)]


def create(admin: AdminClient, name: str, partitions: int) -> str:
    """A topic of this very name."""
    make_topic(admin, NewTopic(name, partitions, 1))  # waits until the broker shows it, too
    return name


def partition_counts(bootstrap: str, *names: str) -> list[int]:
    """Return what a client sees."""
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics
    return [len(topics[name].partitions) for name in names]


def test_topics_of_streams_keep_their_partitions_under_a_glob(admin, keylane) -> None:
    """Streams finds as many as it made, where it stopped with "invalid partitions" before."""
    counts = create(admin, "globbed-counts-changelog", 2)
    keyed = create(admin, "globbed-KSTREAM-KEY-SELECT-0000000001-repartition", 2)
    orders = create(admin, "globbed-orders", 2)
    proxy = keylane("globbed-*=4")

    seen = partition_counts(proxy.bootstrap, counts, keyed, orders)

    assert seen == [2, 2, 8]


def test_a_topic_with_offsets_of_lanes_does_not_become_plain(admin, kafka, keylane) -> None:
    """A start with a glob alone is refused, and says which rule keeps its lanes."""
    name = create(admin, "captured-changelog", 1)
    proxy = keylane(f"{name}=4")
    with Group(proxy.bootstrap, name, f"g-{name}") as group:
        group.add("confluent")
        group.wait_for_values(produce(kafka, name, KEYS, 1))
        group.wait_for_commits()
    proxy.stop()

    with pytest.raises(ChildEnded, match=r"glob captured-\* leaves it out"):
        keylane("captured-*=4")

    again = keylane("captured-*=4", f"{name}=4")
    assert partition_counts(again.bootstrap, name) == [4]
