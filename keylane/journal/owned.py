"""Offsets of the journal partitions that this node owns: loaded when needed, dropped when lost.

Source: docs/decisions/022, 030.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from keylane.errors import GroupBusy, NotCoordinator, RightMissing, UpstreamLost
from keylane.offsets.records.journal import JournalRecord, ic_partition
from keylane.offsets.table import OffsetTable
from keylane.tasks import spawn

log = logging.getLogger("keylane.offsets")

LOADS_AT_ONCE: Final = 8
"""Partitions that are loaded beside each other, each with up to 8 MiB under way."""
SLOT_S: Final = 5.0
"""A load takes some tens of milliseconds; one that takes longer waits for its broker, and holds
little memory."""
CLOSE_TIMEOUT_S: Final = 10.0
REFUSED_PAUSE_S_MIN: Final = 1.0
"""After a load that brokers refused for a missing right: what asks meanwhile is refused at once.

It doubles; what was granted again counts after REFUSED_PAUSE_S_MAX.
"""
REFUSED_PAUSE_S_MAX: Final = 30.0
REOPEN_S: Final = 24 * 3600.0
"""Time that an epoch is used. Kafka forgets a transactional id that was not asked for in seven
days, and the next owner would be given an id that fences none before it."""


class Ownership(Protocol):
    """The right to serve partitions of the journal: of `NodeGroup`, or of a lone node's seat."""

    def holds(self, ic_partition: int) -> bool:
        """Return whether this node surely owns it: the lease is good, no rebalance is under way.

        Cheap and synchronous; call it right before sending. A process that was stopped in
        between finds its lease over, since the monotonic clock goes on meanwhile.
        """

    def takes_on(self, ic_partition: int) -> bool:
        """Return whether something may be begun for it: it is held, and not about to be given up.

        What was begun before goes on by `holds`.
        """

    def term(self, ic_partition: int) -> int:
        """A number that stays the same while ownership is unbroken; -1 while it is not owned.

        A table that was loaded in one term is worth nothing in another, in which another node may
        have written.
        """

    async def settled(self) -> None:
        """Wait until no rebalance of the nodes is under way; at most for a few seconds."""


class Appender(Protocol):
    """Destination of changes: `journal.store` where others are not fenced, else a `Journal`."""

    @property
    def cuts(self) -> int:
        """Number of times that the log did not go on where it was left."""

    async def append(self, records: Sequence[JournalRecord]) -> None:
        """Write in order and wait. Raises: NotCoordinator, UpstreamLost; either breaks it."""


class Journal(Appender, Protocol):
    """Destination of changes of one partition (`journal.fenced`)."""

    @property
    def is_broken(self) -> bool:
        """Nothing can be appended any more."""

    async def close(self) -> None:
        """Take nothing more, and close."""


@dataclass(frozen=True, slots=True)
class LoadFailure:
    """Reason for which a partition was not loaded, and the time of the next try."""

    reason: str
    until_s: float
    pause_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """One partition as it was loaded in one term."""

    partition: int
    term: int
    table: OffsetTable
    journal: Journal
    opened_s: float


@asynccontextmanager
async def free_in_time(wait_s: float | None) -> AsyncIterator[None]:
    """Bound a wait for what others do with a group. Raises: GroupBusy."""
    try:
        async with asyncio.timeout(wait_s):
            yield
    except TimeoutError:
        raise GroupBusy(f"the group's offsets are not free in {wait_s:g} s") from None


class GroupLock(asyncio.Lock):
    """A lock of which it is known whether it can be had without a wait."""

    @property
    def is_free(self) -> bool:
        """True: `acquire` would not wait, as it is not held, and given to no other that waits."""
        return not self.locked() and not self._waiters

    async def acquire_in_time(self, wait_s: float | None) -> None:
        """Do what `acquire` does. Raises: GroupBusy, if it is not free in time; None: no bound."""
        if self.is_free:  # a time-out costs more than the lock
            await self.acquire()
        else:
            async with free_in_time(wait_s):
                await self.acquire()


# No generators from here on: each commit enters these.
@dataclass(slots=True, eq=False)
class InTime:
    """Hold a lock that was had in time; entering it raises GroupBusy."""

    lock: GroupLock
    wait_s: float | None

    async def __aenter__(self) -> None:
        await self.lock.acquire_in_time(self.wait_s)

    async def __aexit__(self, *_: object) -> None:
        self.lock.release()


@dataclass(slots=True, eq=False)
class PreparedLock:
    """Hold a lock under which something is done first; what that raises frees the lock."""

    lock: InTime | HeldGroup
    prepare: Callable[[], Awaitable[None]]

    async def __aenter__(self) -> None:
        await self.lock.__aenter__()
        try:
            await self.prepare()
        except BaseException:
            await self.lock.__aexit__(*sys.exc_info())
            raise

    async def __aexit__(self, *error: object) -> None:
        await self.lock.__aexit__(*error)


@dataclass(slots=True, eq=False)
class HeldGroup:
    """See `OwnedTables.hold`."""

    tables: OwnedTables
    held: dict[str, Holding]
    group: str
    lock: GroupLock
    wait_s: float | None

    async def __aenter__(self) -> None:
        if self.tables.at_hand(self.group) is None:
            async with free_in_time(self.wait_s):
                await self.tables.ready(self.group)  # not served, it need not wait for the lock
        await self.lock.acquire_in_time(self.wait_s)
        try:
            self.held[self.group] = await self.tables.ready(self.group)
        except BaseException:
            self.lock.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        del self.held[self.group]
        if not self.held:
            self.tables.none_held.set()
        self.lock.release()


Open = Callable[[int], Awaitable[tuple[OffsetTable, Journal]]]
"""Fences the writers of a partition before, and reads it. Raises: NotCoordinator, UpstreamLost."""


class OwnedTables:
    """Tables of one of many nodes: only the owner of a partition serves its groups.

    Use: inside `hold(group)` everything goes by the holding that was current when it was entered;
    once that is lost, each call raises NotCoordinator, whatever has been loaded since.
    Invariant: `_holdings` has what was loaded in the term that it says; a stale one is dropped
    before anything of it is given out.
    """

    pins_by_group = True
    """See `LoneTable`."""

    def __init__(
        self,
        ownership: Ownership,
        open_partition: Open,
        *,
        partition_count: int,
        on_loaded: Callable[[OffsetTable], None],
        on_dropped: Callable[[int], None],
    ) -> None:
        """`on_dropped` is called with a partition whose states another node may change now."""
        self._clock = asyncio.get_running_loop().time
        self._ownership, self._open = ownership, open_partition
        self.partition_count = partition_count
        self._on_loaded, self._on_dropped = on_loaded, on_dropped
        self._holdings: dict[int, Holding] = {}
        self._held: dict[str, Holding] = {}
        self.none_held = asyncio.Event()
        """Set each time that the last group in hand is given back."""
        self._loads: dict[int, asyncio.Task[Holding | UpstreamLost | None]] = {}
        self._refusals: dict[int, LoadFailure] = {}
        self._refusal_logged_s = float("-inf")
        self._gate = asyncio.Semaphore(LOADS_AT_ONCE)
        self._closing: set[asyncio.Task[None]] = set()

    def hold(self, group: str, lock: GroupLock, wait_s: float | None = None) -> HeldGroup:
        """The group's lock, with its partition loaded.

        wait_s: how long the lock, and a load, are waited for.
        Entering it raises NotCoordinator, UpstreamLost; GroupBusy, when it took longer.
        """
        return HeldGroup(self, self._held, group, lock, wait_s)

    async def ready(self, group: str) -> Holding:
        """Load the group's partition unless it is. Raises: NotCoordinator, UpstreamLost."""
        return self.at_hand(group) or await self._loaded(group)

    def at_hand(self, group: str) -> Holding | None:
        """Return the result of `ready` without a wait; None: it has to wait, or to refuse.

        A partition that is held for sure needs no wait for a rebalance.
        """
        holding = self._served(group)
        if holding is None or self._is_old(holding):
            return None
        return holding if self._ownership.takes_on(holding.partition) else None

    async def drain(self, timeout_s: float) -> None:
        """Wait until no group is in hand, up to a time-out; `takes_on` keeps others out."""
        self.none_held.clear()
        if self._held:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.none_held.wait()

    async def _loaded(self, group: str) -> Holding:
        """Same as `ready`, where something has to be waited for."""
        partition = ic_partition(group, self.partition_count)
        await self._ownership.settled()
        self._expect_ownership(partition)
        holding = self._holdings.get(partition)
        if holding is not None and self._is_current(holding) and not self._is_old(holding):
            return holding
        load = self._loads.get(partition)
        if load is None:
            if (refusal := self._refusal(partition)) is not None:
                raise RightMissing(refusal.reason)
            if holding is not None:
                self._drop(holding)
            load = spawn(self._load(partition), f"load journal partition {partition}")
            self._loads[partition] = load
        outcome = await asyncio.shield(load)  # others wait for it, too
        if isinstance(outcome, UpstreamLost):
            kind = RightMissing if isinstance(outcome, RightMissing) else UpstreamLost
            raise kind(str(outcome))
        if outcome is None or not self._is_current(outcome):
            raise NotCoordinator(f"journal partition {partition} was lost while it was loaded")
        return outcome

    def check(self, group: str) -> None:
        """Check, right before something is sent, that it is still ours. Raises: NotCoordinator."""
        self.table(group)

    def table(self, group: str) -> OffsetTable:
        """The table with the group's states, which are true now. Raises: NotCoordinator."""
        holding = self._holding(group)
        self._expect_ownership(holding.partition)
        return holding.table

    def find(self, group: str) -> OffsetTable | None:
        """Same as `table`; None when the group's partition is not loaded, or not ours."""
        holding = self._served(group)
        return None if holding is None else holding.table

    def lacks(self, group: str) -> bool:
        """Return whether the group's partition is ours, is not loaded, and nothing loads it now."""
        partition = ic_partition(group, self.partition_count)
        if partition in self._loads or not self._ownership.holds(partition):
            return False
        return self._refusal(partition) is None and self.find(group) is None

    def changed(self, group: str) -> tuple[OffsetTable, Journal]:
        """Return the destination of a change that was begun in time; the journal says if it counts.

        Raises: NotCoordinator, when the partition was dropped since.
        """
        holding = self._holding(group)
        return holding.table, holding.journal

    def tables(self) -> Iterator[OffsetTable]:
        """Yield the tables of all partitions that are loaded."""
        for holding in self.holdings():
            yield holding.table

    def holdings(self) -> list[Holding]:
        """Return the partitions that are loaded."""
        return [holding for holding in self._holdings.values() if self._is_current(holding)]

    def drop_lost(self) -> None:
        """Forget at once what was loaded in a term that is over."""
        for holding in list(self._holdings.values()):
            if not self._is_current(holding):
                self._drop(holding)

    async def stop(self) -> None:
        """End appends that are under way, and close."""
        for holding in list(self._holdings.values()):
            self._drop(holding)
        pending = {*self._closing, *self._loads.values()}
        if pending:
            await asyncio.wait(pending, timeout=CLOSE_TIMEOUT_S)

    # Inside.
    def _expect_ownership(self, partition: int) -> None:
        if not self._ownership.holds(partition):
            raise NotCoordinator(f"journal partition {partition} is not served by this node now")

    def _holding(self, group: str) -> Holding:
        partition = ic_partition(group, self.partition_count)
        current = self._holdings.get(partition)
        holding = self._held.get(group, current)
        if holding is None or holding is not current or not self._is_current(holding):
            raise NotCoordinator(f"journal partition {partition} is not loaded any more")
        return holding

    def _served(self, group: str) -> Holding | None:
        """Return the holding of the group's partition, if that is loaded, and surely ours."""
        holding = self._holdings.get(ic_partition(group, self.partition_count))
        is_ours = holding is not None and self._ownership.holds(holding.partition)
        return holding if is_ours and holding and self._is_current(holding) else None

    def _refusal(self, partition: int) -> LoadFailure | None:
        """Return why the partition is not loaded now; None: a load may be tried."""
        last = self._refusals.get(partition)
        return last if last is not None and self._clock() < last.until_s else None

    def _is_current(self, holding: Holding) -> bool:
        is_of_term = holding.term == self._ownership.term(holding.partition)
        return is_of_term and not holding.journal.is_broken

    def _is_old(self, holding: Holding) -> bool:
        return self._clock() - holding.opened_s > REOPEN_S

    async def _load(self, partition: int) -> Holding | UpstreamLost | None:
        """Return a new holding; or the reason why there is none; None: it was lost meanwhile."""
        try:
            async with self._slot():
                term = self._ownership.term(partition)
                if not self._ownership.holds(partition):
                    return None
                opened_s = self._clock()
                table, journal = await self._open(partition)
                holding = Holding(partition, term, table, journal, opened_s)
                if not self._is_current(holding):
                    self._close(journal)
                    return None
                self._holdings[partition] = holding
                self._refusals.pop(partition, None)
                self._on_loaded(table)
                return holding
        except NotCoordinator:
            return None
        except RightMissing as error:
            self._refuse(partition, str(error))
            return error
        except UpstreamLost as error:
            log.warning("journal partition not loaded partition=%d reason=%s", partition, error)
            return error
        finally:
            del self._loads[partition]

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """Take a place among those that load; a load whose broker hangs gives it up meanwhile."""
        await self._gate.acquire()
        slot = ExitStack()
        slot.callback(self._gate.release)
        timer = asyncio.get_running_loop().call_later(SLOT_S, slot.close)
        try:
            yield
        finally:
            timer.cancel()
            slot.close()

    def _refuse(self, partition: int, reason: str) -> None:
        """Ask no broker for a while; log it once for all partitions, as they lack the same."""
        last, now_s = self._refusals.get(partition), self._clock()
        pause_s = REFUSED_PAUSE_S_MIN if last is None else 2 * last.pause_s
        pause_s = min(pause_s, REFUSED_PAUSE_S_MAX)
        self._refusals[partition] = LoadFailure(reason, now_s + pause_s, pause_s)
        if now_s - self._refusal_logged_s >= REFUSED_PAUSE_S_MAX:
            self._refusal_logged_s = now_s
            log.error(
                "groups cannot be served: a right of keylane's principal is missing partition=%d"
                " reason=%s", partition, reason,
            )  # fmt: skip

    def _drop(self, holding: Holding) -> None:
        del self._holdings[holding.partition]
        self._on_dropped(holding.partition)
        self._close(holding.journal)
        log.info("journal partition dropped partition=%d", holding.partition)

    def _close(self, journal: Journal) -> None:
        task = spawn(journal.close(), "close journal partition")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
