"""The rows of runs of a partition's lanes: what is held, empty, or to be read."""

from __future__ import annotations

import pytest

from keylane.cache.lane import GAP_COUNT_MAX
from keylane.cache.lane_log import LaneLog
from keylane.cache.lane_values import Block, Claim, GapForm, Taken
from keylane.cache.slice_cache import SliceCache
from keylane.kernel.block import LaneSlice
from keylane.kernel.split import split_block
from keylane.keyrange.lane import LaneLayout
from tests.reference.broker_log import BrokerLog, keys_of_lane, read_batches

LAYOUT = LaneLayout(1, 2)
A, B = keys_of_lane(0, LAYOUT)[0], keys_of_lane(1, LAYOUT)[0]


def block_of(broker: BrokerLog, start: int, end: int) -> Block:
    """Split batches `[start, end)` of a log."""
    wires = [
        wire
        for batch, wire in zip(broker.batches, broker.wires, strict=True)
        if start <= batch.base_offset < end
    ]
    found = split_block(
        b"".join(wires), LAYOUT.key_split(0), plain_bytes_max=2**20, batch_bytes_max=2**20
    )
    assert found is not None
    return Block(start, found.next_offset, found.leader_epoch, found.outputs)


def log_of(*blocks: Block, cache_bytes: int = 10**6) -> LaneLog:
    """A lane log that has read blocks."""
    log = LaneLog(2, SliceCache(bytes_max=cache_bytes))
    for block in blocks:
        log.insert(block)
        log.settle(is_reserved=True)
    log.check()
    return log


def spans(log: LaneLog, lane: int) -> list[tuple[int, int, str]]:
    return [
        (run.start, run.end, "gap" if run.slice is None else "held") for run in log.lanes[lane].runs
    ]


def broker_of(keys: list[bytes], *, joins: bool = False) -> BrokerLog:
    broker = BrokerLog(joins=joins)
    for key in keys:
        broker.append((key, b"v"))
    return broker


def test_gaps_that_touch_are_one_header() -> None:
    """A run of blocks without a record of the lane costs one entry and one header."""
    broker = broker_of([A] * 30)
    log = log_of(*(block_of(broker, at, at + 10) for at in (0, 10, 20)))
    taken = Taken(5)

    log.take(1, Claim(5, 0.0), taken, 1000, at_least_one=True)

    assert spans(log, 1) == [(0, 30, "gap")]
    assert (taken.position, taken.size_bytes, taken.has_records) == (30, 0, False)
    (batch,) = read_batches(b"".join(taken.records()))
    assert (batch.base, batch.last) == (5, 29)


def test_an_answer_without_records_may_be_one_control_batch() -> None:
    """For clients that take another empty batch for a limit that was too tight (librdkafka)."""
    broker = broker_of([A] * 30)
    log = log_of(block_of(broker, 0, 10), block_of(broker, 10, 20))
    gap, records, nothing = Taken(5), Taken(5), Taken(5)

    log.take(1, Claim(5, 0.0), gap, 1000, at_least_one=True)
    log.take(0, Claim(5, 0.0), records, 1000, at_least_one=True)

    (batch,) = read_batches(b"".join(gap.records(GapForm.CONTROL)))
    assert (batch.base, batch.last, batch.is_control) == (5, 19, True)
    assert records.records(GapForm.CONTROL) == records.records()
    assert nothing.records(GapForm.CONTROL) == ()


def test_a_batch_whose_records_are_behind_the_client_is_none() -> None:
    """Lane 0 is taken over at 5, behind its last record of a batch that ends at 9."""
    broker = BrokerLog()
    broker.append(*((A if at < 5 else B, b"v") for at in range(10)))
    block = block_of(broker, 0, 10)
    done, behind = Taken(5), Taken(4)

    for taken in (done, behind):
        claim = Claim(taken.position, 0.0)
        log_of(block).take(0, claim, taken, 1000, at_least_one=True)

    assert (done.has_records, behind.has_records) == (False, True)
    (batch,) = read_batches(b"".join(done.records(GapForm.CONTROL)))
    assert (batch.base, batch.last, batch.is_control) == (5, 9, True)


def test_an_answer_may_have_no_empty_batch() -> None:
    """For kafka-go: a batch that begins before the offset asked for, or records and no gap."""
    broker = broker_of([A] * 10 + [B] + [A] * 10)
    log = log_of(block_of(broker, 0, 10), block_of(broker, 10, 11), block_of(broker, 11, 21))
    gap, first, records, nothing = Taken(5), Taken(0), Taken(8), Taken(5)

    for taken, limit in ((gap, 0), (first, 0), (records, 1000)):
        claim = Claim(taken.position, 0.0)
        log.take(1, claim, taken, limit, at_least_one=limit > 0)

    (batch,) = read_batches(b"".join(gap.records(GapForm.PASSED)))
    assert (batch.base, batch.last, len(batch.records)) == (4, 9, 1)
    (batch,) = read_batches(b"".join(first.records(GapForm.PASSED)))
    assert (batch.base, batch.last, len(batch.records)) == (0, 9, 0)
    assert len(read_batches(b"".join(records.records()))) == 2
    (batch,) = read_batches(b"".join(records.records(GapForm.PASSED)))
    assert (batch.base, batch.last, len(batch.records)) == (10, 10, 1)
    assert nothing.records(GapForm.PASSED) == ()


def test_a_gap_goes_out_under_the_epoch_of_its_end() -> None:
    """A client compares its position with the leader under it; an earlier one had no such end."""
    broker = BrokerLog()
    for epoch in (1, 2):
        broker.lead(epoch)
        for _ in range(10):
            broker.append((A, b"v"))
    log = log_of(block_of(broker, 10, 20), block_of(broker, 0, 10))
    taken = Taken(0)

    log.take(1, Claim(0, 0.0), taken, 1000, at_least_one=True)

    assert spans(log, 1) == [(0, 20, "gap")]
    (batch,) = read_batches(b"".join(taken.records()))
    assert (batch.last, batch.fields[2]) == (19, 2)


def test_a_gap_before_records_needs_no_header() -> None:
    """The next batch moves the client on."""
    broker = broker_of([A] * 10 + [B] * 10)
    log = log_of(block_of(broker, 0, 10), block_of(broker, 10, 20))
    taken = Taken(0)

    log.take(1, Claim(0, 0.0), taken, 10_000, at_least_one=True)

    assert len(taken.records()) == 1 and taken.has_records and taken.position == 20


def test_a_block_that_overlaps_fills_only_what_is_unread() -> None:
    """Runs across its edges stay and cut it short, runs inside it are replaced."""
    broker = broker_of([B] * 40)
    log = log_of(block_of(broker, 0, 10), block_of(broker, 14, 18), block_of(broker, 30, 40))

    log.insert(block_of(broker, 5, 35))
    log.settle(is_reserved=True)
    log.check()

    assert spans(log, 1) == [(0, 10, "held"), (10, 30, "held"), (30, 40, "held")]
    log.insert(block_of(broker, 2, 8))
    log.insert(block_of(broker, 5, 15))
    log.settle(is_reserved=True)
    log.check()
    assert spans(log, 1) == [(0, 10, "held"), (10, 30, "held"), (30, 40, "held")]


def test_a_joined_batch_across_two_runs_moves_its_client_behind_it() -> None:
    """What a client was sent is not sent again, although another block holds it as well."""
    broker = broker_of([A] * 30, joins=True)
    log = log_of(block_of(broker, 20, 30), block_of(broker, 0, 25))
    claim, taken = log.claim(0, "m1", 0, 0.0), Taken(0)
    assert spans(log, 0) == [(0, 20, "held"), (20, 30, "held")]

    log.take(0, claim, taken, 1, at_least_one=True)

    (batch,) = read_batches(b"".join(taken.records()))
    assert (batch.base, batch.last) == (0, 24)
    assert taken.position == claim.position == 25


def test_no_record_is_twice_in_one_answer() -> None:
    """librdkafka gives out twice what overlaps in one answer; the rest comes with the next."""
    broker = broker_of([A] * 30, joins=True)
    log = log_of(block_of(broker, 20, 30), block_of(broker, 0, 25))
    claim, first = log.claim(0, "m1", 0, 0.0), Taken(0)

    log.take(0, claim, first, 10_000, at_least_one=True)

    (batch,) = read_batches(b"".join(first.records()))
    assert (batch.base, batch.last, first.is_full) == (0, 24, True)
    rest = Taken(first.position)
    log.take(0, claim, rest, 10_000, at_least_one=True)
    (batch,) = read_batches(b"".join(rest.records()))
    assert (batch.base, batch.last) == (20, 29)
    assert rest.position == 30 and rest.has_records


@pytest.mark.parametrize("lane", [0, 1])
def test_a_sent_slice_leaves_only_its_empty_end(lane: int) -> None:
    """A client that comes back with its last record + 1 needs no read."""
    broker = broker_of([A, B, B, A, A, A])
    log = log_of(block_of(broker, 0, 6))
    claim, taken = log.claim(lane, "m1", 0, 0.0), Taken(0)

    log.take(lane, claim, taken, 10_000, at_least_one=True)

    log.check()
    assert spans(log, lane) == [[], [(3, 6, "gap")]][lane]


def test_a_slice_waits_for_the_slower_claim() -> None:
    """Two connections on a lane: it goes with the second, or when that one is late for good."""
    broker = broker_of([A] * 4)
    for is_late in (False, True):
        log = log_of(block_of(broker, 0, 4))
        fast = log.claim(0, "fast", 0, 100.0)
        slow = log.claim(0, "slow", 0, 10.0)
        log.take(0, fast, Taken(0), 10_000, at_least_one=True)
        assert spans(log, 0) == [(0, 4, "held")]

        if is_late:
            log.expire_claims(50.0)
            log.take(0, fast, Taken(0), 10_000, at_least_one=True)
        else:
            log.take(0, slow, Taken(0), 10_000, at_least_one=True)

        assert spans(log, 0) == []


def test_an_evicted_slice_is_unread() -> None:
    """The cache's bound turns the oldest slices into reads to come."""
    broker = broker_of([A] * 40)
    log = log_of(*(block_of(broker, at, at + 10) for at in range(0, 40, 10)), cache_bytes=5_000)

    log.claim(0, "m1", 0, 0.0)
    log.insert(block_of(broker, 0, 10))
    log.settle(is_reserved=True)

    log.check()
    assert log.lanes[0].find(0) is not None
    assert sum(end - start for start, end, _ in spans(log, 0)) < 40


def test_gaps_are_bounded() -> None:
    """The lowest are forgotten, which costs a read at most."""
    broker = broker_of([A, B] * (GAP_COUNT_MAX + 5))
    log = log_of(*(block_of(broker, at, at + 1) for at in range(broker.end)))

    gaps = [start for start, _, kind in spans(log, 0) if kind == "gap"]

    assert len(gaps) == GAP_COUNT_MAX and gaps[0] > 1


def test_a_moved_log_start_and_a_reset_forget() -> None:
    """What retention deleted goes; after a reset nothing is known."""
    broker = broker_of([A] * 20)
    log = log_of(block_of(broker, 0, 10), block_of(broker, 10, 20))

    log.advance_log_start(12)

    assert spans(log, 0) == [(10, 20, "held")]
    log.reset()
    log.check()
    assert spans(log, 0) == spans(log, 1) == [] and log.head == -1


def test_a_new_place_ends_starvation() -> None:
    """A claim that seeks is not owed what it was owed at its old place."""
    log = LaneLog(2, SliceCache(bytes_max=0))
    claim = log.claim(0, "m1", 5, 0.0)
    claim.is_starved = True

    assert log.claim(0, "m1", 5, 1.0).is_starved
    assert not log.claim(0, "m1", 6, 1.0).is_starved


def test_a_slice_is_what_the_kernel_makes() -> None:
    """Its size is that of its data, and its last batch ends there."""
    broker = broker_of([A, B])
    part = block_of(broker, 0, 2).slices[0]

    assert isinstance(part, LaneSlice)
    assert part.size_bytes == len(part.data) == part.ends[-1]


def test_lanes_without_records_and_readers_are_one_object() -> None:
    """1,000 lanes, of which one has a record and one a reader; none once the log is closed."""
    key_split = LaneLayout(1, 1000).key_split(0)
    wire = broker_of([A]).wires[0]
    found = split_block(wire, key_split, plain_bytes_max=2**20, batch_bytes_max=2**20)
    assert found is not None
    has_record = next(lane for lane, part in enumerate(found.outputs) if part is not None)
    has_reader = (has_record + 1) % 1000
    log = LaneLog(1000, SliceCache(bytes_max=10**6))
    rest = log.lanes[(has_record + 2) % 1000]

    log.claim(has_reader, "m1", 0, 0.0)
    log.insert(Block(0, found.next_offset, 0, found.outputs))
    log.settle(is_reserved=True)

    log.check()
    own = [number for number, lane in enumerate(log.lanes) if lane is not rest]
    assert own == sorted([has_record, has_reader])
    log.close()
    log.check()
    assert all(lane is rest for lane in log.lanes) and not rest.runs
