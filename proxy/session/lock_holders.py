"""Handlers that hold a group's lock, and the time that a broker has to answer them meanwhile.

Others wait for the lock. A broker that throttles a principal answers, and takes the next request
of the connection only when its time is over (KIP-219), which may be minutes.
A JoinGroup or SyncGroup is answered when the other members have come, and those may need the lock
before they come. So no holder asks behind one: the question would wait for the lock that it holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from keylane.errors import GroupBusy
from keylane.journal.owned import InTime, PreparedLock
from keylane.proxy.net.response_order import Slot
from keylane.proxy.runtime.stats import ProxyStats
from keylane.wire.header import ApiKey

HELD_ANSWER_S: Final = 10.0
"""Twice what a coordinator gives a commit by default (`offsets.commit.timeout.ms`)."""
TOO_SLOW: Final = "the broker has not answered in {:g} s while a group's lock is held"
WAITS_FOR_MEMBERS: Final = frozenset({ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP})
"""Requests that are answered when the group's other members have sent theirs."""


class LockHolders:
    """Handlers of one connection that hold a lock."""

    def __init__(self, on_late: Callable[[str], None], *, answer_s: float = HELD_ANSWER_S) -> None:
        self._on_late, self._answer_s = on_late, answer_s
        self._tasks: set[asyncio.Task[Any]] = set()
        self._joins: set[Slot] = set()

    def note_request(self, api_key: int, slot: Slot) -> None:
        """Note a request of the client that the broker is about to get."""
        if api_key in WAITS_FOR_MEMBERS:
            self._joins.add(slot)

    def note_answer(self, slot: Slot) -> None:
        """Note that a request of the client is answered."""
        self._joins.discard(slot)

    def begin(self) -> asyncio.Task[Any] | None:
        """Count the current task as a holder until `end`, which gets the result of this.

        None: it holds another lock already, which it gives back later.
        """
        task = asyncio.current_task()
        assert task is not None, "handlers are tasks"
        if task in self._tasks:
            return None
        self._tasks.add(task)
        return task

    def end(self, begun: asyncio.Task[Any] | None) -> None:
        """Count the task no more: it is about to give the lock back."""
        if begun is not None:
            self._tasks.discard(begun)

    def expect_no_join(self) -> None:
        """Call before a question to the broker.

        The client goes on beside work of keylane's own, and may have joined again since the lock
        was taken. Raises: GroupBusy, for a holder whose question would go behind that request.
        """
        if self._joins and self._tasks and asyncio.current_task() in self._tasks:
            raise GroupBusy("the member is joining again")

    def bound(self, answer: asyncio.Future[Any]) -> None:
        """Bound the time of an answer, if the task that waits for it holds a lock."""
        if self._tasks and asyncio.current_task() in self._tasks:
            late = TOO_SLOW.format(self._answer_s)
            timer = asyncio.get_running_loop().call_later(self._answer_s, self._on_late, late)
            answer.add_done_callback(lambda _: timer.cancel())


class HeldLock:
    """A group's lock in the hands of a handler. No generator: each commit enters it."""

    __slots__ = ("_begun", "_holding", "_lock", "_stats")

    def __init__(
        self, lock: PreparedLock | InTime, holding: LockHolders, stats: ProxyStats
    ) -> None:
        self._lock, self._holding, self._stats = lock, holding, stats
        self._begun: asyncio.Task[Any] | None = None

    async def __aenter__(self) -> None:
        """Raises: GroupBusy, NotCoordinator, UpstreamLost."""
        try:
            await self._lock.__aenter__()
        except GroupBusy:
            self._stats.group_waits_refused += 1
            raise
        self._begun = self._holding.begin()

    async def __aexit__(self, *error: object) -> None:
        self._holding.end(self._begun)
        await self._lock.__aexit__(*error)
