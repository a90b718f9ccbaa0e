"""Commits of members that go back are done, logged, and counted by group."""

from __future__ import annotations

import logging
from typing import Any, cast

import numpy as np
import pytest
from kio.index import load_response_schema

from keylane.assignor.protocol import write_assignment
from keylane.keyrange.key_split import PartitionSplit
from keylane.proxy.apis.commits.steps_back import note_given
from keylane.proxy.lanes.split_io import ScannedBlock
from keylane.proxy.runtime.stats import LABELS_MAX, OTHER_GROUPS, ProxyStats
from keylane.proxy.topics.placement import Placement
from keylane.wire.messages import write_message
from tests.reference.crash_world import Kafka, Node
from tests.reference.response_frame import write_response
from tests.transcript.crashing_node import LANES, at_1000, commit, offsets, transact
from tests.transcript.entities import build
from tests.transcript.fake import ORDERS, FakeContext, make_request

SYNC = 14

LINE = "lower offset committed"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.getMessage().startswith(LINE)]


async def at(caplog: pytest.LogCaptureFixture) -> tuple[Kafka, Node]:
    caplog.set_level(logging.WARNING, logger="keylane.offsets")
    return await at_1000()


async def test_a_member_that_goes_back_is_named(caplog) -> None:
    """Group, topic, lane, from, to and member id; the lane is where it was committed."""
    _, node = await at(caplog)

    await commit(node, {2: 400, 3: 1100})

    (line,) = lines(caplog)
    assert line.endswith("group=g topic=orders lane=4 from=1000 to=400 member_id=m")
    assert node.stats.commits_back == {"g": 1}
    assert await offsets(node) == [1000, 1000, 400, 1100]


async def test_a_lower_offset_with_no_record_above_it_is_no_step_back(caplog) -> None:
    """Lanes stand behind what holds no record of theirs, where their members have not read."""
    kafka, node = await at(caplog)
    kafka.end = 2000
    scanned = ScannedBlock(
        topic="orders",
        at=PartitionSplit(ORDERS, 0, node.lanes("orders").key_split(0)),
        start=0,
        end=2000,
        last_record_offsets=np.array([1999, 1999, 399, 1999]),
        outputs=(None,) * LANES,
        holes=(),
        log_start_offset=0,
    )
    cast("Any", node.groups).on_scanned(scanned)

    await commit(node, {2: 400})

    assert not lines(caplog) and not node.stats.commits_back
    assert (await offsets(node))[2] == 2000


async def test_an_admin_is_not_counted(caplog) -> None:
    """A reset without a member is a wish."""
    _, node = await at(caplog)

    await commit(node, {2: 400}, member="")

    assert not lines(caplog) and not node.stats.commits_back


async def test_what_the_broker_refuses_is_not_counted(caplog) -> None:
    """A fenced member moves nothing."""
    kafka, node = await at(caplog)
    kafka.is_fenced = True

    await commit(node, {2: 400})

    assert not lines(caplog) and not node.stats.commits_back


async def test_the_same_offset_again_is_no_step_back(caplog) -> None:
    """Java members repeat their commits on an interval."""
    _, node = await at(caplog)

    await commit(node, {0: 1000, 1: 1001})

    assert not lines(caplog) and not node.stats.commits_back


async def test_what_is_left_over_of_an_earlier_turn_moves_nothing(caplog) -> None:
    """Beside it another lane of the commit goes on, and a third one, which was sought, back."""
    _, node = await at(caplog)
    member = node.member_lanes
    for lanes in ([], [("orders", 4), ("orders", 6)]):
        member.note_given("g", "client", lanes)
    assert await offsets(node) == [1000] * 4
    node.gained_lanes.note_fetched("client", "orders", [(4, 1000), (6, 300)])

    assert await commit(node, {1: 1100, 2: 400, 3: 400}) == [0, 0, 0]

    back, stays = lines(caplog)
    assert back.endswith("lane=6 from=1000 to=400 member_id=m")
    assert ", and the lane stays group=" in stays
    assert stays.endswith("group=g topic=orders lane=4 from=1000 to=400 member_id=m")
    assert node.stats.commits_back == node.stats.commits_left_over == {"g": 1}
    assert await offsets(node) == [1000, 1100, 1000, 400]


async def test_what_is_left_over_in_a_transaction_moves_nothing_when_its_note_is_read(
    caplog,
) -> None:
    """The lane stays at the next look at Kafka's own offset too, beside one that goes on."""
    _, node = await at(caplog)
    for lanes in ([], [("orders", 4)]):
        node.member_lanes.note_given("g", "client", lanes)
    assert await offsets(node) == [1000] * 4
    node.gained_lanes.note_fetched("client", "orders", [(4, 1000)])

    assert await transact(node, {1: 1100, 2: 400}) == [0, 0]

    assert await offsets(node) == [1000, 1100, 1000, 1000]


def test_series_are_bounded() -> None:
    """Groups beyond the bound share one."""
    stats = ProxyStats()

    for number in range(LABELS_MAX + 5):
        stats.stepped_back(f"group-{number}", 2)
    stats.stepped_back("group-0", 3)

    assert stats.commits_back["group-0"] == 5 and stats.commits_back[OTHER_GROUPS] == 10
    assert len(stats.commits_back) == LABELS_MAX + 1


def synced(context: FakeContext, assignment: bytes, *, code: int = 0) -> None:
    """A SyncGroup of the group `g` is answered."""
    request = make_request(SYNC, 3, {"group_id": "g", "generation_id": 1, "member_id": "m"})
    answer = {"error_code": code, "assignment": assignment}
    body = write_message(build(load_response_schema(SYNC, 3), answer))
    frame = b"".join(write_response(SYNC, 3, request.header.correlation_id, [body]))

    assert note_given(request, frame, context) == (frame,), "it passes as it came"


def watched(context: FakeContext) -> list[tuple[str, int]]:
    """Lanes that are new to the member."""
    return sorted(context.gained_lanes.by_client.get("client", {}))


def member_of(placement: Placement, *, is_librdkafka: bool) -> FakeContext:
    """A member that had lane 0, and has been given lane 1 beside it."""
    context = FakeContext()
    context.placement, context.is_librdkafka = placement, is_librdkafka
    synced(context, write_assignment([("orders", 0)], version=0))
    synced(context, write_assignment([("orders", 0), ("orders", 1)], version=0))
    return context


@pytest.mark.parametrize(
    ("placement", "is_librdkafka", "lanes"),
    [
        (Placement(), True, [("orders", 1)]),
        (Placement(), False, []),
        (Placement(0), True, []),
    ],
)
def test_where_a_member_s_new_lanes_are_watched(placement, is_librdkafka, lanes) -> None:
    """Of librdkafka, on a lone node: fetches of a client pass the other ones."""
    assert watched(member_of(placement, is_librdkafka=is_librdkafka)) == lanes


def test_a_refused_sync_leaves_what_is_watched() -> None:
    """The member goes on with the lanes that it has."""
    context = member_of(Placement(), is_librdkafka=True)

    synced(context, b"", code=27)

    assert watched(context) == [("orders", 1)]


def test_an_assignment_that_cannot_be_read_ends_the_watch(caplog) -> None:
    """It goes to the member as it is; which lanes it holds is not known, so all commits count."""
    context = member_of(Placement(), is_librdkafka=True)

    synced(context, b"\xff")

    assert watched(context) == [] and context.gained_lanes.lane_count == 0
    assert "SyncGroup not read: every commit counts session_id=s1" in caplog.text
