"""Pushes of a node that was replaced, which the broker takes after those of the next owner.

Kafka refuses none of them while the group has not rebalanced. What the next owner has acknowledged
stands all the same, and what the earlier one had under way was acknowledged by none.
"""

from __future__ import annotations

import pytest

from keylane.offsets.txn_metadata import read_note
from keylane.offsets.values import ON_ITS_WAY_S_MAX, OwnerEpoch, Pusher
from tests.reference.crash_world import Died, Kafka, Node
from tests.transcript.crashing_node import (
    KEY,
    LANES,
    at_1000,
    commit,
    fault,
    offsets,
    started,
    transact,
)
from tests.transcript.fake import ORDERS

ALL = range(LANES)


async def replaced(offset: int) -> tuple[Kafka, Node]:
    """All lanes stand at 1000; a push of `offset` is under way, of a node that is no more."""
    kafka, node = await at_1000()
    kafka.begin(fault(0, is_done=False, is_late=True, dies=True))
    with pytest.raises(Died):
        await commit(node, dict.fromkeys(ALL, offset))
    kafka.begin(None)
    return kafka, await started(kafka)


def arrives(kafka: Kafka) -> None:
    """The broker takes the push now."""
    ((offset, metadata),) = kafka.late
    kafka.arrive(offset, metadata)


async def test_a_late_push_takes_back_nothing_that_the_next_owner_has_acknowledged() -> None:
    """It stands below; nor does a third node take it for a reset, which has the journal only."""
    kafka, node = await replaced(1400)
    assert await commit(node, dict.fromkeys(ALL, 1600)) == [0] * LANES

    arrives(kafka)

    assert await offsets(node) == [1600] * LANES
    assert await offsets(await started(kafka)) == [1600] * LANES
    assert await commit(node, {0: 1610}) == [0]
    assert kafka.offset == 1600 and await offsets(node) == [1610, 1600, 1600, 1600]


async def test_a_late_push_leads_no_lane_past_where_the_next_owner_has_set_it_back() -> None:
    """It stands further: its commits were answered to none."""
    kafka, node = await replaced(1400)
    assert await commit(node, dict.fromkeys(ALL, 500)) == [0] * LANES

    arrives(kafka)

    assert await offsets(node) == [500] * LANES
    assert await offsets(await started(kafka)) == [500] * LANES
    assert await commit(node, {0: 510}) == [0]
    assert kafka.offset == 500


async def test_a_push_that_came_before_the_next_owner_did_counts() -> None:
    """It is of all lanes, and further: the journal lacks it, as its node died in between."""
    kafka, node = await replaced(1400)

    arrives(kafka)

    assert await offsets(node) == [1400] * LANES


@pytest.mark.parametrize("metadata", ["", "of an admin"])
async def test_what_an_admin_sets_back_is_set_back(metadata) -> None:
    """It bears no owner, or another one's note that is of another offset."""
    kafka, node = await replaced(1400)
    assert await commit(node, dict.fromkeys(ALL, 1600)) == [0] * LANES

    kafka.arrive(700, metadata)

    assert await offsets(node) == [700] * LANES


async def test_what_was_kept_and_is_put_back_is_a_reset_also_past_a_new_owner() -> None:
    """A tool restores offset and metadata: they are older than anything that is on its way."""
    kafka, node = await replaced(1400)
    ((_, text),) = kafka.late
    assert await commit(node, dict.fromkeys(ALL, 1600)) == [0] * LANES
    table = node.offsets.tables.table("g")
    assert table.owner is not None
    table.note_taken(KEY, 1600, 0.0, 2 + ON_ITS_WAY_S_MAX)

    kafka.arrive(1400, text)

    assert await offsets(node) == [1400] * LANES


async def test_a_transaction_that_ends_after_its_node_counts() -> None:
    """Its producer was answered, and commits it when the next owner serves the group."""
    kafka, node = await at_1000()
    assert await transact(node, dict.fromkeys(ALL, 1500)) == [0] * LANES
    held = kafka.offset, kafka.metadata
    kafka.arrive(1000, "")
    node = await started(kafka)
    assert await commit(node, {0: 1100}) == [0]

    kafka.arrive(*held)

    assert await offsets(node) == [1500] * LANES


async def test_each_push_says_of_which_owner_it_is() -> None:
    """Also where members said all of it; the journal says of which owner the last one was."""
    kafka, node = await at_1000()
    first = read_note(kafka.metadata, ORDERS, 1000)
    node = await started(kafka)
    await commit(node, dict.fromkeys(ALL, 1001))
    second = read_note(kafka.metadata, ORDERS, 1001)

    assert first is not None and second is not None and first.is_said and second.is_said
    assert first.pusher == Pusher(OwnerEpoch(1000, 1), 1)
    assert kafka.loaded()._pushers[KEY] == second.pusher == Pusher(OwnerEpoch(1000, 2), 1)


async def test_a_journal_without_epochs_makes_no_owners() -> None:
    """Nothing distinguishes one from the other: notes are as before there were owners."""
    kafka, node = await at_1000()
    node.offsets.tables.table("g").owner = None

    await commit(node, dict.fromkeys(ALL, 1001))

    assert kafka.metadata == ""
