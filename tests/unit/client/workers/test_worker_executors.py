"""Handlers in threads and processes: outcomes, time limits, deaths."""

from __future__ import annotations

import asyncio
import functools
import os
import pickle
import signal
import threading
from typing import Any

import pytest

from keylane.client.values import ConsumerRecord
from keylane.client.workers import HandlerInvalid, ProcessDied, WorkTimedOut
from keylane.client.workers.executors import (
    Executor,
    LoopExecutor,
    ProcessExecutor,
    ThreadExecutor,
    _Child,
    is_coroutine_function,
    make_executor,
)
from keylane.client.workers.process_child import HandlerRaised, portable
from keylane.tasks import spawn
from tests.reference.worker_source import P0, make_record

RECORD = make_record(P0, 7, b"ada", b"v")


async def coroutine(record: ConsumerRecord) -> Any:
    return record.value


class AsyncCallable:
    async def __call__(self, record: ConsumerRecord) -> Any:
        return record.value


class Unportable(Exception):
    """Its pickled form cannot be read: two arguments, one kept."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)


def in_process(record: ConsumerRecord) -> Any:
    """What a process of the tests does, by the record's value."""
    match record.value:
        case b"pid":
            return os.getpid()
        case b"die":
            os.kill(os.getpid(), signal.SIGKILL)
        case b"stop":
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        case b"hang":
            threading.Event().wait(600)
        case b"raise":
            raise ValueError("no such order")
        case b"unportable":
            raise Unportable("one", "two")
        case b"unpicklable":
            return lambda: None
    return record.value


def begin(executor: Executor, record: ConsumerRecord) -> asyncio.Task[Any]:
    async def attempt() -> Any:
        return await executor.call(record)

    return spawn(attempt(), "attempt")


def with_value(value: bytes) -> ConsumerRecord:
    return make_record(P0, 7, b"ada", value)


def test_kinds_of_handlers():
    """Coroutine functions are known, also behind partial and as a callable object."""
    assert is_coroutine_function(coroutine)
    assert is_coroutine_function(functools.partial(coroutine))
    assert is_coroutine_function(AsyncCallable())
    assert not is_coroutine_function(in_process)


def test_choice_of_the_executor():
    """Coroutine functions run on the loop, others in threads; a wrong pair is refused."""
    assert isinstance(make_executor(coroutine, "auto", None, None), LoopExecutor)
    assert isinstance(make_executor(in_process, "auto", None, None), ThreadExecutor)
    assert isinstance(make_executor(in_process, "loop", None, None), LoopExecutor)
    processes = make_executor(in_process, "processes", None, None)
    assert isinstance(processes, ProcessExecutor)
    assert processes.concurrency == os.cpu_count()
    with pytest.raises(HandlerInvalid, match="threads"):
        make_executor(coroutine, "threads", None, None)


async def test_plain_handler_on_the_loop():
    """A plain handler runs on the loop where that is asked for; an awaitable of it is awaited."""
    executor = LoopExecutor(lambda record: coroutine(with_value(b"w")), 1, None)

    assert await executor.call(RECORD) == b"w"
    assert (
        await LoopExecutor(lambda record: threading.get_ident(), 1, None).call(RECORD)
        == threading.get_ident()
    )


async def test_threads_work_side_by_side():
    """As many attempts as threads are at work at once, and results come back."""
    gate = threading.Barrier(4, timeout=30)

    def handle(record: ConsumerRecord) -> int:
        gate.wait()
        return threading.get_ident()

    executor = ThreadExecutor(handle, 4, None)

    idents = await asyncio.gather(*(executor.call(RECORD) for _ in range(4)))
    executor.close()

    assert len(set(idents)) == 4
    assert threading.get_ident() not in idents


async def test_errors_of_threads():
    """What a thread raises is raised, StopIteration as another error; awaitables are refused."""

    def handle(record: ConsumerRecord) -> Any:
        if record.value == b"stop":
            raise StopIteration
        if record.value == b"coroutine":
            return coroutine(record)
        raise ValueError("no such order")

    executor = ThreadExecutor(handle, 1, None)

    with pytest.raises(ValueError, match="no such order"):
        await executor.call(RECORD)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await executor.call(with_value(b"stop"))
    with pytest.raises(HandlerInvalid, match="awaitable"):
        await executor.call(with_value(b"coroutine"))
    executor.close()


async def test_thread_over_its_time(caplog):
    """The attempt has failed, but only when its thread has ended: no two work on a record."""
    may_end, events = threading.Event(), []

    def handle(record: ConsumerRecord) -> None:
        may_end.wait(30)
        events.append("ended")

    executor = ThreadExecutor(handle, 1, 0.01)
    attempt = begin(executor, RECORD)
    # A thread that starts late must not be let go before the limit has passed.
    while "over its time" not in caplog.text and not attempt.done():  # noqa: ASYNC110 - of a log
        await asyncio.sleep(0.001)
    assert not attempt.done()
    may_end.set()

    with pytest.raises(WorkTimedOut, match="offset=7"):
        await attempt
    executor.close()

    assert events == ["ended"]


async def test_process_is_used_again():
    """A process works on one record after the other; it is not the parent."""
    executor = ProcessExecutor(in_process, 1, None)
    try:
        first, second = [await executor.call(with_value(b"pid")) for _ in range(2)]
    finally:
        executor.close()

    assert first == second != os.getpid()


async def test_errors_of_a_process():
    """Its error is raised, by its name if it cannot be pickled, and the process goes on."""
    executor = ProcessExecutor(in_process, 1, None)
    try:
        pid = await executor.call(with_value(b"pid"))
        with pytest.raises(ValueError, match="no such order"):
            await executor.call(with_value(b"raise"))
        with pytest.raises(HandlerRaised, match="Unportable"):
            await executor.call(with_value(b"unportable"))
        with pytest.raises((pickle.PicklingError, AttributeError)):
            await executor.call(with_value(b"unpicklable"))
        assert await executor.call(with_value(b"pid")) == pid
    finally:
        executor.close()


async def test_process_that_dies():
    """Its death is the error of its record; another process works on the next one."""
    executor = ProcessExecutor(in_process, 2, None)
    try:
        attempts = [begin(executor, with_value(value)) for value in (b"pid", b"die")]
        pid, died = await asyncio.gather(*attempts, return_exceptions=True)
        assert isinstance(died, ProcessDied)
        assert died.exit_code == -signal.SIGKILL
        assert "offset=7" in str(died)
        assert isinstance(pid, int)
        assert await executor.call(RECORD) == b"v"
    finally:
        executor.close()


async def test_a_signal_to_all_processes_leaves_work_in_progress_alone():
    """SIGTERM or Ctrl-C of the whole group: the parent has the record ended, and the process."""
    executor = ProcessExecutor(in_process, 1, None)
    try:
        pid = await executor.call(with_value(b"pid"))
        assert await executor.call(with_value(b"stop")) == b"stop"
        assert await executor.call(with_value(b"pid")) == pid
    finally:
        executor.close()


def test_a_signal_while_a_process_starts_leaves_it_alone():
    """It has not come to its own code yet; the signal waits until it can stay."""
    child = _Child(in_process)
    try:
        os.kill(child.process.pid or 0, signal.SIGTERM)
        child.pipe.send(with_value(b"v"))
        answer = child.pipe.recv()
    finally:
        child.end()

    assert answer == (b"v", None)


async def test_process_over_its_time():
    """It is killed, and the attempt has failed."""
    executor = ProcessExecutor(in_process, 1, 3.0)
    try:
        with pytest.raises(WorkTimedOut):
            await executor.call(with_value(b"hang"))
        executor._timeout_s = None  # the start of the next one counts, and may take long
        assert await executor.call(RECORD) == b"v"
    finally:
        executor.close()


def test_the_exit_code_of_a_process_that_died_as_another_one_started(monkeypatch):
    """The start has taken it, and not noted it, as the thread of the one that died asks for it."""
    dead = _Child(in_process)
    dead_pid = dead.process.pid or 0
    os.kill(dead_pid, signal.SIGKILL)
    os.waitid(os.P_PID, dead_pid, os.WEXITED | os.WNOWAIT)
    is_taken, is_asked, take = threading.Event(), threading.Event(), os.waitpid
    starter = threading.Thread(target=lambda: _Child(in_process).end())

    def waitpid(pid: int, options: int) -> tuple[int, int]:
        taken = take(pid, options)
        if threading.current_thread() is starter and taken[0] == dead_pid:
            is_taken.set()
            is_asked.wait(0.2)  # it cannot be while the start holds the lock
        return taken

    monkeypatch.setattr(os, "waitpid", waitpid)
    starter.start()
    assert is_taken.wait(60)
    try:
        assert dead.kill() == -signal.SIGKILL
    finally:
        is_asked.set()
        starter.join()


async def test_close_kills_processes_at_work():
    """A close does not wait for work that goes on."""
    executor = ProcessExecutor(in_process, 1, None)
    await executor.call(RECORD)
    attempt = begin(executor, with_value(b"hang"))
    await asyncio.wait([attempt], timeout=0.05)

    executor.close()

    with pytest.raises(ProcessDied):
        await attempt


async def test_cancelled_call_drops_the_outcome():
    """What a thread returns after its attempt was cancelled goes nowhere."""
    may_end = threading.Event()
    executor = ThreadExecutor(lambda record: may_end.wait(30), 1, None)
    attempt = begin(executor, RECORD)
    await asyncio.wait([attempt], timeout=0.01)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    may_end.set()

    assert await executor.call(RECORD) is True
    executor.close()


def test_portable_errors():
    """An error that can be pickled stays as it is."""
    error = ValueError("x")

    assert portable(error) is error
    assert isinstance(portable(Unportable("a", "b")), HandlerRaised)
