"""Background tasks are kept alive and fail loudly, once."""

from __future__ import annotations

import asyncio
import gc
import logging
from itertools import pairwise

import pytest

from keylane import tasks
from keylane.tasks import Watched, running_count, spawn
from tests.virtual_time import run_virtual


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Lines of keylane.tasks: asyncio has one of each lost failure, when its garbage is found."""
    return [record for record in caplog.records if record.name == "keylane.tasks"]


def test_a_task_gives_its_result() -> None:
    """The task can be awaited as any other."""

    async def main() -> int:
        async def work() -> int:
            return 7

        return await spawn(work(), "work")

    assert asyncio.run(main()) == 7


def test_a_task_survives_the_garbage_collector() -> None:
    """The task ends though only `spawn` refers to it."""

    async def main() -> bool:
        done = asyncio.Event()

        async def work() -> None:
            await asyncio.sleep(0)
            done.set()

        spawn(work(), "work")
        gc.collect()
        async with asyncio.timeout(10):
            return await done.wait()

    assert run_virtual(main)


def test_a_failure_is_logged_once_with_its_name(caplog: pytest.LogCaptureFixture) -> None:
    """An exception of a task without a waiter is not lost."""

    async def main() -> None:
        async def work() -> None:
            raise RuntimeError("a bug of ours")

        task = spawn(work(), "reader orders-3")
        await asyncio.wait([task])

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())

    (record,) = logged(caplog)
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

    assert not logged(caplog)


def test_tasks_are_counted_until_they_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more while it runs, as many as before once it has ended."""
    # Those of another test may end meanwhile, in its own thread.
    monkeypatch.setattr(tasks, "_running", set())

    async def main() -> list[int]:
        go = asyncio.Event()
        counts = [running_count()]
        task = spawn(go.wait(), "waits")
        counts.append(running_count())
        go.set()
        await task
        await asyncio.sleep(0)
        return [*counts, running_count()]

    assert asyncio.run(main()) == [0, 1, 0]


def test_a_watched_task_begins_anew_with_growing_pauses(caplog: pytest.LogCaptureFixture) -> None:
    """Each end is logged with its trace and counted; while it rests, it says so."""
    starts: list[float] = []
    shown: list[list[str]] = []

    async def main() -> None:
        watched, loop = Watched(), asyncio.get_running_loop()

        async def follow() -> None:
            starts.append(loop.time())
            if len(starts) < 5:
                raise ValueError("a bug")
            await asyncio.sleep(1000)

        task = watched.run(follow, "follower")
        await asyncio.sleep(0.5)
        shown.append(watched.lines())
        await asyncio.sleep(30)
        shown.append(watched.lines())
        assert watched.restarts == {"follower": 4}
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with caplog.at_level(logging.ERROR, "keylane.tasks"):
        run_virtual(main)

    assert [later - earlier for earlier, later in pairwise(starts)] == [1.0, 2.0, 4.0, 8.0]
    assert shown == [["restarting: follower, after an error"], []]
    assert caplog.text.count("ValueError: a bug") == 4


def test_after_a_good_run_the_pause_is_short_again(caplog: pytest.LogCaptureFixture) -> None:
    """Also where it ends without an error, which none of them should."""
    starts: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def follow() -> None:
            starts.append(loop.time())
            await asyncio.sleep(100)

        task = Watched().run(follow, "follower")
        await asyncio.sleep(350)
        task.cancel()
        await asyncio.wait([task])

    with caplog.at_level(logging.ERROR, "keylane.tasks"):
        run_virtual(main)

    assert [later - earlier for earlier, later in pairwise(starts)] == [101.0] * 3
    assert "task ended: restarting name=follower" in caplog.text
