"""What a reader makes of upstream: watermarks, transactions, errors, cut logs, bad batches."""

from __future__ import annotations

import asyncio
import logging

import pytest

from keylane.proxy.lanes import reader
from keylane.proxy.lanes.split_io import RawFetch
from tests.reference.batches import write_batch
from tests.reference.broker_log import BrokerLog, records_of
from tests.reference.lane_bench import (
    TOPIC_ID,
    WAIT_S,
    A,
    B,
    Bench,
    interleaved_log,
    offsets_of,
)
from tests.virtual_time import run_virtual


def lines_of_keylane(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Without those of asyncio, about what another test has left and is collected only now."""
    return [record for record in caplog.records if record.name.startswith("keylane")]


def test_lanes_agree_on_the_log_end() -> None:
    """High watermark, stable offset and log start are the partition's; ListOffsets reuses them."""

    async def main() -> None:
        log = interleaved_log()
        log.last_stable = 45
        bench = Bench(log)

        answers = await bench.fetch({0: 40, 1: 40})

        reported = {(a.high_watermark, a.last_stable_offset, a.log_start_offset) for a in answers}
        assert reported == {(51, 45, 40)}
        now_s = bench.now_s()
        log_end = bench.fetcher.log_end
        assert log_end(TOPIC_ID, 0, 0, now_s=now_s, age_s_max=0.1) == (51, 40)
        assert log_end(TOPIC_ID, 0, 1, now_s=now_s, age_s_max=0.1) == (45, 40)
        assert log_end(TOPIC_ID, 0, 0, now_s=now_s + 1, age_s_max=0.1) is None
        assert log_end(TOPIC_ID, 1, 0, now_s=now_s, age_s_max=0.1) is None

    run_virtual(main)


def test_read_committed_stops_at_the_stable_offset() -> None:
    """Even when upstream sends more, records of open transactions are not served."""

    async def main() -> None:
        log = interleaved_log(10)
        log.last_stable = 46
        generous = log.read

        def read_all(
            offset: int, max_bytes: int, isolation_level: int, leader_epoch: int = -1
        ) -> RawFetch:
            return generous(offset, max_bytes, 0, leader_epoch)

        log.read = read_all  # type: ignore[method-assign]
        bench = Bench(log)

        answers = await bench.fetch({0: 40, 1: 40}, isolation=1)

        assert [offsets_of(answer) for answer in answers] == [[40, 42, 44], [41, 43, 45]]
        assert [answer.aborted for answer in answers] == [(), ()]

    run_virtual(main)


def test_aborted_transactions_are_listed_only_where_their_marker_follows() -> None:
    """A list entry whose marker is not sent would hide the producer's next transaction."""

    async def main() -> None:
        log = BrokerLog()
        log.append((A, b"aborted"), flags=0x10, producer_id=5)
        log.append_marker(5, commit=False)
        log.append((A, b"committed"), flags=0x10, producer_id=5)
        log.append_marker(5, commit=True)
        log.aborted.append((5, 0, 1))
        bench = Bench(log)

        first = await bench.fetch_one(0, 0, isolation=1, partition_max_bytes=1)
        rest = await bench.fetch_one(0, 2, isolation=1)
        plain = await bench.fetch_one(0, 0, cursor="m2")

        assert first.aborted == ((5, 0),) and rest.aborted == ()
        assert offsets_of(rest) == [2]
        assert plain.aborted is None

    run_virtual(main)


@pytest.mark.parametrize("wait_ms", [10, reader.LONG_POLL_MS])
def test_a_lane_beyond_the_end_waits_behind_no_other_lane(wait_ms: int) -> None:
    """One request for both: lane 0 stands at the end, lane 1 beyond it, since the log was cut."""

    async def main() -> None:
        bench = Bench(interleaved_log())
        await bench.fetch_one(0, 40)
        began_s = bench.now_s()

        at_end, beyond = await bench.fetch({0: 51, 1: 60}, max_wait_ms=wait_ms)

        assert (at_end.error_code, beyond.error_code) == (0, 1)
        assert bench.now_s() - began_s < wait_ms / 1000

    run_virtual(main)


def test_an_offset_out_of_range_is_that_lanes_error_alone() -> None:
    """Below the log start and beyond the log end: error 1; the other lane has its records."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        healthy = await bench.fetch_one(0, 40)
        log.delete_before(44)

        below = await bench.fetch_one(1, 10)
        now_s = asyncio.get_running_loop().time()
        ends = bench.fetcher.log_end(TOPIC_ID, 0, 0, now_s=now_s, age_s_max=10.0)
        beyond = await bench.fetch_one(1, 1_000)
        fine = await bench.fetch_one(1, 44)

        assert offsets_of(healthy)
        assert (below.error_code, beyond.error_code, fine.error_code) == (1, 1, 0)
        assert ends is None, "where the log begins is asked of the broker then"
        assert offsets_of(fine) == [45, 47, 49]

    run_virtual(main)


def test_an_error_has_no_offsets_of_the_log() -> None:
    """librdkafka would reset to the log start that came with an OUT_OF_RANGE."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        healthy = await bench.fetch_one(0, 40)
        log.delete_before(44)

        below = await bench.fetch_one(1, 10)

        assert (healthy.high_watermark, healthy.log_start_offset) == (51, 40)
        assert below.error_code == 1
        assert (below.high_watermark, below.last_stable_offset, below.log_start_offset) == (
            -1,
            -1,
            -1,
        )

    run_virtual(main)


def test_a_cut_log_serves_nothing_stale() -> None:
    """The log is read anew after an unclean leader change, and the scan is notified."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        log.truncate(45)
        log.append((B, b"new"))

        at_old_end = await bench.fetch_one(0, 51)
        from_start = await bench.fetch_one(1, 40)

        assert at_old_end.error_code == 1
        assert records_of(from_start.records)[-1][0:2] == (45, B)
        assert bench.truncated == [46]

    run_virtual(main)


def test_a_cut_that_one_reader_sees_is_forgotten_by_all() -> None:
    """Another isolation level has another reader: what it keeps is of the old log, too."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40, isolation=1)
        await bench.fetch_one(0, 40)
        log.truncate(45)
        log.append((B, b"new"))
        await bench.fetch_one(0, 51)
        await bench.fetch_one(1, 40)

        committed = await bench.fetch_one(1, 40, isolation=1)

        assert records_of(committed.records)[-1][0:2] == (45, B)
        assert bench.truncated == [46]

    run_virtual(main)


def test_a_cut_that_comes_while_waiters_are_answered_is_not_scanned_over() -> None:
    """A scan is reported behind the answers: that of a log that is cut just then, not at all."""

    async def main() -> None:
        bench = Bench(interleaved_log())

        await bench.fetch({0: 40, 1: 40})
        bench.fetcher.forget_cut(TOPIC_ID, 0, 45)
        await asyncio.sleep(0)

        assert bench.scanned == []

    run_virtual(main)


def test_a_log_that_ends_before_what_another_node_has_read_was_cut() -> None:
    """A reader that has read nothing itself reports a cut; a log that ends just there has none."""

    async def main() -> None:
        for reported, cuts in ((51, []), (60, [51])):
            bench = Bench(
                interleaved_log(), options={"remote_scanned_end": lambda *_, at=reported: at}
            )

            answer = await bench.fetch_one(0, 40)

            assert offsets_of(answer) == [40, 42, 44, 46, 48, 50]
            assert bench.truncated[:1] == cuts

    run_virtual(main)


@pytest.mark.parametrize("error_code", [3, 6, 74, 75, 100])
def test_partition_errors_reach_every_lane_that_asked(error_code: int) -> None:
    """The leader is looked up again; a healthy answer follows when upstream is healthy."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        log.error_code = error_code

        failed = await bench.fetch({0: 40, 1: 40})
        log.error_code = 0
        fine = await bench.fetch({0: 40, 1: 40})

        assert [answer.error_code for answer in failed] == [error_code, error_code]
        assert [len(offsets_of(answer)) for answer in fine] == [6, 5]
        assert log.open_count == 2 and log.closed_count == 1

    run_virtual(main)


def test_a_lost_connection_is_opened_again() -> None:
    """An idle connection that the broker closed costs nothing but a new one."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        await bench.fetch_one(0, 40)
        log.append((A, b"v"), (A, b"v"))
        log.lost_count = 1

        answer = await bench.fetch_one(0, 51)

        assert offsets_of(answer) == [51, 52]

    run_virtual(main)


def test_a_lost_broker_is_not_leader(caplog: pytest.LogCaptureFixture) -> None:
    """Clients refresh their metadata and come again; one line is logged until it is back."""

    async def main() -> None:
        log = interleaved_log()
        bench = Bench(log)
        log.lost_count = 2
        answers = [await bench.fetch_one(0, 40), await bench.fetch_one(0, 40)]

        fine = await bench.fetch_one(0, 40)

        assert [answer.error_code for answer in answers] == [6, 6]
        assert len(offsets_of(fine)) == 6

    with caplog.at_level(logging.WARNING):
        run_virtual(main)
    assert len(lines_of_keylane(caplog)) == 1


def test_a_bad_batch_is_an_error_behind_the_good_data(caplog: pytest.LogCaptureFixture) -> None:
    """Good data first, then CORRUPT_MESSAGE with one log line, and no busy loop."""

    async def main() -> None:
        log = interleaved_log(4)
        bad = log.append((A, b"v"))
        log.wires[-1] = write_batch(bad)[:-1] + b"\xff"
        bench = Bench(log)

        good = await bench.fetch({0: 40, 1: 40})
        errors = [await bench.fetch_one(0, 44) for _ in range(10)]

        assert [offsets_of(answer) for answer in good] == [[40, 42], [41, 43]]
        assert {answer.error_code for answer in errors} == {2}
        assert bench.now_s() > 4 * WAIT_S, "every second answer waits"

    with caplog.at_level(logging.WARNING):
        run_virtual(main)
    (record,) = lines_of_keylane(caplog)
    assert "topic=orders partition=0 offset=44" in record.message


def test_blocks_that_were_scanned_are_reported_once() -> None:
    """Each offset is covered, with the last record of each lane."""

    async def main() -> None:
        bench = Bench(interleaved_log())

        await bench.fetch({0: 40, 1: 40})

        assert bench.scanned == [], "little data: clients that wait for it are answered first"
        await asyncio.sleep(0)
        (block,) = bench.scanned
        assert (block.topic, block.start, block.end) == ("orders", 40, 51)
        assert block.last_record_offsets.tolist() == [50, 49]
        assert block.log_start_offset == 40

    run_virtual(main)
