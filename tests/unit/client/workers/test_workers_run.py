"""Workers over a source in memory, on a virtual clock: order, failures, commits, ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from keylane.client.values import ConsumerRecord
from keylane.client.workers import DeadLetters, Retry, Workers, WorkFailed, WorkTimedOut
from keylane.errors import ConfigInvalid, UpstreamLost
from keylane.tasks import spawn
from tests.reference.worker_run import (
    NEVER_S,
    Journal,
    by_key,
    offsets,
    run,
    stop_after,
    stop_when_done,
    when,
)
from tests.reference.worker_source import P0, P1, FakeSource, make_record, make_records
from tests.virtual_time import run_virtual

ADA_BEN = [b"ada", b"ada", b"ben", b"ada", b"ben", b"ada"]


def test_keys_side_by_side_each_in_order():
    """Records of a key are worked in order, one at a time; other keys do not wait for them."""
    journal = Journal(lambda record: 5.0 if record.key == b"ada" else 1.0)

    source = run(lambda: FakeSource(*make_records(P0, ADA_BEN)), journal, stop_when_done(6))

    assert by_key(journal.begun) == {b"ada": [0, 1, 3, 5], b"ben": [2, 4]}
    assert offsets(journal.ended)[:2] == [2, 4]
    assert sorted(offsets(source.done)) == list(range(6))


def test_no_more_at_once_than_concurrency():
    """At most `concurrency` records are at work, and so many are."""
    journal = Journal()

    run(
        lambda: FakeSource(*make_records(P0, [None] * 50)),
        journal,
        stop_when_done(50),
        concurrency=7,
    )

    assert journal.most_at_once == 7


def test_order_of_a_partition():
    """With order="partition" one record of a partition is at work, partitions side by side."""
    journal = Journal()
    records = [*make_records(P0, [b"a", b"b", None]), *make_records(P1, [b"a", b"b"])]

    run(lambda: FakeSource(*records), journal, stop_when_done(5), order="partition")

    begun = [each for each in journal.begun if each.partition == 0]
    assert offsets(begun) == [0, 1, 2]
    assert journal.most_at_once == 2


def test_no_order():
    """With order="none" records of a key are at work at once."""
    at_once = Counter[bytes | None]()

    async def handle(record: ConsumerRecord) -> None:
        at_once[record.key] += 1
        await asyncio.sleep(1)

    async def script(source: FakeSource, workers: Workers) -> None:
        await asyncio.sleep(0.5)
        workers.stop()

    run(lambda: FakeSource(*make_records(P0, [b"ada"] * 3)), handle, script, order="none")

    assert at_once == {b"ada": 3}


def test_failed_attempts_are_repeated_while_other_keys_go_on():
    """A failure is tried again after its back-off; its key waits, another one does not."""
    times: list[float] = []

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 0:
            times.append(asyncio.get_running_loop().time())
            if len(times) < 3:
                raise ConnectionError("away")

    source = run(
        lambda: FakeSource(*make_records(P0, ADA_BEN)),
        handle,
        stop_when_done(6),
        retry=Retry(attempts=3, backoff_s=10, multiplier=3, jitter=0, backoff_max_s=60),
    )

    assert times == pytest.approx([0, 10, 40])
    assert by_key(source.done[:2]) == {b"ben": [2, 4]}
    assert by_key(source.done)[b"ada"] == [0, 1, 3, 5]


def test_over_without_dead_letters_ends_the_run():
    """The run ends with the place of the failed record, and nothing behind it begins."""
    begun: list[int] = []

    async def handle(record: ConsumerRecord) -> None:
        begun.append(record.offset)
        if record.offset == 1:
            raise ValueError("no such order")
        await asyncio.sleep(3)

    kept: list[FakeSource] = []

    def source_of() -> FakeSource:
        kept.append(FakeSource(*make_records(P0, [b"ada", b"ben", b"ben", b"cleo"])))
        return kept[0]

    with pytest.raises(WorkFailed) as raised:
        run(source_of, handle, stop_after(NEVER_S), concurrency=3)

    error = raised.value
    assert (error.topic, error.partition, error.offset, error.attempts) == ("orders", 0, 1, 1)
    assert isinstance(error.__cause__, ValueError)
    assert 2 not in begun
    assert 1 not in offsets(kept[0].done)
    assert offsets(kept[0].done) == [each for each in sorted(begun) if each != 1]
    assert kept[0].commits[-1] == {(P0, each) for each in begun if each != 1}


def test_dead_letters():
    """A record whose attempts are over is written with the reason, and counts as done."""
    letters: list[tuple[str, bytes | None, bytes | None, dict[str, bytes | None]]] = []

    async def send(topic: str, key: Any, value: Any, headers: Any) -> None:
        letters.append((topic, key, value, dict(headers)))

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 0:
            raise ValueError("no such order")

    source = run(
        lambda: FakeSource(make_record(P0, 0, b"ada", b"v"), make_record(P0, 1, b"ada")),
        handle,
        stop_when_done(2),
        retry=Retry(attempts=2, backoff_s=1),
        dead_letters=DeadLetters("dead", send),
    )

    [(topic, key, value, headers)] = letters
    assert (topic, key, value) == ("dead", b"ada", b"v")
    assert headers == {
        "__dlq.errors.topic": b"orders",
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"0",
        "__dlq.errors.group": b"billing",
        "__dlq.errors.delivery.count": b"2",
        "__dlq.errors.message": b"ValueError: no such order",
    }
    assert offsets(source.done) == [0, 1]


def test_letter_that_cannot_be_written_keeps_its_key_waiting():
    """The key waits until its letter is written, without another attempt; other keys go on."""
    attempts: list[int] = []
    sends = 0

    async def send(topic: str, key: Any, value: Any, headers: Any) -> None:
        nonlocal sends
        sends += 1
        if sends < 4:
            raise ConnectionError("away")

    async def handle(record: ConsumerRecord) -> None:
        attempts.append(record.offset)
        if record.offset == 0:
            raise ValueError("no such order")

    source = run(
        lambda: FakeSource(*make_records(P0, [b"ada", b"ada", b"ben"])),
        handle,
        stop_when_done(3),
        dead_letters=DeadLetters("dead", send),
    )

    assert attempts == [0, 2, 1]
    assert sends == 4
    assert offsets(source.done) == [2, 0, 1]


def test_time_limit():
    """An attempt over its time is cancelled and has failed; the handler's own time-out is its."""

    async def handle(record: ConsumerRecord) -> None:
        if record.offset == 0:
            await asyncio.sleep(NEVER_S)
        raise TimeoutError("the handler's own")

    errors: list[str] = []

    async def send(topic: str, key: Any, value: Any, headers: Any) -> None:
        errors.append(dict(headers)["__dlq.errors.message"].decode())

    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(source.done) == 2)
        assert workers.tallies.timeouts == 1
        workers.stop()

    run(
        lambda: FakeSource(*make_records(P0, [b"ada", b"ben"])),
        handle,
        script,
        timeout_s=5,
        dead_letters=DeadLetters("dead", send),
    )

    assert sorted(each.partition(":")[0] for each in errors) == [
        "TimeoutError",
        WorkTimedOut.__name__,
    ]


def test_handler_that_cancels_itself_has_failed():
    """CancelledError out of a handler that was not cancelled is a failed attempt."""

    async def handle(record: ConsumerRecord) -> None:
        raise asyncio.CancelledError

    with pytest.raises(WorkFailed):
        run(lambda: FakeSource(*make_records(P0, [b"ada"])), handle, stop_after(NEVER_S))


def test_commits_are_made_on_a_timer_and_at_the_end():
    """What is done is committed each interval, and once more when the run ends."""

    async def script(source: FakeSource, workers: Workers) -> None:
        await asyncio.sleep(7)
        assert source.commits == [frozenset({(P0, 0)})]
        workers.stop()

    source = run(
        lambda: FakeSource(*make_records(P0, [b"ada", b"ada"])),
        Journal(lambda record: 4.0),
        script,
        commit_interval_s=5,
    )

    assert source.commits[-1] == {(P0, 0), (P0, 1)}
    assert source.marks_made == 3  # the first without a record: only marked ones are done


def test_each_mark_is_committed_at_once():
    """With commit_interval_s=0, a commit follows each end; one that failed is repeated alone."""

    async def script(source: FakeSource, workers: Workers) -> None:
        await asyncio.sleep(1.5)
        assert source.commits == [frozenset({(P0, 0)})]
        source.commit_errors.append(UpstreamLost("away"))
        await asyncio.sleep(1)  # the second record ended at 2 s
        assert source.commits == [frozenset({(P0, 0)})]
        await asyncio.sleep(1)
        assert source.commits == [frozenset({(P0, 0)}), frozenset({(P0, 0), (P0, 1)})]
        workers.stop()

    run(
        lambda: FakeSource(*make_records(P0, [b"ada", b"ada"])),
        Journal(lambda record: 1.0),
        script,
        commit_interval_s=0,
    )


def test_commit_that_may_be_repeated_is():
    """A retriable error of a commit is no error of the run; the next commit covers the same."""

    def source_of() -> FakeSource:
        source = FakeSource(*make_records(P0, [b"ada"]))
        source.commit_errors.append(UpstreamLost("away"))
        return source

    source = run(source_of, Journal(), stop_after(5))

    assert source.commits == [frozenset({(P0, 0)})]


def test_commit_that_is_refused_ends_the_run():
    """Another error of a commit is raised by the run, after work in progress."""

    def source_of() -> FakeSource:
        source = FakeSource(*make_records(P0, [b"ada"]))
        source.commit_errors.append(PermissionError("no right"))
        return source

    with pytest.raises(PermissionError):
        run(source_of, Journal(), stop_after(NEVER_S))


def test_stop_ends_work_in_progress_only():
    """A stop lets work in progress end, drops what waits, and commits."""
    journal = Journal(lambda record: 10.0)

    source = run(
        lambda: FakeSource(*make_records(P0, [b"ada", b"ada", b"ben"])), journal, stop_after(1)
    )

    assert sorted(offsets(source.done)) == [0, 2]
    assert source.commits[-1] == {(P0, 0), (P0, 2)}


def test_stop_in_time():
    """Work that does not end within the shutdown time is cancelled, the rest is committed."""
    journal = Journal(lambda record: NEVER_S if record.offset else 1.0)

    source = run(
        lambda: FakeSource(*make_records(P0, [b"ada", b"ben"])),
        journal,
        stop_after(0.5),
        shutdown_timeout_s=5,
    )

    assert offsets(source.done) == [0]
    assert offsets(journal.cancelled) == [1]
    assert source.commits[-1] == {(P0, 0)}


def test_polls_go_on_while_work_ends():
    """During a long end the group is polled, with all paused, so that it does not expire."""
    journal = Journal(lambda record: 600.0)

    source = run(
        lambda: FakeSource(*make_records(P0, [b"ada", b"ben"])),
        journal,
        stop_after(1),
        shutdown_timeout_s=1000,
    )

    assert len(source.done) == 2
    assert source.polls[-1][0] > 590
    assert source.polls[-1][1] == {P0}


def test_error_of_a_poll_is_raised_after_the_work():
    """What a poll raises ends the run; work in progress ends and is committed first."""
    journal = Journal(lambda record: 10.0)

    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(journal.begun) == 1)
        source.poll_errors.append(PermissionError("no right"))
        await asyncio.sleep(NEVER_S)

    kept: list[FakeSource] = []

    def source_of() -> FakeSource:
        kept.append(FakeSource(*make_records(P0, [b"ada"])))
        return kept[0]

    with pytest.raises(PermissionError):
        run(source_of, journal, script)

    assert kept[0].commits[-1] == {(P0, 0)}


def test_cancelled_run_cancels_its_work():
    """A run that is cancelled leaves no task behind."""
    journal = Journal(lambda record: NEVER_S)

    async def main() -> None:
        source = FakeSource(*make_records(P0, [b"ada"]))
        async with Workers(source, journal, signals=False, progress=False) as workers:
            running = spawn(workers.run(), "run")
            await when(lambda: len(journal.begun) == 1)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert len(asyncio.all_tasks()) == 1

    run_virtual(main)
    assert offsets(journal.cancelled) == [0]


def test_handlers_that_never_wait_leave_the_loop_its_turns():
    """Polls and commits go on beside handlers that never give up the loop."""

    async def handle(record: ConsumerRecord) -> None:
        pass

    source = run(
        lambda: FakeSource(*make_records(P0, [b"ada"] * 5_000)), handle, stop_when_done(5_000)
    )

    assert offsets(source.done) == list(range(5_000))


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"order": "keys"},
        {"executor": "thread"},
        {"timeout_s": 0},
        {"max_queued": 0},
        {"commit_interval_s": -1},
    ],
)
def test_options_out_of_bounds(options: Any):
    """An option out of its bounds is refused by name."""
    with pytest.raises(ConfigInvalid, match=next(iter(options))):
        Workers(FakeSource(), Journal(), **options)
