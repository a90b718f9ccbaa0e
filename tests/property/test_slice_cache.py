"""The cache and the lane log under any interleaving: no record lost, bounds kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keylane.cache.lane_log import LaneLog
from keylane.cache.lane_values import Block, Claim, Taken
from keylane.cache.slice_cache import SliceCache
from keylane.kernel.split import split_block
from keylane.keyrange.lane import LaneLayout
from tests.reference.batches import Batch, Record, write_batch
from tests.reference.broker_log import BrokerLog, LaneClient

LANES = 3
LAYOUT = LaneLayout(1, LANES)
BATCH_BYTES_MAX = 2**20
READERS = [(lane, cursor) for lane in range(LANES) for cursor in ("a", "b")]


class LogMachine(RuleBasedStateMachine):
    """Two groups read three lanes of a growing log through one lane log, in any order.

    Each reader's records must be those of his lane, in order, without a gap: that is checked
    after every answer against the log itself.
    """

    @initialize(
        cache_bytes=st.sampled_from([0, 1500, 4000, 12_000, 10**6]),
        is_reserved=st.sampled_from([True, True, False]),
    )
    def start(self, cache_bytes, is_reserved) -> None:
        self.broker = BrokerLog()
        self.cache = SliceCache(bytes_max=cache_bytes)
        self.log = LaneLog(LANES, self.cache)
        self.is_reserved, self.now_s = is_reserved, 0.0
        self.clients = {reader: LaneClient() for reader in READERS}
        self.stuck: dict[tuple[int, str], Claim] = {}

    @rule(
        keys=st.lists(st.one_of(st.none(), st.integers(0, 9)), min_size=1, max_size=6),
        size=st.integers(0, 300),
    )
    def append(self, keys, size) -> None:
        """The log grows by one batch."""
        pairs = [(None if key is None else b"key-%d" % key, b"v" * size) for key in keys]
        self.broker.append(*pairs)

    @rule()
    def append_marker(self) -> None:
        """The log grows by a control batch, which every lane gets."""
        self.broker.append_marker(7, commit=True)

    @rule(reader=st.sampled_from(READERS), share=st.floats(0, 1), size=st.integers(1, 1500))
    def read(self, reader, share, size) -> None:
        """A read from anywhere in the log; no fetch waits for it."""
        offset = int(share * self.broker.end)
        self._read(offset, size)

    @rule(
        reader=st.sampled_from(READERS),
        limit=st.integers(0, 800),
        size=st.integers(1, 2000),
        at_least_one=st.booleans(),
    )
    def fetch(self, reader, limit, size, at_least_one) -> None:
        """A lane is served from memory, or waits for the read that it needs."""
        lane, cursor = reader
        client = self.clients[reader]
        claim = self.log.claim(lane, cursor, client.position, self.now_s)
        taken = Taken(client.position)
        self.log.take(lane, claim, taken, limit, at_least_one=at_least_one)
        if taken.position == client.position and not taken.is_full:
            self._read(client.position, size, (lane, claim, taken, limit, at_least_one))

        moved = client.apply(taken.records(), None)

        assert moved == taken.position - (client.position - moved)
        if taken.pieces and not at_least_one:
            assert taken.size_bytes <= limit
        records = self.broker.lane_records(lane, LAYOUT)
        assert client.seen == [record for record in records if record[0] < client.position]

    @rule(reader=st.sampled_from(READERS))
    def leave(self, reader) -> None:
        """A connection ends; its lanes start again from where its client stands."""
        self.log.release(reader[1])

    @rule(seconds=st.sampled_from([1.0, 40.0, 400.0]))
    def sweep(self, seconds) -> None:
        """Claims that are not used end; lanes without any are kept for a while."""
        self.now_s += seconds
        self.log.expire_claims(self.now_s - 30)

    @rule(share=st.floats(0, 1), reader=st.sampled_from(READERS))
    def seek(self, share, reader) -> None:
        """A client goes back; what it saw of the lane from there on comes again."""
        client = self.clients[reader]
        client.position = int(share * client.position)
        client.seen = [record for record in client.seen if record[0] < client.position]

    @rule(share=st.floats(0, 1))
    def retention(self, share) -> None:
        """The log log start moves on: nothing below is needed any more."""
        self.log.advance_log_start(int(share * self.broker.end))

    @rule()
    def reset(self) -> None:
        """A new leader: everything is read again."""
        self.log.reset()
        assert self.cache.bytes_used == 0

    @invariant()
    def is_sound(self) -> None:
        """Bounds and order hold after every step."""
        if hasattr(self, "log"):
            self.log.check()
            self.cache.check()
            if not self.is_reserved:
                assert self.cache.bytes_used == 0

    def _read(self, offset: int, size: int, waiting=None) -> None:
        raw = self.broker.read(offset, size, 0)
        records = raw.records
        while len(records):
            found = split_block(
                records,
                LAYOUT.key_split(0),
                plain_bytes_max=600,
                batch_bytes_max=BATCH_BYTES_MAX,
            )
            if found is None:
                return
            start = min(offset, found.base_offset)
            self.log.insert(Block(start, found.next_offset, found.leader_epoch, found.outputs))
            if waiting is not None:
                lane, claim, taken, limit, at_least_one = waiting
                if taken.position == claim.position and not taken.pieces:
                    self.log.take(lane, claim, taken, limit, at_least_one=at_least_one)
            self.log.settle(is_reserved=self.is_reserved)
            records, offset = records[found.wire_bytes :], found.next_offset


TestLogMachine = LogMachine.TestCase


places = st.integers(0, 12)
spans = st.tuples(places, st.integers(1, 4), st.sets(st.integers(0, LANES - 1)))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), spans),
        st.tuples(st.just("claim"), st.integers(0, LANES - 1)),
        st.tuples(st.just("log start"), places),
        st.sampled_from([("release", None), ("reset", None), ("settle", None)]),
    ),
    max_size=30,
)


@given(steps=steps)
def test_lanes_that_are_one_object_know_what_each_alone_would(steps) -> None:
    """As a log whose lanes each have an object from the start: the same runs after every step."""
    shared, apart = (LaneLog(LANES, SliceCache(bytes_max=10**6)) for _ in range(2))

    for step in steps:
        for log in (shared, apart):
            if log is apart:
                part_all(log)
            take_step(log, *step)
            log.check()

        assert runs_of(shared) == runs_of(apart)


def part_all(log: LaneLog) -> None:
    for lane in range(LANES):
        log.claim(lane, "parts it", 0, 0.0)
    log.release("parts it")


def take_step(log: LaneLog, kind: str, what) -> None:
    if kind == "insert":
        start, count, lanes = what
        found = split_block(
            write_batch(Batch(start, (Record(0, b"k"),))),
            LaneLayout(1, 1).key_split(0),
            plain_bytes_max=BATCH_BYTES_MAX,
            batch_bytes_max=BATCH_BYTES_MAX,
        )
        assert found is not None
        slices = [found.outputs[0] if lane in lanes else None for lane in range(LANES)]
        log.insert(Block(start, start + count, 0, slices))
    if kind in ("insert", "settle"):
        log.settle(is_reserved=True)
    elif kind == "claim":
        log.claim(what, "a", 0, 0.0)
    elif kind == "log start":
        log.advance_log_start(what)
    elif kind == "release":
        log.release("a")
    elif kind == "reset":
        log.reset()


def runs_of(log: LaneLog) -> list[list[tuple[int, int, bool]]]:
    return [[(run.start, run.end, run.slice is None) for run in lane.runs] for lane in log.lanes]
