"""Places for a handler to run: on the event loop, in threads, or in processes.

Threads are daemons of this module: work that never ends does not keep a program from ending, as
`concurrent.futures` would. A process works on one record at a time, so that its death is the error
of that record alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from multiprocessing import resource_tracker
from typing import Any, Final, Literal, Protocol

from keylane.client.values import ConsumerRecord
from keylane.client.workers.errors import HandlerInvalid, ProcessDied, WorkTimedOut, place_of
from keylane.client.workers.process_child import STOP_SIGNALS, serve

log = logging.getLogger("keylane.workers")

ExecutorName = Literal["auto", "loop", "threads", "processes"]
EXECUTORS: Final[tuple[ExecutorName, ...]] = ("auto", "loop", "threads", "processes")
CONCURRENCY: Final = 64
LAST_WORDS_S: Final = 1.0
"""A process that was asked to end has this long before it is killed."""

Handler = Callable[[ConsumerRecord], Any]
Attempt = Callable[[ConsumerRecord], Awaitable[Any]]


class Executor(Protocol):
    """Runs attempts."""

    can_cancel: bool
    """True: a task that is cancelled in `call` ends the attempt."""
    concurrency: int

    def call(self, record: ConsumerRecord, /) -> Awaitable[Any]:
        """Return what to await, in the task of a worker, for one attempt."""

    def close(self) -> None:
        """Begin nothing more, and end what can be ended."""


def is_coroutine_function(handle: Handler) -> bool:
    """Return whether a handler is `async def`, or an object whose `__call__` is."""
    return inspect.iscoroutinefunction(handle) or inspect.iscoroutinefunction(
        getattr(handle, "__call__", None)  # noqa: B004 - its kind is asked, not whether it is there
    )


def make_executor(
    handle: Handler, name: ExecutorName, concurrency: int | None, timeout_s: float | None
) -> Executor:
    """Return what runs `handle`. Raises: HandlerInvalid."""
    is_async = is_coroutine_function(handle)
    if name == "auto":
        name = "loop" if is_async else "threads"
    if name != "loop" and is_async:
        raise HandlerInvalid(f'a coroutine function cannot run in executor="{name}"')
    if name == "processes":
        return ProcessExecutor(handle, concurrency or os.cpu_count() or 1, timeout_s)
    if name == "threads":
        return ThreadExecutor(handle, concurrency or CONCURRENCY, timeout_s)
    return LoopExecutor(handle, concurrency or CONCURRENCY, timeout_s)


class LoopExecutor:
    """Attempts on the event loop: coroutine functions, or plain ones that never block."""

    can_cancel = True

    def __init__(self, handle: Handler, concurrency: int, timeout_s: float | None) -> None:
        self.concurrency = concurrency
        self._handle, self._timeout_s = handle, timeout_s
        self.call: Attempt = handle if is_coroutine_function(handle) else self._plain
        if timeout_s is not None:
            self._unlimited = self.call
            self.call = self._limited

    async def _plain(self, record: ConsumerRecord) -> Any:
        result = self._handle(record)
        return await result if inspect.isawaitable(result) else result

    async def _limited(self, record: ConsumerRecord) -> Any:
        assert self._timeout_s is not None
        limit = asyncio.timeout(self._timeout_s)
        try:
            async with limit:
                return await self._unlimited(record)
        except TimeoutError as error:
            if limit.expired():
                raise WorkTimedOut(record, self._timeout_s) from error
            raise  # the handler's own

    def close(self) -> None:
        """Nothing: attempts end with the tasks that they run in."""


class _Job:
    """A record for a thread, and where its outcome goes."""

    __slots__ = ("context", "error", "future", "record", "result")

    def __init__(
        self,
        record: ConsumerRecord,
        future: asyncio.Future[Any],
        context: contextvars.Context | None,
    ) -> None:
        self.record, self.future, self.context = record, future, context
        self.result: Any = None
        self.error: BaseException | None = None


class _Crew:
    """Daemon threads that take jobs in order; one more is started while jobs find none idle.

    Outcomes reach the loop in groups: one wake-up for all that end before the loop has its turn.
    """

    def __init__(self, function: Handler, count_max: int, name: str) -> None:
        self._function, self._count_max, self._name = function, count_max, name
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._ended: deque[_Job] = deque()
        self._lock = threading.Lock()
        self._is_woken = False
        self._count = self._open = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def submit(
        self, record: ConsumerRecord, context: contextvars.Context | None
    ) -> asyncio.Future[Any]:
        """Give a record to a thread; on the loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = self._loop.create_future()
        self._open += 1
        if self._open > self._count and self._count < self._count_max:
            self._count += 1
            name = f"{self._name}-{self._count}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put(_Job(record, future, context))
        return future

    def close(self) -> None:
        """Let each thread end after its job."""
        for _ in range(self._count):
            self._jobs.put(None)

    def _work(self) -> None:
        assert self._loop is not None
        while (job := self._jobs.get()) is not None:
            try:
                if job.context is None:
                    job.result = self._function(job.record)
                else:
                    job.result = job.context.run(self._function, job.record)
            except BaseException as error:  # noqa: BLE001 - it is raised where the job is awaited
                job.error = error
            with self._lock:
                self._ended.append(job)
                is_first, self._is_woken = not self._is_woken, True
            if is_first:
                try:
                    self._loop.call_soon_threadsafe(self._give_outcomes)
                except RuntimeError:  # the loop is closed: nothing waits for the outcome
                    return

    def _give_outcomes(self) -> None:
        with self._lock:
            ended, self._ended = self._ended, deque()
            self._is_woken = False
        for job in ended:
            self._open -= 1
            if job.future.done():
                continue  # it was cancelled
            if job.error is None:
                job.future.set_result(job.result)
            elif isinstance(job.error, StopIteration):  # no future takes it
                job.future.set_exception(RuntimeError("the handler raised StopIteration"))
            else:
                job.future.set_exception(job.error)


class ThreadExecutor:
    """Attempts in threads. A thread cannot be stopped.

    An attempt that is over its time has failed, whatever it returns later; its key waits until the
    thread has ended, so that two attempts never work on a record at once.
    """

    can_cancel = False

    def __init__(self, handle: Handler, concurrency: int, timeout_s: float | None) -> None:
        self.concurrency = concurrency
        self._timeout_s = timeout_s
        self._crew = _Crew(handle, concurrency, "keylane-worker")
        self.call: Attempt = self._call if timeout_s is None else self._limited

    async def _call(self, record: ConsumerRecord) -> Any:
        result = await self._crew.submit(record, contextvars.copy_context())
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise HandlerInvalid(
                'the handler returned an awaitable: make it `async def`, or take executor="loop"'
            )
        return result

    async def _limited(self, record: ConsumerRecord) -> Any:
        assert self._timeout_s is not None
        future = self._crew.submit(record, contextvars.copy_context())
        done, _ = await asyncio.wait([future], timeout=self._timeout_s)
        if done:
            return future.result()
        log.warning("over its time limit: waiting for its thread %s", place_of(record))
        await asyncio.wait([future])
        raise WorkTimedOut(record, self._timeout_s) from future.exception()

    def close(self) -> None:
        """Let the threads end."""
        self._crew.close()


CHILDREN: Final = threading.Lock()
"""`Process.start` takes the exit codes of all children that have ended. Until it has noted one, the
thread that waits for that child finds no process and no exit code."""


class _Child:
    """A process that runs the handler, and the pipe to it."""

    def __init__(self, handle: Handler) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy the loop's locks
        self.pipe, end = context.Pipe()
        self.process = context.Process(
            target=serve, args=(end, handle), name="keylane-worker", daemon=True
        )
        resource_tracker.ensure_running()  # its own start would unblock them again
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            with CHILDREN:
                self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        end.close()  # else its death would not close the pipe

    def end(self) -> None:
        """Ask it to end; kill it if it does not."""
        self.pipe.close()
        self.process.join(LAST_WORDS_S)
        self.kill()

    def kill(self) -> int | None:
        """End it at once; return its exit code."""
        with CHILDREN:
            if self.process.is_alive():
                self.process.kill()
            self.process.join()
            exit_code = self.process.exitcode
            self.process.close()
        self.pipe.close()
        return exit_code


class ProcessExecutor:
    """Attempts in processes, for work of the CPU. Handler, records and results are pickled.

    An attempt that is over its time has its process killed; the next one gets a fresh one.
    """

    can_cancel = False

    def __init__(self, handle: Handler, concurrency: int, timeout_s: float | None) -> None:
        self.concurrency = concurrency
        self._handle, self._timeout_s = handle, timeout_s
        self._idle: list[_Child] = []  # the last one used is taken first: its caches are warm
        self._busy: set[_Child] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._crew = _Crew(self._in_thread, concurrency, "keylane-process")

    async def call(self, record: ConsumerRecord) -> Any:
        """Run the handler in a process."""
        return await self._crew.submit(record, None)

    def _in_thread(self, record: ConsumerRecord) -> Any:
        child = self._take_child(record)
        try:
            child.pipe.send(record)
            is_in_time = child.pipe.poll(self._timeout_s)
            answer = child.pipe.recv() if is_in_time else None
        except (EOFError, OSError):
            self._forget(child)
            raise ProcessDied(record, child.kill()) from None
        except BaseException:  # a record that cannot be pickled, or an answer that cannot be read
            self._forget(child)
            child.kill()
            raise
        if answer is None:
            self._forget(child)
            child.kill()
            raise WorkTimedOut(record, self._timeout_s or 0.0)
        self._give_back(child)
        result, error = answer
        if error is not None:
            raise error
        return result

    def _take_child(self, record: ConsumerRecord) -> _Child:
        with self._lock:
            child = self._idle.pop() if self._idle else None
            if child is not None:
                self._busy.add(child)
                return child
        child = _Child(self._handle)  # takes a part of a second
        with self._lock:
            if not self._is_closed:
                self._busy.add(child)
                return child
        raise ProcessDied(record, child.kill())

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            self._busy.discard(child)
            if not self._is_closed:
                self._idle.append(child)
                return
        child.end()

    def _forget(self, child: _Child) -> None:
        with self._lock:
            self._busy.discard(child)

    def close(self) -> None:
        """End the processes; those at work are killed."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
            for child in self._busy:
                child.process.kill()  # its thread meets the end of the pipe, and closes the rest
        self._crew.close()
        for child in idle:
            child.end()
