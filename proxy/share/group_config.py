"""Configuration of a share group at the brokers.

Source: KIP-932, KIP-1222; `GroupConfig` of Apache Kafka 4.3.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kio.schema.describe_configs.v4.request import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from kio.static.primitive import i8

from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Cluster

GROUP_RESOURCE: Final = i8(32)
DELIVERY_LIMIT: Final = "share.delivery.count.limit"
RENEWALS: Final = "share.renew.acknowledge.enable"
LOCKS: Final = "share.partition.max.record.locks"
NO_RENEWALS: Final = (
    "order by key renews the locks of records, and share.renew.acknowledge.enable of the group "
    "{group} is false: set it to true (kafka-configs --entity-type groups)"
)


class GroupConfig(NamedTuple):
    """The settings that order by key depends on."""

    delivery_limit: int
    """Deliveries of a record at most."""
    has_renewals: bool
    locks_max: int | None
    """Offsets of a partition, from the first that is not finished on, that brokers lock."""


async def ask_group_config(cluster: Cluster, group: str) -> GroupConfig:
    """Ask any broker; a group that does not exist has the brokers' defaults.

    Raises: UpstreamLost, also where keylane may not DESCRIBE_CONFIGS the group.
    """
    resource = DescribeConfigsResource(
        resource_type=GROUP_RESOURCE,
        resource_name=group,
        configuration_keys=(DELIVERY_LIMIT, RENEWALS, LOCKS),
    )
    answer = await cluster.request(DescribeConfigsRequest(resources=(resource,)))
    found: dict[str, str] = {}
    for result in answer.results:
        if result.error_code:
            raise UpstreamLost(f"configs of group {group}: {result.error_code.name}")
        found.update({entry.name: entry.value or "" for entry in result.configs})
    limit = found.get(DELIVERY_LIMIT, "")
    if not limit.isdigit():
        raise UpstreamLost(f"configs of group {group}: {DELIVERY_LIMIT} is not in the answer")
    locks = found.get(LOCKS, "")
    return GroupConfig(
        delivery_limit=int(limit),
        has_renewals=found.get(RENEWALS, "true") != "false",
        locks_max=int(locks) if locks.isdigit() else None,
    )
