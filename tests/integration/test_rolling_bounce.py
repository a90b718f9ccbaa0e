"""Classic groups that move to keylane and back, member by member, under load."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.harness import CODECS, Group, Seen
from tests.integration.test_group_handover import steady_production

PARTITIONS, LANES = 2, 16
JAVA = "org.apache.kafka.clients.consumer."


def bounce(group: Group, library: str, there: dict[str, Any], count: int) -> list[str]:
    """Replace each member by one on the other side."""
    added = []
    for member in list(group.processes)[-3:]:
        group.wait_for_more(count)
        group.leave(member)
        added += group.add(library, 1, **there)
    return added


def assert_one_side_at_a_time(seen: Seen, on_lanes: list[str]) -> None:
    """A partition is at one direct member, or its lanes are at members behind keylane."""
    held: dict[str, set[int]] = {}
    gone: set[str] = set()
    for member, reported in sorted(seen.events, key=lambda each: each[1].get("at_s", 0.0)):
        numbers = set(reported.get("lanes", ()))
        if reported["event"] == "left":
            held.pop(member, None)
            gone.add(member)
        if member in gone:
            continue
        mine = held.setdefault(member, set())
        if reported["event"] == "revoked":
            mine -= numbers
        elif reported["event"] == "assigned":
            mine |= numbers
            for other in held.keys() - {member}:
                count = PARTITIONS * LANES if {member, other} <= set(on_lanes) else PARTITIONS
                both = {n % count for n in mine} & {n % count for n in held[other]}
                assert not both, f"{both} of {count} are at {member} and at {other}"


def assert_moved(seen: Seen, on_lanes: list[str]) -> None:
    """Nothing came out of order, nor from the side that the group has left."""
    seen.assert_first_sightings_in_order()
    assert {sighting.member for sighting in seen.sightings[-300:]}.isdisjoint(on_lanes)


@pytest.mark.parametrize(
    ("library", "assignor", "lane_name"),
    [
        ("confluent", "range", ""),
        ("confluent", "cooperative-sticky", ""),
        ("aiokafka", "sticky", ".lanes-16"),
        pytest.param("kafka-python", "cooperative-sticky", "", marks=pytest.mark.long),
        pytest.param("aiokafka", "roundrobin", "", marks=pytest.mark.long),
        pytest.param("aiokafka", "sticky", "", marks=pytest.mark.long),
        pytest.param("confluent", "range", ".lanes-16", marks=pytest.mark.long),
    ],
)
def test_a_rolling_bounce_to_lanes_and_back(
    kafka, keylane, topic, library, assignor, lane_name
) -> None:
    """No record is lost and no key at two members; on the way to lanes each record comes once."""
    name = topic("bills" if lane_name else "bounced", partitions=PARTITIONS)
    proxy = keylane("bounced*=16")
    there = {"bootstrap": proxy.bootstrap, "topic": name + lane_name}
    codecs = ["none"] if library == "kafka-python" else CODECS  # it reads no others by itself
    with Group(kafka, name, f"g-{name}", assignor=assignor) as group:
        group.add(library, 3)
        group.wait_for_members(PARTITIONS)
        with steady_production(kafka, name, codecs) as values:
            on_lanes = bounce(group, library, there, 300)
            group.wait_for_lanes(PARTITIONS * LANES, timeout_s=60)
            group.wait_for_more(500)
            to_lanes = len(group.seen.sightings)
            bounce(group, library, {}, 300)
            group.wait_for_more(600)
        group.wait_for_values(values, timeout_s=90)
        assert_one_side_at_a_time(group.seen, on_lanes)

    assert_moved(group.seen, on_lanes)
    once = [sighting.value for sighting in group.seen.sightings[:to_lanes]]
    assert len(once) == len(set(once))


@pytest.mark.long
@pytest.mark.parametrize("assignor", ["RangeAssignor", "CooperativeStickyAssignor"])
def test_java_members_bounce_to_lanes_and_back(java, kafka, keylane, topic, assignor) -> None:
    """Kafka's own assignors deal out partitions among members of both sides."""
    name = topic("bounced", partitions=PARTITIONS)
    proxy = keylane("bounced*=16")
    with Group(kafka, name, f"g-{name}", assignor=f"{JAVA}{assignor}") as group:
        group.add("java", 3)
        group.wait_for_members(PARTITIONS)
        with steady_production(kafka, name) as values:
            on_lanes = bounce(group, "java", {"bootstrap": proxy.bootstrap}, 300)
            group.wait_for_lanes(PARTITIONS * LANES, timeout_s=60)
            group.wait_for_more(500)
            bounce(group, "java", {}, 300)
            group.wait_for_more(600)
        group.wait_for_values(values, timeout_s=90)

    assert_moved(group.seen, on_lanes)
