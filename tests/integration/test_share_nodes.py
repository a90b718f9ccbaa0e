"""A share group through two nodes: members, nodes and brokers that are killed lose no record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from keylane.wire.header import ApiKey
from tests.integration.conftest import KEPT, SHARE
from tests.integration.made_topics import make_topic
from tests.integration.nodes import Nodes, leading_nodes
from tests.integration.share_sides import LOCK_MS, Side, write_records
from tests.integration.share_wire import (
    ACCEPT,
    PlainWire,
    ShareClient,
    alter_group,
    call,
    share_offsets,
    wait_until,
)
from tests.share.member import Event, Workers

UNKNOWN, NOT_LEADER = 3, 6
PARTITIONS = 4
SESSION = ("--set", "node_session_timeout_ms=6000")
FAST_CLIENT = {"reconnect_backoff_max_ms": 200, "metadata_max_age_ms": 2000}
QUICK = {"ack": "explicit", "max_poll": 5, "mode": "record_limit", "work_ms": 2}
NAMED = {**QUICK, "name": "n"}
SLOW = {**QUICK, "work_ms": 1000, "name": "slow"}
Offset = tuple[int, int]
"""Partition and offset."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedKafka]:
    """A broker for this module: all nodes of one cluster form one group."""
    folder = tmp_path_factory.mktemp("kafka")
    with EmbeddedKafka(folder, properties={**KEPT, **SHARE}) as running:
        yield running


def prepare(bootstrap: str, name: str) -> tuple[str, str]:
    """Make a topic of four partitions, and a group that reads it from its start."""
    make_topic(AdminClient({"bootstrap.servers": bootstrap}), NewTopic(name, PARTITIONS, 1))
    group = f"share-{name}"
    alter_group(bootstrap, group, share_auto_offset_reset="earliest")
    return name, group


def write_to_all(bootstrap: str, topic: str, count: int) -> set[Offset]:
    """Append a batch to each partition; return the places of the records."""
    places = set()
    for index in range(PARTITIONS):
        first = write_records(bootstrap, topic, count, partition=index)
        places |= {(index, offset) for offset in range(first, first + count)}
    return places


def counts(workers: Workers) -> dict[Offset, str]:
    """Return the last delivery count of each record that a member began to work on."""
    return {event.place: event.text for event in workers.events if event.kind == "S"}


def finished(workers: Workers) -> set[Offset]:
    """Records whose work has ended, whether that was confirmed or not."""
    return {event.place for event in workers.events if event.kind == "E"}


def confirmed(workers: Workers) -> set[Offset]:
    """Records whose acknowledgement the broker has confirmed."""
    return {event.place for event in workers.events if (event.kind, event.text) == ("C", "ok")}


def errors(workers: Workers) -> list[Event]:
    """Errors of calls, and acknowledgements that were refused."""
    return [
        event
        for event in workers.events
        if event.kind == "X" or (event.kind == "C" and event.text != "ok")
    ]


def wait_for_end(bootstrap: str, group: str) -> None:
    """Wait until the group has processed all records of all partitions."""

    def has_ended() -> bool:
        lags = [lag for _, lag in share_offsets(bootstrap, group).values()]
        return len(lags) == PARTITIONS and not any(lags)

    wait_until(has_ended, f"{group} has no lag")


def test_a_member_has_a_session_at_each_node(cluster, tmp_path) -> None:
    """Both nodes lead partitions of one broker: sessions of one member do not end each other."""
    topic, group = prepare(cluster.bootstrap, "sessions")
    write_to_all(cluster.bootstrap, topic, 5)
    with (
        Nodes(cluster.bootstrap, [], folder=tmp_path, count=2) as nodes,
        ShareClient(nodes[0].bootstrap, group, "member") as first,
        ShareClient(nodes[1].bootstrap, group, "member") as second,
    ):
        topic_id = first.topic_id(topic)
        first.join([topic])

        acquired = [
            client.acquire(topic_id, index, count=5).acquired
            for index, client in enumerate((first, second))
        ]
        again = [
            client.fetch(topic_id, index, max_wait_ms=0).codes
            for index, client in enumerate((first, second))
        ]
        done = [
            client.acknowledge(topic_id, index, acks=[(0, 4, [ACCEPT])]).codes
            for index, client in enumerate((first, second))
        ]
        second.wire.close()
        first.close()

    assert acquired == [((0, 4, 1),)] * 2
    assert again == done == [(0, 0, 0)] * 2


def test_members_at_two_nodes(cluster, tmp_path) -> None:
    """Each record of four partitions comes once, and no acknowledgement is refused."""
    topic, group = prepare(cluster.bootstrap, "two-nodes")
    with (
        Nodes(cluster.bootstrap, [], folder=tmp_path, count=2) as nodes,
        Workers(nodes[0].bootstrap, group, topic, members=2, options=QUICK) as here,
        Workers(nodes[1].bootstrap, group, topic, members=2, options=NAMED) as there,
    ):
        # The first node learns a moment after the second one that they agree.
        wait_until(
            lambda: set(leading_nodes(nodes.bootstrap, topic).values()) == {0, 1},
            "partitions at both nodes",
        )
        places: set[Offset] = set()
        # The members of one process may have all partitions before those of the other one join.
        while not (counts(here) and counts(there)):
            places.update(write_to_all(cluster.bootstrap, topic, 50))
            wait_until(lambda: confirmed(here) | confirmed(there) == places, "all are processed")
        assert not errors(here) and not errors(there)
        assert counts(here).keys().isdisjoint(counts(there))
        assert set((counts(here) | counts(there)).values()) == {"1"}


@pytest.mark.long
def test_members_and_nodes_that_are_killed(cluster, tmp_path) -> None:
    """Records of a killed process come again to others, and the group outlives a killed node."""
    topic, group = prepare(cluster.bootstrap, "killed")
    with (
        Nodes(cluster.bootstrap, [], folder=tmp_path, count=2, args=SESSION) as nodes,
        Workers(
            nodes.bootstrap, group, topic, members=2, options=QUICK, settings=FAST_CLIENT
        ) as stays,
        Workers(nodes[1].bootstrap, group, topic, members=2, options=SLOW) as killed,
    ):
        killed.wait_for_events(lambda events: len(events) == 2, "both have joined")
        places = write_to_all(cluster.bootstrap, topic, 50)
        wait_until(lambda: counts(killed), "a slow member works")
        killed.kill()
        wait_for_end(cluster.bootstrap, group)
        assert_held_came_again(stays, killed, places)

        nodes[0].kill()
        places |= write_to_all(cluster.bootstrap, topic, 50)
        wait_for_end(cluster.bootstrap, group)
        assert counts(stays).keys() | counts(killed).keys() == places
        nodes.start()
        places |= write_to_all(nodes.bootstrap, topic, 50)
        wait_for_end(cluster.bootstrap, group)
        assert counts(stays).keys() | counts(killed).keys() == places


def assert_held_came_again(stays: Workers, killed: Workers, places: set[Offset]) -> None:
    """Each record was worked on, and those that the killed process worked on came again."""
    held = counts(killed).keys() - finished(killed)
    # The broker may know of the end of the work before its line is read.
    wait_until(
        lambda: (
            counts(stays).keys() >= held and counts(stays).keys() | counts(killed).keys() == places
        ),
        "all lines are read",
    )
    again = {place: count for place, count in counts(stays).items() if count != "1"}
    assert held and again.keys() >= held
    assert set(again.values()) == {"2"}


def test_a_member_that_is_killed(share_sides) -> None:
    """Direct and through keylane its records come again at once, with delivery count 2."""

    def story(side: Side) -> int:
        with (
            Workers(side.bootstrap, side.group, side.topic, members=2, options=QUICK) as stays,
            Workers(side.bootstrap, side.group, side.topic, options=SLOW) as killed,
        ):
            killed.wait_for_events(bool, "it has joined")
            places = set()
            while not counts(killed):
                first = side.write(10)
                places |= {(0, offset) for offset in range(first, first + 10)}
                wait_until(lambda: 0 <= side.offsets()[1] < 10, "some are processed")
            killed.kill()
            wait_until(
                lambda: side.offsets()[1] == 0, "all are processed", timeout_s=LOCK_MS / 2000
            )
            assert_held_came_again(stays, killed, places)
            return len(errors(stays))

    assert share_sides.run(story, share_auto_offset_reset="earliest") == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_broker_that_is_killed(is_direct, own_broker, keylane) -> None:
    """kill -9 of the broker, and its start: what was not confirmed comes again, nothing is lost."""
    topic, group = prepare(own_broker.bootstrap, "killed-broker")
    address = own_broker.bootstrap
    bootstrap = address if is_direct else keylane(bootstrap=address).bootstrap
    options = {"ack": "explicit", "max_poll": 10, "mode": "record_limit", "work_ms": 5}
    with Workers(
        bootstrap, group, topic, members=3, options=options, settings=FAST_CLIENT
    ) as workers:
        places = write_to_all(address, topic, 50)
        wait_until(lambda: confirmed(workers), "some are confirmed")

        own_broker.kill()
        before = confirmed(workers)
        own_broker.start()
        places |= write_to_all(address, topic, 10)
        wait_for_end(address, group)
        counted = counts(workers)

    assert counted.keys() == places
    assert 0 < len(before) < len(places)
    assert {counted[place] for place in before} == {"1"}


@pytest.mark.long
def test_a_broker_that_does_not_lead(tmp_path, keylane) -> None:
    """A fetch there is answered NOT_LEADER_OR_FOLLOWER, with the leader's address at keylane."""
    found = []
    with EmbeddedKafka(tmp_path / "kafka", properties=SHARE, node_count=2) as cluster:
        topic, group = prepare(cluster.bootstrap, "elsewhere")
        proxy = keylane(bootstrap=cluster.bootstrap)
        for bootstrap in (cluster.bootstrap, proxy.bootstrap):
            with PlainWire(bootstrap) as wire:
                shown = call(wire, ApiKey.METADATA, 12, topics=[{"name": topic}])
            (described,) = shown.topics
            leader = next(e.leader_id for e in described.partitions if e.partition_index == 0)
            places = {each.node_id: f"{each.host}:{each.port}" for each in shown.brokers}
            own = {leader: places[leader]}
            other = next(address for broker, address in places.items() if broker != leader)
            with ShareClient(other, group) as client:
                answers = [
                    client.fetch(described.topic_id, max_wait_ms=0),
                    client.acknowledge(described.topic_id, acks=[(0, 0, [ACCEPT])]),
                ]
            found.append(
                [
                    (answer.codes, answer.part.leader == leader, answer.endpoints == own)
                    for answer in answers
                ]
            )

    direct, proxied = found
    assert proxied == direct
    assert [codes for codes, _, _ in direct] == [(0, NOT_LEADER, 0), (0, UNKNOWN, 0)]
    assert direct[0][1:] == (True, True)
