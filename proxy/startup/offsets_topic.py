"""Kafka's own offsets topic: whether brokers can make it, and if not, why.

In:    the cluster, as keylane's own principal sees it.  Out: what is missing, as one line.
Source: Kafka documentation, "Broker Configs" (offsets.topic.replication.factor); brokers answer
COORDINATOR_NOT_AVAILABLE without a reason when they cannot make the topic.

All that keylane knows of groups on lanes stands in topics that are made after this one. As long as
none of them exists nothing can be pinned or assigned in them, so lanes can be served without them.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.static.primitive import i8

from keylane.errors import UpstreamLost
from keylane.journal.journal_topic import ANY_GROUP, PRIMARY_TOPIC
from keylane.offsets.records.journal import TOPIC_NAME as JOURNAL
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.topics.settings_records import TOPIC_NAME as SETTINGS

log = logging.getLogger("keylane.groundwork")

FACTOR: Final = "offsets.topic.replication.factor"
BROKER: Final = i8(4)
"""Resource type of DescribeConfigs."""
LOOK_S: Final = 1.0
"""Between two looks at a cluster that cannot make the topic: no event says when brokers come."""


async def find_obstacle(cluster: Cluster) -> str | None:
    """Why the offsets topic cannot be made now; None: it is there, can be made, or is not known."""
    if PRIMARY_TOPIC in cluster.registry.topics:
        return None
    try:
        factor = await _replication_factor(cluster)
    except UpstreamLost as error:
        log.debug("configuration of brokers is not known reason=%s", error)
        return None
    count = len(cluster.brokers)
    if factor is None or factor <= count:
        return None
    return (
        f"topic {PRIMARY_TOPIC} cannot be made: {FACTOR} is {factor}, and the cluster has"
        f" {count} broker{'s' if count > 1 else ''} (INVALID_REPLICATION_FACTOR)"
    )


def is_blank(cluster: Cluster) -> bool:
    """Whether nothing of keylane's own is there: no layout is pinned, no range assigned."""
    return not {JOURNAL, SETTINGS} & cluster.registry.topics.keys()


async def until_possible(cluster: Cluster) -> None:
    """Wait until nothing speaks against the topic; brokers come, or are configured anew."""
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            # A request for a coordinator has the brokers make the topic.
            await cluster.request(FindCoordinatorRequest(key=ANY_GROUP))
            await cluster.refresh()
        except UpstreamLost as error:
            log.debug("brokers are not reached reason=%s", error)
            continue
        if await find_obstacle(cluster) is None:
            return


async def _replication_factor(cluster: Cluster) -> int | None:
    """As the broker that is asked has it; None: it does not say."""
    node_id = min(cluster.brokers)
    resource = DescribeConfigsResource(
        resource_type=BROKER, resource_name=str(node_id), configuration_keys=(FACTOR,)
    )
    request = DescribeConfigsRequest(resources=(resource,))
    answer: Any = await cluster.ask_broker(node_id, request)
    for result in answer.results:
        for config in result.configs:
            if config.name == FACTOR and str(config.value).isdecimal():
                return int(config.value)
    return None
