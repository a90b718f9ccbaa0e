"""What groups on lanes need at a node's start: the seat, the journal, the settings; now or later.

In:    the parts of a node.  Out: groups that are served, or held back until brokers let them be.
Source: docs/decisions/030.

Where brokers cannot make their offsets topic, and nothing of keylane's own can be there either,
the only node serves all that needs no group, and groups from when the topic is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from keylane.errors import KeylaneError
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.control.health import Health
from keylane.proxy.nodes.lone_seat import SEAT_COUNT, LoneSeat
from keylane.proxy.startup.offsets_topic import find_obstacle, is_blank, until_possible
from keylane.proxy.topics.settings_store import SettingsStore
from keylane.tasks import spawn

log = logging.getLogger("keylane.server")


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
        """lone: None among many nodes; on_failed: gets the reason why a later start cannot be."""
        self._cluster, self._groups, self._settings = cluster, groups, settings
        self._lone, self._health, self._on_failed = lone, health, on_failed
        self._later: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve groups on return, or as soon as brokers let us.

        Among many nodes all waits for that: they find each other through a group. So does all
        where layouts may be pinned, which lanes that are served must not contradict.
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
