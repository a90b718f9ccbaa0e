"""One topic, one name per group: clients that come by another name are refused, and say so."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from keylane.assignor.protocol import read_names
from tests.integration.harness import Group, Seen, produce
from tests.integration.keylane_process import PATIENCE
from tests.integration.share_wire import wait_until
from tests.integration.test_group_handover import log_ends, stable_offsets

KEYS = [f"key-{number}" for number in range(40)]
REFUSED = re.compile(r"InconsistentGroupProtocol|Inconsistent group protocol", re.IGNORECASE)


@pytest.fixture
def running(kafka, shared_keylane, topic) -> Iterator[tuple[str, Group]]:
    """A topic of two partitions, and two members that read it as eight lanes, all read."""
    name = topic(partitions=2)
    with Group(shared_keylane.bootstrap, f"{name}.lanes-4", f"g-{name}") as group:
        group.add("confluent", 2)
        group.wait_for_lanes(8)
        group.wait_for_values(produce(kafka, name, KEYS, 5))
        group.wait_for_commits()
        wait_for_end(kafka, group.group, name)
        yield name, group


def wait_for_end(kafka: str, group: str, topic: str) -> None:
    """Wait until Kafka's own offsets are at the ends: they may come with a heartbeat."""
    ends = log_ends(kafka, topic, 2)
    wait_until(lambda: stable_offsets(kafka, group, topic, 2) == ends, f"offsets {ends}")


def rebalances(group: Group) -> int:
    """Return how many times members of the group were given lanes."""
    names = {"assigned", "partitions_assigned"}
    return sum(event["event"] in names for _, event in group.seen.events)


def refused_members(seen: Seen) -> set[str]:
    """Members whose application was given the refusal."""
    return {member for member, event in seen.events if REFUSED.search(str(event))}


@pytest.mark.parametrize("library", ["confluent", "aiokafka", "kafka-python", "java"])
@pytest.mark.parametrize("other", ["{}.lanes-8", "{}"])
def test_a_newcomer_by_another_name_gets_an_error(
    library, other, running, kafka, shared_keylane, tmp_path, capfd
) -> None:
    """The client raises it to its application; running members are not even rebalanced."""
    name, group = running
    before = rebalances(group)
    newcomers = Group(shared_keylane.bootstrap, other.format(name), group.group)
    newcomers.log_folder = tmp_path

    with newcomers:
        (member,) = newcomers.add(library)
        process = newcomers.processes[member]
        if library == "confluent":
            newcomers.wait(
                lambda seen: bool(refused_members(seen)),
                timeout_s=60,
                what="an error at the application",
            )
        else:
            process.wait(60 * PATIENCE)
            log = tmp_path / f"{member}.log"
            reported = log.read_text() if log.exists() else capfd.readouterr().err
            assert REFUSED.search(reported), reported

    group.wait_for_values(produce(kafka, name, KEYS, 5, first=5))
    assert newcomers.seen.sightings == []
    assert rebalances(group) == before
    group.seen.assert_keys_in_order()


def test_a_restarted_node_knows_the_name_of_a_group(kafka, keylane, topic) -> None:
    """It asks the coordinator: the newcomer is refused, members that run go on by themselves."""
    name = topic(partitions=1)
    proxy = keylane()
    # A client that cannot connect may wait for 10 s before it tries again (docs/clients.md). With
    # frequent heartbeats the session is still long when keylane goes, and outlives a slow start.
    options = {"session_timeout_ms": 120_000, "settings": "heartbeat.interval.ms=3000"}
    with Group(proxy.bootstrap, f"{name}.lanes-4", f"g-{name}", **options) as group:
        group.add("confluent", 2)
        group.wait_for_lanes(4)
        group.wait_for_values(produce(kafka, name, KEYS, 2))
        group.wait_for_commits()
        before = rebalances(group)
        proxy.kill()
        proxy.start()

        with Group(proxy.bootstrap, f"{name}.lanes-8", group.group) as newcomers:
            newcomers.add("confluent")
            newcomers.wait(
                lambda seen: bool(refused_members(seen)),
                timeout_s=90,
                what="an error at the application",
            )

        later = produce(kafka, name, KEYS, 2, first=2)
        group.wait_for_values(later)
        assert rebalances(group) == before
        assert newcomers.seen.sightings == []


def test_a_stopped_group_goes_on_by_another_name(running, kafka, shared_keylane) -> None:
    """The way from one count to another: nothing is lost, and nothing committed comes again."""
    name, group = running
    group.stop()

    with Group(shared_keylane.bootstrap, f"{name}.lanes-8", group.group) as again:
        again.add("confluent", 2)
        again.wait_for_lanes(16)
        later = produce(kafka, name, KEYS, 5, first=5)
        again.wait_for_values(later)
        again.wait_for_commits()

    assert again.seen.values() == dict.fromkeys(later, 1)


def test_commits_of_a_standalone_consumer_by_another_name(running, kafka, shared_keylane) -> None:
    """The broker takes none while the group has members, and no lane moves."""
    name, group = running
    before = stable_offsets(kafka, group.group, name, 2)
    alone = Consumer({"bootstrap.servers": shared_keylane.bootstrap, "group.id": group.group})
    lanes = [TopicPartition(f"{name}.lanes-8", number, 1) for number in range(16)]
    try:
        with pytest.raises(KafkaException) as refused:
            alone.commit(offsets=lanes, asynchronous=False)
        found = alone.committed(lanes, timeout=30)
    finally:
        alone.close()

    assert refused.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    assert all(lane.offset > 1 for lane in found)
    assert stable_offsets(kafka, group.group, name, 2) == before


def test_offsets_of_a_running_group_are_not_deleted(running, kafka, shared_keylane, java) -> None:
    """The broker knows the group as subscribed to the topic, and refuses what it refuses direct."""
    name, group = running
    delete = ("--group", group.group, "--delete-offsets")

    for bootstrap, topic, count in (
        (shared_keylane.bootstrap, f"{name}.lanes-4", 8),
        (kafka, name, 2),
    ):
        reported = java.run(
            "kafka-consumer-groups", "--bootstrap-server", bootstrap, *delete, "--topic", topic
        ).stdout
        assert reported.count("GroupSubscribedToTopicException") == count, reported

    ends = log_ends(kafka, name, 2)
    assert stable_offsets(kafka, group.group, name, 2) == ends


async def subscriptions(bootstrap: str, group: str) -> set[tuple[str, ...] | None]:
    """Return what the members of a group subscribe to, as DescribeGroups shows it."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()
    try:
        (answer,) = await client.describe_consumer_groups([group])
    finally:
        await client.close()
    ((_, _, _, _, _, members, *_),) = answer.groups
    return {read_names(metadata) for _, _, _, metadata, *_ in members}


def test_a_described_member_has_named_lanes_only(running, kafka, shared_keylane) -> None:
    """At the broker the topic stands beside them, through keylane it does not."""
    name, group = running
    lanes = f"{name}.lanes-4"

    direct = asyncio.run(subscriptions(kafka, group.group))
    shown = asyncio.run(subscriptions(shared_keylane.bootstrap, group.group))

    assert direct == {(lanes, name)}
    assert shown == {(lanes,)}


def test_members_that_join_a_broker_directly_by_kip_848(kafka, shared_keylane, topic) -> None:
    """A classic member of lanes is refused there: the broker would deal out partitions to it."""
    name = topic("lanes4", partitions=2)
    values = produce(kafka, name, KEYS, 5)
    with Group(kafka, name, f"g-{name}") as direct:
        direct.add("confluent", protocol="consumer")
        direct.wait_for_lanes(2)
        with Group(shared_keylane.bootstrap, name, f"g-{name}") as group:
            group.add("confluent")
            group.wait(
                lambda seen: bool(refused_members(seen)),
                timeout_s=60,
                what="an error at the application",
            )

            direct.wait_for_lanes(2)
            direct.wait_for_values(values)
            assert group.seen.sightings == []


def test_a_group_that_is_turned_to_kip_848_loses_nothing(kafka, shared_keylane, topic) -> None:
    """Members of lanes are ended with an error; what they had not committed is read directly."""
    name = topic(partitions=2)
    values = produce(kafka, name, KEYS, 5)
    with Group(shared_keylane.bootstrap, f"{name}.lanes-4", f"g-{name}") as group:
        group.add("confluent", 2)
        group.wait_for_lanes(8)
        group.wait_for_values(values)
        group.wait_for_commits()
        wait_for_end(kafka, group.group, name)
        with Group(kafka, name, f"g-{name}") as direct:
            direct.add("confluent", protocol="consumer")
            group.wait(
                lambda seen: refused_members(seen) == set(group.processes),
                timeout_s=60,
                what="an error at both members",
            )
            direct.wait_for_lanes(2)
            later = produce(kafka, name, KEYS, 5, first=5)

            direct.wait_for_values(later)
            assert not direct.seen.values().keys() & set(values)
