"""A node that has taken a group over looks at its states, and need not know the group's name."""

from __future__ import annotations

import pytest

from keylane.keyrange.key_split import KeySplit
from keylane.offsets.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.proxy.late_pushes import PATIENCE_S
from tests.reference.crash_world import Kafka
from tests.transcript.crashing_node import commit, started
from tests.transcript.fake import PLAIN, FakeContext
from tests.transcript.test_cut_pushes import ends_at
from tests.transcript.test_late_offsets import beats, run_aside
from tests.transcript.test_offset_commit import GROUP

EIGHT = "orders.lanes-8"


@pytest.mark.parametrize("is_name_known", [True, False])
async def test_a_node_that_does_not_know_the_name_of_a_group_leads_its_lanes_on(
    is_name_known: bool,
) -> None:
    """The topic has four lanes; the group went by eight, and the second of them has no record.

    In one of four it is together with the first, which has them all, and nothing would lead it on.
    What names others have used is not known to a node that serves none of them.
    """
    kafka = Kafka()
    node = await started(kafka)
    assert set(await commit(node, dict.fromkeys(range(16), 30), name="orders.lanes-16")) == {0}
    assert set(await commit(node, {n: 80 for n in range(8) if n != 1}, name=EIGHT)) == {0}
    assert kafka.offset == 30
    node = await started(kafka)
    if not is_name_known:
        node.offsets.layouts.pinned.clear()
    node.read(0, 80)
    node.offsets._checks._ask = ends_at(80)
    beats(node)
    await run_aside(node)
    (late,) = node.offsets.late.overdue(node.clock() + PATIENCE_S + 1)
    assert late.view.name == (EIGHT if is_name_known else "orders") and kafka.offset == 30

    node.read(30, 80, late.view.key_split(0))
    await run_aside(node)

    assert kafka.offset == 80
    assert set(node.offsets.layouts.pinned) == (
        {EIGHT, "orders.lanes-16"} if is_name_known else set()
    )


@pytest.mark.parametrize(
    ("used", "by"),
    [
        (("plain.lanes-6", "plain.lanes-8", "plain.lanes-4"), "plain.lanes-4"),
        (("plain.lanes-6", "plain.lanes-8"), "plain.lanes-8"),
        (("plain.lanes-6", "plain.lanes-2", "orders.lanes-4"), "plain"),
        ((), "plain"),
    ],
    ids=["fewest", "finer", "none fits", "none known"],
)
async def test_a_state_of_a_group_without_a_name_is_looked_at_by_cuts_that_fit(used, by) -> None:
    """The first two lanes of four stand together, the others apart; the topic has none itself."""
    context = FakeContext()
    for name in used:
        context.groups.layouts.pinned |= context.groups.layouts.unpinned(context.lanes(name), 1)
    key, state = StateKey(GROUP, PLAIN, 0), OffsetState(committed=3, topic_name="plain")
    four = context.lanes("plain.lanes-4")
    for index, offset in (6, 5), (9, 8):
        state.commit_lane(four.key_ranges(index)[0], offset)
    context.groups.table.put(key, state)
    context.groups.late.note_loaded(key, state)

    beats(context)
    await run_aside(context)

    (late,) = context.groups.late.overdue(context.clock() + PATIENCE_S + 1)
    assert late.view.name == by
    if by == "plain":
        assert late.scan_key == (PLAIN, 0, KeySplit(four.key_split(0).cuts[1:]))
    context.finish()
