"""The workers: so many tasks that take records from the queues, work, and see to the outcome.

A task per worker and none per record: what is added to the handler's own time is a few
microseconds. Retries, time limits, spans and letters cost where they are used.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

from keylane.client.values import TopicPartition
from keylane.client.workers.errors import WorkFailed, WorkTimedOut, place_of
from keylane.client.workers.executors import Attempt
from keylane.client.workers.ledger import DoneLedger
from keylane.client.workers.letters import DeadLetters
from keylane.client.workers.queue import Work, WorkQueues
from keylane.client.workers.retry import Retry
from keylane.client.workers.source import Source, TakesOutcomes
from keylane.client.workers.tallies import Tallies
from keylane.tasks import spawn

log = logging.getLogger("keylane.workers")

TURN_S: Final = 0.001
"""Handlers that never wait let the loop go on after this long: it also has polls and heartbeats."""
LETTER_PAUSE_S_MIN: Final = 1.0
"""Before a letter is tried again."""


class HandlerCancelled(Exception):
    """The handler raised `asyncio.CancelledError`, though nothing cancelled it."""


class _Slot:
    """A worker, and what it works on."""

    __slots__ = ("is_cancelled", "task", "work")

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.work: Work | None = None
        self.is_cancelled = False
        """By the pool: the record is to end, the worker goes on."""


class Outcomes:
    """Decides what follows a failed attempt: another one, a letter, a rejection, or the end."""

    def __init__(
        self,
        source: Source,
        retry: Retry,
        letters: DeadLetters | None,
        tallies: Tallies,
        on_failure: Callable[[WorkFailed], None],
    ) -> None:
        self._source, self._retry, self._letters = source, retry, letters
        self._tallies, self._on_failure = tallies, on_failure

    def pause_s(self, work: Work, error: Exception) -> float | None:
        """Count a failed attempt; return the pause before the next one. None: it was the last."""
        work.attempts += 1
        self._tallies.failed_attempts += 1
        self._tallies.timeouts += isinstance(error, WorkTimedOut)
        kind = type(error).__qualname__
        log.debug(
            "attempt failed attempt=%s error=%s %s", work.attempts, kind, place_of(work.record)
        )
        if self._retry.is_over(work.attempts, error):
            return None
        return self._retry.pause_s(work.attempts)

    async def give_up(self, work: Work, error: Exception) -> bool:
        """End a record whose attempts are over. True: it is done, by its letter.

        Raises: LetterUnwritten with the pause before the next attempt to write it.
        """
        record = work.record
        if self._letters is not None:
            try:
                await self._letters.write(
                    record, self._source.settings.group_id, work.attempts, error
                )
            except Exception as cause:
                self._tallies.letter_failures += 1
                kind = type(cause).__qualname__
                log.warning(
                    "dead letter not written, its key waits error=%s %s", kind, place_of(record)
                )
                pause_s = max(LETTER_PAUSE_S_MIN, self._retry.pause_s(work.attempts))
                raise LetterUnwritten(pause_s) from cause
            self._tallies.dead_letters += 1
            return True
        if isinstance(self._source, TakesOutcomes):
            self._source.reject(record)
            self._tallies.rejected += 1
            return False
        failure = WorkFailed(record, work.attempts)
        failure.__cause__ = error
        self._on_failure(failure)
        return False


class LetterUnwritten(Exception):
    """A letter could not be written now."""

    def __init__(self, pause_s: float) -> None:
        super().__init__("a dead letter could not be written")
        self.pause_s = pause_s


class Pool:
    """Workers that share queues. All of it on one event loop.

    `on_end` is called after each record that ended while `is_watched`; `on_crash` with what a
    worker ended with, which is a bug or an interrupt.
    """

    def __init__(
        self,
        queues: WorkQueues,
        call: Attempt,
        ledger: DoneLedger,
        outcomes: Outcomes,
        tallies: Tallies,
    ) -> None:
        self._queues, self._call, self._ledger = queues, call, ledger
        self._outcomes, self._tallies = outcomes, tallies
        self._slots: list[_Slot] = []
        self._idle: list[asyncio.Future[None]] = []
        self._is_ending = False
        self._turn_ends_s, self._is_turn = 0.0, False
        self._timer: asyncio.TimerHandle | None = None
        self.is_watched = False
        self.on_end: Callable[[], None] = _nothing
        self.on_crash: Callable[[BaseException], None] = _nothing_of

    def start(self, count: int) -> None:
        """Start `count` workers."""
        self._loop = asyncio.get_running_loop()
        for number in range(count):
            slot = _Slot()
            slot.task = spawn(self._work(slot), f"keylane-worker-{number}")
            slot.task.add_done_callback(self._ended)
            self._slots.append(slot)

    def wake(self) -> None:
        """Let idle workers take what is ready."""
        for _ in range(min(self._queues.ready_count, len(self._idle))):
            self._idle.pop().set_result(None)

    def cancel(self, places: Collection[TopicPartition]) -> None:
        """Cancel the work on records of these; it is not done. Workers go on with others."""
        for slot in self._slots:
            if slot.work is not None and slot.work.record.topic_partition in places:
                assert slot.task is not None
                if not slot.is_cancelled:
                    slot.is_cancelled = True
                    slot.task.cancel()

    async def end(self, *, at_once: bool) -> None:
        """End the workers: after their records, or by cancelling these."""
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        for future in self._idle:
            future.set_result(None)
        self._idle.clear()
        tasks = [slot.task for slot in self._slots if slot.task is not None]
        if at_once:
            for task in tasks:
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _work(self, slot: _Slot) -> None:
        """Take, work, see to the outcome, until the pool ends. The hot path of the package."""
        queues, call, ledger, tallies = self._queues, self._call, self._ledger, self._tallies
        clock = self._loop.time
        while True:
            work = queues.take()
            if work is None:
                if self._is_ending:
                    return
                await self._rest()
                continue
            slot.work = work
            started_s = clock()
            try:
                if work.undelivered is not None:
                    raise work.undelivered
                result = await call(work.record)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - its outcome
                await self._ended_badly(slot, work, error)
            else:
                if queues.finished(work):
                    ledger.done(work.record, result)
                    tallies.done += 1
                else:
                    tallies.discarded += 1
            tallies.worked(clock() - started_s)
            slot.work = None
            if slot.is_cancelled:  # the handler went on all the same
                self._clear(slot)
            if self.is_watched:
                self.on_end()
            if not self._is_turn:
                self._begin_turn()
            elif clock() >= self._turn_ends_s:
                await asyncio.sleep(0)

    def _begin_turn(self) -> None:
        """Once in each pass of the loop in which a record ends: a handler that waits lets it go."""
        self._is_turn = True
        self._turn_ends_s = self._loop.time() + TURN_S
        self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_turn = False

    async def _rest(self) -> None:
        future = self._loop.create_future()
        self._idle.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future in self._idle:
                self._idle.remove(future)
            raise

    async def _ended_badly(
        self, slot: _Slot, work: Work, error: Exception | asyncio.CancelledError
    ) -> None:
        """See to a record whose attempt, or letter, has failed or was cancelled."""
        assert slot.task is not None
        try:
            if isinstance(error, asyncio.CancelledError):
                if slot.is_cancelled or slot.task.cancelling():
                    raise error
                error = HandlerCancelled("the handler, or what it waited for, cancelled itself")
            if work.undelivered is not None:
                await self._give_up(work, error)
            elif slot.is_cancelled or work.term != work.partition.term:
                self._discard(work)
            else:
                await self._failed(work, error)
        except asyncio.CancelledError:
            self._discard(work)
            slot.work = None
            if not slot.is_cancelled:
                raise
            self._clear(slot)

    async def _failed(self, work: Work, error: Exception) -> None:
        pause_s = self._outcomes.pause_s(work, error)
        if pause_s is None:
            await self._give_up(work, error)
        else:
            self._put_back(work, pause_s)

    async def _give_up(self, work: Work, error: Exception) -> None:
        try:
            is_done = await self._outcomes.give_up(work, error)
        except LetterUnwritten as unwritten:
            work.undelivered = error
            self._put_back(work, unwritten.pause_s)
            return
        if self._queues.finished(work) and is_done:
            self._ledger.done(work.record, None)

    def _put_back(self, work: Work, pause_s: float) -> None:
        now_s = self._loop.time()
        if not self._queues.retry(work, now_s + pause_s):
            self._discard(work)
            return
        if work.undelivered is None:
            self._tallies.retries += 1
        self._set_timer()

    def _set_timer(self) -> None:
        due_s = self._queues.retry_due_s
        if due_s is None:
            return
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due_s, self._wake_retries)

    def _wake_retries(self) -> None:
        assert self._timer is not None
        now_s = max(self._loop.time(), self._timer.when())  # timers may be early by a clock's tick
        self._timer = None
        self._queues.wake(now_s)
        self.wake()
        self._set_timer()

    def _discard(self, work: Work) -> None:
        self._queues.finished(work)
        self._tallies.discarded += 1

    def _clear(self, slot: _Slot) -> None:
        """Forget that the record was cancelled. Raises CancelledError if the worker is, too."""
        assert slot.task is not None
        slot.is_cancelled = False
        if slot.task.uncancel():
            raise asyncio.CancelledError

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            error = task.exception()
            if error is not None:
                self.on_crash(error)


def _nothing() -> None:
    pass


def _nothing_of(error: Any) -> None:
    pass
