"""Mistakes put into keylane on purpose, one for each promise: the simulation has to find them.

Source: docs/guarantees.md names the promises; mutation testing (DeMillo, Lipton, Sayward 1978).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from kio.schema.errors import ErrorCode

from keylane.cache.lane_values import GapForm, Taken
from keylane.journal.fenced import FencedJournal
from keylane.journal.owned import OwnedTables
from keylane.keyrange.lane import LaneLayout
from keylane.offsets.records.journal import StateKey
from keylane.offsets.scan import ScanIndex
from keylane.offsets.state import OffsetState
from keylane.proxy.apis.commits import pushes_sent
from keylane.proxy.commits import adoption, push_journal
from keylane.proxy.commits.group_offsets import GroupOffsets
from keylane.proxy.lanes import reader
from keylane.proxy.lanes.leader_line import Line
from keylane.proxy.nodes.lease import Lease
from tests.simulation.consumer_mutations import CONSUMERS
from tests.simulation.lesser_mutations import MORE
from tests.simulation.mutation import Mutation, nothing, patch


def _leave_out_a_piece() -> Sequence[Any]:
    """An answer of several pieces lacks the second."""
    before = Taken.records

    def records(self: Taken, gap_form: GapForm = GapForm.EMPTY) -> tuple[Any, ...]:
        found = before(self, gap_form)
        return (*found[:1], *found[2:]) if len(found) > 2 else found

    return [mock.patch.object(Taken, "records", records)]


def _swap_lanes() -> Sequence[Any]:
    """The first two lanes of a partition are each other's."""
    before = LaneLayout.lane_of

    def lane_of(self: LaneLayout, index: int) -> int:
        lane = before(self, index)
        return {0: 1, 1: 0}.get(lane, lane)

    return [mock.patch.object(LaneLayout, "lane_of", lane_of)]


def _answer_before_the_journal() -> Sequence[Any]:
    """A commit is answered, and never written to the journal."""

    async def save(self: GroupOffsets, group: str, states: Any) -> None:
        table = self._table_of(group)
        for view, partition, state in states:
            table.put(StateKey(group, view.topic_id, partition), state)

    return [mock.patch.object(GroupOffsets, "save", save)]


def _push_the_fastest() -> Sequence[Any]:
    """Kafka's own offset is that of the lane that is furthest."""
    fastest = property(lambda self: self.fastest_position)
    return [mock.patch.object(OffsetState, "stable_position", fastest)]


def _lead_on_too_far() -> Sequence[Any]:
    """A scan leads a lane past the lane's first record."""
    many = ScanIndex.effective_many

    def further(one: Callable[..., int]) -> Callable[..., int]:
        def effective(self: ScanIndex, *args: Any) -> int:
            found = one(self, *args)
            return found + 1 if found > args[-1] else found

        return effective

    def effective_many(self: ScanIndex, outputs: Any, offsets: Any) -> Any:
        found = many(self, outputs, offsets)
        return found + (found > offsets)

    return [
        mock.patch.object(ScanIndex, "effective", further(ScanIndex.effective)),
        mock.patch.object(ScanIndex, "effective_at", further(ScanIndex.effective_at)),
        mock.patch.object(ScanIndex, "effective_many", effective_many),
    ]


def _nothing_leads_on() -> Sequence[Any]:
    """Scans say nothing of lanes."""
    ways = ("effective", "effective_at", "effective_many")
    return [mock.patch.object(ScanIndex, way, lambda _self, _of, at: at) for way in ways]


def _believe_a_refused_commit() -> Sequence[Any]:
    """A push that the broker refused counts all the same."""
    before = pushes_sent.SentPushes.settle

    async def settle(self: Any, drafts: Any, codes: Any) -> Any:
        return await before(self, drafts, [ErrorCode.none for _ in codes])

    return [mock.patch.object(pushes_sent.SentPushes, "settle", settle)]


def _forget_the_owner_before() -> Sequence[Any]:
    """A journal is opened without the next epoch: its last owner may go on writing."""

    async def no_epoch() -> None:
        return None

    before = FencedJournal.__init__

    def begin(self: FencedJournal, partitions: Any, clients: Any, **how: Any) -> None:
        before(self, partitions, clients, **{**how, "next_epoch": no_epoch})

    return [mock.patch.object(FencedJournal, "__init__", begin)]


async def _compare_nothing(_self: Line, _source: Any, **_: bool) -> None:
    """A new leader's log is taken for the old one."""


MUTATIONS: Sequence[Mutation] = (
    Mutation("an answer lacks a piece", "each record at least once", _leave_out_a_piece),
    Mutation("two lanes are swapped", "a key at one member", _swap_lanes),
    Mutation(
        "a commit is answered before the journal has it",
        "a commit that was answered is kept",
        _answer_before_the_journal,
    ),
    Mutation("the fastest lane is pushed", "the stable offset covers all lanes", _push_the_fastest),
    Mutation(
        "nothing leads lanes on",
        "the stable offset does not stall",
        _nothing_leads_on,
    ),
    Mutation("a scan leads on too far", "each record at least once", _lead_on_too_far),
    Mutation(
        "a cut log is not published",
        "a new leader has a shorter log",
        patch(GroupOffsets, "on_truncated", nothing),
    ),
    Mutation(
        "a new leader is not compared",
        "a new leader has a shorter log",
        patch(Line, "_compare", _compare_nothing),
    ),
    Mutation("a refused commit counts", "a zombie changes nothing", _believe_a_refused_commit),
    Mutation(
        "a journal is opened without an epoch",
        "no two nodes serve a group",
        _forget_the_owner_before,
    ),
    Mutation(
        "a lease never ends",
        "no two nodes serve a group",
        patch(Lease, "is_good", lambda self, _now_s: bool(self._terms)),
    ),
    Mutation(
        "what is sent is not checked against the lease",
        "a node hangs, and wakes up",
        patch(OwnedTables, "check", nothing),
    ),
    Mutation(
        "a step back is not in the journal first",
        "it ends between a commit and its record",
        patch(push_journal, "needs_intent", lambda *_: False),
    ),
    Mutation(
        "a transaction's note is not read",
        "offsets of lanes in a transaction",
        patch(adoption, "read_note", lambda *_: None),
    ),
    Mutation(
        "aborted transactions are not listed",
        "a transaction is aborted",
        patch(reader, "close_aborted", lambda *_: ()),
    ),
    *MORE,
    *CONSUMERS,
)
