"""A node that has taken a group over looks at its states, and need not know the group's name."""

from __future__ import annotations

import uuid
from unittest import mock

import pytest

from keylane.keyrange.key_split import KeySplit
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.proxy.commits.late_pushes import PATIENCE_S, LatePush
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


async def look(context: FakeContext, *used: str, topic_id: uuid.UUID = PLAIN) -> None:
    """A node that knows these names, and none of the group, looks at a state that it has loaded.

    The first two lanes of four stand together, the others apart; the topic has none itself.
    """
    for name in used:
        context.groups.layouts.pinned |= context.groups.layouts.unpinned(context.lanes(name), 1)
    key, state = StateKey(GROUP, topic_id, 0), OffsetState(committed=3, topic_name="plain")
    for index, offset in (6, 5), (9, 8):
        state.commit_keys((context.lanes("plain.lanes-4").key_ranges(index)[0],), offset)
    context.groups.table.put(key, state)
    context.groups.late.note_loaded(key, state)
    beats(context)
    await run_aside(context)
    context.finish()


def waiting(context: FakeContext) -> LatePush:
    """The one place that is to be read."""
    (late,) = context.groups.late.overdue(context.clock() + PATIENCE_S + 1)
    return late


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
    """By the fewest lanes that set the state's lanes apart, or by its own cuts."""
    context = FakeContext()
    await look(context, *used)

    late = waiting(context)
    assert late.view.name == by
    if by == "plain":
        cuts = context.lanes("plain.lanes-4").key_split(0).cuts
        assert late.scan_key == (PLAIN, 0, KeySplit(cuts[1:]))


async def test_a_name_that_is_not_served_does_not_keep_a_state_from_the_look() -> None:
    """Nodes do not agree on what the name of fewest lanes means; another one fits as well."""
    context = FakeContext()
    with mock.patch.object(context.registry, "is_refused", lambda name: name == "plain.lanes-4"):
        await look(context, "plain.lanes-4", "plain.lanes-8")

    assert waiting(context).view.name == "plain.lanes-8"
    assert context.groups.late.loaded(GROUP) == []


async def test_a_state_of_a_topic_that_was_made_anew_is_not_looked_at() -> None:
    """Its offsets are of a log that is gone: nothing is pushed, and no place is read."""
    context = FakeContext()
    await look(context, "plain.lanes-4", topic_id=uuid.UUID(int=0xDEAD))

    assert len(context.groups.late) == 0 and context.groups.late.loaded(GROUP) == []
