"""Tables of the partitions that a node owns: loaded once per term, dropped when lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from keylane.errors import GroupBusy, NotCoordinator, RightMissing, UpstreamLost
from keylane.journal.owned import (
    LOADS_AT_ONCE,
    REFUSED_PAUSE_S_MAX,
    REOPEN_S,
    GroupLock,
    HeldGroup,
    InTime,
    OwnedTables,
    PreparedLock,
)
from keylane.offsets.records.journal import JournalRecord, ic_partition
from keylane.offsets.table import OffsetTable
from keylane.tasks import spawn
from tests.virtual_time import run_virtual

COUNT = 8
GROUP = "orders"
PLACE = ic_partition(GROUP, COUNT)


async def one_turn() -> None:
    """Let the tasks that were begun run up to their first wait; no time passes."""
    await asyncio.sleep(0)


class Ownership:
    """Implements `Ownership`: what a test says."""

    def __init__(self) -> None:
        self.number, self.is_held, self.is_draining = 1, True, False
        self.is_settled = asyncio.Event()
        self.is_settled.set()

    def holds(self, ic_partition: int) -> bool:
        return self.is_held

    def takes_on(self, ic_partition: int) -> bool:
        return self.is_held and not self.is_draining

    def term(self, ic_partition: int) -> int:
        return self.number

    async def settled(self) -> None:
        await self.is_settled.wait()


class Journal:
    """Implements `Journal`: a list."""

    def __init__(self) -> None:
        self.is_broken, self.is_closed = False, False
        self.records: list[JournalRecord] = []

    cuts = 0

    async def append(self, records: Sequence[JournalRecord]) -> None:
        self.records += records

    async def close(self) -> None:
        self.is_closed = True


class World:
    """A node's tables, and what became of them."""

    def __init__(self) -> None:
        self.ownership = Ownership()
        self.journals: list[Journal] = []
        self.dropped: list[int] = []
        self.loaded: list[OffsetTable] = []
        self.may_load = asyncio.Event()
        self.may_load.set()
        self.error: Exception | None = None
        self.tables = OwnedTables(
            self.ownership,
            self.open,
            partition_count=COUNT,
            on_loaded=self.loaded.append,
            on_dropped=self.dropped.append,
        )
        self.lock = GroupLock()

    async def open(self, partition: int) -> tuple[OffsetTable, Journal]:
        assert partition == PLACE
        journal = Journal()
        self.journals.append(journal)
        await self.may_load.wait()
        if self.error is not None:
            raise self.error
        return OffsetTable(partition_count=COUNT), journal


async def test_callers_share_one_load() -> None:
    """Callers share it while it is under way; a later caller finds it done."""
    world = World()

    holdings = await asyncio.gather(*(world.tables.ready(GROUP) for _ in range(5)))
    async with world.tables.hold(GROUP, world.lock):
        assert world.tables.table(GROUP) is holdings[0].table

    assert len(set(map(id, holdings))) == len(world.journals) == len(world.loaded) == 1


async def test_a_caller_that_goes_away_leaves_the_load_to_the_others() -> None:
    """Its task is not theirs."""
    world = World()
    world.may_load.clear()
    first, second = (spawn(world.tables.ready(GROUP), "ready") for _ in range(2))
    await one_turn()

    first.cancel()
    world.may_load.set()

    assert (await second).journal is world.journals[0] and first.cancelled()


async def test_a_failed_load_is_reported_and_tried_again() -> None:
    """Each caller that waited for it gets the error; the next one tries again."""
    world = World()
    world.error = UpstreamLost("no broker")
    for outcome in await asyncio.gather(
        *(world.tables.ready(GROUP) for _ in range(3)), return_exceptions=True
    ):
        assert isinstance(outcome, UpstreamLost) and str(outcome) == "no broker"
    assert len(world.journals) == 1

    world.error = None

    assert (await world.tables.ready(GROUP)).journal is world.journals[1]


async def test_what_is_lacking_is_ours_and_nothing_loads_it() -> None:
    """Not while it is loaded, nor once it is; anew when it was dropped; not for others."""
    world = World()
    world.may_load.clear()
    before = world.tables.lacks(GROUP)
    load = spawn(world.tables.ready(GROUP), "ready")
    await one_turn()
    meanwhile = world.tables.lacks(GROUP)
    world.may_load.set()
    await load
    after = world.tables.lacks(GROUP)
    world.ownership.number += 1
    world.tables.drop_lost()
    dropped = world.tables.lacks(GROUP)
    world.ownership.is_held = False

    assert (before, meanwhile, after, dropped) == (True, False, False, True)
    assert not world.tables.lacks(GROUP)


async def test_a_partition_of_another_node_is_not_touched() -> None:
    """Nor waited for: the group's lock may be held for long."""
    world = World()
    world.ownership.is_held = False
    async with world.lock:
        with pytest.raises(NotCoordinator):
            async with world.tables.hold(GROUP, world.lock):
                pass
    assert world.journals == [] and world.tables.find(GROUP) is None


async def test_a_rebalance_is_waited_for() -> None:
    """No caller is refused before the owner of the partition is known."""
    world = World()
    world.ownership.is_settled.clear()
    world.ownership.is_held = False
    asking = spawn(world.tables.ready(GROUP), "ready")
    await one_turn()
    assert not asking.done()

    world.ownership.is_held = True
    world.ownership.is_settled.set()

    assert (await asking).journal is world.journals[0]


async def test_what_is_in_hand_ends_before_a_rebalance() -> None:
    """What comes meanwhile waits until the owner is known, also for a lock that is given back."""
    world = World()
    other = GroupLock()
    async with world.tables.hold(GROUP, world.lock):
        queued = spawn(enter(world.tables.hold(GROUP, world.lock)), "queued")
        await one_turn()
        world.ownership.is_draining = True
        world.ownership.is_settled.clear()
        drained = spawn(world.tables.drain(60.0), "drain")
        late = spawn(enter(world.tables.hold(GROUP, other)), "late")
        await one_turn()
        world.tables.check(GROUP)
        assert not drained.done()
    await drained
    assert not queued.done() and not late.done()

    world.ownership.is_draining, world.ownership.is_held = False, False
    world.ownership.is_settled.set()

    for waiting in (queued, late):
        with pytest.raises(NotCoordinator):
            await waiting
    assert len(world.journals) == 1


async def test_a_hold_that_does_not_end_is_waited_for_no_longer() -> None:
    """Its broker hangs, say; and where none is in hand there is no wait."""
    world = World()
    await world.tables.drain(60.0)

    async with world.tables.hold(GROUP, world.lock):
        await world.tables.drain(0.0)

        world.tables.check(GROUP)


async def enter(hold: HeldGroup) -> None:
    """Take a group in hand for a moment."""
    async with hold:
        pass


async def test_a_lease_that_lapses_and_comes_back_costs_no_load() -> None:
    """Nothing is given out in between; the term is the same, so no other node has written."""
    world = World()
    async with world.tables.hold(GROUP, world.lock):
        world.ownership.is_held = False
        with pytest.raises(NotCoordinator):
            world.tables.check(GROUP)
        with pytest.raises(NotCoordinator):
            world.tables.table(GROUP)
        assert world.tables.changed(GROUP)[1] is world.journals[0]
        world.ownership.is_held = True
        world.tables.check(GROUP)
    await world.tables.ready(GROUP)
    assert len(world.journals) == 1 and world.dropped == []


async def test_a_new_term_is_a_new_load() -> None:
    """A caller that holds a group from before is refused, though the partition is loaded again."""
    world = World()
    async with world.tables.hold(GROUP, world.lock):
        world.ownership.number = 2
        with pytest.raises(NotCoordinator):
            world.tables.changed(GROUP)
        await world.tables.ready(GROUP)
        for refused in (world.tables.check, world.tables.table, world.tables.changed):
            with pytest.raises(NotCoordinator):
                refused(GROUP)
    async with world.tables.hold(GROUP, world.lock):
        assert world.tables.changed(GROUP)[1] is world.journals[1]
    assert (world.dropped, world.journals[0].is_closed) == ([PLACE], True)


async def test_a_term_that_ends_during_the_load_ends_the_load() -> None:
    """What was read may be old already."""
    world = World()
    world.may_load.clear()
    asking = spawn(world.tables.ready(GROUP), "ready")
    await one_turn()
    await one_turn()
    world.ownership.number = 2
    world.may_load.set()

    with pytest.raises(NotCoordinator):
        await asking
    await one_turn()

    assert world.journals[0].is_closed and world.loaded == []
    assert (await world.tables.ready(GROUP)).term == 2


async def test_a_broken_journal_is_opened_anew() -> None:
    """Whether its last records count is known only then."""
    world = World()
    async with world.tables.hold(GROUP, world.lock):
        world.journals[0].is_broken = True
        with pytest.raises(NotCoordinator):
            world.tables.changed(GROUP)
    assert world.tables.find(GROUP) is None and list(world.tables.tables()) == []

    await world.tables.ready(GROUP)

    assert len(world.journals) == 2 and world.dropped == [PLACE]


async def test_what_is_lost_is_dropped_at_once() -> None:
    """Not only when somebody asks: others may change it."""
    world = World()
    await world.tables.ready(GROUP)
    world.tables.drop_lost()
    assert world.dropped == []

    world.ownership.number = -1
    world.tables.drop_lost()

    assert world.dropped == [PLACE] and list(world.tables.tables()) == []


async def test_an_epoch_is_used_for_a_day() -> None:
    """Kafka forgets a transactional id that is not asked for."""
    world = World()
    now_s = 0.0
    world.tables._clock = lambda: now_s
    await world.tables.ready(GROUP)
    now_s = REOPEN_S
    await world.tables.ready(GROUP)
    assert len(world.journals) == 1

    now_s += 1
    await world.tables.ready(GROUP)

    assert len(world.journals) == 2 and world.dropped == [PLACE]


async def test_a_stop_closes_everything() -> None:
    """Journals are closed when it returns."""
    world = World()
    await world.tables.ready(GROUP)

    await world.tables.stop()

    assert world.journals[0].is_closed


async def test_a_missing_right_is_asked_for_now_and_then(caplog) -> None:
    """The refusal is logged once in a while, not at each request; a right granted later counts."""
    world = World()
    world.error = RightMissing("transactional id keylane-ic-0: refused")
    now_s = 0.0
    world.tables._clock = lambda: now_s
    for _ in range(1200):
        with pytest.raises(UpstreamLost, match="keylane-ic-0: refused"):
            await world.tables.ready(GROUP)
        now_s += 0.1

    tries = len(world.journals)
    assert 6 <= tries <= 9, "after 1, 3, 7, 15, 31, 61, 91 s"
    assert caplog.text.count("a right of keylane's principal is missing") <= 4
    assert caplog.text.count("journal partition not loaded") == 0

    world.error = None
    now_s += REFUSED_PAUSE_S_MAX
    await world.tables.ready(GROUP)
    assert len(world.journals) == tries + 1


async def test_a_load_that_takes_long_is_not_waited_for_without_end() -> None:
    """A caller that waits is asked to come again; the load goes on, and the next finds it done."""
    world = World()
    world.may_load.clear()
    with pytest.raises(GroupBusy):
        async with world.tables.hold(GROUP, world.lock, 0.0):
            pass
    world.may_load.set()

    async with world.tables.hold(GROUP, world.lock, 0.0 if world.loaded else None):
        assert world.tables.table(GROUP) is world.loaded[0]

    assert len(world.journals) == 1


def test_loads_that_wait_for_a_broker_hold_up_no_others() -> None:
    """As many as may load beside each other hang; the next one comes all the same."""

    async def main() -> None:
        hung = asyncio.Event()

        async def open_one(partition: int) -> tuple[OffsetTable, Journal]:
            if partition < LOADS_AT_ONCE:
                await hung.wait()
            return OffsetTable(partition_count=LOADS_AT_ONCE + 1), Journal()

        tables = OwnedTables(
            Ownership(),
            open_one,
            partition_count=LOADS_AT_ONCE + 1,
            on_loaded=lambda _: None,
            on_dropped=lambda _: None,
        )
        groups = {ic_partition(name, LOADS_AT_ONCE + 1): name for name in map(str, range(1000))}
        loads = [spawn(tables.ready(groups[n]), f"load {n}") for n in range(LOADS_AT_ONCE)]
        await one_turn()

        await tables.ready(groups[LOADS_AT_ONCE])

        assert not any(load.done() for load in loads)
        hung.set()
        await asyncio.gather(*loads)
        assert tables._gate._value == LOADS_AT_ONCE

    run_virtual(main)


async def test_a_lock_that_is_not_free_in_time() -> None:
    """The lock is as it was: held by its holder, and free when that leaves."""
    world = World()
    await world.tables.ready(GROUP)
    async with world.tables.hold(GROUP, world.lock):
        with pytest.raises(GroupBusy):
            async with world.tables.hold(GROUP, world.lock, 0.0):
                pass
        assert world.lock.locked()
    assert not world.lock.locked()


async def test_a_lock_that_was_given_to_another_is_not_free() -> None:
    """It was left, and the one that waits has not gone on yet: a newcomer waits in bounds."""
    lock, order = GroupLock(), list[str]()

    async def wait_for_it() -> None:
        async with InTime(lock, None):
            order.append("first")

    async with InTime(lock, 0.0):
        assert not lock.is_free
        waiting = spawn(wait_for_it(), "waits")
        await one_turn()
    assert not lock.locked() and not lock.is_free

    with pytest.raises(GroupBusy):
        async with InTime(lock, 0.0):
            order.append("newcomer")

    await waiting
    assert order == ["first"] and lock.is_free


async def test_a_partition_that_is_lost_while_its_lock_is_waited_for() -> None:
    """A caller that waits is refused then, and leaves nothing behind."""
    world = World()

    async def wait_for_it() -> None:
        async with world.tables.hold(GROUP, world.lock):
            pass

    async with world.tables.hold(GROUP, world.lock):
        waiting = spawn(wait_for_it(), "waits")
        await one_turn()
        world.ownership.is_held = False

    with pytest.raises(NotCoordinator):
        await waiting
    assert world.lock.is_free and not world.tables._held


@pytest.mark.parametrize("turns", range(1, 4))
async def test_a_caller_that_gives_up_leaves_the_lock_free(turns: int) -> None:
    """However far it has come: its partition is loaded before the lock, and anew behind it."""
    world = World()
    await world.tables.ready(GROUP)

    async def wait_for_it() -> None:
        async with world.tables.hold(GROUP, world.lock):
            await asyncio.Event().wait()

    async with world.tables.hold(GROUP, world.lock):
        waiting = spawn(wait_for_it(), "waits")
        await one_turn()
        world.ownership.number += 1
        world.may_load.clear()
    for _ in range(turns):
        await one_turn()
    waiting.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waiting
    world.may_load.set()
    assert world.lock.is_free and not world.tables._held


@pytest.mark.parametrize("error", [UpstreamLost("away"), asyncio.CancelledError()])
async def test_what_fails_first_under_a_lock_frees_it(error: BaseException) -> None:
    """The block is not entered."""
    lock, entered = GroupLock(), list[str]()

    async def prepare() -> None:
        assert lock.locked()
        raise error

    with pytest.raises(type(error)):
        async with PreparedLock(InTime(lock, None), prepare):
            entered.append("entered")

    assert lock.is_free and not entered
