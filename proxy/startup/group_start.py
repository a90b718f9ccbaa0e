"""Start of groups on lanes with a node: the seat, the journal, the settings; now or later.

Source: docs/decisions/030; Kafka documentation, "Broker Configs"
(offsets.topic.replication.factor); brokers answer COORDINATOR_NOT_AVAILABLE without a reason when
they cannot make their offsets topic.

What keylane knows of groups on lanes stands in topics that are made after that one. Until one of
these exists nothing can be pinned or assigned in them: then the only node serves without them all
that needs no group, and groups from when the offsets topic is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest
from kio.static.primitive import i8

from keylane.config.own_names import JOURNAL_TOPIC, SETTINGS_TOPIC
from keylane.errors import KeylaneError, UpstreamLost
from keylane.journal.journal_topic import ANY_GROUP, PRIMARY_TOPIC
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.control.health import Health
from keylane.proxy.nodes.lone_seat import SEAT_COUNT, LoneSeat
from keylane.proxy.topics.settings_store import SettingsStore
from keylane.tasks import spawn

log = logging.getLogger("keylane.server")

FACTOR: Final = "offsets.topic.replication.factor"
BROKER: Final = i8(4)
"""Resource type of DescribeConfigs."""
LOOK_S: Final = 1.0
"""Between two looks at a cluster that cannot make the topic: no event says when brokers come."""


class GroupStart:
    """Use: `start` once, `stop` before the parts are stopped, `leave` after them."""

    def __init__(
        self,
        cluster: Cluster,
        groups: GroupOffsets,
        settings: SettingsStore,
        *,
        lone: LoneSeat | None,
        health: Health,
        on_failed: Callable[[KeylaneError], None],
    ) -> None:
        """lone: None among many nodes; on_failed: receives the error of a later start."""
        self._cluster, self._groups, self._settings = cluster, groups, settings
        self._lone, self._health, self._on_failed = lone, health, on_failed
        self._later: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start groups, or let them start later, when brokers can make their offsets topic.

        Many nodes wait for that here, since they find each other through a group. The only node
        waits where layouts may be pinned, since lanes that it serves must not contradict them.
        Raises: UpstreamLost, ConfigInvalid.
        """
        obstacle = await find_obstacle(self._cluster)
        if obstacle is not None:
            log.warning("groups on lanes are not served yet reason=%s", obstacle)
            if self._lone is not None and is_blank(self._cluster):
                self._groups.hold_back(obstacle)
                self._health.missing = f"groups on lanes: {obstacle}"
                self._later = spawn(self._start_later(), "start of groups")
                return
            await until_possible(self._cluster)
        await self._start_now()

    async def stop(self) -> None:
        """Give up a start that still waits."""
        if self._later is not None:
            self._later.cancel()
            await asyncio.wait({self._later})

    async def leave(self) -> None:
        """Give up the seat: the next node serves at once, so nothing may be under way here."""
        if self._lone is not None:
            await self._lone.stop()

    async def _start_now(self) -> None:
        if self._lone is not None:
            await self._lone.start(SEAT_COUNT)
        await asyncio.gather(self._groups.start(), self._settings.start())

    async def _start_later(self) -> None:
        await until_possible(self._cluster)
        try:
            await self._start_now()
        except KeylaneError as error:
            log.error("groups on lanes cannot be served reason=%s", error)
            self._on_failed(error)
            return
        self._health.missing = None
        log.info("groups on lanes are served")


async def find_obstacle(cluster: Cluster) -> str | None:
    """Return the reason why the offsets topic cannot be made now; None: no reason is known."""
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
    """Return whether nothing of keylane's own is there: no layout is pinned, no range assigned."""
    return not {JOURNAL_TOPIC, SETTINGS_TOPIC} & cluster.registry.topics.keys()


async def until_possible(cluster: Cluster) -> None:
    """Wait until the topic can be made: brokers come, or are configured anew."""
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
    """Return the value that one broker has; None: it does not answer with one."""
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
