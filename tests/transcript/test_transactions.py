"""EndTxn v0-5, TxnOffsetCommit v0-5: offsets of lanes in transactions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from keylane.errors import UpstreamLost
from keylane.keyrange.key_split import even_split
from keylane.keyrange.lane import LaneLayout
from keylane.offsets.pushes import Push, TransactionWriter
from keylane.offsets.records.journal import StateKey
from keylane.offsets.txn_metadata import LaneCommit, LaneNote, write_note
from tests.transcript.fake import (
    ORDERS,
    FakeContext,
    call,
    check,
    is_relayed,
    make_request,
    versions,
)

COMMIT, FETCH, END, TXN_COMMIT = 8, 9, 26, 28
BUSY, FENCED, UNSTABLE = 14, 22, 88
"""COORDINATOR_LOAD_IN_PROGRESS, ILLEGAL_GENERATION, UNSTABLE_OFFSET_COMMIT."""


PID, EPOCH = 9, 1
LAYOUT = LaneLayout(2, 4)


def offsets(
    *topics: tuple[str, dict[int, int]], pid: int = PID, epoch: int = EPOCH, meta: str = "m"
) -> dict[str, Any]:
    """A client's TxnOffsetCommit."""
    return {
        "transactional_id": "t",
        "group_id": "g",
        "producer_id": pid,
        "producer_epoch": epoch,
        "generation_id": 3,
        "member_id": "m1",
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": i,
                        "committed_offset": offset,
                        "committed_metadata": meta,
                        "committed_leader_epoch": 5,
                    }
                    for i, offset in entries.items()
                ],
            }
            for name, entries in topics
        ],
    }


def codes(*topics: tuple[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": name,
                "partitions": [{"partition_index": i, "error_code": e} for i, e in errors.items()],
            }
            for name, errors in topics
        ]
    }


def note(position: int, lanes: dict[int, int], *, epoch: int | None = 5, meta: str = "m") -> str:
    """What stands beside a stable position, of lanes of a partition of orders."""
    return write_note(
        ORDERS,
        LaneNote(
            position,
            tuple(
                LaneCommit(
                    key_range=even_split(4).key_range(lane),
                    offset=offset,
                    leader_epoch=-1 if epoch is None else epoch,
                    metadata=meta,
                )
                for lane, offset in lanes.items()
            ),
        ),
    )


def epoch_of(version: int) -> int | None:
    """The leader epoch of a request, which is there since v2."""
    return 5 if version >= 2 else None


def stands(context: FakeContext, offset: int, metadata: str = "", *, error: int = 0) -> None:
    """The broker is asked, and says so of orders partition 0."""
    entry = {
        "partition_index": 0,
        "committed_offset": offset,
        "metadata": metadata,
        "error_code": error,
    }
    context.expect(
        FETCH,
        {"require_stable": True, "topics": [{"name": "orders", "partition_indexes": [0]}]},
        {"topics": [{"name": "orders", "partitions": [entry]}]},
        version=7,
    )


def takes(context: FakeContext, offset: int, metadata: str, *, error: int = 0) -> None:
    """The broker is given a position of orders partition 0 in the transaction."""
    entry = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_metadata": metadata,
    }
    context.expect(
        TXN_COMMIT,
        {"producer_id": PID, "topics": [{"name": "orders", "partitions": [entry]}]},
        codes(("orders", {0: error})),
    )


def at(context: FakeContext) -> list[int]:
    """Positions of the four lanes of partition 0."""
    state = context.state("g", "orders", 0)
    return [state.position_of(LAYOUT.key_range(0, lane)).offset for lane in range(4)]


async def commit(
    context: FakeContext, lanes: dict[int, int], version: int = 3, *, pid: int = PID
) -> Any:
    """Commit lanes of partition 0, by lane; the codes by lane index."""
    entries = {2 * lane: offset for lane, offset in lanes.items()}
    found = await call(context, TXN_COMMIT, version, offsets(("orders", entries), pid=pid))
    (topic,) = found["topics"]
    return {entry["partition_index"]: entry["error_code"] for entry in topic["partitions"]}


async def end(context: FakeContext, version: int = 3, **ids: int) -> None:
    """The client ends its transaction."""
    wants = {"transactional_id": "t", "producer_id": PID, "producer_epoch": EPOCH, **ids}
    context.expect(END, wants, {"error_code": 0})
    found = await call(context, END, version, {**wants, "committed": True})
    assert found["error_code"] == 0


async def look(
    context: FakeContext, offset: int, metadata: str = "", *, version: int = 7
) -> list[int]:
    """OffsetFetch of all lanes of partition 0."""
    entry = {"partition_index": 0, "committed_offset": offset, "metadata": metadata}
    context.expect(FETCH, None, {"topics": [{"name": "orders", "partitions": [entry]}]})
    wanted = [{"name": "orders", "partition_indexes": [0, 2, 4, 6]}]
    found = await call(context, FETCH, version, {"group_id": "g", "topics": wanted})
    return [entry["committed_offset"] for entry in found["topics"][0]["partitions"]]


@pytest.mark.parametrize("version", versions(TXN_COMMIT))
async def test_plain_offsets_in_a_transaction_pass(version) -> None:
    """As direct."""
    context = FakeContext()
    entry = {"partition_index": 1, "committed_offset": 5}
    wants = {"topics": [{"name": "plain", "partitions": [entry]}]}
    context.expect(TXN_COMMIT, wants, codes(("plain", {1: 0})))

    found = await call(context, TXN_COMMIT, version, offsets(("plain", {1: 5})))

    check(codes(("plain", {1: 0})), found)


@pytest.mark.parametrize("version", versions(TXN_COMMIT))
async def test_lanes_become_a_stable_position_and_a_note(version) -> None:
    """The state waits for the transaction: only what was before it is in the journal."""
    context = FakeContext()
    stands(context, 100)
    text = note(100, {1: 120, 3: 130}, epoch=epoch_of(version))
    takes(context, 100, text)

    found = await commit(context, {1: 120, 3: 130}, version)

    assert found == {2: 0, 6: 0}
    assert context.events == ["send OffsetFetch", "journal", "send TxnOffsetCommit", "release"]
    assert at(context) == [100] * 4
    sent = context.world.sent[-1]
    if version >= 3:
        assert (sent["member_id"], sent["generation_id"]) == ("m1", 3)
    assert (sent["group_id"], sent["producer_id"], sent["producer_epoch"]) == ("g", PID, EPOCH)


@pytest.mark.parametrize("version", versions(END))
async def test_a_transaction_commits(version) -> None:
    """What Kafka shows afterwards is where the lanes stand, and goes to the journal in time."""
    context = FakeContext()
    stands(context, 100)
    text = note(100, {1: 120})
    takes(context, 100, text)
    await commit(context, {1: 120})
    await end(context, version)

    assert await look(context, 100, text) == [100, 120, 100, 100]

    context.events.clear()
    stands(context, 100, text)
    takes(context, 110, note(110, {0: 110, 2: 115, 3: 110}))
    await commit(context, {0: 110, 2: 115, 3: 110})
    # The look had it written already: what it answers outlives the process.
    assert context.events == ["send OffsetFetch", "send TxnOffsetCommit", "release"]
    restarted = context.groups.restarted().get(StateKey("g", ORDERS, 0))
    assert restarted == context.state("g", "orders", 0)
    assert at(context) == [100, 120, 100, 100]


async def test_a_transaction_aborts() -> None:
    """Kafka shows what was before it, and so do the lanes."""
    context = FakeContext()
    stands(context, 100, "whatever")
    takes(context, 100, note(100, {1: 120}))
    await commit(context, {1: 120})
    await end(context)

    assert await look(context, 100, "whatever") == [100] * 4
    stands(context, 100, "whatever")
    takes(context, 100, note(100, {1: 115}))
    assert await commit(context, {1: 115}) == {2: 0}


async def test_what_a_transaction_committed_survives_a_restart() -> None:
    """Before the journal knows of it, Kafka's metadata does."""
    context = FakeContext()
    stands(context, 100)
    text = note(100, {1: 120})
    takes(context, 100, text)
    await commit(context, {1: 120})
    again = FakeContext()
    again.groups.load(context.groups.restarted())

    assert await look(again, 100, text) == [100, 120, 100, 100]


async def test_without_a_journal_the_note_is_enough() -> None:
    """Lanes that it does not name stand at the stable position."""
    context = FakeContext()

    assert await look(context, 100, note(100, {1: 120})) == [100, 120, 100, 100]


async def test_one_transaction_commits_twice() -> None:
    """Kafka keeps the last note, so it holds both."""
    context = FakeContext()
    stands(context, 100)
    takes(context, 100, note(100, {0: 105, 1: 120}))
    await commit(context, {0: 105, 1: 120})
    stands(context, 100, error=UNSTABLE)
    takes(context, 106, note(106, {1: 120, 0: 106, 2: 107, 3: 108}))

    assert await commit(context, {0: 106, 2: 107, 3: 108}) == {0: 0, 4: 0, 6: 0}
    assert at(context) == [100] * 4


async def test_transactions_of_a_group_take_turns() -> None:
    """B commits [45-49] first, A [40-44]; then S is 49, and both had only theirs."""
    context = FakeContext()
    scan = context.groups.scan(context.lanes("orders"), 0)
    scan.add(40, 50, np.array([44, 49, 48, 47]))
    stands(context, 40)
    text_b = note(40, {1: 50, 2: 50, 3: 50})
    context.expect(TXN_COMMIT, {"producer_id": 8}, codes(("orders", {0: 0})))
    assert set((await commit(context, {1: 50, 2: 50, 3: 50}, pid=8)).values()) == {0}
    context.events.clear()

    stands(context, 40, error=UNSTABLE)
    stands(context, 40, error=UNSTABLE)
    stands(context, 40, text_b)
    takes(context, 50, note(50, {0: 45}))
    assert await commit(context, {0: 45}) == {0: 0}

    asks = ["send OffsetFetch", "pause"] * 2 + ["send OffsetFetch", "journal"]
    assert context.events == [*asks, "send TxnOffsetCommit", "release"]
    assert await look(context, 50, note(50, {0: 45})) == [50, 50, 50, 50]
    assert context.state("g", "orders", 0).stable_offset == 49


async def test_a_turn_that_does_not_come() -> None:
    """The client asks again; nothing was sent, also not of plain topics."""
    context = FakeContext()
    stands(context, 40)
    context.expect(TXN_COMMIT, None, codes(("orders", {0: 0})))
    await commit(context, {1: 50}, pid=8)
    context.world.wait_s = 1.5
    for _ in range(2):
        stands(context, 40, error=UNSTABLE)

    found = await call(context, TXN_COMMIT, 3, offsets(("orders", {0: 45}), ("plain", {1: 5})))

    check(codes(("orders", {0: BUSY}), ("plain", {1: BUSY})), found)


async def test_the_transaction_ends_while_its_commit_waits() -> None:
    """The client has given up: its commit is not sent after the end."""
    context = FakeContext()
    stands(context, 40)
    context.expect(TXN_COMMIT, None, codes(("orders", {0: 0})))
    await commit(context, {1: 50}, pid=8)
    stands(context, 40, error=UNSTABLE)

    context.world.on_pause = lambda: context.groups.pushes.end(TransactionWriter(PID, EPOCH))

    assert await commit(context, {0: 45}) == {0: BUSY}


@pytest.mark.parametrize("version", versions(TXN_COMMIT))
async def test_pending_offsets_from_before_the_start(version, caplog) -> None:
    """They may be the client's own, and no node knows which lanes they name: it has to abort."""
    context = FakeContext()
    context.world.wait_s = 1.5
    for _ in range(2):
        stands(context, 40, error=UNSTABLE)

    found = await commit(context, {0: 45}, version)

    assert found == {0: 120 if version >= 5 else 22 if version >= 3 else 30}
    assert "has to abort" in caplog.text


async def test_the_next_transaction_of_an_epoch_is_another() -> None:
    """After EndTxn a pending offset is no longer the writer's own: he waits for it as well."""
    context = FakeContext()
    stands(context, 100)
    takes(context, 100, note(100, {1: 120}))
    await commit(context, {1: 120})
    await end(context)
    context.events.clear()
    stands(context, 100, error=UNSTABLE)
    stands(context, 100)
    takes(context, 100, note(100, {2: 130}))

    assert await commit(context, {2: 130}) == {4: 0}
    assert context.events.count("pause") == 1


async def test_the_end_of_another_transaction_passes() -> None:
    """As bytes while no lanes are in any transaction; other producers' ends change nothing."""
    context = FakeContext()
    wants = {"producer_id": 5, "producer_epoch": 0, "transactional_id": "u"}
    assert is_relayed(context, make_request(END, 3, wants))
    stands(context, 100)
    takes(context, 100, note(100, {1: 120}))
    await commit(context, {1: 120})

    assert not is_relayed(context, make_request(END, 3, wants))
    await end(context, producer_id=5)
    stands(context, 100, error=UNSTABLE)
    takes(context, 100, note(100, {1: 121}))
    assert await commit(context, {1: 121}) == {2: 0}


async def test_the_broker_refuses() -> None:
    """Reported to every lane of the partition; what the transaction held before, it still holds."""
    context = FakeContext()
    stands(context, 100)
    takes(context, 100, note(100, {1: 120}))
    await commit(context, {1: 120})
    stands(context, 100, error=UNSTABLE)
    takes(context, 100, note(100, {1: 120, 0: 110, 2: 110}), error=FENCED)
    assert await commit(context, {0: 110, 2: 110}) == {0: FENCED, 4: FENCED}

    stands(context, 100, error=UNSTABLE)
    takes(context, 100, note(100, {1: 120, 3: 110}))
    assert await commit(context, {3: 110}) == {6: 0}


async def test_errors_of_single_lanes() -> None:
    """A lane out of range, and a partition that the broker leaves out."""
    context = FakeContext()
    entries = [
        {"partition_index": 0, "committed_offset": 7, "metadata": "", "error_code": 0},
        {"partition_index": 1, "committed_offset": -1, "metadata": "", "error_code": 29},
    ]
    context.expect(FETCH, None, {"topics": [{"name": "orders", "partitions": entries}]})
    takes(context, 7, note(7, {1: 9}))

    found = await call(context, TXN_COMMIT, 3, offsets(("orders", {2: 9, 3: 9, 8: 9})))

    check(codes(("orders", {2: 0, 3: 29, 8: 3})), found)


async def test_plain_topics_ride_along() -> None:
    """In the same request; the broker's answers are not mixed up."""
    context = FakeContext()
    stands(context, 7)
    context.expect(
        TXN_COMMIT,
        {
            "topics": [
                {"name": "plain", "partitions": [{"partition_index": 2, "committed_offset": 5}]},
                {"name": "orders", "partitions": [{"partition_index": 0, "committed_offset": 7}]},
            ]
        },
        codes(("plain", {2: 22}), ("orders", {0: 0})),
    )

    found = await call(context, TXN_COMMIT, 3, offsets(("orders", {0: 9}), ("plain", {2: 5})))

    check(codes(("orders", {0: 0}), ("plain", {2: 22})), found)


async def test_a_commit_outside_waits_for_the_transaction() -> None:
    """It would take the note's place in Kafka before anybody has read it."""
    context = FakeContext()
    stands(context, 100)
    text = note(100, {1: 120})
    takes(context, 100, text)
    await commit(context, {1: 120})
    outside = offsets(("orders", {0: 105})) | {"generation_id_or_member_epoch": 3}

    stands(context, 100, error=UNSTABLE)
    early = await call(context, COMMIT, 7, _only_commit(outside))
    context.events.clear()
    stands(context, 100, text)
    context.expect(COMMIT, None, codes(("orders", {0: 0})))
    late = await call(context, COMMIT, 7, _only_commit(outside))

    check(codes(("orders", {0: BUSY})), early)
    check(codes(("orders", {0: 0})), late)
    # What the note says is in the journal before the commit overwrites it.
    sends = ["send OffsetFetch", "journal", "send OffsetCommit", "release", "journal"]
    assert context.events == sends
    assert at(context) == [105, 120, 100, 100]


def _only_commit(values: dict[str, Any]) -> dict[str, Any]:
    """Fields of an OffsetCommit."""
    wanted = ("group_id", "member_id", "generation_id_or_member_epoch", "topics")
    return {name: values[name] for name in wanted}


async def test_a_commit_whose_answer_is_missing_may_come_late() -> None:
    """Somebody else's turn comes when it cannot be on its way any more."""
    context = FakeContext()
    stands(context, 100)
    context.expect(TXN_COMMIT, None, codes(("orders", {0: 0})))
    await commit(context, {1: 120}, pid=8)
    key = StateKey("g", ORDERS, 0)
    pushes = context.groups.pushes
    pushes.note_push(key, Push(TransactionWriter(8, EPOCH), (), context.world.now_s + 1))
    context.world.wait_s = 0.6
    stands(context, 100)
    stands(context, 100)
    takes(context, 100, note(100, {2: 110}))

    assert await commit(context, {2: 110}) == {4: 0}


async def test_the_journal_is_down() -> None:
    """Nothing is put into the transaction before what it builds on is safe."""
    context = FakeContext()
    context.groups.is_journal_down = True
    stands(context, 100)

    with pytest.raises(UpstreamLost):
        await commit(context, {1: 120})

    context.finish()
    assert "send TxnOffsetCommit" not in context.events


async def test_a_group_without_offsets() -> None:
    """Lanes that were not committed stay uncommitted; the position is the log start."""
    context = FakeContext()
    context.groups.log_starts["orders", 0] = 30
    stands(context, -1)
    text = note(30, {1: 40})
    takes(context, 30, text)
    await commit(context, {1: 40})

    assert await look(context, 30, text) == [-1, 40, -1, -1]
