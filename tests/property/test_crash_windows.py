"""Commits, resets, deletions and transactions over nodes that die anywhere, against a naive twin.

After any order of pushes, appends, lost answers and deaths each lane stands where it was last
committed: never above what was processed or asked for, never below an acknowledged commit that
no member has reset. A node that takes over at this moment says the same as the one that is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar
from unittest import mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from keylane.errors import UpstreamLost
from keylane.offsets import steps
from keylane.offsets.pushes import TransactionWriter
from keylane.offsets.txn_metadata import read_note
from tests.reference.crash_world import (
    COMMIT,
    DELETE,
    FETCH,
    TXN_COMMIT,
    Bounds,
    Died,
    Fault,
    Kafka,
    Node,
)
from tests.transcript.fake import ORDERS, call

T = TypeVar("T")
GROUP, LANES = "g", 4
SOME_LANES = st.sets(st.integers(0, LANES - 1), min_size=1)
FAULTS = st.none() | st.builds(
    Fault,
    number=st.integers(0, 5),
    is_done=st.booleans(),
    is_late=st.booleans(),
    dies=st.booleans(),
)
OFFSETS = st.integers(0, 30).map(lambda tens: 10 * tens)


class CrashWindows(RuleBasedStateMachine):
    """One partition of two (of 4 lanes each) of one group."""

    def __init__(self) -> None:
        super().__init__()
        # Four lanes are few; their journal is to have steps, too.
        self._steps = mock.patch.object(steps, "INTERVALS_MIN", 2)
        self._steps.start()
        self._loop = asyncio.new_event_loop()
        self.kafka = Kafka()
        self.node = Node(self.kafka)
        self.bounds = [Bounds() for _ in range(LANES)]
        self.is_one_of_many = False
        self.direct = 5

    @initialize(many=st.booleans(), ahead=st.booleans())
    def begin(self, *, many: bool, ahead: bool) -> None:
        """One node, or one of many, which loads anew when the journal failed."""
        self.is_one_of_many = many
        self._run(self.node.start())
        if ahead:
            self.commit(lanes={0, 1, 2, 3}, offset=200, fault=None, fenced=False)

    @rule(lanes=SOME_LANES, offset=OFFSETS, fault=FAULTS, fenced=st.booleans())
    def commit(self, lanes: set[int], offset: int, fault: Fault | None, *, fenced: bool) -> None:
        """A member commits, forward or back, or a member that was given up."""
        self._commit(lanes, offset, fault, member="m", fenced=fenced)

    @rule(lanes=SOME_LANES, offset=OFFSETS, fault=FAULTS)
    def reset(self, lanes: set[int], offset: int, fault: Fault | None) -> None:
        """An admin sets lanes."""
        self._commit(lanes, offset, fault, member="", fenced=False)

    @rule(lanes=SOME_LANES, fault=FAULTS)
    def delete(self, lanes: set[int], fault: Fault | None) -> None:
        """An admin deletes offsets of lanes."""
        entries = [{"partition_index": 2 * lane} for lane in sorted(lanes)]
        wanted = {"group_id": GROUP, "topics": [{"name": "orders", "partitions": entries}]}
        answer = self._do(call(self.node, DELETE, 0, wanted), fault)
        self._take(answer, lanes, 0, is_refused=False)

    @rule(lanes=SOME_LANES, offset=OFFSETS, fault=FAULTS, commits=st.booleans())
    def transaction(
        self, lanes: set[int], offset: int, fault: Fault | None, *, commits: bool
    ) -> None:
        """Offsets in a transaction, which its producer commits if they are in by the answer."""
        self._all_arrive()
        entries = [
            {"partition_index": 2 * lane, "committed_offset": offset} for lane in sorted(lanes)
        ]
        wanted = {
            "transactional_id": "t", "group_id": GROUP, "producer_id": 1, "producer_epoch": 0,
            "generation_id": 1, "member_id": "m",
            "topics": [{"name": "orders", "partitions": entries}],
        }  # fmt: skip
        answer = self._do(call(self.node, TXN_COMMIT, 3, wanted), fault)
        codes = _codes(answer)
        is_in = bool(codes) and set(codes) == {0}
        held, self.kafka.in_transaction = self.kafka.in_transaction, None
        self.node.offsets.pushes.end(TransactionWriter(1, 0))  # EndTxn passes, whatever it says
        if held is not None and is_in and commits:
            self.kafka.offset, self.kafka.metadata = held
            for lane in lanes:
                self.bounds[lane].set(offset)

    @rule()
    def die(self) -> None:
        """The process is killed between two requests."""
        self._take_over()

    @rule()
    def arrive_late(self) -> None:
        """A push that had no answer comes into effect after all.

        Behind a deletion of all lanes it brings the offset back, as a commit does at Kafka itself.
        """
        if self.kafka.late:
            self._arrive(*self.kafka.late.pop(0))

    @rule(more=st.integers(1, 30))
    def read(self, more: int) -> None:
        """Records are published, and a reader of the node looks at them."""
        start, self.kafka.end = self.kafka.end, self.kafka.end + 10 * more
        self.node.read(start, self.kafka.end)
        if self.kafka.is_first_log:
            for bounds in self.bounds[1:]:
                bounds.led = self.kafka.end

    @rule(is_read=st.booleans())
    def lose_log(self, *, is_read: bool) -> None:
        """The log is gone, and another one is as long by now: it has records of every lane."""
        self.kafka.epoch += 1
        for bounds in self.bounds:
            bounds.led = 0
        self.node.lose_log(is_read=is_read)

    @rule(forward=st.booleans())
    def move_directly(self, *, forward: bool) -> None:
        """Somebody moves the offset at Kafka, past keylane, which sees it at the next look.

        Not where the lanes of a transaction stand beside it, which that would take away.
        """
        self._all_arrive()
        self.look()
        before = self.kafka.offset
        self.direct += 10
        target = 1000 + self.direct if forward else self.direct
        note = read_note(self.kafka.metadata, ORDERS, before)
        if before is None or (note is not None and not note.is_push):
            return
        self.kafka.arrive(target)
        for bounds in self.bounds:
            bounds.at_least(target) if target > before else bounds.set(target)
        self.look()

    @rule()
    def look(self) -> None:
        """OffsetFetch by a member."""
        self._run(self._check(self.node))

    @invariant()
    def anybody_says_the_same(self) -> None:
        """A node that has the journal and Kafka only, at this moment."""
        # Another one, as it writes: a node that was not replaced is not fenced here.
        kafka = replace(self.kafka, log=[*self.kafka.log], late=[*self.kafka.late])
        self._run(self._check(self._run(Node(kafka).start())))

    def teardown(self) -> None:
        """One loop serves the whole history: to make one takes longer than a step."""
        self._loop.close()
        self._steps.stop()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def _commit(
        self, lanes: set[int], offset: int, fault: Fault | None, *, member: str, fenced: bool
    ) -> None:
        entries = [
            {"partition_index": 2 * lane, "committed_offset": offset} for lane in sorted(lanes)
        ]
        wanted = {
            "group_id": GROUP,
            "generation_id_or_member_epoch": 1 if member else -1,
            "member_id": member,
            "topics": [{"name": "orders", "partitions": entries}],
        }
        self.kafka.is_fenced = fenced
        answer = self._do(call(self.node, COMMIT, 8, wanted), fault)
        self.kafka.is_fenced = False
        self._take(answer, lanes, offset, is_refused=fenced)

    def _do(self, work: Coroutine[Any, Any, Any], fault: Fault | None) -> Any:
        """The answer; None: there is none."""
        self.kafka.begin(fault)
        answer = None
        try:
            answer = self._run(work)
        except Died:
            self._take_over()
        except UpstreamLost:
            pass  # the client's connection is closed
        self.kafka.begin(None)
        if self.node.store.has_failed and self.is_one_of_many:
            self._take_over()
        self.node.store.has_failed = False
        self.node.offsets.tables.table("g").check()
        return answer

    def _take(self, answer: Any, lanes: set[int], offset: int, *, is_refused: bool) -> None:
        codes = _codes(answer)
        for lane in lanes:
            if codes and set(codes) == {0}:
                self.bounds[lane].set(offset)
            elif not is_refused:
                self.bounds[lane].may_be(offset)

    def _take_over(self) -> None:
        """Another node, or the same one anew. What was sent may still come, written down or not."""
        self.node = Node(self.kafka)
        self._run(self.node.start())

    def _all_arrive(self) -> None:
        for push in self.kafka.late:
            self._arrive(*push)
        self.kafka.late.clear()

    def _arrive(self, offset: int | None, metadata: str) -> None:
        if self.kafka.offset is None and offset is not None:
            for bounds in self.bounds:
                bounds.may_be(offset)
        self.kafka.arrive(offset, metadata)

    async def _check(self, node: Node) -> None:
        indexes = [2 * lane for lane in range(LANES)]
        wanted = {"group_id": GROUP, "topics": [{"name": "orders", "partition_indexes": indexes}]}
        answer = await call(node, FETCH, 7, wanted)
        entries = answer["topics"][0]["partitions"]
        for lane, (entry, bounds) in enumerate(zip(entries, self.bounds, strict=True)):
            assert entry["error_code"] == 0
            offset = max(0, entry["committed_offset"])
            assert bounds.low <= offset <= max(bounds.high, bounds.led), (lane, offset, bounds)


def _codes(answer: Any) -> list[int]:
    if answer is None:
        return []
    return [entry["error_code"] for topic in answer["topics"] for entry in topic["partitions"]]


TestCrashWindows = CrashWindows.TestCase
# A history takes a tenth of a second: a third of what the profile asks for.
TestCrashWindows.settings = settings(
    max_examples=max(30, settings().max_examples // 3), stateful_step_count=20
)
