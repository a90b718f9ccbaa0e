"""Metadata that a membership needs: names by ids, partition counts, topics that match a pattern.

Each look-up ends with an event of the machine. One that fails is repeated after a pause.
Source: KIP-848 for ids; KIP-429, whose leader plans over partition counts.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, Protocol
from uuid import UUID

from keylane.client.group.classic import ClassicMember
from keylane.client.group.consumer_protocol import ConsumerMember
from keylane.client.group.settings import GroupTopics
from keylane.errors import KeylaneError

AGAIN_S: Final = 1.0
"""Pause before metadata is asked for again; a new topic takes about that long to be everywhere."""


class Topics(Protocol):
    """Metadata of the cluster."""

    async def refresh(self) -> None:
        """Read the metadata anew."""
        ...

    async def topics(self) -> list[str]:
        """Return the names of all topics."""
        ...

    async def partitions_of(self, topic: str) -> list[int]:
        """Return the partitions of a topic; none: it is unknown."""
        ...

    def topic_name(self, topic_id: UUID) -> str | None:
        """Return a topic's name; None: it is not known."""
        ...


class Lookups:
    """Look-ups of one membership, at most one at a time."""

    def __init__(self, topics: Topics, max_age_s: float) -> None:
        """max_age_s: counts and patterns of the classic protocol are looked at again after it."""
        self._topics, self._max_age_s = topics, max_age_s
        self._looked_s = self._failed_s = float("-inf")
        self._planned: dict[str, int] = {}
        self.subscribed = GroupTopics()
        """As the consumer subscribed."""
        self.is_new = False
        """True: a pattern of the subscription has not been matched yet."""

    def due_s(self, machine: ConsumerMember | ClassicMember) -> float:
        """Return the time of the next look-up; infinite: none."""
        if isinstance(machine, ConsumerMember):
            return self._looked_s + AGAIN_S if machine.topics_unknown else float("inf")
        if self.is_new and self.subscribed.pattern is not None:
            return self._failed_s + AGAIN_S
        if machine.topics_to_count:
            return self._failed_s + AGAIN_S
        has_more = self.subscribed.pattern is not None or machine.topics_led
        return self._looked_s + self._max_age_s if has_more else float("inf")

    async def look(self, machine: ConsumerMember | ClassicMember, now_s: float) -> None:
        """Look up what is due, and hand it to the machine. Raises: as the cluster does."""
        self._looked_s = now_s
        if isinstance(machine, ConsumerMember):
            await self._topics.refresh()
            machine.names_changed(now_s)
        elif machine.topics_to_count:
            counts = await self._counts(machine.topics_to_count)
            self._planned = counts
            machine.counted(counts, now_s)
        else:
            await self._look_again(machine, now_s)

    def failed(self, now_s: float) -> None:
        """Note that a look-up failed: the next one waits."""
        self._failed_s = now_s

    async def _look_again(self, machine: ClassicMember, now_s: float) -> None:
        if self.subscribed.pattern is not None:
            names = await self._topics.topics()
            matching = matching_topics(names, self.subscribed.pattern)
            self.is_new = False
            machine.matched(
                GroupTopics(self.subscribed.topics | matching, self.subscribed.pattern), now_s
            )
        else:
            await self._topics.refresh()
        led = machine.topics_led
        if led and await self._counts(led) != self._planned:
            machine.rejoin(now_s)

    async def _counts(self, topics: Collection[str]) -> dict[str, int]:
        """Return partition counts; a topic that this client may not see has none."""
        found: dict[str, int] = {}
        for topic in sorted(topics):
            try:
                found[topic] = len(await self._topics.partitions_of(topic))
            except KeylaneError as error:
                if error.retriable:
                    raise
                found[topic] = 0
        return found


def matching_topics(names: Collection[str], pattern: str) -> frozenset[str]:
    """Return the names that a pattern matches as a whole."""
    compiled = re.compile(pattern)
    return frozenset(name for name in names if compiled.fullmatch(name))
