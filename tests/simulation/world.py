"""Virtual time: events, and processes, each with an event loop and clocks.

A process that hangs (SIGSTOP) is not turned, while its clocks go on; what came for it meanwhile is
there when it wakes up. One that is killed is never turned again: wherever it awaits, it ends.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from asyncio import format_helpers
from asyncio.events import _set_running_loop as set_running_loop
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, copy_context
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.virtual_time import InlineExecutor

if TYPE_CHECKING:
    from tests.simulation.broker import Broker

TURNS_MAX = 20_000
STILL_MAX = 200
"""Turns in one moment, until the clock goes on by its resolution."""
STEPS_MAX = 2_000_000
STORY_MAX = 20_000
CLOSE_TURNS_MAX = 200
CLOCK_RESOLUTION_S = 1e-9


class _Call(asyncio.TimerHandle):
    """A handle of this loop, for now or later: without what is there for debugging."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: tuple[Any, ...],
        loop: SimLoop,
        context: Context | None,
    ) -> None:
        self._when, self._callback, self._args, self._loop = when, callback, args, loop
        self._context = copy_context() if context is None else context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True  # the loop skips it
        self._callback = self._args = self._context = None  # type: ignore[assignment]

    def fail(self, error: BaseException) -> None:
        """Report its exception, as asyncio does."""
        source = format_helpers._format_callback_source(self._callback, self._args)
        said = {"message": f"Exception in callback {source}", "exception": error}
        self._loop.call_exception_handler(said)


class _NoSelector:
    """Nothing in the loop waits for a file."""

    def close(self) -> None:
        pass


class SimLoop(asyncio.BaseEventLoop):
    """A loop that runs only when it is turned, on its process's own clock.

    The queue of what is ready is asyncio's; timers lie in a heap of tuples, which Python compares
    without running our code.
    """

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process
        self._selector = _NoSelector()
        self._ready: deque[_Call]
        self._timers: list[tuple[float, int, _Call]] = []
        self._numbers = itertools.count()
        self.time = process.monotonic  # type: ignore[method-assign]
        # Each future is made by the one and asks the other: without a call in between.
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]
        self.get_debug = bool  # type: ignore[method-assign]
        self.set_exception_handler(process.note_exception)

    # Scheduling, as asyncio does it when it is not debugged.
    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        call = _Call(0.0, callback, args, self, context)
        self._ready.append(call)
        return call

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        when = self.time() + delay
        call = _Call(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), call))
        return call

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        call = _Call(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), call))
        return call

    def turn(self, now_s: float) -> None:
        """Run until nothing is to be done at this moment, which does not pass meanwhile."""
        ready, timers = self._ready, self._timers
        due_s = now_s + CLOCK_RESOLUTION_S
        for number in range(1, TURNS_MAX):
            if number % STILL_MAX == 0:
                # A timer that is early by a rounding error is set again for the same moment.
                self._process.monotonic_s += CLOCK_RESOLUTION_S
                due_s += CLOCK_RESOLUTION_S
            while timers and timers[0][0] < due_s:
                ready.append(heapq.heappop(timers)[2])
            if not ready:
                return
            for _ in range(len(ready)):
                call = ready.popleft()
                if call._cancelled:
                    continue
                try:
                    call._context.run(call._callback, *call._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio's
                    call.fail(error)
        raise AssertionError(f"{self._process} spins")

    def next_timer_s(self) -> float | None:
        """When the next timer is due."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """At once, in the loop's own thread: the order of events is the simulation's."""
        return asyncio.wrap_future(InlineExecutor().submit(func, *args), loop=self)

    def _write_to_self(self) -> None:
        """There is no other thread to be woken by."""

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> Any:
        return await self._process.world.network.connect(self._process, factory, host, port)

    async def create_server(  # type: ignore[override]
        self, factory: Callable[[], Any], host: str, port: int, **options: Any
    ) -> Any:
        return self._process.world.network.listen(self._process, factory, host, port, **options)


class Process:
    """A process on its own host."""

    def __init__(self, world: World, host: str, *, name: str = "", rate: float = 1.0) -> None:
        self.world, self.host, self.rate = world, host, rate
        self.name = name or host
        self._began_s = world.now_s
        self.monotonic_s = 1000.0 + 100.0 * len(world.processes)
        self.wall_s = 1_700_000_000.0
        self.suspended_s = 0.0
        """How long the machine was suspended: CLOCK_BOOTTIME counts it, CLOCK_MONOTONIC not."""
        self.is_dead = self.is_hung = False
        self._alarm_s = float("-inf")
        self._inbox: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self._unbegun: set[Coroutine[Any, Any, Any]] = set()
        self.loop = SimLoop(self)
        world.processes.append(self)

    def __repr__(self) -> str:
        return self.name

    # Clocks.
    def monotonic(self) -> float:
        return self.monotonic_s + self.rate * (self.world.now_s - self._began_s) - self.suspended_s

    def boottime(self) -> float:
        return self.monotonic() + self.suspended_s

    def wall(self) -> float:
        return self.wall_s + (self.world.now_s - self._began_s)

    # Turning.
    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        """Begin a task with the next turn."""
        self._unbegun.add(coroutine)
        self.post(self._begin, coroutine, name)

    def _begin(self, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
        self._unbegun.discard(coroutine)
        task = self.loop.create_task(coroutine, name=name)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.world.note_error(f"{self}: {task.get_name()}: {task.exception()!r}")

    def post(self, do: Callable[..., Any], *args: Any) -> None:
        """Have something done in the loop, when the process runs."""
        if not self.is_dead:
            self._inbox.append((do, args))
            self.world.woken[self] = None

    def _set_alarm(self, clock_s: float) -> None:
        """Have the world turn it when its next timer is due."""
        due_s = self.loop.next_timer_s()
        if due_s is None:
            return
        now_s, left_s = self.world.now_s, (due_s - clock_s) / self.rate
        at_s = now_s + left_s if left_s > 0.0 else now_s
        if at_s < self._alarm_s or self._alarm_s <= now_s:
            self._alarm_s = at_s
            self.world.after(at_s - now_s, self._ring)

    def _ring(self) -> None:
        clock_s, due_s = self.monotonic(), self.loop.next_timer_s()
        if due_s is not None and due_s < clock_s + CLOCK_RESOLUTION_S:
            self.world.wake(self)
        else:  # what it was set for was cancelled
            self._set_alarm(clock_s)

    def turn(self) -> None:
        """Do what is to be done now."""
        if self.is_dead or self.is_hung:
            return
        world, loop = self.world, self.loop
        world.current = self
        if self._inbox:
            inbox, self._inbox = self._inbox, []
            for do, args in inbox:
                loop.call_soon(do, *args)
        clock_s = self.monotonic()
        set_running_loop(loop)
        try:
            loop.turn(clock_s)
        finally:
            set_running_loop(None)
            world.current = None
        self._set_alarm(clock_s)

    # Ends.
    def kill(self) -> None:
        """Kill it, as by SIGKILL: it runs no more, and its connections are reset."""
        self.is_dead = True
        self._inbox.clear()
        while self._unbegun:
            self._unbegun.pop().close()
        self.world.network.reset_all(self)

    def suspend(self, seconds: float) -> None:
        """Suspend its machine: CLOCK_MONOTONIC stands still meanwhile."""
        self.is_hung = True

        def resume() -> None:
            self.suspended_s += seconds
            self._wake()

        self.world.after(seconds, resume)

    def hang(self, seconds: float) -> None:
        """Stop it for a while, as by SIGSTOP and SIGCONT."""
        self.is_hung = True
        self.world.after(seconds, self._wake)

    def _wake(self) -> None:
        self.is_hung = False
        self._alarm_s = float("-inf")
        self.world.wake(self)

    def note_exception(self, _loop: Any, context: dict[str, Any]) -> None:
        """Note an exception that asyncio would log."""
        if not self.is_dead:
            self.world.note_error(f"{self}: {context.get('message')} {context.get('exception')!r}")

    def close(self) -> None:
        """End all tasks, at the end of the run: what they do then counts no more."""
        self.is_dead = True
        while self._unbegun:
            self._unbegun.pop().close()
        self.world.current = self
        set_running_loop(self.loop)
        try:
            for _ in range(CLOSE_TURNS_MAX):
                tasks = asyncio.all_tasks(self.loop)
                if not tasks:
                    break
                for task in tasks:
                    task.cancel()
                self.loop.turn(self.monotonic())
        finally:
            set_running_loop(None)
            self.world.current = None
        self.loop.close()


class World:
    """Time, chance, and all processes."""

    def __init__(self, seed: int) -> None:
        from tests.simulation.network import Network

        self.now_s = 0.0
        self.rng = random.Random(seed)
        self.processes: list[Process] = []
        self.current: Process | None = None
        self.errors: list[str] = []
        self.story: list[str] = []
        self._events: list[tuple[float, int, Callable[[], Any]]] = []
        self.woken: dict[Process, None] = {}
        """Processes to turn before time goes on."""
        self._numbers = itertools.count()
        self.steps = 0
        self.is_closed = False
        self.network = Network(self)
        self.brokers: dict[str, Broker] = {}
        """Brokers by host."""

    def after(self, seconds: float, do: Callable[[], Any]) -> None:
        """Have something done in so many seconds."""
        heapq.heappush(self._events, (self.now_s + seconds, next(self._numbers), do))

    def wake(self, process: Process) -> None:
        """Turn a process before time goes on."""
        self.woken[process] = None

    def report(self, text: str) -> None:
        """Add a line to the story of this run."""
        if len(self.story) < STORY_MAX:
            self.story.append(f"{self.now_s:9.4f}  {text}")

    def note_error(self, text: str) -> None:
        """Something that must not be: the run is a breach."""
        if self.is_closed:
            return
        self.errors.append(f"{self.now_s:.4f} {text}")
        self.report(f"ERROR {text}")

    def run(self, until_s: float, *, until: Callable[[], bool] = lambda: False) -> None:
        """Let time pass, to a moment or a condition."""
        waiting = self._events
        while not until():
            self.steps += 1
            assert self.steps < STEPS_MAX, f"the world spins at {self.now_s:.4f}"
            if self.woken:
                woken, self.woken = self.woken, {}
                for process in woken:
                    process.turn()
                if self.woken:
                    continue
            if not waiting or waiting[0][0] >= until_s:
                self.now_s = max(self.now_s, until_s)
                return
            self.now_s = max(self.now_s, waiting[0][0])
            while waiting and waiting[0][0] <= self.now_s:
                heapq.heappop(waiting)[2]()

    def close(self) -> None:
        """End all loops."""
        self.is_closed = True
        for process in self.processes:
            process.close()
