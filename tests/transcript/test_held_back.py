"""Groups on lanes as long as their journal cannot be made: errors that clients retry."""

from __future__ import annotations

from tests.reference.crash_world import Kafka
from tests.reference.forgetting_world import Ownership
from tests.transcript.crashing_node import LANES, commit, offsets_and_codes, started

NOT_COORDINATOR = 16


async def test_groups_that_are_held_back_are_asked_to_come_again() -> None:
    """Commits and OffsetFetch are answered, and nothing is sent to the broker."""
    node = await started(Kafka())
    node.offsets._ownership = Ownership()
    node.offsets.hold_back("topic __consumer_offsets cannot be made")

    committed = await commit(node, dict.fromkeys(range(LANES), 10))
    found = await offsets_and_codes(node)

    assert committed == [NOT_COORDINATOR] * LANES
    assert found == [(-1, NOT_COORDINATOR)] * LANES
    assert node.kafka.offset is None
