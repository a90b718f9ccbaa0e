"""Heartbeat v0-4: passes as bytes; stable offsets that are due are committed again."""

from __future__ import annotations

import uuid

import pytest

from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.offsets.values import WHOLE
from keylane.proxy.apis.groups import heartbeat
from keylane.proxy.commits.push_journal import Pushing
from keylane.proxy.commits.refreshes import AGAIN_S_MAX
from tests.transcript.entities import Values
from tests.transcript.fake import (
    ORDERS,
    PLAIN,
    FakeContext,
    call,
    is_relayed,
    make_request,
    versions,
)

COMMIT, FETCH, BEAT, DESCRIBE = 8, 9, 12, 15
GROUP = "g"
NONE, UNKNOWN_TOPIC, TIMED_OUT, REBALANCING, UNSTABLE = 0, 3, 7, 27, 88
A_LONG_TIME_S = 1e6


def beat(instance_id: str | None = None) -> Values:
    return {
        "group_id": GROUP,
        "generation_id": 3,
        "member_id": "m",
        "group_instance_id": instance_id,
    }


def has(context: FakeContext, pushed: dict[tuple[str, uuid.UUID, int], int]) -> None:
    """The group has offsets of lanes."""
    for (topic, topic_id, partition), offset in pushed.items():
        state = OffsetState(committed=offset, topic_name=topic)
        context.groups.table.put(StateKey(GROUP, topic_id, partition), state)


def holds(offsets: dict[str, dict[int, int]], errors: dict[int, int] | None = None) -> Values:
    """What the broker says that it has."""
    return {
        "error_code": NONE,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": number, "committed_offset": offset, "metadata": "note",
                     "error_code": (errors or {}).get(number, NONE)}
                    for number, offset in partitions.items()
                ],
            }
            for topic, partitions in offsets.items()
        ],
    }  # fmt: skip


def takes(codes: dict[str, dict[int, int]]) -> Values:
    """What the broker says to a commit."""
    return {
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {"partition_index": number, "error_code": code} for number, code in by.items()
                ],
            }
            for topic, by in codes.items()
        ]
    }


async def becomes_due(context: FakeContext, version: int = 4, values: Values | None = None) -> None:
    """The group gets its turn, the turn comes, and what is left to do is done."""
    wanted = values or beat()
    for _ in range(2):
        request = make_request(BEAT, version, wanted)
        assert is_relayed(context, request)
        context.world.now_s += A_LONG_TIME_S
    works, context.world.aside = context.world.aside, []
    for work in works:
        await work()
    context.finish()


@pytest.mark.parametrize("version", versions(BEAT))
async def test_stable_offsets_are_committed_again_as_the_member(version) -> None:
    """All of the group, as the broker has them: offset, metadata, in the name of the heartbeat."""
    context = FakeContext()
    has(context, {("orders", ORDERS, 0): 5, ("orders", ORDERS, 1): 7, ("plain", PLAIN, 2): 9})
    context.expect(FETCH, {"group_id": GROUP, "require_stable": True},
                   holds({"orders": {0: 5, 1: 7}, "plain": {2: 9}}))  # fmt: skip
    entries = {
        "orders": [{"partition_index": 0, "committed_offset": 5, "committed_metadata": "note"},
                   {"partition_index": 1, "committed_offset": 7, "committed_metadata": "note"}],
        "plain": [{"partition_index": 2, "committed_offset": 9, "committed_metadata": "note"}],
    }  # fmt: skip
    context.expect(
        COMMIT,
        {
            "group_id": GROUP,
            "generation_id_or_member_epoch": 3,
            "member_id": "m",
            "group_instance_id": "i" if version >= 3 else None,
            "topics": [{"name": name, "partitions": list_} for name, list_ in entries.items()],
        },
        takes({"orders": {0: NONE, 1: NONE}, "plain": {2: NONE}}),
    )

    await becomes_due(context, version, beat("i"))

    assert context.stats.offsets_refreshed == 3
    assert context.groups.journal == []


@pytest.mark.parametrize("version", versions(BEAT))
async def test_groups_without_lanes_pass(version) -> None:
    """Nothing is kept of them; what cannot be read is the broker's."""
    context = FakeContext()

    for body in (beat(), b"\xff"):
        request = make_request(BEAT, version, body)
        assert is_relayed(context, request)
    context.expect(BEAT, None, {"error_code": NONE})
    assert (await call(context, BEAT, version, beat()))["error_code"] == NONE
    assert not context.refreshes.knows(GROUP)
    assert context.world.aside == []


async def test_a_group_of_another_node_is_not_looked_at() -> None:
    """Nor one whose states are not loaded yet."""
    context = FakeContext()
    has(context, {("orders", ORDERS, 0): 5})
    context.groups.lose(GROUP)

    await becomes_due(context)

    assert not context.refreshes.knows(GROUP)


async def test_what_somebody_has_moved_is_left_alone() -> None:
    """The group's next call follows it; so is what a transaction is about to change."""
    context = FakeContext()
    has(context, {("orders", ORDERS, 0): 5, ("orders", ORDERS, 1): 7})
    context.expect(FETCH, None, holds({"orders": {0: 4, 1: 7}}, {1: UNSTABLE}))

    await becomes_due(context)

    assert context.state(GROUP, "orders", 0).pushed == 5
    assert context.stats.offsets_refreshed == 0


@pytest.mark.parametrize(
    ("began_here", "group_state", "is_put_back"),
    [(False, "Stable", True), (False, "Empty", False), (True, "", False)],
)
async def test_what_a_broker_has_expired_is_put_back(began_here, group_state, is_put_back) -> None:
    """Under members that are older than this process; a deletion before their time stands."""
    context = FakeContext()
    has(context, {("orders", ORDERS, 0): 5})
    context.expect(FETCH, None, holds({"orders": {0: -1}}))
    if began_here:
        context.group_names.note_empty(GROUP)
    else:
        described = {"group_id": GROUP, "group_state": group_state, "protocol_type": "consumer"}
        context.expect(DESCRIBE, {"groups": [GROUP]}, {"groups": [described]})
    if is_put_back:
        entry = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        context.expect(
            COMMIT,
            {"topics": [{"name": "orders", "partitions": [entry]}]},
            takes({"orders": {0: NONE}}),
        )

    await becomes_due(context)

    assert context.stats.offsets_kept == is_put_back


@pytest.mark.parametrize(("code", "is_tried"), [(REBALANCING, True), (UNKNOWN_TOPIC, False)])
async def test_a_refusal_is_tried_again_soon(code, is_tried) -> None:
    """Unless its topic is gone, which no later heartbeat changes."""
    context = FakeContext()
    has(context, {("orders", ORDERS, 0): 5})
    context.expect(FETCH, None, holds({"orders": {0: 5}}))
    context.expect(COMMIT, None, takes({"orders": {0: code}}))
    await becomes_due(context)

    context.world.now_s -= A_LONG_TIME_S - AGAIN_S_MAX
    assert is_relayed(context, make_request(BEAT, 4, beat()))

    assert len(context.world.aside) == is_tried


async def test_many_partitions_go_in_several_requests(monkeypatch) -> None:
    """Each of a bounded size."""
    monkeypatch.setattr(heartbeat, "PLACES_AT_ONCE", 2)
    context = FakeContext()
    has(context, {("plain", PLAIN, number): 5 for number in range(3)})
    for numbers in ([0, 1], [2]):
        context.expect(FETCH, None, holds({"plain": dict.fromkeys(numbers, 5)}))
        context.expect(COMMIT, None, takes({"plain": dict.fromkeys(numbers, NONE)}))

    await becomes_due(context)

    assert context.stats.offsets_refreshed == 3


def _kept(context: FakeContext) -> OffsetState:
    state = context.groups.table.get(StateKey(GROUP, ORDERS, 0))
    assert state is not None
    return state


async def test_a_refresh_that_arrives_behind_a_later_commit_is_no_reset() -> None:
    """The broker did not say what came of it; lanes stay where they were committed since."""
    context = FakeContext()
    has(context, {("orders", ORDERS, 0): 5})
    context.expect(FETCH, None, holds({"orders": {0: 5}}))
    context.expect(COMMIT, None, takes({"orders": {0: TIMED_OUT}}))
    await becomes_due(context)
    view = context.lanes("orders")

    async with context.groups.lock(GROUP):
        state = _kept(context).copy()
        state.commit_keys((WHOLE,), 9)
        state.mark_pushed(9)
        await context.groups.save(GROUP, [(view, 0, state)])
        found = await context.groups.adopt(GROUP, view, 0, 5)

    assert (found.stable_position, found.pushed) == (9, 5)


async def test_an_offset_that_was_being_deleted_is_not_put_back() -> None:
    """A node died behind the deletion, before the journal said that it was done."""
    context = FakeContext()
    has(context, {("orders", ORDERS, 0): 5})
    key = StateKey(GROUP, ORDERS, 0)
    async with context.groups.lock(GROUP):
        push = Pushing(key, _kept(context).copy(), None)
        assert await context.groups.push_journal(GROUP).prepare([push]) == set()
    context.expect(FETCH, None, holds({"orders": {0: -1}}))

    await becomes_due(context)

    assert context.stats.offsets_refreshed == 0


async def test_offsets_of_a_topic_that_was_made_anew_are_not_those_of_the_old_one() -> None:
    """The group's states of the old topic are still there; the broker has no offset of the new."""
    context = FakeContext()
    has(context, {("orders", uuid.UUID(int=99), 0): 5000})

    await becomes_due(context)

    assert context.stats.offsets_refreshed == 0


async def test_a_quiet_group_is_loaded_by_the_node_that_has_taken_it_over() -> None:
    """Once; and for no client that may not read the group, or whose group another node serves."""
    context = FakeContext()
    context.groups.not_loaded |= {GROUP, "other", "gone"}
    context.world.groups_denied.add("other")
    context.groups.lose("gone")

    for group in (GROUP, "other", "gone", GROUP):
        assert is_relayed(context, make_request(BEAT, 4, beat() | {"group_id": group}))
        works, context.world.aside = context.world.aside, []
        for work in works:
            await work()

    assert context.groups.not_loaded == {"other", "gone"}
    assert not works
