"""Ends of logs, asked of leaders for many partitions at once, and kept with their times.

Source: ListOffsets v1; docs/decisions/040.

Cost: a question to each leader of a topic's partitions, at most once in FRESH_S for callers one
after another; those that come while an answer is under way each ask.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from keylane.errors import KeylaneError, UpstreamLost
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.log_ends import LATEST, offsets_request
from keylane.proxy.scans.log_times import LogTimes, Place
from keylane.proxy.topics.view import View

log = logging.getLogger("keylane.offsets")

FRESH_S: Final = 1.0
"""Age up to which an end counts: viewers and groups of one topic come together."""
ANSWER_S_MAX: Final = 2.0
"""A leader that takes longer is passed over; what was known of its partitions counts."""
SILENT_S: Final = 5.0
"""Time for which a leader that did not answer is not asked again: groups ask one by one."""


class LogEndBook:
    """The last known ends; `times` has them over time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.times = LogTimes()
        """Ends over time."""
        self._silent_until_s: dict[int, float] = {}
        """By leader that did not answer."""

    async def ends_of(self, view: View) -> Sequence[int]:
        """Return the ends of a topic's partitions, the last known where a leader is away.

        Raises: UpstreamLost, nothing is known of a partition.
        """
        places = [(view.topic_id, part) for part in range(view.layout.partition_count)]
        now_s = time.monotonic()
        old = [place for place in places if now_s - self.times.noted_s(place) > FRESH_S]
        if old:
            left = await self._ask_leaders(view.topic, old)
            if left:
                await self._try(self._cluster.refresh_topic(view.topic))
                await self._ask_leaders(view.topic, left)
        ends = [self.times.end(place) for place in places]
        if min(ends, default=0) < 0:
            raise UpstreamLost(
                f"topic {view.topic} partition {ends.index(-1)}: its log end is not known"
            )
        return ends

    async def _ask_leaders(self, topic: str, places: Iterable[Place]) -> list[Place]:
        """Ask for ends; return the places whose leader is not known, or leads no more."""
        by_leader: dict[int, list[Place]] = {}
        for place in places:
            leader_id, _ = self._cluster.leaders.get(place, (-1, -1))
            by_leader.setdefault(leader_id, []).append(place)
        unknown = by_leader.pop(-1, [])
        asked = (self._ask(leader, topic, own) for leader, own in by_leader.items())
        return [place for left in await asyncio.gather(*asked) for place in left] + unknown

    async def _ask(self, leader_id: int, topic: str, places: Collection[Place]) -> list[Place]:
        request = offsets_request([(topic, partition) for _, partition in places], LATEST)
        if time.monotonic() < self._silent_until_s.get(leader_id, 0.0):
            return []
        answer = await self._try(self._cluster.ask_broker(leader_id, request))
        if answer is None:  # what is known counts
            self._silent_until_s[leader_id] = time.monotonic() + SILENT_S
            return []
        topic_id = next(iter(places))[0]
        entries = answer.topics[0].partitions
        good = {
            (topic_id, int(entry.partition_index)): int(entry.offset)
            for entry in entries
            if entry.error_code == ErrorCode.none
        }
        self.times.note(good, time.monotonic())
        return [place for place in places if place not in good]

    async def _try(self, asking: Any) -> Any:
        """Return the answer; None where there is none in time."""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await asking
        except TimeoutError:
            log.debug("log ends are not known: no answer in time in_s=%g", ANSWER_S_MAX)
        except (KeylaneError, OSError) as error:
            log.debug("log ends are not known reason=%s", error)
        return None
