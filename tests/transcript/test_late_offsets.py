"""A stable offset is pushed again when it is known what lies behind it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from keylane.keyrange.key_split import PartitionSplit
from keylane.offsets.records.journal import StateKey
from keylane.proxy.commits.late_pushes import PATIENCE_S
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.tasks import spawn
from tests.reference.crash_world import Kafka
from tests.transcript.crashing_node import commit as commit_lanes
from tests.transcript.crashing_node import started
from tests.transcript.fake import ORDERS, FakeContext, call, is_relayed, make_request
from tests.transcript.test_cut_pushes import ends_at, silent
from tests.transcript.test_offset_commit import (
    COMMIT,
    FENCED,
    GROUP,
    codes,
    commit,
    committed,
    no_history,
    pushes,
    request,
    topic,
)
from tests.transcript.test_offset_delete import answer as deleted
from tests.transcript.test_offset_delete import put_back
from tests.transcript.test_offset_delete import request as deletion
from tests.transcript.test_offset_fetch import known, one

EMPTY, HEARTBEAT, DELETE, FETCH = -1, 12, 47, 9
TIMED_OUT = 7


BEAT = {"group_id": GROUP, "generation_id": 4, "member_id": "m2"}


def beats(context: FakeContext) -> None:
    """A member of the next generation sends a heartbeat, which passes."""
    assert is_relayed(context, make_request(HEARTBEAT, 4, BEAT))


def expect_push_of_the_member(context: FakeContext) -> None:
    """In the name of the member whose heartbeat it was; the broker takes it."""
    context.expect(
        COMMIT,
        {"generation_id_or_member_epoch": 4, "member_id": "m2", "topics": [pushes(8, {0: 8})]},
        {"topics": [codes(8, {0: 0})]},
    )


async def behind(context: FakeContext) -> None:
    """Lane 0 of partition 0 is committed up to 5; what the other lanes have there is not known."""
    no_history(context, 0)
    await committed(context, {0: 5}, {0: 0})
    assert len(context.groups.late) == 1


def scanned(context: FakeContext, *lasts: int, start: int = 0, end: int = 8) -> None:
    """Someone has looked at offsets of partition 0; `lasts` are the lanes' last records there."""
    view = context.lanes("orders")
    scan = context.groups.scan(view, 0)
    scan.add(start, end, np.array(lasts, dtype=np.int64))
    context.groups.late.note_scanned(view.partition_split(0), scan)
    context.groups.late.check()


async def test_a_push_is_due_until_the_log_of_a_new_leader_was_compared() -> None:
    """Another node still reads of the old one what it would be pushed to; that does not count."""
    kafka = Kafka()
    node = await started(kafka)
    node.read(0, 50)
    assert await commit_lanes(node, {0: 80, 1: 60, 2: 60, 3: 60}) == [0] * 4
    kafka.epoch = 1
    node.lose_log(is_read=False)

    node.scan(50, 100, epoch=0, is_own=False)

    assert len(node.offsets.late) == 1 and not node.world.aside
    node.read(50, 100)  # the reader has the new leader, whose log is the same
    assert len(node.offsets.late.owed(GROUP)) == 1 and len(node.world.aside) == 1


async def run_aside(context: FakeContext) -> None:
    """What was left to be done beside the requests."""
    works, context.world.aside = context.world.aside, []
    for work in works:
        await work()


async def test_g04_news_of_a_scan_push_the_stable_offset_as_the_last_committer() -> None:
    """No further commit comes; the broker's offset stands at the end of what was scanned."""
    context = FakeContext()
    await behind(context)
    scanned(context, 4, EMPTY, EMPTY, EMPTY)
    context.expect(
        COMMIT,
        {
            "group_id": GROUP,
            "generation_id_or_member_epoch": 3,
            "member_id": "m1",
            "topics": [pushes(8, {0: 8})],
        },
        {"topics": [codes(8, {0: 0})]},
    )

    await run_aside(context)

    context.finish()
    assert context.state(GROUP, "orders", 0).pushed == 8
    assert len(context.groups.late) == 0
    restarted = context.groups.restarted().get(StateKey(GROUP, ORDERS, 0))
    assert restarted is not None
    assert restarted.pushed == 8


async def test_a_late_push_goes_to_where_the_log_begins() -> None:
    """Retention has deleted what is below 6: lanes that never committed count as standing there."""
    context = FakeContext()
    await behind(context)
    view = context.lanes("orders")
    context.groups.scans.note(
        ScannedBlock(
            topic="orders", at=PartitionSplit(ORDERS, 0, view.key_split(0)),
            start=6, end=8, last_record_offsets=np.array([EMPTY, 6, 6, 6], dtype=np.int64),
            outputs=(None,) * 4, holes=(), log_start_offset=6, leader_epoch=0, epochs=((0, 6),),
        )
    )  # fmt: skip
    scan = context.groups.scan(view, 0)
    context.groups.late.note_scanned(view.partition_split(0), scan, 6)
    context.expect(COMMIT, {"topics": [pushes(8, {0: 6})]}, {"topics": [codes(8, {0: 0})]})

    await run_aside(context)

    context.finish()
    assert context.state(GROUP, "orders", 0).pushed == 6


async def test_news_between_the_settling_of_a_commit_and_its_note_are_pushed() -> None:
    """They come while the broker is asked, when nothing waits for them; no further commit comes."""
    context = FakeContext()
    await behind(context)
    context.groups.late.forget(StateKey(GROUP, ORDERS, 0))
    context.world.on_answer = lambda: scanned(context, 5, EMPTY, EMPTY, EMPTY)
    await committed(context, {0: 6}, {0: 0})
    context.world.on_answer = lambda: None
    assert len(context.world.aside) == 1
    context.expect(COMMIT, {"topics": [pushes(8, {0: 8})]}, {"topics": [codes(8, {0: 0})]})

    await run_aside(context)

    context.finish()
    assert context.state(GROUP, "orders", 0).pushed == 8


async def test_nothing_is_pushed_where_a_lane_has_a_record_to_read() -> None:
    """Lane 1 has a record at the stable offset: it stands where it has to."""
    context = FakeContext()
    await behind(context)
    scanned(context, 4, 0, EMPTY, EMPTY)

    await run_aside(context)

    context.finish()
    assert context.state(GROUP, "orders", 0).stable_position == 0


async def test_a_refused_push_changes_nothing_and_is_owed() -> None:
    """The group has another generation by now: a member of that one has it pushed."""
    context = FakeContext()
    await behind(context)
    scanned(context, 4, EMPTY, EMPTY, EMPTY)
    context.expect(COMMIT, {"topics": [pushes(8, {0: 8})]}, {"topics": [codes(8, {0: FENCED})]})

    await run_aside(context)

    assert context.state(GROUP, "orders", 0).pushed == 0
    beats(context)
    expect_push_of_the_member(context)
    await run_aside(context)
    assert context.state(GROUP, "orders", 0).pushed == 8
    beats(context)
    assert not context.world.aside
    context.finish()


async def test_a_node_that_takes_a_group_over_pushes_what_is_late() -> None:
    """It has the states, and none of the commits: a heartbeat has it look, once."""
    context = FakeContext()
    await behind(context)
    key = StateKey(GROUP, ORDERS, 0)
    context.groups.late.forget(key)
    context.groups.late.note_loaded(key, context.state(GROUP, "orders", 0))
    beats(context)
    await run_aside(context)
    assert len(context.groups.late) == 1, "nothing is known of the place yet"

    scanned(context, 4, EMPTY, EMPTY, EMPTY)
    expect_push_of_the_member(context)
    await run_aside(context)

    assert context.state(GROUP, "orders", 0).pushed == 8
    beats(context)
    assert not context.world.aside
    context.finish()


async def test_a_look_whose_push_is_refused_is_taken_again() -> None:
    """The log was cut behind what is pushed, and the member that lives is of an old generation."""
    context = FakeContext()
    no_history(context, 0)
    await committed(context, {0: 8, 2: 8, 4: 8, 6: 8}, {0: 8})
    state = context.state(GROUP, "orders", 0).copy()
    state.mark_pushed(9)
    key = StateKey(GROUP, ORDERS, 0)
    context.groups.table.put(key, state)
    context.groups.late.note_loaded(key, state)
    beats(context)
    context.expect(COMMIT, {"topics": [pushes(8, {0: 8})]}, {"topics": [codes(8, {0: FENCED})]})
    await run_aside(context)

    beats(context)
    expect_push_of_the_member(context)
    await run_aside(context)

    assert context.state(GROUP, "orders", 0).pushed == 8
    beats(context)
    assert not context.world.aside
    context.finish()


async def test_lanes_that_an_admin_has_deleted_are_led_on_with_a_heartbeat() -> None:
    """Lane 1 has no record, so no member commits it; Kafka's own offset stands at its start."""
    context = FakeContext()
    await known(context, {0: 8, 2: 8, 4: 8, 6: 8})
    scanned(context, 7, EMPTY, EMPTY, EMPTY)
    context.expect(DELETE, deletion(("orders", [0])), deleted(("orders", {0: 0})))
    put_back(context, 0)
    await call(context, DELETE, 0, deletion(("orders", [2])))
    assert context.state(GROUP, "orders", 0).pushed == 0

    beats(context)
    expect_push_of_the_member(context)
    await run_aside(context)

    assert context.state(GROUP, "orders", 0).pushed == 8
    context.finish()


async def test_lanes_that_an_admin_has_set_back_are_led_on_with_a_heartbeat() -> None:
    """What is behind them becomes known after the reset, and no member commits."""
    context = FakeContext()
    await known(context, {0: 8, 2: 8, 4: 8, 6: 8})
    context.expect(
        COMMIT,
        {"generation_id_or_member_epoch": -1, "topics": [pushes(8, {0: 2})]},
        {"topics": [codes(8, {0: 0})]},
    )
    await call(context, COMMIT, 8, request(topic("orders", {2: 2}), generation=-1, member=""))
    scanned(context, 7, EMPTY, EMPTY, EMPTY)

    beats(context)
    expect_push_of_the_member(context)
    await run_aside(context)

    assert context.state(GROUP, "orders", 0).pushed == 8
    context.finish()


async def test_a_deletion_that_comes_late_to_a_quiet_group_is_followed() -> None:
    """The broker said nothing, and did it after the first look; no member commits."""
    context = FakeContext()
    await known(context, {0: 8, 2: 8, 4: 8, 6: 8})
    scanned(context, 7, EMPTY, EMPTY, EMPTY)
    context.expect(DELETE, deletion(("orders", [0])), deleted(("orders", {0: 0})))
    put_back(context, 0, error_code=TIMED_OUT)
    await call(context, DELETE, 0, deletion(("orders", [2])))

    for found in (8, 0):
        context.expect(FETCH, None, {"topics": [one(7, "orders", {0: found})]})
        if found == 0:
            expect_push_of_the_member(context)
        beats(context)
        await run_aside(context)
        context.finish()

    assert context.state(GROUP, "orders", 0).pushed == 8


async def test_a_commit_whose_client_goes_while_the_journal_is_written_is_looked_at() -> None:
    """Kafka and the journal have it; its other members may have nothing to commit any more."""
    node = await started(Kafka())
    node.read(0, 50)
    assert await commit_lanes(node, {0: 10, 1: 10, 2: 10, 3: 10}) == [0] * 4
    is_written = asyncio.Event()

    async def append(_records: Any) -> None:
        is_written.set()
        await asyncio.Event().wait()

    node.store.append = append  # type: ignore[assignment]
    commit_under_way = spawn(commit_lanes(node, {0: 30, 1: 20, 2: 20, 3: 20}), "commit")
    await is_written.wait()
    commit_under_way.cancel()
    await asyncio.wait([commit_under_way])

    assert node.offsets.late.loaded(GROUP) == [StateKey(GROUP, ORDERS, 0)]


async def test_a_client_without_a_right_to_the_group_uses_no_look_up() -> None:
    """Any client can name a group in a heartbeat: the next one of a member looks."""
    context = FakeContext()
    await behind(context)
    scanned(context, 4, EMPTY, EMPTY, EMPTY)
    context.world.aside.clear()
    key = StateKey(GROUP, ORDERS, 0)
    context.groups.late.forget(key)
    context.groups.late.note_loaded(key, context.state(GROUP, "orders", 0))
    context.world.groups_denied.add(GROUP)
    beats(context)
    await run_aside(context)
    assert context.groups.late.loaded(GROUP) == [key]

    context.world.groups_denied.clear()
    beats(context)
    expect_push_of_the_member(context)
    await run_aside(context)

    assert context.state(GROUP, "orders", 0).pushed == 8
    assert context.groups.late.loaded(GROUP) == []
    context.finish()


async def test_a_node_that_knows_the_place_already_pushes_at_once() -> None:
    """As where it reads the partition itself."""
    context = FakeContext()
    await behind(context)
    scanned(context, 4, EMPTY, EMPTY, EMPTY)
    context.world.aside.clear()
    key = StateKey(GROUP, ORDERS, 0)
    context.groups.late.forget(key)
    context.groups.late.note_loaded(key, context.state(GROUP, "orders", 0))
    beats(context)
    context.expect(COMMIT, {"topics": [pushes(8, {0: 8})]}, {"topics": [codes(8, {0: 0})]})

    await run_aside(context)

    assert context.state(GROUP, "orders", 0).pushed == 8
    context.finish()


@pytest.mark.parametrize("is_silent", [False, True])
async def test_a_node_that_knows_the_place_asks_the_leader_before_it_pushes(is_silent) -> None:
    """What was scanned leads a state on that was loaded, once it is sure to be of its log.

    A leader that is silent at the first heartbeat is asked at a later one.
    """
    kafka = Kafka()
    node = await started(kafka)
    node.read(0, 50)
    assert await commit_lanes(node, {0: 80, 1: 80, 2: 80, 3: 30}) == [0] * 4
    assert kafka.offset == 50
    node = await started(kafka)
    node.read(0, 80)
    for leaders in (silent, ends_at(80)) if is_silent else (ends_at(80),):
        node.offsets._checks._ask = leaders
        node.offsets._checks._retry_s.clear()  # it is asked again in a while
        beats(node)
        await run_aside(node)

    assert kafka.offset == 80


async def test_another_node_that_serves_the_group_by_now_is_left_alone() -> None:
    """Nothing is sent, and nothing is raised."""
    context = FakeContext()
    await behind(context)
    scanned(context, 4, EMPTY, EMPTY, EMPTY)
    context.groups.lose(GROUP)
    sent = len(context.world.sent)

    await run_aside(context)

    assert len(context.world.sent) == sent
    context.finish()


async def test_a_region_that_is_known_in_part_is_waited_for_on() -> None:
    """The offset moves to its end, and the rest is remembered."""
    context = FakeContext()
    await behind(context)
    scanned(context, EMPTY, EMPTY, EMPTY, EMPTY, end=3)
    context.expect(COMMIT, {"topics": [pushes(8, {0: 3})]}, {"topics": [codes(8, {0: 0})]})
    await run_aside(context)
    assert len(context.groups.late) == 1

    scanned(context, 4, EMPTY, EMPTY, EMPTY, start=3)
    context.expect(COMMIT, {"topics": [pushes(8, {0: 8})]}, {"topics": [codes(8, {0: 0})]})
    await run_aside(context)

    context.finish()
    assert len(context.groups.late) == 0


async def test_a_place_without_news_is_read_once_after_a_while() -> None:
    """The node that read it was killed, or it was forgotten at a restart."""
    context = FakeContext()
    await behind(context)
    late = context.groups.late
    assert late.overdue(context.clock() + PATIENCE_S) == []

    (found,) = late.overdue(context.clock() + PATIENCE_S + 1)

    assert (found.view.topic, found.partition, found.position) == ("orders", 0, 0)
    assert late.overdue(context.clock() + PATIENCE_S + 2) == []


@pytest.mark.parametrize("member", ["", "m1"])
async def test_commits_that_leave_nothing_behind_are_forgotten(member: str) -> None:
    """All lanes of the partition stand at one offset; or no member is there to push as."""
    context = FakeContext()
    no_history(context, 0)
    offsets = {0: 5} if not member else dict.fromkeys((0, 2, 4, 6), 5)
    context.expect(
        COMMIT,
        {"topics": [pushes(8, {0: 5 if member else 0})]},
        {"topics": [codes(8, {0: 0})]},
    )

    await commit(context, 8, topic("orders", offsets), member=member, generation=3)

    assert len(context.groups.late) == 0
    context.finish()
