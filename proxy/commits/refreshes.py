"""Time when the stable offsets of a running group are committed again, so that brokers keep them.

Source: docs/decisions/025; `offsets.retention.minutes` of Kafka's broker configs (7 days since
KIP-186), asked for by DescribeConfigs (KIP-226).

A lane may be quiet for weeks, and its members commit nothing meanwhile. Their heartbeats go on, and
name all that a commit needs, so they are the clock: no timer, and nothing for groups without one.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from typing import Final, NamedTuple

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.static.primitive import i8

from keylane.bounded import BoundedDict
from keylane.errors import UpstreamLost
from keylane.proxy.cluster.cluster import Cluster

log = logging.getLogger("keylane.offsets")

GROUPS_MAX: Final = 100_000
"""Groups whose turn is remembered, some 150 bytes each; the longest unseen are forgotten."""
RETENTION_PARTS: Final = 4
"""Of the retention: one refresh may fail, and another, and the offset is still there."""
SPREAD_S_MAX: Final = 600.0
"""After a start all groups are due, spread over this time at most."""
AGAIN_PARTS: Final = 16
"""Of the interval, until a refresh that failed is tried again."""
AGAIN_S_MAX: Final = 60.0
BROKER: Final = 4
"""A resource type of DescribeConfigs."""
NAME: Final = "offsets.retention.minutes"
MINUTE_S: Final = 60.0
LOOK_S: Final = 3600.0
"""A broker takes another value at its start only, and some restart while keylane runs."""


class Beat(NamedTuple):
    """A member that a heartbeat names."""

    group: str
    generation_id: int
    member_id: str
    instance_id: str | None


class Refreshes:
    """The next turn of each group that has offsets of lanes."""

    def __init__(self, interval_s: float) -> None:
        """interval_s: from the configuration; `note_retention` may make it shorter."""
        self._wanted_s = self.interval_s = interval_s
        self._due_s: BoundedDict[str, float] = BoundedDict(GROUPS_MAX)

    def note_retention(self, retention_s: float) -> None:
        """Time for which brokers keep offsets without a commit."""
        self.interval_s = min(self._wanted_s, retention_s / RETENTION_PARTS)

    def knows(self, group: str) -> bool:
        """Return whether the group has a turn."""
        return group in self._due_s

    def is_due(self, group: str, now_s: float) -> bool:
        """A member of a group with offsets of lanes lives; True: its offsets are due, once.

        A group that is new here gets a turn soon: when its offsets were committed is not known.
        """
        due_s = self._due_s.get(group)
        if due_s is None:
            share = zlib.crc32(group.encode()) / 2**32
            self._due_s[group] = now_s + share * min(
                self.interval_s / RETENTION_PARTS, SPREAD_S_MAX
            )
            return False
        if now_s < due_s <= now_s + self.interval_s:
            return False  # a later turn was given when the interval was longer
        self._due_s[group] = now_s + self.interval_s
        return True

    def try_again(self, group: str, now_s: float) -> None:
        """The group's offsets could not be committed."""
        self._due_s[group] = now_s + min(self.interval_s / AGAIN_PARTS, AGAIN_S_MAX)

    def set_due(self, group: str, now_s: float) -> None:
        """An offset is missing, or a turn was taken by a client that may not commit."""
        self._due_s[group] = now_s

    def forget(self, group: str) -> None:
        """The group has no offsets any more."""
        self._due_s.pop(group, None)


async def follow_retention(cluster: Cluster, refreshes: Refreshes) -> None:
    """Ask now, and every hour, for as long as the process runs."""
    is_logged = False
    while True:
        found = await ask_retention(cluster)
        if found is not None:
            refreshes.note_retention(found)
        elif not is_logged:
            log.info(
                "retention not known: committing offsets again every offsets_refresh_s key=%s"
                " seconds=%.0f remedy=allow DESCRIBE_CONFIGS on the cluster",
                NAME, refreshes.interval_s,
            )  # fmt: skip
            is_logged = True
        await asyncio.sleep(LOOK_S)


async def ask_retention(cluster: Cluster) -> float | None:
    """Return the least of all brokers in seconds; None: none of them answers it."""
    found = [await _ask_broker(cluster, node_id) for node_id in sorted(cluster.brokers)]
    return min((one for one in found if one is not None), default=None)


async def _ask_broker(cluster: Cluster, node_id: int) -> float | None:
    resource = DescribeConfigsResource(
        resource_type=i8(BROKER), resource_name=str(node_id), configuration_keys=(NAME,)
    )
    try:
        answer = await cluster.ask_broker(node_id, DescribeConfigsRequest(resources=(resource,)))
    except UpstreamLost as error:
        log.debug("retention not known key=%s broker=%d reason=%s", NAME, node_id, error)
        return None
    values = [config.value for result in answer.results for config in result.configs]
    minutes = [int(value) for value in values if value is not None and value.isdigit()]
    return min(minutes) * MINUTE_S if minutes else None
