"""proxy/session/lock_holders.py: a group's lock in the hands of a handler."""

from __future__ import annotations

import asyncio

import pytest

from keylane.errors import GroupBusy, NotCoordinator
from keylane.journal.owned import GroupLock, InTime
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.session.lock_holders import HeldLock, LockHolders


class World:
    """A lock, and its holder."""

    def __init__(self) -> None:
        self.lock, self.holding, self.stats = GroupLock(), LockHolders(lambda _: None), ProxyStats()

    def held(self, lock: GroupLock | None = None) -> HeldLock:
        return HeldLock(InTime(lock or self.lock, 0.0), self.holding, self.stats)


async def test_the_task_holds_it_inside() -> None:
    """Neither before nor after, also when it fails."""
    world = World()

    async def handle() -> None:
        async with world.held():
            assert world.lock.locked()
            assert world.holding._tasks == {asyncio.current_task()}
            raise NotCoordinator("the group is another node's")

    with pytest.raises(NotCoordinator):
        await handle()

    assert world.lock.is_free and not world.holding._tasks
    assert world.stats.group_waits_refused == 0


async def test_a_lock_that_is_not_free_is_counted() -> None:
    """The task holds nothing then."""
    world = World()
    async with InTime(world.lock, None):
        with pytest.raises(GroupBusy):
            async with world.held():
                pass
        assert world.lock.locked() and not world.holding._tasks

    assert world.stats.group_waits_refused == 1


async def test_a_second_lock_that_is_not_free() -> None:
    """It is counted once, and the first one is given back."""
    world, other = World(), GroupLock()
    async with InTime(other, None):
        with pytest.raises(GroupBusy):
            async with world.held(), world.held(other):
                pass

    assert world.lock.is_free and not world.holding._tasks
    assert world.stats.group_waits_refused == 1
