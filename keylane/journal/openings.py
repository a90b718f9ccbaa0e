"""Opening the journal for writing: fence the owner before, then read what stands there.

Source: docs/decisions/022 and 030.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from keylane.config.node import ProxyConfig
from keylane.config.own_names import JOURNAL_ID_PREFIX
from keylane.errors import ConfigInvalid, NotCoordinator, RightMissing, UpstreamLost
from keylane.journal.epochs import Brokers, has_transactions, next_epoch
from keylane.journal.fenced import FencedJournal
from keylane.journal.journal_reads import OnAppend, tried_again
from keylane.journal.own_topic import OwnTopicClients
from keylane.journal.owned import Holding, OwnedTables
from keylane.journal.store import APPEND_TIMEOUT_S, JournalStore
from keylane.offsets.table import OffsetTable
from keylane.tasks import spawn

log = logging.getLogger("keylane.offsets")

TRANSACTIONAL_ID_PREFIX: Final = JOURNAL_ID_PREFIX
"""One id per partition for all nodes: the node that opens it fences the one before."""
ALL: Final = f"{TRANSACTIONAL_ID_PREFIX}all"
"""The id of a node that is the only one: it writes to all partitions."""
EPOCH_PATIENCE_S: Final = 5.0
"""A new cluster makes its topic of transactions in a second or two, where it can at all."""


async def opened_at_start(owned: OwnedTables) -> Holding:
    """Return the only node's holding, tried again while brokers are lost, as a start does.

    Raises: ConfigInvalid, when a right is missing; UpstreamLost, for START_TIMEOUT_S.
    """

    async def open_all() -> Holding:
        try:
            return await owned.ready("")
        except RightMissing as error:
            raise ConfigInvalid(
                "keylane's principal needs DESCRIBE and WRITE on transactional ids with the prefix"
                f" {TRANSACTIONAL_ID_PREFIX} ({error})"
            ) from None

    return await tried_again(
        "opening the journal", open_all, passing=(UpstreamLost, NotCoordinator)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOpener:
    """Opens partitions of the journal for this process."""

    store: JournalStore
    brokers: Brokers
    individual_commits_max: int
    wall_clock: Callable[[], float]
    writes_steps: Callable[[], bool]
    """True: records may be such that a keylane from before steps cannot read them."""

    async def open_one(
        self, partition: int, *, partition_count: int
    ) -> tuple[OffsetTable, FencedJournal]:
        """Open one partition, which no other node may write to from now on.

        Raises: UpstreamLost, NotCoordinator.
        """
        transactional_id = f"{TRANSACTIONAL_ID_PREFIX}{partition}"
        return await self._open([partition], partition_count, transactional_id)

    async def open_all(self, partition_count: int) -> tuple[OffsetTable, FencedJournal]:
        """Open all partitions, for the only node. Raises: UpstreamLost, NotCoordinator."""
        return await self._open(range(partition_count), partition_count, ALL)

    async def _open(
        self, partitions: Sequence[int], partition_count: int, transactional_id: str
    ) -> tuple[OffsetTable, FencedJournal]:
        journal = FencedJournal(
            partitions,
            self.store.clients,
            next_epoch=lambda: self._epoch(transactional_id),
            append_timeout_s=self.store.append_timeout_s,
            on_append=self.store.on_append,
        )
        try:
            ends = await journal.open(now_ms=int(self.wall_clock() * 1000))
            table = await self.store.read_fenced(
                ends,
                partition_count=partition_count,
                individual_commits_max=self.individual_commits_max,
            )
            table.owner = journal.owner
            records = table.take_orphan_tombstones()
            if not self.writes_steps():
                records += table.whole_records(now_ms=int(self.wall_clock() * 1000))
            await journal.append(records)
        except BaseException:
            spawn(journal.close(), "close journal partition")
            raise
        return table, journal

    async def _epoch(self, transactional_id: str) -> tuple[int, int] | None:
        """Return the next epoch; None for a lone node whose cluster has no transactions.

        Raises: UpstreamLost.
        """
        if transactional_id != ALL:
            return await next_epoch(self.brokers, transactional_id)
        try:
            async with asyncio.timeout(EPOCH_PATIENCE_S):
                return await next_epoch(self.brokers, transactional_id)
        except TimeoutError:
            if await has_transactions(self.brokers):  # their coordinator hangs, or moves
                return await next_epoch(self.brokers, transactional_id)
            # Many clusters of one broker have none: their topic is to have three replicas.
            log.warning(
                "journal is not fenced: brokers cannot create __transaction_state"
                " remedy=check transaction.state.log.replication.factor"
            )
            return None


def make_journal(
    config: ProxyConfig,
    brokers: Brokers,
    clients: OwnTopicClients,
    *,
    wall_clock: Callable[[], float],
    on_append: OnAppend,
    writes_steps: Callable[[], bool],
) -> tuple[JournalStore, JournalOpener]:
    """Return the journal's reader and its opener; nothing is asked of Kafka yet."""
    store = JournalStore(clients, append_timeout_s=APPEND_TIMEOUT_S, on_append=on_append)
    opener = JournalOpener(
        store=store,
        brokers=brokers,
        individual_commits_max=config.individual_commits_max,
        wall_clock=wall_clock,
        writes_steps=writes_steps,
    )
    return store, opener
