"""Background tasks are kept alive and fail loudly, once."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from keylane.proxy.tasks import running_count, spawn


def test_a_task_gives_its_result() -> None:
    """The task can be awaited as any other."""

    async def main() -> int:
        async def work() -> int:
            return 7

        return await spawn(work(), "work")

    assert asyncio.run(main()) == 7


def test_a_task_survives_the_garbage_collector() -> None:
    """Nobody but `spawn` refers to the task, and it still ends."""

    async def main() -> bool:
        done = asyncio.Event()

        async def work() -> None:
            await asyncio.sleep(0)
            done.set()

        spawn(work(), "work")
        gc.collect()
        async with asyncio.timeout(10):
            return await done.wait()

    assert asyncio.run(main())


def test_a_failure_is_logged_once_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """An exception of a task that nobody awaits is not lost."""

    async def main() -> None:
        async def work() -> None:
            raise RuntimeError("a bug of ours")

        task = spawn(work(), "reader orders-3")
        await asyncio.wait([task])

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())

    (record,) = caplog.records
    assert "reader orders-3" in record.message and record.exc_info


def test_a_cancelled_task_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    """Cancelling is how shells stop; it is no failure."""

    async def main() -> None:
        task = spawn(asyncio.Event().wait(), "waits")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())

    assert not caplog.records


def test_tasks_are_counted_until_they_end() -> None:
    """One more while it runs, as many as before once it has ended."""

    async def main() -> list[int]:
        go = asyncio.Event()
        counts = [running_count()]
        task = spawn(go.wait(), "waits")
        counts.append(running_count())
        go.set()
        await task
        await asyncio.sleep(0)
        return [*counts, running_count()]

    before, during, after = asyncio.run(main())

    assert (during, after) == (before + 1, before)
