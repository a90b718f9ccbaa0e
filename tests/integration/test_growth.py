"""Groups, topics and lane names that come and go leave nothing; readers have a bound.

The short form of `tests.long.growth`, which waits for idle readers as well.
"""

from __future__ import annotations

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from tests.integration.conftest import KeylaneFactory
from tests.long.growth import BASE, LANES, Growth, Talk, commit_of, read_metrics

LANE_NAMES_MAX = 64
"""`lane_names_per_principal_max`, when left out."""
KEPT = 3
"""Records of the group that stays: positions, epoch, layout."""
REFUSED = 29
"""TOPIC_AUTHORIZATION_FAILED"""


@pytest.mark.long
def test_what_kafka_forgets_is_forgotten_and_what_lives_stays(
    own_broker: EmbeddedKafka, keylane: KeylaneFactory
) -> None:
    """300 groups, 50 topics, 50 lane names; then a client that reads under any name it can."""
    proxy = keylane(*LANES, bootstrap=own_broker.bootstrap, args=["--set", "forget_interval_s=2"])
    growth = Growth(own_broker.bootstrap, proxy, 300, 50, 50)
    growth.make_base()
    listener = f"127.0.0.1:{proxy.listen_port + 2}"
    growth.timed_restart()
    before = growth.look()
    with Talk(listener) as members:
        (taken,) = members.ask_all([commit_of("stays", BASE, 7)])
    assert not taken.topics[0].partitions[0].error_code

    grown = growth.grow()
    growth.drop()
    after = growth.wait_until(
        lambda held: (held.states, held.topics) == (1, before.topics) and held.journal <= KEPT
    )
    stays = committed(proxy.bootstrap, "stays")
    growth.timed_restart()

    assert grown.states == 301 and grown.topics >= before.topics + 50
    assert (after.states, after.topics) == (1, before.topics)
    assert after.journal <= KEPT
    assert (stays, committed(proxy.bootstrap, "stays")) == (7, 7)
    assert growth.look().journal == after.journal
    assert_readers_are_bounded(listener, proxy.control)


def assert_readers_are_bounded(listener: str, control: str) -> None:
    """A client with READ on one topic asks for it in 200 ways; others go on."""
    names = [f"{BASE}.lanes-{count}" for count in range(1, 201)]
    with Talk(listener) as attacker, Talk(listener) as other:
        codes = attacker.fetch(names, wait_ms=0)
        own_name = other.fetch([BASE], wait_ms=0)
    metrics = read_metrics(control)

    refused = [name for name, code in codes.items() if code == REFUSED]
    assert refused == names[LANE_NAMES_MAX:] and own_name == {BASE: 0}
    assert metrics["keylane_lane_name_readers"] == LANE_NAMES_MAX
    assert metrics["keylane_readers"] <= LANE_NAMES_MAX + 1
    assert metrics["keylane_readers_refused_total"] == len(refused)


def committed(bootstrap: str, group: str) -> int:
    """Return the committed offset of lane 0 of the topic that stays."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(BASE, 0)])
    (found,) = admin.list_consumer_group_offsets([wanted]).values()
    return int(found.result().topic_partitions[0].offset)
