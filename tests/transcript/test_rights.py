"""What keylane answers from memory is the client's to know; else it is refused."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from keylane.assignor.protocol import Subscription, write_subscription
from keylane.offsets.state import OffsetState
from keylane.proxy.apis.groups.heartbeat import refresh_offsets
from keylane.proxy.apis.shared.request import Operation
from keylane.proxy.commits.refreshes import Beat
from keylane.proxy.lanes.fetch_request import LaneAnswer, LaneFetchRequest
from tests.reference.batches import Batch, Record, write_batch
from tests.transcript.fake import ORDERS, PLAIN, FakeContext, call, versions
from tests.transcript.test_transactions import EPOCH, PID, UNSTABLE, note, stands, takes
from tests.transcript.test_transactions import commit as commit_lanes

PRODUCE, FETCH, LIST, COMMIT, LEADER_EPOCH, END_TXN, TXN_COMMIT = 0, 1, 2, 8, 23, 26, 28
OFFSET_FETCH, JOIN_GROUP, OFFSET_DELETE = 9, 11, 47
DENIED, GROUP_DENIED = 29, 30


def codes(value: Any) -> list[int]:
    """Error codes of partitions, in order."""
    found = []
    if isinstance(value, dict):
        for key, item in value.items():
            found += codes(item) if isinstance(item, dict | list) else []
            is_partition = "partition_index" in value or "partition" in value or "index" in value
            found += [item] if key == "error_code" and is_partition else []
    elif isinstance(value, list):
        for item in value:
            found += codes(item)
    return found


@pytest.mark.parametrize("version", versions(LIST))
async def test_log_ends_need_describe(version) -> None:
    """However fresh they are, and whether the lane is there or not."""
    context = FakeContext()
    context.world.denied.add(("orders", Operation.DESCRIBE))
    context.world.log_ends["orders", 0] = (77, 5)
    lanes = [{"partition_index": i, "timestamp": -1} for i in (0, 2, 99)]

    seen = await call(context, LIST, version, {"topics": [{"name": "orders", "partitions": lanes}]})

    assert codes(seen) == [DENIED] * 3
    assert "77" not in str(seen)


@pytest.mark.parametrize("version", versions(LEADER_EPOCH))
async def test_epochs_need_describe(version) -> None:
    """Not even the lanes that there are."""
    context = FakeContext()
    context.world.denied.add(("orders", Operation.DESCRIBE))
    lanes = [{"partition": i, "leader_epoch": 1} for i in (0, 99)]

    seen = await call(
        context, LEADER_EPOCH, version, {"topics": [{"topic": "orders", "partitions": lanes}]}
    )

    assert codes(seen) == [DENIED] * 2


def commit(index: int, *, group: str = "g", name: str = "orders") -> dict[str, Any]:
    entry = {"partition_index": index, "committed_offset": 9, "committed_metadata": ""}
    topic = {"name": name, "topic_id": topic_id_of(name), "partitions": [entry]}
    return {
        "group_id": group,
        "transactional_id": "t",
        "producer_id": 7,
        "member_id": "",
        "generation_id": -1,
        "generation_id_or_member_epoch": -1,
        "topics": [topic],
    }


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(key, version) for key in (COMMIT, TXN_COMMIT) for version in versions(key)],
)
async def test_commits_need_read(api_key, version) -> None:
    """Nothing of the group changes, nothing is sent, nothing is written."""
    context = FakeContext()
    context.world.denied.add(("orders", Operation.READ))
    view = context.lanes("orders")
    state = OffsetState(committed=3, base=0, topic_name="orders")
    async with context.groups.lock("g"):
        await context.groups.save("g", [(view, 0, state)])
    context.groups.journal.clear()
    context.events.clear()

    seen = await call(context, api_key, version, commit(0))

    assert codes(seen) == [DENIED]
    assert (context.events, context.groups.journal) == ([], [])
    assert context.state("g", "orders", 0).stable_position == 3
    assert context.groups.pushes.is_idle


@pytest.mark.parametrize(
    ("api_key", "version"),
    [
        (key, version)
        for key in (COMMIT, TXN_COMMIT, OFFSET_FETCH, OFFSET_DELETE, JOIN_GROUP)
        for version in versions(key)
    ],
)
@pytest.mark.parametrize("name", ["orders", "plain.lanes-8", "nosuch.lanes-8"])
async def test_a_group_that_is_denied(api_key, version, name) -> None:
    """Before its lock is taken, and whatever topic is named: that is there or not does not show."""
    context = FakeContext()
    context.world.groups_denied.add("g")
    asked = commit(0, name=name)
    if api_key == OFFSET_FETCH:
        topic = {"name": name, "topic_id": topic_id_of(name), "partition_indexes": [0]}
        one = {"group_id": "g", "topics": [topic]}
        asked = {"groups": [one]} if version >= 8 else one
    elif api_key == JOIN_GROUP:
        metadata = write_subscription(Subscription(version=0, topics=(name,)))
        asked = {
            "group_id": "g",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}],
        }
    async with context.groups.lock("g"):
        seen = await call(context, api_key, version, asked)

    assert set(all_codes(seen)) == {GROUP_DENIED}
    assert (context.world.sent, context.groups.journal) == ([], [])
    assert "g" not in context.group_names and context.groups.lane_names_of("g") == ()


async def test_one_group_of_many_that_is_denied() -> None:
    """The others are answered."""
    context = FakeContext()
    topic = {"name": "orders", "partition_indexes": [0]}
    none = {"partition_index": 0, "committed_offset": -1, "metadata": ""}
    context.expect(
        OFFSET_FETCH,
        {"groups": [{"group_id": "g", "topics": []}, {"group_id": "h", "topics": []}]},
        {"groups": [{"group_id": "g", "error_code": GROUP_DENIED}, {"group_id": "h"}]},
    )
    context.expect(
        OFFSET_FETCH,
        {"groups": [{"group_id": "h"}]},
        {"groups": [{"group_id": "h", "topics": [{"name": "orders", "partitions": [none]}]}]},
    )

    seen = await call(
        context,
        OFFSET_FETCH,
        8,
        {"groups": [{"group_id": name, "topics": [topic]} for name in ("g", "h")]},
    )

    found = {entry["group_id"]: (entry["error_code"], entry["topics"]) for entry in seen["groups"]}
    assert found["g"] == (GROUP_DENIED, [])
    assert found["h"][0] == 0 and len(found["h"][1]) == 1


async def test_a_heartbeat_for_a_group_that_is_denied() -> None:
    """Any client can name a group: its offsets are committed again at the next good heartbeat."""
    context = FakeContext()
    context.world.groups_denied.add("g")
    await refresh_offsets(Beat("g", 1, "m", None), context)

    assert context.world.sent == []
    assert context.refreshes.is_due("g", context.clock())


def all_codes(value: Any) -> Iterator[int]:
    """Of an answer, wherever they stand, but for 0 of a whole that holds refused parts."""
    found = [code for code in _codes_in(value) if code]
    return iter(found or [0])


def _codes_in(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "error_code":
                yield item
            else:
                yield from _codes_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from _codes_in(item)


def topic_id_of(name: str) -> uuid.UUID:
    return ORDERS if name == "orders" else uuid.uuid5(uuid.NAMESPACE_DNS, name)


@pytest.mark.parametrize(
    ("api_key", "version"),
    [(key, version) for key in (COMMIT, TXN_COMMIT) for version in versions(key)],
)
async def test_groups_of_a_principal_are_bounded(api_key, version) -> None:
    """One too many is refused before the broker is asked, and nothing is kept of it."""
    context = FakeContext()
    context.world.groups_too_many.add("g")

    seen = await call(context, api_key, version, commit(0))

    assert codes(seen) == [44]
    assert (context.world.sent, context.groups.journal) == ([], [])


@pytest.mark.parametrize("version", versions(PRODUCE))
async def test_records_need_write_before_they_are_numbered(version) -> None:
    """A forged producer id uses up none of its owner's sequence numbers."""
    context = FakeContext()
    batch = write_batch(
        Batch(0, (Record(0, b"k", b"v"),), producer_id=7, producer_epoch=0, base_sequence=0)
    )
    entries = [{"index": 0, "records": batch}]
    asked = {
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"name": "orders", "topic_id": ORDERS, "partition_data": entries}],
    }
    context.world.denied.add(("orders", Operation.WRITE))
    refused = await call(context, PRODUCE, version, asked)
    context.world.denied.clear()
    written = {"index": 0, "base_offset": 4, "error_code": 0}
    named = {"topic_id": ORDERS} if version >= 13 else {"name": "orders"}
    context.expect(PRODUCE, None, {"responses": [{**named, "partition_responses": [written]}]})

    seen = await call(context, PRODUCE, version, asked)

    assert (codes(refused), codes(seen)) == ([DENIED], [0])


class Revoking(FakeContext):
    """Whose client loses the right to read while it waits for records."""

    async def fetch_lanes(self, request: LaneFetchRequest) -> list[LaneAnswer]:
        answers = await super().fetch_lanes(request)
        self.world.denied.add(("orders", Operation.READ))
        return answers


@pytest.mark.parametrize("version", versions(FETCH))
@pytest.mark.parametrize("beside", [False, True])
async def test_a_right_that_ends_during_a_long_wait(version, beside) -> None:
    """What was found for the client meanwhile is not given to it."""
    context = Revoking()
    answer = LaneAnswer(
        error_code=0,
        high_watermark=9,
        last_stable_offset=9,
        log_start_offset=0,
        aborted=None,
        records=(b"secret",),
        size_bytes=6,
    )
    context.world.lane_answers.append([answer])
    lane = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100}
    topics = [{"topic": "orders", "topic_id": ORDERS, "partitions": [lane]}]
    if beside:
        topics.append({"topic": "plain", "topic_id": PLAIN, "partitions": [lane]})
        context.expect(FETCH, None, {"responses": []})
    asked = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 100,
        "session_epoch": -1,
        "topics": topics,
    }

    seen = await call(context, FETCH, version, asked)

    assert DENIED in codes(seen)
    assert b"secret" not in str(seen).encode()


@pytest.mark.parametrize("error_code", [0, 49, 53])
async def test_the_end_of_a_transaction_is_the_brokers_word(error_code) -> None:
    """Anybody can send another's producer id: what the broker refuses has ended nothing."""
    context = FakeContext()
    stands(context, 100)
    takes(context, 100, note(100, {1: 120}))
    await commit_lanes(context, {1: 120})
    ids = {"transactional_id": "mine", "producer_id": PID, "producer_epoch": EPOCH}
    context.expect(END_TXN, ids, {"error_code": error_code})

    seen = await call(context, END_TXN, 3, {**ids, "committed": True})

    is_over = error_code == 0
    stands(context, 100, error=UNSTABLE)
    if is_over:
        stands(context, 100)  # it waited until nothing was pending: this is another transaction
    lanes = {2: 130} if is_over else {1: 120, 2: 130}
    takes(context, 100, note(100, lanes))
    assert await commit_lanes(context, {2: 130}) == {4: 0}
    assert seen["error_code"] == error_code
