"""Steps back whose outcome is lost: one lane goes back, the others stand."""

from __future__ import annotations

import pytest

from keylane.errors import UpstreamLost
from keylane.offsets.records.journal import read_key
from tests.reference.crash_world import Died, Kafka
from tests.transcript.crashing_node import (
    AFTER_INTENT,
    KEY,
    LANES,
    at_1000,
    commit,
    delete,
    fault,
    offsets,
    started,
)


@pytest.mark.parametrize("member", ["m", ""])
async def test_a_node_that_dies_behind_a_step_back_leaves_the_other_lanes(member) -> None:
    """Kafka has the lower offset, the journal not the positions: a member's seek, an admin's."""
    kafka, node = await at_1000()
    kafka.begin(fault(AFTER_INTENT, dies=True))
    with pytest.raises(Died):
        await commit(node, {0: 10}, member)
    kafka.begin(None)

    found = await offsets(await started(kafka))

    assert kafka.offset == 10
    assert found == [10, 1000, 1000, 1000]


async def test_a_connection_that_is_lost_behind_a_step_back_leaves_the_other_lanes() -> None:
    """The node lives, the client is gone before the broker's answer."""
    kafka, node = await at_1000()
    kafka.begin(fault(AFTER_INTENT, dies=False))
    with pytest.raises(UpstreamLost):
        await commit(node, {0: 10})
    kafka.begin(None)

    found = await offsets(node)

    assert found == [10, 1000, 1000, 1000]


async def test_a_step_back_that_was_not_sent_changes_nothing() -> None:
    """The process ends with the intent in the journal."""
    kafka, node = await at_1000()
    kafka.begin(fault(0, dies=True))
    with pytest.raises(Died):
        await commit(node, {0: 10})
    kafka.begin(None)

    assert await offsets(await started(kafka)) == [1000] * LANES


@pytest.mark.parametrize("number", [1, 2, 3, 4, 5])
async def test_a_node_that_dies_behind_a_deletion_leaves_the_other_lanes(number) -> None:
    """Between the broker's deletion of the partition's offset and the last record of it."""
    kafka, node = await at_1000()
    kafka.begin(fault(number, dies=True))
    with pytest.raises(Died):
        await delete(node, 0)
    kafka.begin(None)

    found = await offsets(await started(kafka))

    assert found == [-1, 1000, 1000, 1000]


async def test_a_push_that_arrives_behind_a_later_one_moves_no_lane() -> None:
    """An answer that timed out, a commit of others, and then the first push after all."""
    kafka, node = await at_1000()
    kafka.begin(fault(AFTER_INTENT, is_done=False, is_late=True, dies=False))
    assert await commit(node, {0: 10}) == [15]
    kafka.begin(None)
    assert await commit(node, dict.fromkeys(range(LANES), 1200)) == [0] * LANES

    kafka.arrive(*kafka.late.pop())

    assert kafka.offset == 10
    assert await offsets(node) == [1200] * LANES
    assert await offsets(await started(kafka)) == [1200] * LANES


async def test_a_push_that_came_late_is_no_floor() -> None:
    """It stood for commits that were not acknowledged: the group goes on from those that were."""
    kafka, node = await at_1000()
    kafka.begin(fault(0, is_done=False, is_late=True, dies=False))
    assert await commit(node, dict.fromkeys(range(LANES), 1249)) == [15] * LANES
    kafka.begin(None)
    assert await commit(node, {0: 1300, 1: 1244, 2: 1300, 3: 1300}) == [0] * LANES
    kafka.arrive(*kafka.late.pop())
    assert kafka.offset == 1249
    assert await offsets(node) == [1300, 1244, 1300, 1300]

    assert await commit(node, {0: 1310}) == [0]

    assert kafka.offset == 1244
    assert await offsets(await started(kafka)) == [1310, 1244, 1300, 1300]


async def test_a_push_like_an_earlier_one_that_failed_is_taken_for_that_by_the_next_owner() -> None:
    """Its node dies before the journal has it, so the commit was not answered; no lane moves."""
    kafka, node = await at_1000()
    kafka.begin(fault(0, is_done=False, is_late=True, dies=False))
    assert await commit(node, dict.fromkeys(range(LANES), 1249)) == [15] * LANES
    kafka.begin(None)
    assert await commit(node, {0: 1300, 1: 1244, 2: 1300, 3: 1300}) == [0] * LANES
    kafka.begin(fault(1, is_done=False, dies=True))
    with pytest.raises(Died):
        await commit(node, {1: 1249})
    kafka.begin(None)
    assert kafka.offset == 1249

    node = await started(kafka)

    assert await offsets(node) == [1300, 1244, 1300, 1300]
    assert await commit(node, {0: 1310}) == [0]
    assert kafka.offset == 1244


async def test_a_refused_step_back_leaves_no_intent() -> None:
    """A fenced member: nothing of it is in effect when somebody resets to that very offset."""
    kafka, node = await at_1000()
    kafka.is_fenced = True
    assert await commit(node, {0: 10}) == [22]

    assert kafka.loaded().intents.stored(KEY) == []
    kafka.arrive(10)
    assert await offsets(await started(kafka)) == [10] * LANES


async def test_a_refused_first_commit_leaves_nothing() -> None:
    """No state, in memory or in the journal, of a group that has committed nothing."""
    kafka = Kafka()
    node = await started(kafka)
    kafka.is_fenced = True

    assert await commit(node, {0: 10}) == [22]

    assert not node.offsets.has_offsets("g")
    assert len(kafka.loaded()) == 0 and kafka.loaded().intents.stored(KEY) == []


async def test_a_first_push_that_arrives_late_stands_for_the_lanes_that_it_was_made_of() -> None:
    """Its answer was an error: the others have committed nothing, for each node that looks."""
    kafka = Kafka()
    node = await started(kafka)
    kafka.begin(fault(AFTER_INTENT, is_done=False, is_late=True, dies=False))
    assert await commit(node, {0: 10, 1: 20}) == [15] * 2
    kafka.begin(None)
    assert await offsets(node) == [-1] * LANES

    kafka.arrive(*kafka.late.pop())

    assert await offsets(node) == [10, 20, -1, -1]
    assert await offsets(await started(kafka)) == [10, 20, -1, -1]


async def test_a_step_back_is_not_sent_when_the_journal_cannot_be_written() -> None:
    """The client commits again; Kafka has what it had."""
    kafka, node = await at_1000()
    kafka.begin(fault(0, is_done=False, dies=False))

    codes = await commit(node, {0: 10})

    assert codes == [15] and kafka.offset == 1000
    assert await offsets(node) == [1000] * LANES


async def test_a_commit_that_goes_forward_is_appended_once() -> None:
    """What all commits but steps back are; the journal holds no intent."""
    kafka, node = await at_1000()
    before = len(kafka.log)

    await commit(node, dict.fromkeys(range(LANES), 1200))

    assert len(kafka.log) == before + 1
    assert read_key(kafka.log[-1].key) == KEY


async def test_a_move_at_kafka_is_journaled_before_it_is_answered() -> None:
    """A second move is judged beside the first one, also by a node that takes over."""
    kafka, node = await at_1000()
    kafka.arrive(2000)
    assert await offsets(node) == [2000] * LANES

    kafka.arrive(1500)

    assert await offsets(await started(kafka)) == [1500] * LANES
