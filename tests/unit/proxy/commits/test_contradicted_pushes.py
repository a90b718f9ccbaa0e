"""What was pushed before another node was found to read another log."""

from __future__ import annotations

import asyncio

import numpy as np

from keylane.offsets.lineage import EpochStart
from keylane.offsets.pushes import Push, TransactionWriter
from keylane.offsets.records.journal import StateKey
from keylane.offsets.txn_metadata import LaneCommit, LaneNote, write_note
from tests.reference.crash_world import Kafka, Node
from tests.transcript.fake import ORDERS

KEY = StateKey("g", ORDERS, 0)
SEEN = EpochStart(2, 31)


async def node_of_a_contradiction() -> Node:
    """It has pushed; then a later leader's log is read where an earlier one's was."""
    node = await Node(Kafka()).start()
    await node.offsets.adopt("g", node.lanes("orders"), 0, 11, None)
    node.scan(0, 31, 1, is_own=False)
    node.offsets.pushes.note_push(KEY, Push(TransactionWriter(1, 0), ()))
    node.scan(20, 40, 2, is_own=False)
    return node


def test_a_push_from_before_a_contradiction_may_be_of_another_log() -> None:
    """Its epoch is kept, by which the leader is asked: what was seen of the log is forgotten."""

    async def run() -> None:
        node = await node_of_a_contradiction()
        groups, view = node.offsets, node.lanes("orders")
        commit = LaneCommit(key_range=view.key_split(0).key_range(0), offset=53)

        await groups.adopt("g", view, 0, 56, write_note(ORDERS, LaneNote(56, (commit,), SEEN)))

        assert groups.is_unsure("g", view, 0)
        assert groups._table_of("g").epoch_of(KEY) == SEEN

    asyncio.run(run())


def test_what_a_push_from_before_a_contradiction_brings_ends_where_its_epoch_does() -> None:
    """A scan of the next leader leads it on once its own leader's log was compared."""

    async def run() -> None:
        node = await node_of_a_contradiction()
        groups, view = node.offsets, node.lanes("orders")
        groups.scan_of(view, 0).add(40, 80, np.array([79, -1, -1, -1]))
        commit = LaneCommit(key_range=view.key_split(0).key_range(1), offset=56)

        state = await groups.adopt(
            "g", view, 0, 56, write_note(ORDERS, LaneNote(56, (commit,), SEEN))
        )

        assert state.concluded_end == 56

    asyncio.run(run())
