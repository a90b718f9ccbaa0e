"""Resets of a whole partition, with a fault at any request or append: before or after, no mix.

A node that takes over at this moment must find all lanes where they stood before the reset, or all
of them at the new offset, and must not change its mind when a push that was lost arrives later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import astuple, replace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.errors import ActionInvalid, ActionUnknown, KeylaneError
from keylane.offsets import steps
from keylane.offsets.resets import GroupReset, ResetTo, Wish
from keylane.proxy.apis.commits.group_reset import reset_group
from keylane.proxy.groups.group_names import Place
from tests.reference.crash_world import COMMIT, FETCH, Died, Fault, Kafka, Node
from tests.transcript.fake import call

GROUP, LANES, END = "g", 4, 1000
FAULTS = st.builds(
    Fault, number=st.integers(0, 4), is_done=st.booleans(), is_late=st.booleans(),
    dies=st.booleans(),
)  # fmt: skip
OFFSETS = st.integers(0, 30).map(lambda tens: 10 * tens)
POSITIONS = st.lists(st.none() | OFFSETS, min_size=LANES, max_size=LANES)


class ResetNode(Node):
    """A node that an operator asks."""

    async def refresh_topics(self, names: Collection[str]) -> None:
        assert [*names] == ["orders"]


async def offsets(places: Sequence[Place], timestamp: int) -> dict[Place, int]:
    """Where the log begins and ends."""
    return dict.fromkeys(places, 0 if timestamp == -2 else END)


def wish(offset: int) -> GroupReset:
    return GroupReset(
        group=GROUP, topics=(Wish("orders", (0,)),), to=ResetTo("offset", offset)
    )  # fmt: skip


WHERES = st.sampled_from([
    ResetTo("current"), ResetTo("earliest"), ResetTo("latest"),
    ResetTo("offset", 100), ResetTo("shift-by", -50), ResetTo("shift-by", 50),
])  # fmt: skip


async def lanes_of(node: Node) -> list[int]:
    """Where a member would begin."""
    indexes = [2 * lane for lane in range(LANES)]
    wanted = {"group_id": GROUP, "topics": [{"name": "orders", "partition_indexes": indexes}]}
    answer = await call(node, FETCH, 7, wanted)
    entries = answer["topics"][0]["partitions"]
    assert {entry["error_code"] for entry in entries} == {0}
    return [max(0, entry["committed_offset"]) for entry in entries]


async def commit(node: Node, positions: Sequence[int | None]) -> None:
    """Members commit lanes."""
    entries = [
        {"partition_index": 2 * lane, "committed_offset": offset}
        for lane, offset in enumerate(positions)
        if offset is not None
    ]
    wanted = {
        "group_id": GROUP, "generation_id_or_member_epoch": 1, "member_id": "m",
        "topics": [{"name": "orders", "partitions": entries}],
    }  # fmt: skip
    await call(node, COMMIT, 8, wanted)


async def taken_over(kafka: Kafka) -> list[int]:
    """What a node says that has the journal and Kafka only, at this moment."""
    copy = replace(kafka, log=[*kafka.log], late=[*kafka.late], fault=None)
    return await lanes_of(await ResetNode(copy).start())


async def play(positions: Sequence[int | None], target: int, fault: Fault) -> None:
    kafka = Kafka()
    node = await ResetNode(kafka).start()
    if any(offset is not None for offset in positions):
        await commit(node, positions)
    before, after = await lanes_of(node), [target] * LANES
    assert await taken_over(kafka) == before
    kafka.begin(fault)
    try:
        await reset_group(wish(target), offsets, node, is_dry=False)
        expected: list[list[int]] = [after]
    except ActionUnknown:
        expected = [before, after]
    except Died:
        expected = [before, after]
    except KeylaneError:
        expected = [before]
    kafka.begin(None)

    assert await taken_over(kafka) in expected
    for late in kafka.late:
        kafka.arrive(*late)
        assert await taken_over(kafka) in [before, after]


@given(positions=POSITIONS, target=OFFSETS, fault=FAULTS)
@settings(deadline=None)
def test_a_partition_is_before_or_after(
    positions: list[int | None], target: int, fault: Fault
) -> None:
    """No fault leaves some lanes of a partition reset and others not, and an answer is true."""
    with mock.patch.object(steps, "INTERVALS_MIN", 2):
        asyncio.run(play(positions, target, fault))


@given(positions=POSITIONS, target=OFFSETS)
@settings(deadline=None)
def test_a_reset_is_answered_when_it_is_kept(positions: list[int | None], target: int) -> None:
    """Without a fault all lanes, Kafka's own offset and the preview agree, here and elsewhere."""

    async def run() -> None:
        kafka = Kafka()
        node: Any = await ResetNode(kafka).start()
        if any(offset is not None for offset in positions):
            await commit(node, positions)
        shown = await reset_group(wish(target), offsets, node, is_dry=True)
        written = len(kafka.log)
        assert await taken_over(kafka) == await lanes_of(node)
        done = await reset_group(wish(target), offsets, node, is_dry=False)
        assert done == shown
        assert kafka.offset == target
        assert await lanes_of(node) == await taken_over(kafka) == [target] * LANES
        assert written <= len(kafka.log)

    asyncio.run(run())


@given(positions=POSITIONS, moved=st.none() | OFFSETS, to=WHERES, fault=st.none() | FAULTS)
@settings(deadline=None)
def test_a_reset_goes_by_what_kafka_has(
    positions: list[int | None], moved: int | None, to: ResetTo, fault: Fault | None
) -> None:
    """The group ran on Kafka directly meanwhile, of which keylane knows nothing."""

    async def run() -> None:
        kafka = Kafka()
        node: Any = await ResetNode(kafka).start()
        if any(offset is not None for offset in positions):
            await commit(node, positions)
        if moved is not None:
            kafka.arrive(moved)
        asked = replace(wish(0), to=to)
        if kafka.offset is None and to.where == "shift-by":
            for is_dry in (True, False):
                with pytest.raises(ActionInvalid):
                    await reset_group(asked, offsets, node, is_dry=is_dry)
            return
        shown = await reset_group(asked, offsets, node, is_dry=True)
        before = await taken_over(kafka)
        (after,) = {tuple(LANES * [each.to_offset]) for each in shown}
        kafka.begin(fault)
        try:
            done = await reset_group(asked, offsets, node, is_dry=False)
            assert [e[:4] for e in map(astuple, done)] == [e[:4] for e in map(astuple, shown)]
            expected = [list(after)]
        except (ActionUnknown, Died):
            expected = [before, list(after)]
        except KeylaneError:
            expected = [before]
        kafka.begin(None)

        assert await taken_over(kafka) in expected
        for late in kafka.late:
            kafka.arrive(*late)
            assert await taken_over(kafka) in [before, list(after)]

    asyncio.run(run())
