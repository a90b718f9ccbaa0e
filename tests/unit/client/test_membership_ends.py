"""How a member of a group leaves, and joins anew, on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.client.test_group_membership import Scene, T, beat, part, play


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_leave_that_is_answered_takes_no_time(protocol: str) -> None:
    """It ends with the coordinator's answer, and not with the wait for one."""
    scene, took_s = Scene(protocol), list[float]()

    async def act() -> None:
        await asyncio.sleep(10)
        began_s = asyncio.get_running_loop().time()
        await scene.membership.leave()
        took_s.append(asyncio.get_running_loop().time() - began_s)

    play(scene, act)

    assert took_s == [0.0]


def test_a_member_that_gives_way_loses_all_and_joins_anew() -> None:
    """All is lost, the leave is sent, and what the next join brings is new."""
    scene = Scene("consumer")
    scene.cluster.rules[68] = lambda _: beat(parts={T: (0,)})

    async def act() -> None:
        await asyncio.sleep(1)
        assert scene.membership.owned == {part(0)} and not scene.consumer.lost
        await scene.membership.give_way()
        assert scene.consumer.lost == {part(0)}
        await asyncio.sleep(1)
        assert scene.membership.owned == {part(0)}

    play(scene, act)

    beats = scene.cluster.sent("ConsumerGroupHeartbeatRequest")
    epochs = [int(each.member_epoch) for each in beats]
    assert epochs[0] == 0 and -1 in epochs, "it has left"
    assert epochs[epochs.index(-1) + 1] == 0, "and has joined anew"


def test_a_classic_member_that_gives_way_leaves_and_joins_anew() -> None:
    """The coordinator gets a LeaveGroup, then a JoinGroup."""
    scene = Scene("classic")

    async def act() -> None:
        await asyncio.sleep(10)
        scene.cluster.requests.clear()
        await scene.membership.give_way()

    play(scene, act)

    names = [type(each).__name__ for each in scene.cluster.requests]
    assert names[:2] == ["LeaveGroupRequest", "JoinGroupRequest"]
