"""Groups of the consumer protocol (KIP-848) on lanes, with stock clients."""

from __future__ import annotations

import pytest

from tests.integration.harness import Group, produce

KEYS = [f"key-{number}" for number in range(200)]
LANE_COUNT = 32  # 2 partitions of 16 lanes


@pytest.mark.parametrize(("java", "confluent"), [(2, 6), (8, 0)])
def test_eight_members_share_two_partitions(java, confluent, kafka, shared_keylane, topic) -> None:
    """All 8 members get records; each record once; each key at one member and in order."""
    name = topic("lanes16", partitions=2)

    with Group(shared_keylane.bootstrap, name, f"g-{name}", protocol="consumer") as group:
        group.add("java", java)
        group.add("confluent", confluent)
        group.wait_for_lanes(LANE_COUNT, timeout_s=120)
        values = produce(kafka, name, KEYS, rounds=20)
        group.wait_for_values(values)
        group.wait_for_commits()

    seen = group.seen
    assert seen.values() == dict.fromkeys(values, 1)
    assert seen.busy() == set(group.processes)
    seen.assert_keys_in_order()
