"""Groups of stock members on skewed keys, without any setting: load moves their lanes."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable

import pytest

from tests.integration.flow import beside
from tests.integration.harness import Group, Seen, produce
from tests.integration.test_key_range_assignor import COOPERATIVE, JAVA, keys_of_each_lane, metric

MEMBERS = 32 if os.environ.get("KEYLANE_LARGE_GROUPS") else 8
"""So many Python processes are much for a small computer, of which CI has one."""
PARTITIONS, LANES = 2, 64
LANE_COUNT = PARTITIONS * LANES
KEY_COUNT, RECORDS = 1_000, 20_000
MARGIN = 1.10
PAUSE_S = 3.0
SOON = {"KEYLANE_LOAD_REBALANCE_INTERVAL_S": "20"}
"""Instead of ten minutes: load is weighed after 2 s."""


def zipf_keys() -> list[str]:
    """Keys of all records: the key with rank n has 1/n of the records of the first."""
    total = sum(1 / rank for rank in range(1, KEY_COUNT + 1))
    keys = []
    for rank in range(1, KEY_COUNT + 1):
        keys += [f"key-{rank}"] * max(1, round(RECORDS / rank / total))
    return keys


def places_of(seen: Seen) -> set[tuple[int, int]]:
    """Lane and offset of each record that a member got."""
    return {(one.lane, one.offset) for one in seen.sightings}


def excess_of(seen: Seen, records: Counter[int]) -> float:
    """Load of the busiest member, in times of what keys allow: the mean, or the heaviest lane."""
    mean = records.total() / len(seen.lanes)
    # Copies: a report of lanes that move may be read meanwhile.
    busiest = max(sum(records[lane] for lane in tuple(lanes)) for lanes in seen.lanes.values())
    return busiest / max(mean, *records.values())


def the_same_again(bootstrap: str, topic: str) -> Callable[[threading.Event], None]:
    """Produce all keys again and again: a first look may see a part of them only."""

    def run(stopping: threading.Event) -> None:
        number = 1
        while not stopping.wait(PAUSE_S):
            produce(bootstrap, topic, zipf_keys(), rounds=1, codecs=["lz4"], first=number)
            number += 1

    return run


@pytest.mark.timeout(420)
@pytest.mark.parametrize(
    ("libraries", "assignor"),
    [
        (("aiokafka", "confluent", "kafka-python"), "roundrobin"),
        pytest.param(("confluent",), COOPERATIVE, marks=pytest.mark.long),
        pytest.param(("java",), JAVA + "RangeAssignor", marks=pytest.mark.long),
        pytest.param(("confluent",), None, marks=pytest.mark.long),
    ],
    ids=["all", "cooperative", "java", "consumer protocol"],
)
def test_a_group_on_skewed_keys_gets_balanced(libraries, assignor, kafka, keylane, topic) -> None:
    """They join before any load is known, and nothing but load makes lanes move later."""
    name = topic("skewed", partitions=PARTITIONS)
    proxy = keylane(f"skewed-*={LANES}", environment=SOON)
    count = 4 if libraries == ("java",) else MEMBERS

    options = {"assignor": assignor, "session_timeout_ms": 30_000}
    if assignor is None:
        options = {"protocol": "consumer"}
    with Group(proxy.bootstrap, name, f"g-{name}", **options) as group:
        for number in range(count):
            group.add(libraries[number % len(libraries)])
        group.wait_for_lanes(LANE_COUNT, timeout_s=120)
        values = produce(kafka, name, zipf_keys(), rounds=1, codecs=["lz4"])
        # Values of a key are alike here: each of them was seen before each record was.
        group.wait(
            lambda seen: len(seen.sightings) >= len(values) and len(places_of(seen)) >= len(values),
            timeout_s=120,
            what="all records",
        )
        first = places_of(group.seen)
        records = Counter(lane for lane, _ in first)
        before = excess_of(group.seen, records)

        with beside(the_same_again(kafka, name)):
            group.wait(
                lambda seen: (
                    sum(map(len, seen.lanes.values())) == LANE_COUNT
                    and excess_of(seen, records) <= MARGIN
                ),
                timeout_s=180,
                what=f"the busiest member, at {before:.2f} of what keys allow, at {MARGIN}",
            )

    moved = 'keylane_lane_moves_total{reason="load"}'
    counter = moved if assignor is None else "keylane_rebalances_asked_total"
    assert records.total() == len(values)
    assert before <= MARGIN or metric(proxy.control, counter) >= 1
    assert metric(proxy.control, "keylane_assignments_unplanned_total") == 0


def test_a_rule_keeps_the_clients_assignor(kafka, keylane, topic) -> None:
    """Round robin gives each member every second lane, whatever their load."""
    name = topic("lanes16")
    proxy = keylane("lanes16-*=16", args=("--assignor", "g-*=client"), environment=SOON)

    options = {"assignor": "roundrobin", "session_timeout_ms": 30_000}
    with Group(proxy.bootstrap, name, f"g-{name}", **options) as group:
        group.add("aiokafka", 2)
        group.wait_for_lanes(16)
        group.wait_for_values(produce(kafka, name, zipf_keys()[:5_000], rounds=1))

        lanes = sorted(sorted(each) for each in group.seen.lanes.values())
    assert lanes == [list(range(0, 16, 2)), list(range(1, 16, 2))]
    assert metric(proxy.control, "keylane_assignments_planned_total") == 0
    assert metric(proxy.control, "keylane_rebalances_asked_total") == 0


@pytest.mark.long
def test_a_restarted_keylane_finds_the_lanes_of_eager_members(kafka, keylane, topic) -> None:
    """Their client dealt them out before an upgrade, say: a third member takes from both.

    All lanes are equally busy: the restarted keylane may have read the records again by then.
    """
    name = topic("lanes16")
    proxy = keylane("lanes16-*=16")
    keys = keys_of_each_lane(4)

    options = {"assignor": "roundrobin", "session_timeout_ms": 45_000}
    with Group(proxy.bootstrap, name, f"g-{name}", **options) as group:
        group.add("confluent", 2)
        group.wait_for_lanes(16)
        group.wait_for_values(produce(kafka, name, keys, rounds=5))
        before = {member: set(lanes) for member, lanes in group.seen.lanes.items()}
        proxy.restart()
        group.add("confluent")
        group.wait_for_lanes(16)

        for member, lanes in before.items():
            assert group.seen.lanes[member] <= lanes
