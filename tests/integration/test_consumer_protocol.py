"""Groups of the consumer protocol (KIP-848) on lanes, with stock clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from tests.integration.conftest import KEPT, make_topic_factory
from tests.integration.harness import Group, produce
from tests.integration.keylane_process import KeylaneProcess
from tests.integration.nodes import Nodes
from tests.integration.share_wire import wait_until
from tests.integration.test_group_handover import (
    assert_nothing_lost,
    log_ends,
    stable_offsets,
    steady_production,
)

KEYS = [f"key-{number}" for number in range(200)]
LANE_COUNT = 32  # 2 partitions of 16 lanes
QUICK = KEPT | {
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "1000",
    "group.consumer.heartbeat.interval.ms": "2000",
}
"""Members that are killed are gone after 6 s, not 45."""


@pytest.fixture(scope="module")
def quick_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker whose consumer groups have short sessions."""
    with EmbeddedKafka(tmp_path_factory.mktemp("quick"), properties=QUICK) as running:
        yield running.bootstrap


@pytest.fixture
def quick_topic(quick_kafka, request):
    """Topics of that broker."""
    admin = AdminClient({"bootstrap.servers": quick_kafka})
    return make_topic_factory(admin, request.node.name)


def consumer_group(bootstrap: str, topic: str, name: str) -> Group:
    return Group(bootstrap, topic, name, protocol="consumer")


@pytest.mark.parametrize(
    ("java", "confluent"), [(2, 6), pytest.param(8, 0, marks=pytest.mark.long)]
)
def test_eight_members_share_two_partitions(java, confluent, kafka, shared_keylane, topic) -> None:
    """All 8 members get records; each record once; each key at one member and in order."""
    name = topic("lanes16", partitions=2)

    with consumer_group(shared_keylane.bootstrap, name, f"g-{name}") as group:
        group.add("java", java)
        group.add("confluent", confluent)
        group.wait_for_even_lanes(LANE_COUNT // 8)
        values = produce(kafka, name, KEYS, rounds=20)
        group.wait_for_values(values)
        group.wait_for_commits()

    seen = group.seen
    assert seen.values() == dict.fromkeys(values, 1)
    assert seen.busy() == set(group.processes)
    seen.assert_keys_in_order()
    seen.assert_one_owner_at_a_time()


@pytest.mark.long  # the churn of a larger group has it all
def test_members_that_join_leave_and_die_lose_nothing(quick_kafka, keylane, quick_topic) -> None:
    """Two joins, two leaves, two kills and a killed proxy under load: nothing lost or again."""
    name = quick_topic("orders", partitions=2)
    proxy = keylane("orders*=16", bootstrap=quick_kafka)
    with consumer_group(proxy.bootstrap, name, f"g-{name}") as group:
        group.add("java", 2)
        first = group.add("confluent", 4)
        group.wait_for_lanes(LANE_COUNT, timeout_s=120)
        with steady_production(quick_kafka, name) as values:
            group.wait(lambda seen: len(seen.sightings) > 2000, timeout_s=60, what="some records")
            group.add("java", 1)
            group.add("confluent", 1)
            group.wait_for_lanes(LANE_COUNT, timeout_s=60)
            group.leave(first[0])
            group.wait_for_lanes(LANE_COUNT, timeout_s=60)
            group.kill(first[1])
            group.kill("java-0")
            group.wait_for_lanes(LANE_COUNT, timeout_s=60)
            proxy.kill()
            proxy.start()
            group.add("confluent", 1)
            group.wait_for_lanes(LANE_COUNT, timeout_s=90)

        assert_nothing_lost(group, values)
        ends = log_ends(quick_kafka, name, 2)
        # It may follow the last commit with a heartbeat, so while there are members.
        wait_until(
            lambda: stable_offsets(quick_kafka, f"g-{name}", name, 2) == ends,
            "stable offsets at the ends of the logs",
        )

    group.seen.assert_first_sightings_in_order()
    group.seen.assert_one_owner_at_a_time()


def test_another_node_takes_a_group_over(own_broker, tmp_path, request) -> None:
    """kill -9 of the node that serves the group: nothing lost, nothing committed comes again.

    Sessions are as long as by default: a take-over ends none.
    """
    kafka = own_broker.bootstrap
    admin = AdminClient({"bootstrap.servers": kafka})
    name = make_topic_factory(admin, request.node.name)("orders", partitions=2)
    nodes = Nodes(kafka, ["orders*=16"], folder=tmp_path, count=2)
    try:
        nodes.start()
        with consumer_group(nodes.bootstrap, name, f"g-{name}") as group:
            group.add("confluent", 3)
            group.add("java", 1)
            group.wait_for_lanes(LANE_COUNT, timeout_s=120)
            with steady_production(kafka, name) as values:
                group.wait(lambda seen: len(seen.sightings) > 1000, timeout_s=60, what="records")
                serving = [each for each in nodes.processes if f"group=g-{name}" in each.log]
                serving[0].kill()
                group.wait(
                    lambda seen: len(seen.sightings) > 4000, timeout_s=120, what="more records"
                )
                group.add("confluent", 1)
                group.wait_for_lanes(LANE_COUNT, timeout_s=90)
            assert_nothing_lost(group, values)
            log = "".join(each.log for each in nodes.processes)
    finally:
        nodes.stop()

    assert "member ended" not in log
    group.seen.assert_first_sightings_in_order()
    group.seen.assert_one_owner_at_a_time()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafkas_tool_shows_lanes_and_members(
    protocol, kafka, shared_keylane: KeylaneProcess, topic, java
) -> None:
    """kafka-consumer-groups --describe, and --members --verbose: all 32 lanes at 3 members."""
    name = topic("lanes16", partitions=2)
    group_id = f"g-{protocol}-{name}"
    options = {"protocol": "consumer"} if protocol == "consumer" else {}
    describe = ("--bootstrap-server", shared_keylane.bootstrap, "--describe", "--group", group_id)
    with Group(shared_keylane.bootstrap, name, group_id, **options) as group:
        members = group.add("confluent", 3)
        # A lane that is still on its way to the last member is at none when the tool looks.
        group.wait(
            lambda seen: sorted(len(seen.lanes[member]) for member in members) == [10, 11, 11],
            timeout_s=120,
            what="all lanes where they stay",
        )
        values = produce(kafka, name, KEYS, rounds=2)
        group.wait_for_values(values)
        group.wait_for_commits()

        offsets = java.run("kafka-consumer-groups", *describe).stdout
        verbose = java.run("kafka-consumer-groups", *describe, "--members", "--verbose").stdout

    rows = [line.split() for line in offsets.splitlines() if f" {name} " in line]
    assert sorted(int(row[2]) for row in rows) == list(range(LANE_COUNT))
    assert {row[-1] for row in rows} == set(members)
    assert all(
        f"{name}:" in line or f"{name}(" in line for line in verbose.splitlines()[2:] if line
    )
    for member in members:
        assert member in verbose


def test_a_lane_name_a_pattern_and_a_static_member(kafka, shared_keylane, topic) -> None:
    """`t.lanes-8` by name, a static member that comes back with its lanes, a pattern."""
    name = topic("plain", partitions=2)
    values = produce(kafka, name, KEYS, rounds=5)
    with consumer_group(shared_keylane.bootstrap, f"{name}.lanes-8", f"g-{name}") as group:
        group.add("confluent", 3)
        group.wait_for_lanes(16)
        group.wait_for_values(values)
    assert group.seen.values() == dict.fromkeys(values, 1)

    lanes = topic("lanes4", partitions=2)
    values = produce(kafka, lanes, KEYS, rounds=5)
    with consumer_group(shared_keylane.bootstrap, f"^{lanes}.*", f"g-{lanes}") as group:
        group.add("confluent", 3)
        group.wait_for_lanes(8)
        group.wait_for_values(values)
    assert group.seen.values() == dict.fromkeys(values, 1)


def test_classic_and_consumer_members_do_not_mix(kafka, shared_keylane, topic, java) -> None:
    """The second protocol is refused, with a message, and the running members go on."""
    name = topic("lanes4", partitions=2)
    console = ("--bootstrap-server", shared_keylane.bootstrap, "--topic", name)
    with Group(shared_keylane.bootstrap, name, f"g-classic-{name}") as group:
        group.add("confluent", 2)
        group.wait_for_lanes(8)

        refused = java.run(
            "kafka-console-consumer", *console, "--group", f"g-classic-{name}",
            "--command-property", "group.protocol=consumer", "--timeout-ms", "60000",
        )  # fmt: skip
        values = produce(kafka, name, KEYS, rounds=2)
        group.wait_for_values(values)

    assert "stop the classic members first" in refused.stderr

    with consumer_group(shared_keylane.bootstrap, name, f"g-consumer-{name}") as group:
        group.add("confluent", 2)
        group.wait_for_lanes(8)

        refused = java.run(
            "kafka-console-consumer", *console, "--group", f"g-consumer-{name}",
            "--timeout-ms", "60000",
        )  # fmt: skip
        group.wait_for_values(values)

    assert "InconsistentGroupProtocolException" in refused.stderr


def test_an_upgrade_with_all_members_stopped_keeps_offsets(kafka, shared_keylane, topic) -> None:
    """Classic members stop, consumer members start, and the other way: nothing comes again."""
    name = topic("lanes4", partitions=2)
    values: list[str] = []
    for round_number, protocol in enumerate(("classic", "consumer", "classic")):
        more = produce(kafka, name, KEYS, rounds=2, first=2 * round_number)
        values += more
        options = {"protocol": "consumer"} if protocol == "consumer" else {}
        with Group(shared_keylane.bootstrap, name, f"g-{name}", **options) as group:
            group.add("confluent", 2)
            group.wait_for_values(more)
            group.wait_for_commits()
        assert group.seen.values() == dict.fromkeys(more, 1)


@pytest.mark.long
def test_a_rolling_bounce_to_lanes_and_back(quick_kafka, keylane, quick_topic) -> None:
    """One member after the other moves to keylane under load, and back: no key at two members.

    While members of both sides are there, each partition is at one member as a whole.
    """
    name = quick_topic("orders", partitions=2)
    proxy = keylane("orders*=16", bootstrap=quick_kafka)
    with consumer_group(quick_kafka, name, f"g-{name}") as group:
        group.add("confluent", 3)
        group.wait_for_members(2)
        with steady_production(quick_kafka, name) as values:
            for member in list(group.processes):
                group.wait_for_more(500)
                group.leave(member)
                group.add("confluent", 1, bootstrap=proxy.bootstrap)
            group.wait_for_lanes(LANE_COUNT, timeout_s=60)
            on_lanes = list(group.processes)[3:]
            group.wait_for_more(1000)
            to_lanes = len(group.seen.sightings)
            for member in on_lanes:
                group.leave(member)
                group.add("confluent", 1)
                group.wait_for_more(500)
        group.wait_for_values(values, timeout_s=90)

    seen = group.seen
    seen.assert_first_sightings_in_order()
    assert {sighting.member for sighting in seen.sightings[-500:]}.isdisjoint(on_lanes)
    there = [sighting.value for sighting in seen.sightings[:to_lanes]]
    assert len(there) == len(set(there))
