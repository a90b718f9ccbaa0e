"""Forgets groups and topics that Kafka has forgotten, and splits without a reader.

Source: docs/decisions/039.

A round goes through all groups and topics once, a part at a time. What a round has found gone and
the next one finds gone as well, unchanged, is forgotten: nothing is forgotten by one answer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeVar

from keylane.errors import KeylaneError, NotCoordinator
from keylane.keyrange.key_split import PartitionSplit
from keylane.offsets.records.held import HeldLanes
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.commits.group_survey import GroupSurvey
from keylane.proxy.groups.group_names import Place
from keylane.proxy.runtime.stats import ProxyStats

log = logging.getLogger("keylane.forgetting")

GROUPS_AT_ONCE: Final = 100
PLACES_AT_ONCE: Final = 2_000
"""Groups, and partitions of them all, that coordinators are asked for at once."""
TOPICS_AT_ONCE: Final = 50
STEP_PAUSE_S: Final = 0.2
"""Between two parts: 10,000 groups take 20 s, and brokers some 15 small requests a second."""
FIRST_PARTS: Final = 24
"""The first round comes after one of so many parts of the interval; each part ends with a look at
idle splits."""
JITTER: Final = 0.1
SPLITS_MANY: Final = 100
"""Their memory is worth giving back."""

Item = TypeVar("Item")
States = Mapping[StateKey, OffsetState]
Hands = Mapping[str, HeldLanes]
"""Lanes of a group's members, by identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptElsewhere:
    """Parts that keep something of groups and splits as well."""

    splits_read: Callable[[], Collection[PartitionSplit]]
    """Partitions and splits with a reader."""
    is_configured: Callable[[PartitionSplit], bool]
    """True: the operator has had a topic split so; there are as many as topics."""
    on_split: Callable[[PartitionSplit], None]
    """Called with each split that is forgotten."""
    on_group: Callable[[str], None]
    """Called with each group that is forgotten."""
    on_deserted: Callable[[str], None]
    """Called with each group on lanes whose members' lanes are forgotten, before they are."""
    on_freed: Callable[[], Awaitable[object]]
    """Called when much of what was kept for long is gone."""


class Forgetting:
    """Use: `run`, for as long as the process lives.

    Invariant: nothing is written but under the lock of its group, and while it is owned.
    """

    def __init__(
        self,
        cluster: Cluster,
        groups: GroupOffsets,
        stats: ProxyStats,
        kept: KeptElsewhere,
        *,
        interval_s: float,
    ) -> None:
        self._cluster, self._groups, self._stats = cluster, groups, stats
        self._interval_s = interval_s
        self._kept = kept
        self._survey = GroupSurvey(cluster)
        self._suspects: dict[StateKey, object] = {}
        """States that the last round found gone, with their contents."""
        self._suspected_hands: dict[str, Hands] = {}
        """Groups that the last round found without members, with the lanes of members."""
        self._suspected_topics: set[uuid.UUID] = set()
        self._gone_topics: set[uuid.UUID] = set()
        """Topics that two rounds have found gone."""

    async def run(self) -> None:
        """Look at all once an interval; forget splits without a reader more often."""
        step = splits = 0
        while True:
            pause_s = self._interval_s / FIRST_PARTS
            await asyncio.sleep(pause_s * random.uniform(1 - JITTER, 1 + JITTER))
            if step % FIRST_PARTS == 0:
                await self.go_round()
            splits += self.forget_idle_splits()
            if splits >= SPLITS_MANY:
                splits = 0
                await self._kept.on_freed()
            step += 1

    async def go_round(self) -> None:
        """Look at all groups and topics once. Raises nothing that Kafka is the cause of."""
        before = self._stats.states_forgotten, self._stats.topics_forgotten
        seen_ids = await self._look_at_groups()
        await self._look_at_hands()
        await self._look_at_topics(seen_ids)
        try:
            await self._unpin_layouts(seen_ids)
        except KeylaneError as error:
            log.warning("layouts not unpinned: trying again in the next round reason=%s", error)
        states = self._stats.states_forgotten - before[0]
        topics = self._stats.topics_forgotten - before[1]
        if states or topics:
            log.info("forgotten after Kafka states=%d topics=%d", states, topics)
            await self._kept.on_freed()

    def forget_idle_splits(self) -> int:
        """Forget scans and loads that nothing has asked for since the last call; return how many.

        They are of lane names, and of assignments that were changed; no reader fills them.
        """
        read = self._kept.splits_read()
        idle = self._groups.scans.sweep(lambda key: key in read or self._kept.is_configured(key))
        for key in idle:
            self._kept.on_split(key)
        return len(idle)

    # Groups.
    async def _look_at_groups(self) -> set[uuid.UUID]:
        """Judge the states of all groups that are loaded; return the topics that they are of."""
        seen_ids: set[uuid.UUID] = set()
        suspects: dict[StateKey, object] = {}
        self._survey.is_denied = False
        for holding in self._groups.holdings():
            for asked in self._parts(holding.table.groups()):
                seen_ids.update(key.topic_id for states in asked.values() for key in states)
                places = {
                    group: set(map(_place, states.items())) for group, states in asked.items()
                }
                absent = await self._survey.find_absent(places)
                drops = []
                for group, states in asked.items():
                    gone = self._find_gone(states, absent.get(group, frozenset()), suspects)
                    if gone:
                        drops.append(self._drop(group, gone))
                await asyncio.gather(*drops)
                await asyncio.sleep(STEP_PAUSE_S)
        self._suspects = suspects
        return seen_ids

    def _parts(self, names: Iterable[str]) -> Iterator[dict[str, States]]:
        """Yield groups with their states, as many as are asked for at once."""
        part: dict[str, States] = {}
        count = 0
        for name in names:
            try:
                states = self._groups.states_of(name)
            except NotCoordinator:
                continue  # another node serves its partition by now
            if part and (len(part) >= GROUPS_AT_ONCE or count + len(states) > PLACES_AT_ONCE):
                yield part
                part, count = {}, 0
            if states:
                part[name] = states
                count += len(states)
        if part:
            yield part

    def _find_gone(
        self, states: States, absent: frozenset[Place], suspects: dict[StateKey, object]
    ) -> States:
        """States to forget: found gone, as they were in the last round; others are noted."""
        gone = {}
        for key, state in states.items():
            if key.topic_id in self._gone_topics:
                gone[key] = state
            elif _place((key, state)) in absent:
                suspects[key] = found = _fingerprint(state)
                if self._suspects.get(key) == found:
                    gone[key] = state
        return gone

    async def _drop(self, group: str, gone: States) -> None:
        """Write tombstones and forget, but for states that were changed since they were judged."""
        groups = self._groups
        try:
            async with groups.lock(group):
                here, journal = groups.states_of(group), groups.push_journal(group)
                keys = [
                    key
                    for key, state in gone.items()
                    if here.get(key) is state
                    and not groups.pushes.may_still_come(key, None, groups.clock())
                    and not journal.may_arrive_at_none(key)
                ]
                groups.check_ownership(group)
                await groups.drop_states(group, keys)
                if len(keys) == len(here):
                    await groups.drop_group(group)
                    self._kept.on_group(group)
        except KeylaneError as error:
            log.debug(
                "states not forgotten: trying again in the next round group=%s reason=%s",
                group,
                error,
            )
            return
        self._stats.states_forgotten += len(keys)

    async def _look_at_hands(self) -> None:
        """Forget lanes in the hands of members that are gone, of groups that have committed none.

        Where a group has commits, its lanes in hand go with these, or when a member comes.
        """
        suspects: dict[str, Hands] = {}
        for holding in self._groups.holdings():
            table = holding.table
            names = [name for name in table.held.groups() if not table.of_group(name)]
            for part in _chunks(names, GROUPS_AT_ONCE):
                hands = {name: table.held.of_group(name) for name in part}
                deserted = await self._survey.find_deserted(part)
                suspects |= {name: hands[name] for name in deserted}
                for name in deserted:
                    if self._suspected_hands.get(name) == hands[name]:
                        await self._drop_hands(name, hands[name])
                await asyncio.sleep(STEP_PAUSE_S)
        self._suspected_hands = suspects

    async def _drop_hands(self, group: str, hands: Hands) -> None:
        """Write tombstones and forget, unless a member has come since the group was judged."""
        groups = self._groups
        try:
            async with groups.lock(group):
                if groups.held_table(group).of_group(group) == hands:
                    groups.check_ownership(group)
                    self._kept.on_deserted(group)
                    await groups.save_held(group, dict.fromkeys(hands))
        except KeylaneError as error:
            log.debug(
                "lanes of members may still be in the journal: its next load has them looked at "
                "again group=%s reason=%s",
                group,
                error,
            )

    # Topics.
    async def _look_at_topics(self, seen_ids: Collection[uuid.UUID]) -> None:
        groups = self._groups
        kept = {*seen_ids, *self._cluster.topic_ids()}
        kept |= groups.scans.topic_ids() | groups.lineages.topic_ids()
        kept.update(layout.topic_id for layout in groups.layouts.pinned.values())
        gone: set[uuid.UUID] = set()
        for part in _chunks(kept, TOPICS_AT_ONCE):
            gone |= await self._survey.find_gone(part)
            await asyncio.sleep(STEP_PAUSE_S)
        if gone:
            # It is in memory only, and Kafka would be asked for it again.
            self._stats.topics_forgotten += len(gone - self._suspected_topics)
            self._cluster.forget_topics(gone)
            groups.lineages.forget_topics(gone)
            for key in groups.scans.forget_topics(gone):
                self._kept.on_split(key)
        self._gone_topics = gone & self._suspected_topics
        self._suspected_topics = gone

    async def _unpin_layouts(self, seen_ids: Collection[uuid.UUID]) -> None:
        """Unpin layouts of topics that are gone, or that this node sees no group use.

        Raises: UpstreamLost, NotCoordinator.
        """
        groups, gone = self._groups, self._gone_topics
        for holding in groups.holdings():
            table = holding.table
            pinned = {name: layout.topic_id for name, layout in table.layouts().items()}
            unused = {topic_id for topic_id in pinned.values() if topic_id not in seen_ids}
            if unused - gone:
                if groups.sees_ends:
                    unused -= {key.topic_id for key, _ in groups.states()}
                else:
                    unused &= gone
            names = [name for name, topic_id in pinned.items() if topic_id in unused]
            # From here on a commit pins its view anew; should that overtake us, it is said again.
            groups.layouts.unpin(names)
            records = [record for name in names for record in table.unpin_layout(name)]
            await holding.journal.append(records)
            await holding.journal.append(table.layout_records(names))


def _place(item: tuple[StateKey, OffsetState]) -> Place:
    key, state = item
    return state.topic_name, key.partition


def _fingerprint(state: OffsetState) -> object:
    """Equal while no commit comes; a partition that was loaded anew has the same one."""
    return hash((state.pushed, state.range_count, tuple(state.positions())))


def _chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    left = iter(items)
    while part := list(islice(left, size)):
        yield part
