"""Workers: a handler over the records of a consumer, many at once, in the order of each key.

The poll loop here feeds the queues and follows rebalances; the pool works. A revoke is delayed
while work of its partition is in progress (KIP-983), and completed when that is committed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Final, Self, Unpack

from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.client.workers.executors import Handler, make_executor
from keylane.client.workers.ledger import DoneLedger, Marks
from keylane.client.workers.metrics import WorkersCollector
from keylane.client.workers.pauses import QueueRoom, plan_pauses, pressures_of
from keylane.client.workers.pool import Outcomes, Pool
from keylane.client.workers.progress_line import INTERVAL_S, ProgressLine
from keylane.client.workers.queue import WorkQueues
from keylane.client.workers.settings import WorkerOptions, WorkerSettings
from keylane.client.workers.signals import stop_signals
from keylane.client.workers.source import Measured, Source, TakesOutcomes, lags_of, records_of
from keylane.client.workers.spans import with_spans
from keylane.client.workers.tallies import Tallies
from keylane.client.workers.view import WorkersView
from keylane.errors import ConfigInvalid
from keylane.tasks import spawn

log = logging.getLogger("keylane.workers")

PASSED_TIMES: Final = 2
"""A record is passed by so many later ones at most, in terms of those that may wait."""
POLL_MS: Final = 500
"""A poll without records takes this long; what a stop waits for at most."""
POLL_PAUSED_MS: Final = 100
"""While some partitions are paused: they are resumed by a poll, with half of their part waiting."""
DRAIN_PAUSE_S: Final = 0.05
"""Between two polls without records, while work of a revoked partition goes on."""
FULL_PAUSE_S_MAX: Final = 1.0
"""Between two polls while all is paused: a revoke is seen this late."""
COMMIT_AGAIN_S: Final = 1.0
"""A commit that failed is repeated this late, if each mark asks for one and none comes."""
POLLS_PER_INTERVAL: Final = 3
"""Polls go on at least this often within the group's longest interval."""


class Workers:
    """Runs `handle` on the records of a source.

    `handle(record)` is a coroutine function, which runs on the event loop, or a plain one, which
    runs in threads, or in processes with executor="processes". A record is done when it returns.

    ```
    async with Consumer("orders", group_id="billing") as consumer:
        async with Workers(consumer, handle, retry=Retry(attempts=3)) as workers:
            await workers.run()
    ```

    Options are the fields of `WorkerSettings`. A crash repeats what was not finished, and what was
    finished since the last commit.

    Raises: ConfigInvalid, HandlerInvalid.
    """

    def __init__(self, source: Source, handle: Handler, **options: Unpack[WorkerOptions]) -> None:
        settings = WorkerSettings(**options)
        if getattr(source.settings, "revoke_completion", None) == "same-poll":
            raise ConfigInvalid(
                "revoke_completion: workers need 'next-poll', so that work ends before a partition"
                " goes"
            )
        self._settings, self._source = settings, source
        self._executor = make_executor(
            handle, settings.executor, settings.concurrency, settings.timeout_s
        )
        self.tallies: Tallies = Tallies()
        self._queued_max = settings.queued_max(self._executor.concurrency)
        self._partition_count = 0
        """Assigned, when pauses were planned last."""
        self._queues = WorkQueues(settings.order)
        self._queues.on_low = self._ran_low
        self._ledger = self._make_ledger()
        self._poke = asyncio.Event()
        self._paused: frozenset[TopicPartition] = frozenset()
        self._leaving: dict[TopicPartition, float] = {}
        """Partitions that are asked back, with the time when that was seen."""
        self._lost_seen: frozenset[TopicPartition] = frozenset()
        self._failure: BaseException | None = None
        self._is_stopping = self._is_at_once = False
        self._can_poll = True
        self._has_ended = False
        self._waits_for_room = self._was_full = False
        self._waits_for: frozenset[TopicPartition] = frozenset()
        self._timers: set[asyncio.TimerHandle] = set()
        self._collector = WorkersCollector(settings.name, self.tallies, self.view)
        outcomes = Outcomes(source, settings.retry, settings.dead_letters, self.tallies, self._fail)
        call = with_spans(self._executor.call, source.settings.group_id)
        self._pool = Pool(self._queues, call, self._ledger, outcomes, self.tallies)
        self._pool.on_end = self._look
        self._pool.on_crash = self._fail

    async def __aenter__(self) -> Self:
        if self._settings.metrics is not None:
            self._settings.metrics.register(self._collector)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._settings.metrics is not None:
            self._settings.metrics.unregister(self._collector)
        self._executor.close()

    async def run(self) -> None:
        """Work until `stop`, a signal, or an error. Once only.

        Work in progress ends within `shutdown_timeout_s`, and what is done is committed; a second
        signal ends it at once, without a commit. The source stays open.

        Raises: WorkFailed for a record whose attempts are over; what the source raises.
        """
        self._loop = asyncio.get_running_loop()
        self._source.mark_done()  # from now on only marked records count as done
        self._pool.start(self._executor.concurrency)
        self._committing = spawn(self._commit_again(), "keylane-workers-commit")
        beside = [self._committing]
        if self._shows_progress():
            beside.append(spawn(self._show_progress(), "keylane-workers-progress"))
        is_clean = False
        try:
            with stop_signals(self._on_signal, is_wanted=self._settings.signals):
                await self._poll_until_stopped()
                is_clean = await self._finish()
                self._has_ended = True
                self._ledger.commit_wanted.set()
                await asyncio.wait([self._committing])
        finally:
            for timer in self._timers:
                timer.cancel()
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await self._pool.end(at_once=not is_clean)
        if not self._is_at_once:
            await self._commit_last()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Begin no further record; `run` returns when what is in progress has ended."""
        self._is_stopping = True
        self._release(self._queues.close())
        self._poke.set()

    def view(self) -> WorkersView:
        """Return the counts of now. Cost: the keys that are held."""
        queues = self._queues
        lag = None
        if isinstance(self._source, Measured):
            lag = self._source.metrics().get("records_behind")
        return WorkersView(
            in_flight=queues.at_work_count,
            queued=queues.queued_count,
            keys_waiting=queues.keys_waiting_count(),
            retries_waiting=queues.retry_count,
            held_bytes=queues.held_bytes,
            paused=len(self._paused),
            lag=lag,
        )

    def _make_ledger(self) -> DoneLedger:
        is_prompt = self._settings.commit_interval_s == 0
        return Marks(self._source, self.tallies, is_prompt=is_prompt)

    def _fail(self, error: BaseException) -> None:
        """Keep the first error, and stop: nothing further begins, not even behind the record."""
        if self._failure is None:
            self._failure = error
        self.stop()

    def _on_signal(self) -> None:
        if self._is_stopping:
            self._is_at_once = True
            self._committing.cancel()
            self._poke.set()
        else:
            log.info(
                "stopping at a signal: work in progress ends in_flight=%s",
                self._queues.at_work_count,
            )
            self.stop()

    # polls

    async def _poll_until_stopped(self) -> None:
        while not self._is_stopping:
            try:
                count = await self._poll(self._poll_timeout_ms(), self._room().records_max())
            except Exception as error:  # noqa: BLE001 - `run` raises it, after the work
                self._can_poll = False
                self._fail(error)
                return
            await self._pause_between(count)

    def _room(self) -> QueueRoom:
        queues, settings = self._queues, self._settings
        room = QueueRoom(
            queues.queued_count + self._ledger.held_count,
            self._queued_max,
            queues.held_bytes,
            settings.max_queued_bytes,
            partition_count=self._partition_count,
        )
        if queues.added_count:
            room = room._replace(record_bytes=queues.added_bytes / queues.added_count)
        return room

    def _poll_timeout_ms(self) -> int:
        if self._leaving or self._is_shut():
            return 0
        return POLL_PAUSED_MS if self._paused else POLL_MS

    def _is_shut(self) -> bool:
        """Return whether a poll can bring nothing before queues are half empty."""
        if self._room().is_full:
            return True
        return bool(self._paused) and self._source.assignment() <= self._paused

    async def _poll(self, timeout_ms: int, records_max: int) -> int:
        """Poll once, follow what it says of partitions, queue its records. Return their count."""
        await self._prepare_poll()
        self._look_before_poll()
        while self._is_any_drained():
            await self._ledger.commit()  # the poll completes their revoke
            if not self._look_before_poll():
                break
        self._ledger.flush()
        if not self._is_stopping:
            self._change_pauses()
            self._queues.press(pressures_of(lags_of(self._source)))
        self._pool.is_watched = bool(self._paused)
        try:
            polled = await self._source.getmany(
                timeout_ms=timeout_ms,
                max_records=records_max,
                max_partition_records=self._room().records_max_of_one(),
            )
        finally:
            self._pool.is_watched = False
        self._lost_seen = frozenset()
        self._look_at_lost()
        self._look_at_revokes()
        records = records_of(polled)
        if self._queues.is_closed:
            self._release(records)
            return 0
        count = self._queues.add(self._took(records))
        self._pool.wake()
        return count

    async def _prepare_poll(self) -> None:
        """Set positions back, where exactly-once needs it."""

    def _took(self, records: Iterable[ConsumerRecord]) -> Iterable[ConsumerRecord]:
        """Note what is about to be queued, where exactly-once needs it."""
        return records

    async def _pause_between(self, count: int) -> None:
        """Wait before the next poll, if it could bring nothing: for room, or the end of work."""
        if self._is_any_drained():
            return  # the next poll gives it up
        if self._is_shut():
            interval_s = self._source.settings.max_poll_interval_ms / 1000 / POLLS_PER_INTERVAL
            await self._wait(min(FULL_PAUSE_S_MAX, interval_s))
        elif not count and self._unfinished_leaving():
            await self._wait(DRAIN_PAUSE_S)
        else:
            await asyncio.sleep(0)  # a source that never waits must not keep workers waiting

    async def _wait(self, wait_s: float) -> None:
        """Wait until `_look` sees what the poll loop waits for, at most `wait_s`."""
        self._poke.clear()
        if self._is_at_once or (self._is_stopping and not self._queues.at_work_count):
            return
        self._waits_for_room, self._was_full = self._is_shut(), self._room().is_full
        self._waits_for = self._unfinished_leaving()
        self._pool.is_watched = True
        try:
            async with asyncio.timeout(wait_s):
                await self._poke.wait()
        except TimeoutError:
            pass  # time for a poll
        finally:
            self._pool.is_watched = False

    def _look(self) -> None:
        """After each record, while the poll loop waits: wake it if it may go on.

        A poll that goes on without the partitions that are paused gets them as well then.
        """
        waits = self._is_stopping or self._was_full or self._waits_for
        if not waits and 2 * self._queues.queued_count > self._queued_max:
            return  # by count alone; to ask for the room costs microseconds, and each record would
        if self._paused and not self._is_stopping and not self._room().is_half_full:
            self._change_pauses()
        if self._is_stopping:
            may_go_on = not self._queues.at_work_count
        else:
            has_room = self._waits_for_room and self._has_room()
            may_go_on = has_room or any(
                not self._queues.unfinished_count(place) for place in self._waits_for
            )
        if may_go_on:
            self._poke.set()

    def _has_room(self) -> bool:
        room = self._room()
        return room.has_spare if self._was_full else not room.is_half_full

    def _ran_low(self) -> None:
        """A partition that is paused has few records left: it goes on, before the others do."""
        if not self._is_stopping and not self._room().is_full:
            self._change_pauses()
            self._poke.set()

    def _change_pauses(self) -> None:
        assigned = self._source.assignment()
        self._partition_count = len(assigned)
        self._queued_max = self._settings.queued_max(
            self._executor.concurrency, self._partition_count
        )
        self._queues.passed_max = PASSED_TIMES * self._queued_max
        others = frozenset(self._source.paused()) - self._paused  # the application's own
        plan = plan_pauses(
            self._room(), assigned - others, self._paused, self._queues.waiting_count
        )
        if plan.pause:
            self._source.pause(*plan.pause)
        if plan.resume:
            self._source.resume(*plan.resume)
        self._paused = (self._paused & assigned | plan.pause) - plan.resume
        self._queues.watch(self._paused, self._room().low_count)

    # partitions that go

    def _is_any_drained(self) -> bool:
        return any(not self._queues.unfinished_count(place) for place in self._leaving)

    def _unfinished_leaving(self) -> frozenset[TopicPartition]:
        return frozenset(place for place in self._leaving if self._queues.unfinished_count(place))

    def _look_at_lost(self) -> None:
        lost = frozenset(self._source.lost()) - self._lost_seen
        if not lost:
            return
        self._lost_seen |= lost
        self._queues.lose(lost)
        self._ledger.forget(lost)
        for place in lost:
            self._leaving.pop(place, None)
        if self._executor.can_cancel:
            self._pool.cancel(lost)

    def _look_at_revokes(self) -> None:
        asked = self._source.to_be_revoked()
        gone = self._leaving.keys() - asked
        if gone:  # given up, and perhaps assigned again by this very poll
            self._queues.unhold(gone)
            self._ledger.forget(gone)
            for place in gone:
                del self._leaving[place]
        self._hold(asked - self._leaving.keys())
        unfinished = self._unfinished_leaving()
        if unfinished:
            self._source.delay_revoke(unfinished)

    def _look_before_poll(self) -> frozenset[TopicPartition]:
        """See what came since the last poll: the next one forgets losses and completes revokes.

        Returns what is newly asked back.
        """
        self._look_at_lost()
        new = self._source.to_be_revoked() - self._leaving.keys()
        self._hold(new)
        unfinished = self._unfinished_leaving() & new
        if unfinished:
            self._source.delay_revoke(unfinished)
        return new

    def _hold(self, new: frozenset[TopicPartition]) -> None:
        """Let nothing more of these begin: they are asked back."""
        if not new:
            return
        self._release(self._queues.hold(new))
        now_s = self._loop.time()
        self._leaving.update(dict.fromkeys(new, now_s))
        if self._settings.drain_timeout_s is not None:
            due_s = now_s + self._settings.drain_timeout_s
            timer = self._loop.call_at(due_s, self._drain_over, new, now_s)
            self._timers = {each for each in self._timers if each.when() > now_s} | {timer}

    def _drain_over(self, places: frozenset[TopicPartition], since_s: float) -> None:
        """End the work that still goes on of these; what cannot be cancelled does not count."""
        still = {
            place
            for place in places
            if self._leaving.get(place) == since_s and self._queues.unfinished_count(place)
        }
        if not still:
            return
        log.warning("work did not end in time partitions=%s", sorted(still))
        if self._executor.can_cancel:
            self._pool.cancel(still)
        else:
            self._queues.lose(still)
            self._queues.hold(still)
            self._poke.set()

    def _release(self, records: Iterable[ConsumerRecord]) -> None:
        if isinstance(self._source, TakesOutcomes):
            self._source.release(*records)

    # the end

    async def _finish(self) -> bool:
        """Let what is in progress end, with polls meanwhile. False: it did not in time."""
        ends_s = self._loop.time() + self._settings.shutdown_timeout_s
        while self._queues.at_work_count and not self._is_at_once:
            left_s = ends_s - self._loop.time()
            if left_s <= 0:
                log.warning("work did not end in time in_flight=%s", self._queues.at_work_count)
                break
            await self._wait(min(left_s, FULL_PAUSE_S_MAX))
            if self._can_poll and self._queues.at_work_count and not self._is_at_once:
                await self._poll_at_end()
        return not self._queues.at_work_count

    async def _poll_at_end(self) -> None:
        """Stay in the group while work ends."""
        places = self._source.assignment() - self._paused
        if places:
            self._source.pause(*places)
            self._paused |= places
        try:
            await self._poll(0, 1)
        except Exception as error:  # noqa: BLE001 - `run` raises it, after the work
            self._can_poll = False
            self._fail(error)

    async def _commit_last(self) -> None:
        try:
            await self._ledger.commit()
        except Exception as error:
            if self._failure is None:
                raise
            log.warning("the last commit has failed as well: %s", error)

    async def _commit_again(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.commit_interval_s or COMMIT_AGAIN_S):
                    await self._ledger.commit_wanted.wait()
            except TimeoutError:
                pass  # it is time
            self._ledger.commit_wanted.clear()
            if self._has_ended:
                return  # `run` commits the rest
            try:
                await self._ledger.commit()
            except Exception as error:  # noqa: BLE001 - `run` raises it, after the work
                self._fail(error)
                return
            if self._ledger.held_count and self._waits_for_room:
                self._poke.set()

    def _shows_progress(self) -> bool:
        wanted = self._settings.progress
        return sys.stderr.isatty() if wanted is None else wanted

    async def _show_progress(self) -> None:
        line = ProgressLine(sys.stderr, self._loop.time())
        try:
            while True:
                await asyncio.sleep(INTERVAL_S)
                tallies = self.tallies
                line.show(self.view(), tallies.done, tallies.retries, self._loop.time())
        finally:
            line.end()
