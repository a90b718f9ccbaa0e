"""Offsets of groups on lanes: states in memory, in step with the journal in Kafka.

Source: docs/decisions/005, 022, 026, 027, 030.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from keylane.config.node import ProxyConfig
from keylane.errors import NotCoordinator
from keylane.journal.lone import LoneTable
from keylane.journal.openings import make_journal, opened_at_start
from keylane.journal.own_topic import OwnTopicClients
from keylane.journal.owned import Holding, Open, OwnedTables, Ownership, PreparedLock
from keylane.offsets.records.journal import FORMAT, ic_partition
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.commits.group_states import LOCK_WAIT_S, GroupStates
from keylane.proxy.commits.layouts import Layouts
from keylane.proxy.commits.log_ends import LogEnds
from keylane.proxy.nodes.lone_seat import SEAT_COUNT, LoneSeat

DRAIN_S: Final = 0.5
"""A commit takes some milliseconds; a broker that is slower is not waited for by all nodes."""


class GroupOffsets(GroupStates):
    """States of groups whose tables are loaded from Kafka, and whose changes are written there.

    The only node of a cluster has all states in one table, as long as it is the only one. One
    among many has those of the journal partitions that it owns, each in its own table, and only
    while it owns them.
    """

    def __init__(
        self,
        config: ProxyConfig,
        cluster: Cluster,
        clients: OwnTopicClients,
        *,
        wall_clock: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        ownership: Ownership | None = None,
        on_append: Callable[[int, float, bool], None] = lambda *_: None,
    ) -> None:
        """Nothing is asked of Kafka before `start`.

        wall_clock: gives seconds since 1970, for the timestamps of journal records.
        ownership: says which groups this node may serve at a moment; None: all, beside other nodes
            that it does not see.
        on_append: called after each write to the journal with its records, seconds, and success.
        """
        self._config, self._ownership = config, ownership
        self._held_back: str | None = None
        self._store, self._opener = make_journal(
            config, cluster, clients, wall_clock=wall_clock, on_append=on_append,
            writes_steps=lambda: self.writes_steps,
        )  # fmt: skip
        super().__init__(
            LoneTable(self._store), Layouts(config, cluster.registry), LogEnds(cluster),
            individual_commits_max=config.individual_commits_max,
            clock=clock, wall_clock=wall_clock,
        )  # fmt: skip
        self.writes_steps = not config.journal_whole and config.node is None
        self.sees_ends = ownership is None or isinstance(ownership, LoneSeat)
        cluster.on_leader.append(self.note_leader)

    async def start(self) -> None:
        """Load the journal, creating it if need be; pin layouts.

        One node of many reads all of it for the layouts only: states are loaded with the partitions
        that it owns, when they are asked for. The only node owns them as one.
        Raises: UpstreamLost; ConfigInvalid, when lanes changed under groups that have offsets.
        """
        commits_max = self._config.individual_commits_max
        if self._ownership is None:
            table = await self._store.start(individual_commits_max=commits_max)
            self.load(table)
            self.layouts.start(table)
            return
        if isinstance(self._ownership, LoneSeat):
            await self._start_lone()
            return
        table = await self._store.read(individual_commits_max=commits_max)
        self.layouts.start(table)
        count = table.partition_count
        self.tables = self._make_owned(
            lambda partition: self._opener.open_one(partition, partition_count=count), count
        )

    def hold_back(self, reason: str) -> None:
        """Refuse all groups on lanes until `start` has ended well; for the only node."""
        self._held_back = reason
        self.tables = self._make_owned(lambda _seat: self._opener.open_all(0), SEAT_COUNT)

    async def _start_lone(self) -> None:
        """Open the journal as one, and load it now."""
        count = await self._store.prepare()
        owned = self._make_owned(lambda _seat: self._opener.open_all(count), SEAT_COUNT)
        self.tables = owned
        self.layouts.start((await opened_at_start(owned)).table)
        self._held_back = None

    def _make_owned(self, open_partition: Open, count: int) -> OwnedTables:
        assert self._ownership is not None, "a right to serve comes from a seat"
        return OwnedTables(
            self._ownership,
            open_partition,
            partition_count=count,
            on_loaded=self._note_loaded,
            on_dropped=partial(self._forget_partition, count),
        )

    @property
    def partition_count(self) -> int:
        """Partition count of the journal."""
        return self.tables.partition_count

    async def stop(self) -> None:
        """Flush and close."""
        await self.tables.stop()
        await self._store.stop()

    def lock(self, group: str, wait_s: float | None = LOCK_WAIT_S) -> PreparedLock:
        """See `GroupStates`."""
        self._check_start()
        return super().lock(group, wait_s)

    async def ready(self, group: str) -> None:
        """See `GroupStates`."""
        self._check_start()
        await super().ready(group)

    def lacks(self, group: str) -> bool:
        """See `GroupStates`."""
        return self._held_back is None and super().lacks(group)

    def _check_start(self) -> None:
        if self._held_back is not None:
            raise NotCoordinator(self._held_back)

    def note_readers(self, formats: Iterable[int]) -> None:
        """Nodes have announced which format of the journal each can read (`journal.FORMAT`)."""
        self.writes_steps = not self._config.journal_whole and min(formats) >= FORMAT

    def drop_lost(self) -> None:
        """Forget at once what others may change now: the journal was dealt out anew."""
        self.tables.drop_lost()

    async def drain(self) -> None:
        """Wait a moment for what is under way with groups in hand: they are about to be lost."""
        if isinstance(self.tables, OwnedTables):
            await self.tables.drain(DRAIN_S)

    def holdings(self) -> list[Holding]:
        """Return the partitions that this node owns and has loaded; none beside unseen nodes."""
        return self.tables.holdings()

    def _forget_partition(self, count: int, partition: int) -> None:
        self.pushes.forget_where(lambda key: ic_partition(key.group, count) == partition)
        for each in (self._checks, self.late):
            each.forget_where(lambda group: ic_partition(group, count) == partition)
