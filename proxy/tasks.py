"""Background tasks: the one place where keylane starts one.

In:    a coroutine and a name.  Out: a task that is kept alive and whose failure is logged.
Next:  whoever must be able to cancel it keeps the task.
Shell: asyncio.
Source: Python's asyncio documentation, `create_task`: the loop holds tasks weakly only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

log = logging.getLogger("keylane.tasks")
Result = TypeVar("Result")
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


def running_count() -> int:
    """How many tasks have been started here and have not ended."""
    return len(_running)


def _finished(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if task.cancelled():
        return
    error = task.exception()
    if error is not None:
        log.error("task failed name=%s error=%r", task.get_name(), error, exc_info=error)
