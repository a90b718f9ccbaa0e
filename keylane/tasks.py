"""Background tasks: the one place where keylane starts one.

Source: Python's asyncio documentation, `create_task`: the loop holds tasks weakly only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

log = logging.getLogger("keylane.tasks")
Result = TypeVar("Result")
PAUSE_S_MIN: Final = 1.0
PAUSE_S_MAX: Final = 60.0
"""Pauses before a watched task begins anew: they double, and are short again after a good run."""
_running: Final[set[asyncio.Task[Any]]] = set()


def spawn(coroutine: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
    """Run `coroutine` beside the caller.

    The task is referenced until it ends, so it cannot vanish half done. An exception that it ends
    with is a bug of ours: it is logged once, with its trace. Awaiting the task raises it as well.
    """
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    _running.add(task)
    task.add_done_callback(_finished)
    return task


class Watched:
    """Tasks that never end by themselves: one that does is logged, and begun anew after a pause.

    Use: `run` in the place of `spawn`. What the task knows stays where it is; only it is new.
    """

    def __init__(self) -> None:
        self.restarts: Counter[str] = Counter()
        """By name."""
        self.resting: set[str] = set()
        """Names of those that wait for their next beginning."""
        self.on_failed: Callable[[str], None] = lambda _: None
        """Receives the name of one that has ended, and is begun anew."""

    def run(self, make: Callable[[], Coroutine[Any, Any, None]], name: str) -> asyncio.Task[None]:
        """Run what `make` gives, again and again until the task is cancelled."""
        self.restarts[name] += 0  # shown from now on
        return spawn(self._again(make, name), name)

    def lines(self) -> list[str]:
        """Return a line for each task that does not run now."""
        return [f"restarting: {name}, after an error" for name in sorted(self.resting)]

    async def _again(self, make: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        clock = asyncio.get_running_loop().time
        pause_s = PAUSE_S_MIN
        while True:
            started_s = clock()
            try:
                await make()
            except Exception:
                log.exception("task failed: restarting name=%s", name)
            else:
                log.error("task ended: restarting name=%s", name)
            if clock() - started_s > PAUSE_S_MAX:
                pause_s = PAUSE_S_MIN
            self.restarts[name] += 1
            self.resting.add(name)
            self.on_failed(name)
            await asyncio.sleep(pause_s)
            self.resting.discard(name)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)


def running_count() -> int:
    """Return the number of tasks that were started here and have not ended."""
    return len(_running)


def _finished(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        log.error("task failed name=%s error=%r", task.get_name(), error, exc_info=error)
