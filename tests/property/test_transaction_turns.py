"""Transactions on lanes of one partition among nodes that come and go, against a model of Kafka.

The node of the group sees no end of a transaction. After any order of commits, ends, losses and
restarts each lane stands where its last committed transaction left it, and nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from kio.index import load_response_schema

from keylane.keyrange.lane import LaneLayout
from keylane.offsets.records.journal import JournalRecord
from keylane.wire.header import read_request_header
from keylane.wire.messages import read_request, write_message
from tests.reference.response_frame import write_response
from tests.transcript.entities import build, plain
from tests.transcript.fake import FakeContext, call

FETCH, TXN_COMMIT = 9, 28
UNSTABLE = 88
LANES, START = 4, 100
ASK_S = 0.9
"""What a question takes, so that a turn is waited for by a few of them."""
LAYOUT = LaneLayout(2, LANES)
PRODUCERS = st.integers(0, 1)
SOME_LANES = st.sets(st.integers(0, LANES - 1), min_size=1)


@dataclass
class Coordinator:
    """Kafka's own offset of one partition of a group, and what transactions hold for it."""

    committed: tuple[int, str] = (START, "")
    pending: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    """By producer, in the order in which it came."""
    late: int = 0
    """Questions to which an ended transaction still seems pending, as before Kafka 4.0."""

    def fetch(self) -> tuple[int, str, int]:
        if self.pending or self.late:
            self.late = max(0, self.late - 1)
            return -1, "", UNSTABLE
        return *self.committed, 0

    def end(self, producer: int, *, is_committed: bool) -> None:
        held = self.pending.pop(producer, [])
        if held and is_committed:
            self.committed = held[-1]


class Node(FakeContext):
    """A node whose broker is the model, not a script."""

    def __init__(self, coordinator: Coordinator, journal: Sequence[JournalRecord] = ()) -> None:
        super().__init__()
        self.coordinator = coordinator
        self.groups.sees_ends = False
        self.groups.journal = list(journal)
        self.groups.load(self.groups.restarted())

    def answer_frame(self, frame: bytes) -> bytes:
        header = read_request_header(frame, 4)
        body = memoryview(frame)[header.body_position :]
        wanted = plain(read_request(header.api_key, header.api_version, body))
        answer = self._fetch() if header.api_key == FETCH else self._commit(wanted)
        schema = load_response_schema(header.api_key, header.api_version)
        parts = [write_message(build(schema, answer))]
        return b"".join(
            write_response(header.api_key, header.api_version, header.correlation_id, parts)
        )

    def _fetch(self) -> dict[str, Any]:
        self.world.now_s += ASK_S
        offset, metadata, error = self.coordinator.fetch()
        entry = {
            "partition_index": 0,
            "committed_offset": offset,
            "metadata": metadata,
            "error_code": error,
        }
        return {"topics": [{"name": "orders", "partitions": [entry]}]}

    def _commit(self, wanted: dict[str, Any]) -> dict[str, Any]:
        ((entry,),) = [topic["partitions"] for topic in wanted["topics"]]
        assert not self.coordinator.pending.keys() - {wanted["producer_id"]}, "they take turns"
        held = self.coordinator.pending.setdefault(wanted["producer_id"], [])
        held.append((entry["committed_offset"], entry["committed_metadata"]))
        return {
            "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "error_code": 0}]}]
        }


class Turns(RuleBasedStateMachine):
    """Producers with an epoch for all of their transactions (version 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.coordinator = Coordinator()
        self.node = Node(self.coordinator)
        self.expected = [START] * LANES
        self.open: dict[int, dict[int, int]] = {}
        """By producer: what its open transaction has taken by its answers, by lane."""
        self.top = START

    @rule(producer=PRODUCERS, lanes=SOME_LANES)
    def commit(self, producer: int, lanes: set[int]) -> None:
        """A producer puts offsets into its transaction; where it has to abort, it does."""
        self.top += 1
        entries = [
            {"partition_index": 2 * lane, "committed_offset": self.top} for lane in sorted(lanes)
        ]
        wanted = {
            "transactional_id": f"t{producer}",
            "group_id": "g",
            "producer_id": producer,
            "producer_epoch": 0,
            "generation_id": 1,
            "member_id": "m",
            "topics": [{"name": "orders", "partitions": entries}],
        }
        answer = asyncio.run(call(self.node, TXN_COMMIT, 3, wanted))
        codes = {entry["error_code"] for entry in answer["topics"][0]["partitions"]}
        if codes == {0}:
            self.open.setdefault(producer, {}).update(dict.fromkeys(lanes, self.top))
        elif codes == {22}:
            self.end(producer, is_committed=False, late=0)
        else:
            assert codes == {14}, "its turn has not come"

    @rule(producer=PRODUCERS, is_committed=st.booleans(), late=st.integers(0, 1))
    def end(self, producer: int, is_committed: bool, late: int) -> None:
        """A transaction ends, by way of another node; one without offsets says nothing."""
        if producer not in self.coordinator.pending:
            return
        self.coordinator.end(producer, is_committed=is_committed)
        self.coordinator.late = late
        taken = self.open.pop(producer, {})
        if is_committed:
            for lane, offset in taken.items():
                self.expected[lane] = offset
        self.lanes_stand_where_committed_transactions_left_them()

    @rule(
        producer=PRODUCERS,
        first=SOME_LANES,
        second=SOME_LANES,
        is_committed=st.booleans(),
        late=st.integers(0, 1),
    )
    def two_in_a_row(
        self, producer: int, first: set[int], second: set[int], is_committed: bool, late: int
    ) -> None:
        """A transaction, and at once the next of the same producer and epoch."""
        self.commit(producer, first)
        self.end(producer, is_committed, late)
        self.commit(producer, second)
        self.end(producer, is_committed=True, late=0)

    @rule()
    def pass_on(self) -> None:
        """Another node serves the group from now on, by what the journal holds."""
        self.node = Node(self.coordinator, self.node.groups.journal)

    @rule()
    def leave_and_return(self) -> None:
        """The same node serves it again."""
        self.node.groups.lose("g")
        self.node.groups.of_others.clear()

    @rule()
    def lanes_stand_where_committed_transactions_left_them(self) -> None:
        """A look when nothing is pending, by a separate node, which changes nothing."""
        if self.coordinator.pending or self.coordinator.late:
            return
        looking = Node(self.coordinator, self.node.groups.journal)
        wanted = {
            "group_id": "g",
            "topics": [{"name": "orders", "partition_indexes": [0, 2, 4, 6]}],
        }
        answer = asyncio.run(call(looking, FETCH, 7, wanted))
        entries = answer["topics"][0]["partitions"]
        assert [entry["committed_offset"] for entry in entries] == self.expected


TestTurns = Turns.TestCase
TestTurns.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
