"""Retention of offsets that are not committed again, as brokers have it.

In:    the cluster.  Out: seconds.
Source: `offsets.retention.minutes` of Kafka's broker configs; KIP-226 (DescribeConfigs).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.static.primitive import i8

from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.refreshes import Refreshes

log = logging.getLogger("keylane.offsets")

BROKER: Final = 4
"""A resource type of DescribeConfigs."""
NAME: Final = "offsets.retention.minutes"
MINUTE_S: Final = 60.0
LOOK_S: Final = 3600.0
"""A broker takes another value at its start only, and some restart while keylane runs."""


async def follow_retention(cluster: Cluster, refreshes: Refreshes) -> None:
    """Ask now, and every hour, for as long as the process runs."""
    is_logged = False
    while True:
        found = await ask_retention(cluster)
        if found is not None:
            refreshes.note_retention(found)
        elif not is_logged:
            log.info(
                "retention not known: DESCRIBE_CONFIGS on the cluster is missing, offsets are "
                "committed again every offsets_refresh_s key=%s seconds=%.0f",
                NAME, refreshes.interval_s,
            )  # fmt: skip
            is_logged = True
        await asyncio.sleep(LOOK_S)


async def ask_retention(cluster: Cluster) -> float | None:
    """Seconds, the least of all brokers; None: none of them says."""
    found = [await _ask_broker(cluster, node_id) for node_id in sorted(cluster.brokers)]
    return min((one for one in found if one is not None), default=None)


async def _ask_broker(cluster: Cluster, node_id: int) -> float | None:
    resource = DescribeConfigsResource(
        resource_type=i8(BROKER), resource_name=str(node_id), configuration_keys=(NAME,)
    )
    try:
        answer = await cluster.ask_broker(node_id, DescribeConfigsRequest(resources=(resource,)))
    except UpstreamLost as error:
        log.debug("broker does not say %s broker=%d reason=%s", NAME, node_id, error)
        return None
    values = [config.value for result in answer.results for config in result.configs]
    minutes = [int(value) for value in values if value is not None and value.isdigit()]
    return min(minutes) * MINUTE_S if minutes else None
