"""A large group of the consumer protocol (KIP-848) on lanes: members, nodes and the broker go."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from keylane.embedded import EmbeddedKafka
from tests.integration.conftest import KEPT
from tests.integration.flow import steady_flow
from tests.integration.harness import Group
from tests.integration.made_topics import make_topic
from tests.integration.nodes import Nodes
from tests.integration.test_group_handover import log_ends, stable_offsets

LANE_COUNT = 32
SETTINGS = KEPT | {
    "group.consumer.min.session.timeout.ms": "30000",
    "group.consumer.session.timeout.ms": "30000",
}
"""Sessions outlive a take-over, and a broker that is killed and started.

Heartbeats have the default interval: librdkafka closes a connection whose answers take longer.
"""
SETTLE_S = 120
LIBRDKAFKA = "reconnect.backoff.max.ms=1000,metadata.recovery.strategy=none"
"""Members come back before their session ends, and do not hang (docs/clients.md)."""


@pytest.mark.long
@pytest.mark.timeout(1000)  # sixteen members on a busy machine
def test_eight_java_and_eight_librdkafka_members(tmp_path) -> None:
    """Members, a node and the broker are killed: nothing lost, or again once committed.

    First sightings of a key are in order, and no lane is at two members.
    """
    with EmbeddedKafka(tmp_path / "kafka", properties=SETTINGS) as broker:
        kafka = broker.bootstrap
        make_topic(AdminClient({"bootstrap.servers": kafka}), NewTopic("orders", 2, 1))
        nodes = Nodes(kafka, ["orders=16"], folder=tmp_path, count=2)
        how = {"protocol": "consumer", "settings": LIBRDKAFKA}
        with nodes, Group(nodes.bootstrap, "orders", "billing", **how) as group:
            java, librdkafka = group.add("java", 7), group.add("confluent", 7)
            group.wait_for_lanes(LANE_COUNT, timeout_s=SETTLE_S)
            with steady_flow(kafka, "orders", 400) as values:
                group.wait_for_more(1000)
                group.add("java", 1)
                group.add("confluent", 1)
                group.wait_for_lanes(LANE_COUNT, timeout_s=SETTLE_S)
                group.leave(librdkafka[0])
                group.kill(java[0])
                group.kill(librdkafka[1])
                group.wait_for_lanes(LANE_COUNT, timeout_s=SETTLE_S)
                serving = [each for each in nodes.processes if "group=billing" in each.log]
                serving[0].kill()
                serving[0].start()
                group.wait_for_more(1000, timeout_s=SETTLE_S)
                broker.kill()
                broker.start()
                group.wait_for_more(1000, timeout_s=SETTLE_S)
                group.wait_for_lanes(LANE_COUNT, timeout_s=SETTLE_S)
            group.wait_for_values(values, timeout_s=SETTLE_S)
            group.wait_for_commits(timeout_s=SETTLE_S)
            ends = log_ends(kafka, "orders", 2)
            stable = stable_offsets(kafka, "billing", "orders", 2)

    assert stable == ends
    group.seen.assert_nothing_committed_again()
    group.seen.assert_first_sightings_in_order()
    group.seen.assert_one_owner_at_a_time()
