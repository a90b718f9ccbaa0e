"""Answers of brokers to members of consumer groups (KIP-848), and descriptions of these groups.

Source: Apache Kafka 4.3, `GroupMetadataManager`. A group does not go from one protocol to the other
while it has members, as with `group.consumer.migration.policy=disabled`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.reference.consumer_coordinator import GROUP_ID_NOT_FOUND

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

CONSUMER_HEARTBEAT, CONSUMER_DESCRIBE = 68, 69
STORE_S = 0.001
"""Seconds that a write to the log of offsets takes."""
Reply = Callable[[dict[str, Any]], None]
GroupError = Callable[["Broker", str], int]


def consumer_heartbeat(
    broker: Broker, request: Any, reply: Reply, *, group_error: GroupError
) -> None:
    """Answer ConsumerGroupHeartbeat."""
    name = str(request.group_id)
    group = broker.cluster.group(name)
    code = group_error(broker, name) or (GROUP_ID_NOT_FOUND if group.twin.members else 0)
    if code:
        reply({"error_code": code})
        return
    known: list[dict[str, Any]] = []
    group.consumer.heartbeat(request, known.append, version=int(request.__version__))
    broker.world.after(STORE_S, lambda: reply(known[0]))


def consumer_describe(
    broker: Broker, request: Any, reply: Reply, *, group_error: GroupError
) -> None:
    """Answer ConsumerGroupDescribe."""
    topics = {topic.topic_id: name for name, topic in broker.cluster.topics.items()}

    def name_of(topic_id: uuid.UUID) -> str:
        return topics[topic_id]

    described: list[dict[str, Any]] = []
    for name in map(str, request.group_ids):
        code = group_error(broker, name)
        consumer = broker.cluster.group(name).consumer
        if not code and not consumer.is_known:
            code = GROUP_ID_NOT_FOUND
        known = {"error_code": code} if code else consumer.describe(name_of)
        described.append({"group_id": name, **known})
    reply({"groups": described})
