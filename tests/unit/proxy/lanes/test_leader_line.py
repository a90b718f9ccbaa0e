"""New leaders, with epochs and without: whose records stand beside those read before."""

from __future__ import annotations

import asyncio

import pytest

from keylane.tasks import spawn
from tests.reference.broker_log import BrokerLog, records_of
from tests.reference.lane_bench import A, B, Bench, interleaved_log, offsets_of
from tests.virtual_time import run_virtual

OLD_END = 51
CUT = 45


def led_log(*, epoch: int = 1) -> BrokerLog:
    """A log of epoch 1 with offsets 40 to 50."""
    log = BrokerLog(end=40, log_start=40)
    log.lead(epoch)
    for offset in range(40, OLD_END):
        log.append((A if offset % 2 == 0 else B, b"old"))
    return log


def replace_log(log: BrokerLog, *, cut: int = CUT, end: int = 60) -> None:
    """An unclean leader: the log is cut, and has grown beyond where it was before."""
    log.truncate(cut)
    log.lead(log.leader_epoch + 1)
    while log.end < end:
        log.append((B, b"new"))


async def values_of(bench: Bench, lane: int, offset: int, **how: int) -> dict[int, bytes]:
    """Records of a lane from `offset` on: the last three bytes of each value, by offset."""
    answer = await bench.fetch_one(lane, offset, **how)
    assert answer.error_code == 0
    return {at: data.rstrip(b"\0")[-3:] for at, _, data in records_of(answer.records)}


def test_a_log_that_was_cut_and_has_grown_again_is_cut_at_its_place() -> None:
    """The high watermark shows nothing of it; a reader behind gets the new log's records only."""

    async def main() -> None:
        log = led_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        replace_log(log)

        await bench.fetch_one(0, OLD_END)
        behind = await values_of(bench, 1, 40)

        assert bench.truncated == [CUT]
        assert behind == {41: b"old", 43: b"old"} | dict.fromkeys(range(CUT, 60), b"new")
        assert bench.stats.logs_cut == 1

    run_virtual(main)


@pytest.mark.parametrize("epoch", [1, -1])
def test_a_connection_that_is_opened_again_may_lead_to_another_log(epoch: int) -> None:
    """A second try of a fetch is no pass: with epochs it is compared, without read anew."""

    async def main() -> None:
        log = led_log() if epoch >= 0 else interleaved_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        waiting = spawn(bench.fetch_one(0, OLD_END, max_wait_ms=400), "fetch")
        await asyncio.sleep(0.1)
        log.lost_count = 1
        log.truncate(CUT)
        if epoch >= 0:
            log.lead(2)
        while log.end < 60:
            log.append((B, b"new"))
        log.wake()
        await waiting
        await bench.fetch_one(0, 60)

        behind = await values_of(bench, 1, 40)

        assert {at for at, value in behind.items() if value == b"new"} == set(range(CUT, 60))
        assert bench.truncated == ([CUT] if epoch >= 0 else [])

    run_virtual(main)


def test_a_clean_new_leader_costs_nothing() -> None:
    """Its log has all that was read: nothing is read again, and no cut is reported."""

    async def main() -> None:
        log = led_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        log.lead(2)
        log.append((A, b"new"))

        ahead = await values_of(bench, 0, OLD_END)
        fetches = len(log.fetches)
        behind = await values_of(bench, 1, 40)

        assert (ahead, len(behind)) == ({OLD_END: b"new"}, 5)
        assert len(log.fetches) == fetches, "it was in memory still"
        assert bench.truncated == []

    run_virtual(main)


def test_a_cut_that_one_isolation_level_meets_is_forgotten_by_the_other() -> None:
    """What the other reader keeps is of the old log, and what it is about to get as well."""

    async def main() -> None:
        log = led_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        await bench.fetch_one(0, 40, isolation=1)
        replace_log(log)
        await bench.fetch_one(0, OLD_END, isolation=1)

        behind = await values_of(bench, 1, 40)

        assert {at for at, value in behind.items() if value == b"new"} == set(range(CUT, 60))
        assert bench.truncated == [CUT], "reported once"

    run_virtual(main)


def test_a_log_that_begins_anew_is_cut_at_its_start() -> None:
    """A disk was lost: nothing of what was read is there any more."""

    async def main() -> None:
        log = led_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        log.truncate(0)
        log.log_start = 0
        log.leaders.clear()
        log.lead(2)
        while log.end < 60:
            log.append((B, b"new"))
        await bench.fetch_one(0, OLD_END)

        behind = await values_of(bench, 1, 0)

        assert bench.truncated == [0]
        assert behind == dict.fromkeys(range(60), b"new")

    run_virtual(main)


def test_a_leader_that_is_silent_about_epochs_is_read_anew() -> None:
    """What cannot be compared is not believed, though it costs a read."""

    async def main() -> None:
        log = led_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        replace_log(log)
        log.is_silent = True
        await bench.fetch_one(0, OLD_END)

        behind = await values_of(bench, 1, 40)

        assert {at for at, value in behind.items() if value == b"new"} == set(range(CUT, 60))

    run_virtual(main)


def test_a_broker_that_reports_divergence_is_believed() -> None:
    """Also where its leader epoch is the one that was known: the log is compared, and cut."""

    async def main() -> None:
        log = led_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        log.truncate(CUT)

        await bench.fetch_one(0, OLD_END)
        log.append((B, b"new"))
        behind = await values_of(bench, 1, 40)

        assert bench.truncated == [CUT]
        assert behind == {41: b"old", 43: b"old", CUT: b"new"}

    run_virtual(main)


def test_a_leader_that_is_over_is_not_read() -> None:
    """Stale metadata may lead back to it: clients have to come again, and get nothing old."""

    async def main() -> None:
        log = led_log(epoch=3)
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        log.leader_epoch = 2
        log.lost_count = 1

        answer = await bench.fetch_one(0, OLD_END)

        assert answer.error_code == 6 and offsets_of(answer) == []

    run_virtual(main)


def test_a_client_that_knows_an_earlier_leader_compares_first() -> None:
    """FENCED_LEADER_EPOCH, as from a broker, though the next records are at hand."""

    async def main() -> None:
        log = led_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40, leader_epoch=1)
        log.lead(2)
        log.append((A, b"new"))
        await bench.fetch_one(0, OLD_END, leader_epoch=2)

        answers = [await bench.fetch_one(0, 40, leader_epoch=epoch) for epoch in (1, 2, -1)]

        assert [answer.error_code for answer in answers] == [74, 0, 0]
        assert [offsets_of(answer) for answer in answers] == [
            [],
            [*range(40, 52, 2), 51],
            [*range(40, 52, 2), 51],
        ]

    run_virtual(main)


def test_a_client_that_waits_while_another_leader_begins_gets_none_of_its_records() -> None:
    """What the leader before wrote is answered; the rest is for the next fetch."""

    async def main() -> None:
        log = led_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40, leader_epoch=1)
        waiting = spawn(bench.fetch_one(0, OLD_END, leader_epoch=1), "fetch")
        await asyncio.sleep(0.1)
        log.lead(2)
        log.append((A, b"new"))
        answer = await waiting

        assert (answer.error_code, answer.records) == (74, ())

    run_virtual(main)


def test_a_client_that_knows_a_later_leader_waits_for_it() -> None:
    """For the next read: UNKNOWN_LEADER_EPOCH then, as any number may come from a socket."""

    async def main() -> None:
        log = led_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        before = len(log.fetches)
        early = await bench.fetch_one(0, 40, leader_epoch=2)
        reads = len(log.fetches) - before
        log.lead(2)
        answer = await bench.fetch_one(0, 40, leader_epoch=2)

        assert (early.error_code, early.records, reads) == (75, (), 1)
        assert offsets_of(answer) == list(range(40, OLD_END, 2))

    run_virtual(main)
