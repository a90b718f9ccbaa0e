"""TxnOffsetCommit v0-5 where ends of transactions pass another node, or a rebalance the wait."""

from __future__ import annotations

import pytest

from keylane.proxy.groups.group_plans import Joined
from tests.transcript.fake import FakeContext, call, check, versions
from tests.transcript.test_transactions import (
    EPOCH,
    FENCED,
    TXN_COMMIT,
    UNSTABLE,
    at,
    codes,
    commit,
    note,
    offsets,
    stands,
    takes,
)


def among_nodes() -> FakeContext:
    """The ends of transactions may pass another node."""
    context = FakeContext()
    context.groups.sees_ends = False
    return context


@pytest.mark.parametrize("is_committed", [True, False])
async def test_the_next_transaction_when_no_end_was_seen(is_committed) -> None:
    """Its first commit finds nothing pending: what the one before committed is not its own."""
    context = among_nodes()
    stands(context, 100)
    takes(context, 100, note(100, {1: 120}))
    await commit(context, {1: 120})
    stands(context, 100, note(100, {1: 120}) if is_committed else "")
    takes(context, 100, note(100, {2: 130}))

    assert await commit(context, {2: 130}) == {4: 0}

    assert at(context) == [100, 120 if is_committed else 100, 100, 100]
    assert "pause" not in context.events


async def test_an_aborted_transaction_that_a_broker_forgets_late() -> None:
    """Before 4.0 it may still seem pending: nothing of it must get into the next one."""
    context = among_nodes()
    stands(context, 100)
    takes(context, 100, note(100, {1: 120}))
    await commit(context, {1: 120})
    stands(context, 100, error=UNSTABLE)
    stands(context, 100)
    takes(context, 100, note(100, {2: 130}))

    assert await commit(context, {2: 130}) == {4: 0}

    assert context.events.count("pause") == 1 and at(context) == [100] * 4


async def test_one_transaction_commits_twice_among_nodes() -> None:
    """It stays pending, so it is the writer's own: the note holds both."""
    context = among_nodes()
    stands(context, 100)
    takes(context, 100, note(100, {1: 120}))
    await commit(context, {1: 120})
    for _ in range(2):
        stands(context, 100, error=UNSTABLE)
    takes(context, 100, note(100, {1: 120, 2: 130}))

    assert await commit(context, {2: 130}) == {4: 0}


async def test_with_an_epoch_per_transaction_nothing_is_taken_for_the_next_ones_own() -> None:
    """Since KIP-890 the epoch separates transactions of one producer, without their ends."""
    context = among_nodes()
    stands(context, 100)
    takes(context, 100, note(100, {1: 120}))
    await commit(context, {1: 120})
    for _ in range(3):
        stands(context, 100, error=UNSTABLE)
    stands(context, 100, note(100, {1: 120}))
    takes(context, 100, note(100, {2: 130}))

    wanted = offsets(("orders", {4: 130}), epoch=EPOCH + 1)
    answer = await call(context, TXN_COMMIT, 5, wanted)

    check(codes(("orders", {4: 0})), answer)
    assert context.events.count("pause") == 3


async def test_a_transaction_whose_group_was_away_meanwhile_has_to_abort() -> None:
    """Another node may have put commits into it; what they were is not known here."""
    context = among_nodes()
    stands(context, 100)
    takes(context, 100, note(100, {1: 120}))
    await commit(context, {1: 120})
    context.groups.lose("g")
    context.groups.of_others.clear()
    context.world.wait_s = 1.5
    for _ in range(2):
        stands(context, 100, error=UNSTABLE)

    assert await commit(context, {2: 130}) == {4: FENCED}


def generation(number: int) -> Joined:
    """A generation of the group."""
    return Joined(generation_id=number, leader_id="m1", protocol_name="range", members=())


@pytest.mark.parametrize("version", versions(TXN_COMMIT))
async def test_a_commit_that_waits_across_a_rebalance_without_its_generation(version) -> None:
    """Its lanes may be another's by now; later versions leave that to the broker."""
    context = FakeContext()
    context.generations.note_joined("g", generation(3))
    stands(context, 40)
    context.expect(TXN_COMMIT, None, codes(("orders", {0: 0})))
    await commit(context, {1: 50}, pid=8)
    stands(context, 40, error=UNSTABLE)
    context.world.on_pause = lambda: context.generations.note_joined("g", generation(4))
    if version >= 3:
        stands(context, 40)
        takes(context, 40, note(40, {0: 45}), error=FENCED)

    assert await commit(context, {0: 45}, version) == {0: FENCED if version >= 3 else 30}
