"""ConsumerGroupHeartbeat: members that do not confirm their lanes within their time."""

from __future__ import annotations

from tests.transcript.fake import FakeContext
from tests.transcript.lane_group import (
    ALL,
    NOTHING,
    TIMEOUT_MS,
    beat,
    described,
    full,
    given,
    hand_over,
    held,
    join_second,
    lanes,
    partial,
    start,
    takes,
)


async def late() -> FakeContext:
    """Member a was asked to give 4 lanes up, and still reads them when its time is over."""
    context = FakeContext()
    await start(context)
    await join_second(context)
    takes(context, 2, member_id="a")
    await beat(context, partial("a", 1))
    context.world.now_s += TIMEOUT_MS / 1000
    takes(context, 2, member_id="b")
    await beat(context, partial("b", 2))
    assert not context.world.aside, "the time is not over yet"
    context.world.now_s += 0.01
    takes(context, 2, member_id="a")
    await beat(context, partial("a", 2))
    return context


async def test_a_member_that_keeps_a_lane_leaves() -> None:
    """After its rebalance time-out, in its own name; b has all lanes then."""
    context = await late()
    (leave,), context.world.aside = context.world.aside, []
    takes(context, -1, {"group_id": "g", "member_id": "a", "member_epoch": -1})
    await leave()
    takes(context, 3, member_id="b")
    described(context, "b")

    answer = await beat(context, partial("b", 2))

    assert given(answer) == list(ALL)
    assert context.stats.members_late == 1


async def test_a_member_that_does_not_take_its_lanes_up_leaves() -> None:
    """librdkafka may lose its question for their offsets: it reads none of them before it rejoins.

    Source: docs/clients.md.
    """
    context = FakeContext()
    await start(context)
    kept, new = await hand_over(context)
    assert new
    context.world.now_s += TIMEOUT_MS / 1000
    takes(context, 2, member_id="b")
    await beat(context, partial("b", 2))
    assert not context.world.aside, "the time is not over yet"
    context.world.now_s += 0.01
    takes(context, 2, member_id="a")
    await beat(context, partial("a", 2))
    (leave,), context.world.aside = context.world.aside, []
    takes(context, -1, {"group_id": "g", "member_id": "b", "member_epoch": -1})

    await leave()

    assert held(context) == {"a": {*kept}}
    assert context.stats.members_late == 1


async def test_a_leave_that_is_refused_leaves_the_lanes_where_they_are() -> None:
    """NOT_COORDINATOR: member a has its lanes, and a time-out more."""
    context = await late()
    (leave,), context.world.aside = context.world.aside, []
    takes(context, 0, error_code=16)

    await leave()

    assert held(context)["a"] == {*ALL}
    takes(context, 2, member_id="b")
    await beat(context, partial("b", 2))
    assert not context.world.aside


async def test_a_member_that_gave_its_lanes_up_in_time_has_the_whole_time_again() -> None:
    """Asked again long after, it is not late at once."""
    context = FakeContext()
    await start(context)
    _, new = await hand_over(context)
    takes(context, 2, member_id="b")
    await beat(context, partial("b", 2, lanes(*new)))
    context.world.now_s += 10 * TIMEOUT_MS / 1000
    takes(context, 3, member_id="c", assigned=NOTHING)
    described(context, "a", "b", "c")
    await beat(context, full("c", 0))

    for name in ("a", "b"):
        takes(context, 3, member_id=name)
        await beat(context, partial(name, 2))

    group = context.consumer_groups.find("g")
    assert group is not None and any(one.owned - one.given for one in group.members.values())
    assert not context.world.aside
