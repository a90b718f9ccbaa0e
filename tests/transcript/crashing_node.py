"""Requests of a client to a node that may die at any of them: commits, deletions, positions."""

from __future__ import annotations

from keylane.offsets.pushes import TransactionWriter
from keylane.offsets.records.journal import StateKey
from tests.reference.crash_world import COMMIT, DELETE, FETCH, TXN_COMMIT, Fault, Kafka, Node
from tests.transcript.fake import ORDERS, call

GROUP, LANES = "g", 4
KEY = StateKey(GROUP, ORDERS, 0)
AFTER_INTENT = 1
"""The push itself: the intent is appended before it."""


async def started(kafka: Kafka) -> Node:
    return await Node(kafka).start()


async def commit(
    node: Node, offsets: dict[int, int], member: str = "m", name: str = "orders"
) -> list[int]:
    entries = [{"partition_index": 2 * i, "committed_offset": o} for i, o in offsets.items()]
    wanted = {
        "group_id": GROUP,
        "generation_id_or_member_epoch": 1 if member else -1,
        "member_id": member,
        "topics": [{"name": name, "partitions": entries}],
    }
    answer = await call(node, COMMIT, 8, wanted)
    return [entry["error_code"] for entry in answer["topics"][0]["partitions"]]


async def delete(node: Node, lane: int) -> list[int]:
    topic = {"name": "orders", "partitions": [{"partition_index": 2 * lane}]}
    answer = await call(node, DELETE, 0, {"group_id": GROUP, "topics": [topic]})
    return [entry["error_code"] for entry in answer["topics"][0]["partitions"]]


async def offsets(node: Node) -> list[int]:
    return [offset for offset, _ in await offsets_and_codes(node)]


async def offsets_and_codes(node: Node) -> list[tuple[int, int]]:
    indexes = [2 * lane for lane in range(LANES)]
    topic = {"name": "orders", "partition_indexes": indexes}
    answer = await call(node, FETCH, 7, {"group_id": GROUP, "topics": [topic]})
    entries = answer["topics"][0]["partitions"]
    return [(entry["committed_offset"], entry["error_code"]) for entry in entries]


async def at_1000() -> tuple[Kafka, Node]:
    """All lanes are committed at 1000."""
    kafka = Kafka()
    node = await started(kafka)
    assert await commit(node, dict.fromkeys(range(LANES), 1000)) == [0] * LANES
    return kafka, node


def fault(number: int, *, is_done: bool = True, is_late: bool = False, dies: bool) -> Fault:
    return Fault(number=number, is_done=is_done, is_late=is_late, dies=dies)


async def transact(node: Node, offsets: dict[int, int]) -> list[int]:
    """A transaction that commits offsets of lanes, and ends well."""
    entries = [{"partition_index": 2 * i, "committed_offset": o} for i, o in offsets.items()]
    wanted = {
        "transactional_id": "t",
        "group_id": GROUP,
        "producer_id": 1,
        "producer_epoch": 0,
        "generation_id": 1,
        "member_id": "m",
        "topics": [{"name": "orders", "partitions": entries}],
    }
    answer = await call(node, TXN_COMMIT, 3, wanted)
    kafka = node.kafka
    held, kafka.in_transaction = kafka.in_transaction, None
    if held is not None:
        kafka.offset, kafka.metadata = held
    node.groups.pushes.end(TransactionWriter(1, 0))
    return [entry["error_code"] for entry in answer["topics"][0]["partitions"]]
