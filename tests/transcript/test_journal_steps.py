"""Steps of the journal through the real handlers: their writers, and what a cut one costs."""

from __future__ import annotations

import asyncio
from typing import Any

from keylane.offsets.records.journal import JournalRecord, StateKey, StepKey, read_key
from tests.reference.crash_world import COMMIT, Kafka, Node
from tests.transcript.fake import ORDERS, call

GROUP, LANES = "g", 16
KEY = StateKey(GROUP, ORDERS, 0)


async def commit(node: Node, lanes: list[int], offset: int, group: str = GROUP) -> None:
    entries = [{"partition_index": 2 * lane, "committed_offset": offset + lane} for lane in lanes]
    wanted = {
        "group_id": group,
        "generation_id_or_member_epoch": 1,
        "member_id": "m",
        "topics": [{"name": "orders", "partitions": entries}],
    }
    answer = await call(node, COMMIT, 8, wanted)
    assert {entry["error_code"] for entry in answer["topics"][0]["partitions"]} == {0}


async def started() -> Node:
    node = await Node(Kafka(), lanes=LANES).start()
    await commit(node, list(range(LANES)), 100)
    await commit(node, [3], 200)
    return node


def positions_of(records: list[JournalRecord]) -> list[int | str]:
    """The number of each step, and the version of each whole record."""
    keys = [(read_key(record.key), record.value) for record in records]
    return [
        key.number if isinstance(key, StepKey) else f"v{int.from_bytes((value or b'')[:2])}"
        for key, value in keys
        if isinstance(key, StateKey | StepKey)
    ]


def now(node: Node) -> Any:
    return node.offsets.tables.table("g").get(KEY)


async def test_a_commit_of_one_lane_is_a_step() -> None:
    """And the journal has what the node has, after each."""
    node = await started()
    for number in range(5):
        before = len(node.kafka.log)
        await commit(node, [number], 300 + number)
        assert positions_of(node.kafka.log[before:])[0] in range(8)
        assert node.kafka.loaded().get(KEY) == now(node)


async def test_beside_a_node_that_reads_no_steps_records_are_whole() -> None:
    """As long as it is there, and from the first commit after it has come."""
    node = await started()
    node.offsets.note_readers([1, 0])
    before = len(node.kafka.log)
    await commit(node, [4], 300)
    assert positions_of(node.kafka.log[before:])[0] == "v0"
    node.offsets.note_readers([1, 1])
    before = len(node.kafka.log)
    await commit(node, [5], 300)
    await commit(node, [6], 300)
    assert positions_of(node.kafka.log[before:]) == ["v1", 0]
    assert node.kafka.loaded().get(KEY) == now(node)


async def test_a_commit_to_a_journal_that_lost_its_end_is_written_whole_before_the_answer() -> None:
    """An unclean election; a later process finds what this one has answered."""
    node = await started()
    append = node.store.append

    async def append_behind_a_cut(records: Any) -> None:
        if records and node.store.cuts == 0:
            del node.kafka.log[len(node.kafka.log) // 2 :]
            node.store.cuts += 1
        await append(records)

    node.store.append = append_behind_a_cut  # type: ignore[method-assign]
    await commit(node, [5], 300)

    assert node.kafka.loaded().get(KEY) == now(node)
    assert now(node).position_of(node.lanes("orders").key_ranges(10)[0]).offset == 305
    assert now(node).position_of(node.lanes("orders").key_ranges(6)[0]).offset == 203


async def test_each_commit_that_met_the_cut_is_written_whole() -> None:
    """Two groups at once, in one batch of the journal: one of them is the first to notice."""
    node = await started()
    await commit(node, [3], 200, group="other")
    await commit(node, [4], 200, group="other")
    append, gate, waiting = node.store.append, asyncio.Event(), list[Any]()

    async def append_both(records: Any) -> None:
        if not gate.is_set():
            waiting.append(records)
            if len(waiting) == 2:
                del node.kafka.log[2:]
                node.store.cuts += 1
                gate.set()
        await gate.wait()
        await append(records)

    node.store.append = append_both  # type: ignore[method-assign]
    await asyncio.gather(commit(node, [5], 300), commit(node, [6], 300, group="other"))

    loaded, table = node.kafka.loaded(), node.offsets.tables.table("g")
    assert len(loaded) == 2
    assert dict(loaded.items()) == dict(table.items())


async def test_all_is_whole_where_it_is_asked_for() -> None:
    """`journal_whole`, for the way back."""
    node = Node(Kafka(), lanes=LANES)
    node.offsets._config = node.config.model_copy(update={"journal_whole": True})
    node.offsets.note_readers([1])
    await node.start()
    await commit(node, list(range(LANES)), 100)
    await commit(node, [3], 200)
    assert set(positions_of(node.kafka.log)) == {"v0"}
