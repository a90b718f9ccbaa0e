"""Epochs of KIP-848 members in OffsetCommit v9-10, OffsetFetch v9-10 and TxnOffsetCommit v3-5."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.proxy.apis.commits.late_offsets import push_owed
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.groups.consumer_members import Word
from tests.transcript.fake import ORDERS, PLAIN, FakeContext, call
from tests.transcript.lane_group import (
    NOTHING,
    beat,
    described,
    full,
    hand_over,
    join_second,
    not_there,
    partial,
    start,
    takes,
)
from tests.transcript.test_late_offsets import behind, run_aside, scanned
from tests.transcript.test_offset_commit import codes, commit, no_history, pushes, topic
from tests.transcript.test_transactions import codes as txn_codes
from tests.transcript.test_transactions import offsets, stands

COMMIT, FETCH, TXN_COMMIT = 8, 9, 28
STALE, FENCED, UNSTABLE = 113, 22, 88
MEMBER_VERSIONS = (9, 10)


async def moved_on(context: FakeContext, epoch: int = 3, *members: str, **fields: Any) -> None:
    """The broker has moved member a's epoch on, as it does at each join and end."""
    takes(context, epoch, member_id="a", **fields)
    described(context, *(members or ("a",)))
    await beat(context, partial("a", epoch - 1))


def note_answer(context: FakeContext, epoch: int) -> None:
    """A heartbeat of member a is answered over another connection."""
    group = context.consumer_groups.find("g")
    assert group is not None
    group.take("a", Word(order=2**31, member_id="a", epoch=epoch))


def moves_with(context: FakeContext, name: str) -> None:
    """The broker has moved member a to epoch 2 when it answers a request."""

    def answered() -> None:
        if context.events[-1] == f"send {name}":
            note_answer(context, 2)

    context.world.on_answer = answered


async def with_history(context: FakeContext, *partitions: int) -> None:
    """The broker has no offsets of the group, which keylane has asked for."""
    no_history(context, *(partitions or (0,)))


def sent(
    context: FakeContext,
    version: int,
    epoch: int,
    error: int = 0,
    *more: tuple[str, dict[int, int]],
) -> None:
    """The broker gets lane 0's stable offset under an epoch."""
    topics = [*(pushes(version, found, name) for name, found in more), pushes(version, {0: 0})]
    answers = [codes(version, dict.fromkeys(found, error), name) for name, found in more]
    answers.append(codes(version, {0: error}))
    wants = {"generation_id_or_member_epoch": epoch, "member_id": "a", "topics": topics}
    context.expect(COMMIT, wants, {"topics": answers}, version=version)


async def commits(context: FakeContext, version: int, epoch: int, *more: Any) -> list[int]:
    """Member a commits lane 0 at offset 5, and what else there is."""
    asked = (topic("orders", {0: 5}), *more)
    return list((await commit(context, version, *asked, generation=epoch, member="a")).values())


@pytest.mark.parametrize("version", MEMBER_VERSIONS)
async def test_an_older_epoch_of_lanes_that_the_member_kept(version) -> None:
    """The newest, 3, is sent: the member has had the lane since epoch 1."""
    context = FakeContext()
    await start(context)
    await moved_on(context)
    await with_history(context)
    sent(context, version, 3)

    assert await commits(context, version, 1) == [0]


@pytest.mark.parametrize("version", MEMBER_VERSIONS)
@pytest.mark.parametrize("epoch", [3, 4, -1, 0])
async def test_epochs_that_are_not_older_pass(version, epoch) -> None:
    """The broker judges the newest, one that keylane does not know, and those of no member."""
    context = FakeContext()
    await start(context)
    await moved_on(context)
    await with_history(context)
    sent(context, version, epoch, STALE)

    assert await commits(context, version, epoch) == [STALE]


async def test_a_lane_that_came_later_than_the_epoch() -> None:
    """Member a had lane 0 from epoch 3 on: a commit of epoch 2 passes as it is, and is refused."""
    context = FakeContext()
    await start(context, "b")
    takes(context, 2, member_id="a", assigned=NOTHING)
    described(context, "a", "b")
    await beat(context, full("a", 0))
    takes(context, -1, member_id="b")
    await beat(context, partial("b", -1))
    await moved_on(context)
    await with_history(context)
    sent(context, 9, 2, STALE)

    assert await commits(context, 9, 2) == [STALE]


async def test_a_lane_of_another_member() -> None:
    """The epoch of a commit of it stays as it is."""
    context = FakeContext()
    await start(context, "b")
    takes(context, 2, member_id="a", assigned=NOTHING)
    described(context, "a", "b")
    await beat(context, full("a", 0))
    await moved_on(context, 3, "a", "b")
    await with_history(context)
    sent(context, 9, 2, STALE)

    assert await commits(context, 9, 2) == [STALE]


@pytest.mark.parametrize("version", MEMBER_VERSIONS)
@pytest.mark.parametrize(("index", "epoch"), [(0, 3), (1, 1)])
async def test_plain_partitions_beside_lanes(version, index, epoch) -> None:
    """Of a plain partition that it has, the newest; beside another one, its own."""
    context = FakeContext()
    not_there(context)
    takes(context, 1, member_id="a", assigned={ORDERS: [0, 1], PLAIN: [0, 2]})
    described(context, "a")
    await beat(context, full("a", 0, "orders", "plain"))
    await moved_on(context)
    await with_history(context)
    sent(context, version, epoch, 0, ("plain", {index: 7}))

    assert await commits(context, version, 1, topic("plain", {index: 7})) == [0, 0]


@pytest.mark.parametrize("version", MEMBER_VERSIONS)
async def test_an_epoch_that_moves_while_the_commit_is_on_its_way(version) -> None:
    """STALE_MEMBER_EPOCH is followed by one more try with the epoch of the heartbeat's answer."""
    context = FakeContext()
    await start(context)
    moves_with(context, "OffsetCommit")
    await with_history(context)
    sent(context, version, 1, STALE)
    sent(context, version, 2)

    assert await commits(context, version, 1) == [0]


async def test_a_refusal_is_repeated_once() -> None:
    """The second one passes."""
    context = FakeContext()
    await start(context)
    moves_with(context, "OffsetCommit")
    await with_history(context)
    sent(context, 9, 1, STALE)
    sent(context, 9, 2, STALE)

    assert await commits(context, 9, 1) == [STALE]


async def test_another_refusal_is_not_repeated() -> None:
    """UNKNOWN_MEMBER_ID passes: the member has ended."""
    context = FakeContext()
    await start(context)
    moves_with(context, "OffsetCommit")
    await with_history(context)
    sent(context, 9, 1, 25)

    assert await commits(context, 9, 1) == [25]


async def test_a_member_of_another_group() -> None:
    """Its epoch stays as it is."""
    context = FakeContext()
    await with_history(context)
    sent(context, 9, 1, 0)

    assert await commits(context, 9, 1) == [0]


async def test_a_plain_partition_that_came_later_than_the_epoch() -> None:
    """Another member had it meanwhile: the commit passes with its own epoch, 1."""
    context = FakeContext()
    not_there(context)
    takes(context, 1, member_id="a", assigned={ORDERS: [0, 1], PLAIN: [0]})
    described(context, "a")
    await beat(context, full("a", 0, "orders", "plain"))
    await moved_on(context, 2, assigned={ORDERS: [0, 1]})
    await moved_on(context, 3, assigned={ORDERS: [0, 1], PLAIN: [0]})
    await with_history(context)
    sent(context, 9, 1, STALE, ("plain", {0: 7}))

    assert await commits(context, 9, 1, topic("plain", {0: 7})) == [STALE, STALE]


# OffsetFetch.


def asks(version: int, *indexes: int, member: str | None = "a", epoch: int = 1) -> dict[str, Any]:
    named = {"name": "orders", "topic_id": ORDERS, "partition_indexes": list(indexes)}
    group = {"group_id": "g", "member_id": member, "member_epoch": epoch, "topics": [named]}
    return {"groups": [group]}


def answers(
    context: FakeContext, version: int, epoch: int, *partitions: int, member: str | None = "a"
) -> None:
    entries = [
        {"partition_index": i, "committed_offset": -1, "metadata": "", "error_code": 0}
        for i in partitions
    ]
    key = {"topic_id": ORDERS} if version >= 10 else {"name": "orders"}
    wants = {"group_id": "g", "member_id": member, "member_epoch": epoch}
    context.expect(
        FETCH,
        {"groups": [wants]},
        {"groups": [{"group_id": "g", "topics": [{**key, "partitions": entries}]}]},
    )


async def fetched(context: FakeContext, version: int, asked: dict[str, Any]) -> dict[int, int]:
    """Error codes by lane."""
    answer = await call(context, FETCH, version, asked)
    (found,) = answer["groups"][0]["topics"]
    return {entry["partition_index"]: entry["error_code"] for entry in found["partitions"]}


@pytest.mark.parametrize("version", MEMBER_VERSIONS)
async def test_a_read_is_sent_with_the_newest_epoch(version) -> None:
    """Also of a lane that came later: a read changes nothing."""
    context = FakeContext()
    await start(context)
    await moved_on(context)
    answers(context, version, 3, 0)

    assert await fetched(context, version, asks(version, 0, 2)) == {0: 0, 2: 0}


@pytest.mark.parametrize("version", MEMBER_VERSIONS)
async def test_a_read_of_no_member(version) -> None:
    """An admin's passes as it is, and is answered with every lane."""
    context = FakeContext()
    await start(context)
    answers(context, version, -1, 0, member=None)

    found = await fetched(context, version, asks(version, 0, member=None, epoch=-1))

    assert found == {0: 0}


@pytest.mark.parametrize("version", MEMBER_VERSIONS)
async def test_a_lane_in_the_hands_of_another_member(version) -> None:
    """UNSTABLE_OFFSET_COMMIT to a member that is to get it, until its last one has confirmed."""
    context = FakeContext()
    await start(context)
    await join_second(context)
    group = context.consumer_groups.find("g")
    assert group is not None
    (mine, *_), (other, *_) = (sorted(index for _, index in group.target[m]) for m in "ba")
    answers(context, version, 2, 0, 1, member="b")

    found = await fetched(context, version, asks(version, mine, other, member="b", epoch=2))

    assert found == {mine: UNSTABLE, other: 0}


@pytest.mark.parametrize("version", MEMBER_VERSIONS)
async def test_a_lane_in_hands_and_a_member_that_is_not_known(version) -> None:
    """UNSTABLE_OFFSET_COMMIT: it may read the lane from there."""
    context = FakeContext()
    await start(context)
    answers(context, version, 2, 0, 1, member="c")

    found = await fetched(context, version, asks(version, 0, 3, member="c", epoch=2))

    assert found == {0: UNSTABLE, 3: UNSTABLE}


async def test_a_lane_that_went_over() -> None:
    """Its new member reads the offset, and any member may look at others' offsets."""
    context = FakeContext()
    await start(context)
    kept, new = await hand_over(context)
    answers(context, 9, 2, 0, 1, member="b")
    of_new = await fetched(context, 9, asks(9, kept[0], new[0], member="b", epoch=2))
    answers(context, 9, 2, 0, 1)

    of_last = await fetched(context, 9, asks(9, kept[0], new[0], epoch=2))

    assert of_new == {kept[0]: 0, new[0]: 0}
    assert of_last == {kept[0]: 0, new[0]: 0}


# TxnOffsetCommit.


def transaction(context: FakeContext, version: int, epoch: int, error: int = 0) -> None:
    wants = {"member_id": "a", "generation_id": epoch, "group_id": "g"}
    context.expect(TXN_COMMIT, wants, txn_codes(("orders", {0: error})), version=version)


async def in_transaction(context: FakeContext, version: int, epoch: int) -> int:
    asked = offsets(("orders", {0: 5})) | {"member_id": "a", "generation_id": epoch}
    answer = await call(context, TXN_COMMIT, version, asked)
    return int(answer["topics"][0]["partitions"][0]["error_code"])


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_a_transaction_with_an_older_epoch(version) -> None:
    """The newest is sent, as with OffsetCommit."""
    context = FakeContext()
    await start(context)
    await moved_on(context)
    stands(context, -1)
    transaction(context, version, 3)

    assert await in_transaction(context, version, 1) == 0


@pytest.mark.parametrize("version", [3, 5])
async def test_a_transaction_waits_for_the_heartbeats_answer(version) -> None:
    """ILLEGAL_GENERATION is repeated once the answer has come, over the member's connection."""
    context = FakeContext()
    await start(context)
    stands(context, -1)
    transaction(context, version, 1, FENCED)
    transaction(context, version, 2)
    context.world.on_pause = lambda: note_answer(context, 2)

    assert await in_transaction(context, version, 1) == 0
    assert context.events.count("pause") == 1


async def test_a_transaction_of_an_epoch_that_does_not_move() -> None:
    """ILLEGAL_GENERATION passes after one second."""
    context = FakeContext()
    await start(context)
    before_s = context.world.now_s
    stands(context, -1)
    transaction(context, 3, 1, FENCED)

    assert await in_transaction(context, 3, 1) == FENCED
    assert context.world.now_s == pytest.approx(before_s + 1.0, abs=0.05)


async def test_a_transaction_of_no_member() -> None:
    """ILLEGAL_GENERATION of a classic member passes at once."""
    context = FakeContext()
    stands(context, -1)
    transaction(context, 3, 1, FENCED)

    assert await in_transaction(context, 3, 1) == FENCED
    assert "pause" not in context.events


# keylane's own commits.


async def test_a_late_push_goes_with_the_newest_epoch() -> None:
    """In version 9, whatever epoch the member committed with last."""
    context = FakeContext()
    await start(context)
    await behind(context)
    scanned(context, 4, -1, -1, -1)
    await moved_on(context)
    context.world.aside.clear()
    push_owed(Beat("g", 1, "a", None), context)
    wants = {"generation_id_or_member_epoch": 3, "member_id": "a", "topics": [pushes(9, {0: 8})]}
    context.expect(COMMIT, wants, {"topics": [codes(9, {0: 0})]}, version=9)

    await run_aside(context)

    context.finish()
