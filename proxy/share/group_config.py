"""Configuration of a share group at the brokers.

Source: KIP-932, KIP-1043 (group configs); `GroupConfig` of Apache Kafka 4.3.
"""

from __future__ import annotations

from typing import Final

from kio.schema.describe_configs.v4.request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kio.static.primitive import i8

from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Cluster

GROUP_RESOURCE: Final = i8(32)
DELIVERY_LIMIT: Final = "share.delivery.count.limit"


async def ask_delivery_limit(cluster: Cluster, group: str) -> int:
    """Return how often a record of the group is delivered at most.

    Raises: UpstreamLost, also where keylane may not DESCRIBE_CONFIGS the group.
    """
    resource = DescribeConfigsResource(
        resource_type=GROUP_RESOURCE,
        resource_name=group,
        configuration_keys=(DELIVERY_LIMIT,),
    )
    answer = await cluster.request(DescribeConfigsRequest(resources=(resource,)))
    for result in answer.results:
        if result.error_code:
            raise UpstreamLost(f"configs of group {group}: {result.error_code.name}")
        for entry in result.configs:
            if entry.name == DELIVERY_LIMIT and entry.value is not None and entry.value.isdigit():
                return int(entry.value)
    raise UpstreamLost(f"configs of group {group}: {DELIVERY_LIMIT} is not in the answer")
