"""Workers and partitions that come and go, and queues that are full; on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from keylane.client.settings import ConsumerSettings
from keylane.client.values import ConsumerRecord, TopicPartition
from keylane.client.workers import Retry, Workers
from keylane.errors import ConfigInvalid
from tests.reference.worker_run import (
    NEVER_S,
    Journal,
    offsets,
    run,
    when,
)
from tests.reference.worker_source import P0, P1, FakeSource, make_record, make_records


def test_revoke_waits_for_work_in_progress():
    """Work of a revoked partition ends and is committed before the partition is given up."""
    journal = Journal(lambda record: 20.0 if record.partition == 0 else 1.0)

    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(journal.begun) >= 2)
        source.ask_back(P0)
        await when(lambda: bool(source.given_up))
        assert asyncio.get_running_loop().time() == pytest.approx(20.0, abs=0.02)
        assert (P0, 0) in source.commits[source.given_up[0][1] - 1]
        source.append(make_record(P1, 2, b"late"))
        await when(lambda: len(source.done) == 4)
        workers.stop()

    records = [*make_records(P0, [b"ada", b"ada"]), *make_records(P1, [b"ben", b"ben"])]
    source = run(lambda: FakeSource(*records), journal, script, commit_interval_s=NEVER_S)

    assert [each.offset for each in journal.begun if each.partition == 0] == [0]
    assert [place for place, _ in source.given_up] == [P0]
    polls_while_drained = sum(1.0 <= at_s < 20 for at_s, _ in source.polls)
    assert polls_while_drained < 20 * 22  # one in 50 ms


def test_revoke_asked_between_two_polls():
    """A revoke that comes while the loop does not poll is delayed before the next poll."""
    journal = Journal(lambda record: 20.0)

    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(journal.begun) == 1)
        await asyncio.sleep(0.3)  # between two polls: the queue is full
        source.ask_back(P0)
        await when(lambda: bool(source.given_up))
        assert asyncio.get_running_loop().time() == pytest.approx(20.0, abs=0.02)
        workers.stop()

    source = run(lambda: FakeSource(*make_records(P0, [b"ada"] * 9)), journal, script, max_queued=4)

    assert offsets(source.done) == [0]


def test_revoke_without_work_is_completed_at_once():
    """A partition with nothing at work is given up by the next poll; what waited is dropped."""

    async def script(source: FakeSource, workers: Workers) -> None:
        await asyncio.sleep(1)
        source.ask_back(P0)
        await when(lambda: bool(source.given_up))
        assert asyncio.get_running_loop().time() < 1.1
        workers.stop()

    run(lambda: FakeSource(*make_records(P0, [b"ada"])), Journal(lambda record: 0.5), script)


def test_partition_that_comes_back():
    """A partition given up and assigned again is worked from its committed offset."""
    journal = Journal()

    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(journal.begun) == 1)
        source.ask_back(P0)
        await when(lambda: bool(source.given_up))
        source.assign(P0, 1)
        await when(lambda: len(source.done) == 3)
        workers.stop()

    run(lambda: FakeSource(*make_records(P0, [b"ada"] * 3)), journal, script)

    assert offsets(journal.begun) == [0, 1, 2]


def test_failed_work_of_a_revoked_partition_is_left_to_the_next_owner():
    """No back-off holds up a revoke: the record is not done, and the partition goes."""

    async def handle(record: ConsumerRecord) -> None:
        await asyncio.sleep(5)
        raise ConnectionError("away")

    async def script(source: FakeSource, workers: Workers) -> None:
        await asyncio.sleep(1)
        source.ask_back(P0)
        await when(lambda: bool(source.given_up))
        assert asyncio.get_running_loop().time() < 6
        workers.stop()

    source = run(
        lambda: FakeSource(*make_records(P0, [b"ada"])),
        handle,
        script,
        retry=Retry(attempts=9, backoff_s=1000, backoff_max_s=1000),
    )

    assert source.done == []


def test_lost_partition_is_cancelled_and_never_done():
    """Work of a lost partition is cancelled, its queue dropped; the others go on."""
    journal = Journal(lambda record: 10.0)

    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(journal.begun) == 2)
        source.lose(P0)
        await when(lambda: len(source.done) == 2)
        workers.stop()

    records = [*make_records(P0, [b"ada", b"ada"]), *make_records(P1, [b"ben", b"ben"])]
    source = run(lambda: FakeSource(*records), journal, script)

    assert [(each.partition, each.offset) for each in journal.cancelled] == [(0, 0)]
    assert [(each.partition, each.offset) for each in source.done] == [(1, 0), (1, 1)]


def test_lost_between_polls():
    """What was lost while the loop waits for room is seen, though the next poll forgets it."""
    journal = Journal(lambda record: 10.0)

    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(source.polls) >= 2)
        await asyncio.sleep(0.3)  # between two polls: the queue is full
        source.lose(P0)
        await when(lambda: len(journal.cancelled) == 1)
        assert asyncio.get_running_loop().time() < 3
        workers.stop()

    source = run(lambda: FakeSource(*make_records(P0, [b"ada"] * 9)), journal, script, max_queued=4)

    assert source.done == []


def test_drain_time_is_over():
    """Work of a revoked partition that takes too long is cancelled, and the partition goes."""
    journal = Journal(lambda record: NEVER_S)

    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(journal.begun) == 1)
        source.ask_back(P0)
        await when(lambda: bool(source.given_up))
        assert asyncio.get_running_loop().time() == pytest.approx(30, abs=0.2)
        workers.stop()

    source = run(
        lambda: FakeSource(*make_records(P0, [b"ada"])), journal, script, drain_timeout_s=30
    )

    assert offsets(journal.cancelled) == [0]
    assert source.done == []


def test_full_queues_pause_all_and_polls_go_on():
    """With full queues all is paused, polls go on once a second, and records are bounded."""
    journal = Journal(lambda record: 60.0)
    most = 0

    async def script(source: FakeSource, workers: Workers) -> None:
        nonlocal most
        while len(source.done) < 40:
            most = max(most, workers.view().queued)
            await asyncio.sleep(0.5)
        workers.stop()

    source = run(
        lambda: FakeSource(*make_records(P0, [None] * 40)),
        journal,
        script,
        concurrency=2,
        max_queued=10,
    )

    assert most == 10
    paused = [at_s for at_s, places in source.polls if places]
    assert 300 < len(paused) < 1_200
    assert max(b - a for (a, _), (b, _) in zip(source.polls, source.polls[1:], strict=False)) <= 1


def test_a_hot_partition_goes_on_before_the_workers_have_nothing_to_do():
    """It is paused at more than its part; the poll that waits for the other one has it again."""
    keys = [b"key-%d" % (number % 40) for number in range(2_000)]
    journal = Journal(lambda record: 0.001)

    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(journal.ended) == 2_004)
        assert asyncio.get_running_loop().time() == pytest.approx(2_004 * 0.001 / 4, rel=0.05)
        workers.stop()

    source = run(
        lambda: FakeSource(*make_records(P0, keys), *make_records(P1, [b"ada"] * 4)),
        journal,
        script,
        concurrency=4,
        max_queued=100,
    )

    assert any(places == {P0} for _, places in source.polls), "it was paused by itself"


class OneLog(FakeSource):
    """A source whose partitions are lanes of one log, in which their records are mixed evenly."""

    def current_lag(self, part: TopicPartition) -> int:
        """Return the offsets up to the end of the log."""
        size = len(self.logs[part])
        return sum(map(len, self.logs.values())) * (size - self.positions[part]) // size


@pytest.mark.parametrize("max_queued", [None, 512])
@pytest.mark.parametrize(("key_count", "ends_s"), [(194, 21), (4, 23)])
def test_a_hot_lane_is_at_work_while_others_have_plenty(key_count, ends_s, max_queued):
    """Of 32 lanes one has a single key with a quarter of all records, as many as a worker can do.

    All ends as soon as four workers can, in 20 s and a few per cent: the lane goes on while those
    of others fill the queue, and is known by its lag where few keys of theirs have as much there.
    """
    lanes = [P0._replace(partition=number) for number in range(32)]
    hot = make_records(lanes[0], [b"hot"] * 2_000)
    others = [
        record
        for lane in lanes[1:]
        for record in make_records(lane, [b"%d" % (number % key_count) for number in range(194)])
    ]
    journal = Journal(lambda record: 0.01)

    async def script(source: FakeSource, workers: Workers) -> None:
        most = 0
        while len(journal.ended) < len(hot) + len(others):
            most = max(most, workers.view().queued)
            await asyncio.sleep(0.005)
        assert 20 <= asyncio.get_running_loop().time() <= ends_s
        assert most <= (max_queued or 32 * 32)
        workers.stop()

    run(lambda: OneLog(*hot, *others), journal, script, concurrency=4, max_queued=max_queued)


def test_a_poll_takes_the_part_of_each_partition():
    """With 20 places and two partitions: 16 at least of one, and the other is there as well."""
    journal = Journal(lambda record: 1.0)

    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(journal.ended) == 20)
        workers.stop()

    run(
        lambda: FakeSource(*make_records(P0, [b"ada"] * 100), *make_records(P1, [b"ben"] * 4)),
        journal,
        script,
        concurrency=4,
        max_queued=20,
    )

    assert [each.partition for each in journal.begun[:4]] == [0, 1, 0, 1]


async def test_a_revoke_in_the_same_poll_is_refused():
    """Partitions would go while records of them are at work."""
    source = FakeSource()
    source.settings = ConsumerSettings(group_id="g", revoke_completion="same-poll")

    with pytest.raises(ConfigInvalid, match="revoke_completion"):
        Workers(source, Journal())


def test_bytes_bound_the_queue():
    """Large records stop polls by their bytes."""
    big = b"x" * 1_000_000

    async def script(source: FakeSource, workers: Workers) -> None:
        await asyncio.sleep(30)
        assert workers.view().held_bytes < 12_000_000
        workers.stop()

    run(
        lambda: FakeSource(*(make_record(P0, each, None, big) for each in range(40))),
        Journal(lambda record: NEVER_S),
        script,
        concurrency=1,
        max_queued_bytes=3_000_000,
        shutdown_timeout_s=0,
    )


def test_pauses_of_the_application_stay():
    """A partition that the application has paused is not resumed."""

    async def script(source: FakeSource, workers: Workers) -> None:
        await when(lambda: len(source.done) == 8)
        assert source.paused() == {P1}
        workers.stop()

    def source_of() -> FakeSource:
        source = FakeSource(*make_records(P0, [None] * 8), *make_records(P1, [b"ben"]))
        source.pause(P1)
        return source

    run(source_of, Journal(), script, concurrency=1, max_queued=2)
