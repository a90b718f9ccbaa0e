"""SyncGroup v0-5 of Kafka Streams: topics of one subtopology that place a key differently."""

from __future__ import annotations

import logging
import random
import struct
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keylane.config.node import GroupRule, LaneRule
from keylane.errors import KeylaneError
from keylane.proxy.apis import route_of
from tests.transcript.consumer_protocol import assignment, subscription, task_data
from tests.transcript.coordinator import GROUP
from tests.transcript.entities import Values
from tests.transcript.fake import (
    FakeContext,
    call,
    chosen_handler,
    make_request,
    serve,
    versions,
)

JOIN, LEAVE, SYNC = 11, 13, 14
NONE, INCONSISTENT = 0, 23
STREAM = "stream"


def world(**config: object) -> FakeContext:
    """orders: 2 x 4 lanes of xxh64, shop: 1 x 8 of murmur2, plain: 3 partitions."""
    rules = (
        LaneRule(topic="orders", lanes=4),
        LaneRule(topic="shop", lanes=8, hash="murmur2"),
    )
    context = FakeContext(*rules, **config)
    context.group_names.note_empty(GROUP)
    return context


def tasks(*topics: str, subtopology: int = 0, index: int = 1, version: int = 11) -> bytes:
    """An assignment of one task that reads partition `index` of the topics."""
    data = task_data([(subtopology, index)] * len(topics), version=version)
    return assignment([(topic, index) for topic in topics], version=3, user_data=data)


def synced(*assignments: bytes, protocol: str = STREAM, member_id: str = "a") -> Values:
    return {
        "group_id": GROUP,
        "generation_id": 1,
        "member_id": member_id,
        "protocol_type": "consumer",
        "protocol_name": protocol,
        "assignments": [
            {"member_id": f"m{number}", "assignment": data}
            for number, data in enumerate(assignments)
        ],
    }


def answered(data: bytes) -> Values:
    return {
        "error_code": NONE, "protocol_type": "consumer", "protocol_name": STREAM,
        "assignment": data,
    }  # fmt: skip


async def join(context: FakeContext) -> None:
    """A member of Streams joins, by which older versions of SyncGroup are known."""
    metadata = subscription("orders", "plain")
    wanted = {
        "group_id": GROUP, "member_id": "a", "protocol_type": "consumer",
        "protocols": [{"name": STREAM, "metadata": metadata}],
    }  # fmt: skip
    context.expect(JOIN, None, {"error_code": 27, "member_id": "a", "leader": ""})
    await call(context, JOIN, 4, wanted)


@pytest.mark.parametrize("version", versions(SYNC))
async def test_a_plan_that_mixes_lanes_with_partitions_is_refused(version, caplog) -> None:
    """Nothing reaches the broker; the member gets the reason, and leaves the group."""
    context = world()
    await join(context)

    answer = await call(context, SYNC, version, synced(tasks("orders"), tasks("orders", "plain")))
    context.expect(LEAVE, {"group_id": GROUP, "members": [{"member_id": "a"}]}, {"error_code": 0})
    for work in context.world.aside:
        await work()

    reason = context.streams.refusal_of(GROUP)
    assert reason is not None
    assert "orders (lanes: 2 x 4, xxh64) and plain (partitions)" in reason
    assert "set `hash: murmur2` for the lanes of orders, or repartition() it" in reason
    if version >= 5:
        assert answer["error_code"] == NONE
        assert reason in answer["protocol_type"]
    else:
        assert answer["error_code"] == INCONSISTENT
    assert answer["assignment"] == b""
    assert context.stats.streams_refused == 1
    (line,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert f"group={GROUP} member_id=a subtopology=0 topic=orders" in line.getMessage()
    context.finish()


@pytest.mark.parametrize("version", versions(SYNC))
async def test_an_assignment_that_mixes_is_refused_to_its_member(version) -> None:
    """Of a leader that went past keylane, or of a static member's last plan."""
    context = world()
    await join(context)
    context.expect(SYNC, None, answered(tasks("orders", "plain")))

    answer = await call(context, SYNC, version, synced(member_id="b"))

    assert answer["assignment"] == b""
    assert context.stats.streams_refused == 1
    assert len(context.world.aside) == 1


@pytest.mark.parametrize(
    "topics",
    [
        ("orders",),
        ("plain", "app-x-repartition"),
        ("shop", "plain"),
        ("shop", "shop.lanes-16", "app-x-repartition"),
        ("orders", "rates.lanes-4"),
        ("plain", "plain.lanes-1"),
        ("orders", "unknown.lanes-9"),
    ],
)
async def test_topics_that_place_keys_alike_pass_as_bytes(topics) -> None:
    """One topic, plain ones, lanes of murmur2 with plain ones, lanes of one layout."""
    context = world()
    context.registry.learn("rates", uuid.UUID(int=0xD4), 2)
    wanted = synced(tasks(*topics), tasks("plain", "app-x-repartition", subtopology=1))
    request = make_request(SYNC, 5, wanted)
    context.expect(SYNC, bytes(request.body), b"whatever")

    assert (await serve(context, request)).endswith(b"whatever")
    assert context.streams.refusal_of(GROUP) is None


@pytest.mark.parametrize(
    ("topics", "other"),
    [
        (("orders", "shop"), "shop (lanes: 1 x 8, as partitions)"),
        (("orders", "plain.lanes-4"), "plain.lanes-4 (lanes: 3 x 4, xxh64)"),
        (("orders", "orders.lanes-8"), "orders.lanes-8 (lanes: 2 x 8, xxh64)"),
    ],
)
async def test_lanes_of_other_layouts_are_refused(topics, other) -> None:
    """Another hash, partition count or lane count: a key has another index."""
    context = world()

    answer = await call(context, SYNC, 5, synced(tasks(*topics)))

    assert f"reads orders (lanes: 2 x 4, xxh64) and {other}" in answer["protocol_type"]


async def test_subtopologies_are_judged_one_by_one() -> None:
    """Lanes that are repartitioned are in another subtopology than what they are joined with."""
    context = world()
    both = task_data([(1, 1), (0, 1), (1, 1)])  # app-x-repartition, orders, plain
    data = assignment(
        [("orders", 1), ("plain", 1), ("app-x-repartition", 1)], version=3, user_data=both
    )
    context.expect(SYNC, None, answered(data))

    answer = await call(context, SYNC, 5, synced(data))

    assert answer["assignment"] == data


@pytest.mark.parametrize("assignor", ["client", "key-range"])
async def test_a_merge_can_be_allowed(assignor) -> None:
    """With `streams_mixed: allow` a plan passes as bytes, also under the key-range assignor."""
    rule = GroupRule(group=GROUP, assignor=assignor, streams_mixed="allow")
    context = world(groups=(rule,))
    request = make_request(SYNC, 5, synced(tasks("orders", "plain")))
    context.expect(SYNC, bytes(request.body), b"whatever")

    assert (await serve(context, request)).endswith(b"whatever")
    assert context.stats.assignments_unplanned == 0


FITTING = tasks("orders", "plain", version=12)


@pytest.mark.parametrize(
    ("data", "is_refused"),
    [
        (assignment([("orders", 1), ("plain", 1)], user_data=b"\0\0\0\x63"), True),
        (assignment([("orders", 1)], user_data=b"\0\0\0\x63"), False),
        (assignment([("plain", 1)], user_data=b""), False),
        (FITTING, True),
        (b"\xff", True),
        (tasks("orders", "no\ntopic"), False),
    ],
)
async def test_tasks_that_cannot_be_read_count_as_one(data, is_refused) -> None:
    """The group is refused if it mixes kinds at all: in the assignment, else in what it reads."""
    context = world()
    await join(context)
    context.group_names.end_join(
        GROUP, context.group_names.begin_join(GROUP, "a", frozenset({"orders", "plain"})), "a"
    )
    if not is_refused:
        context.expect(SYNC, None, answered(data))

    answer = await call(context, SYNC, 5, synced(data))

    assert (GROUP in answer["protocol_type"]) == is_refused
    assert ("upgrade keylane" in answer["protocol_type"]) == (is_refused and data != FITTING)


async def test_a_refusal_is_logged_once_and_ends(caplog) -> None:
    """Each member of the group is refused in turn; a plan that is right ends the refusal."""
    context = world()
    for member_id in "ab":
        await call(context, SYNC, 5, synced(tasks("orders", "plain"), member_id=member_id))
    context.expect(SYNC, None, answered(b""))

    await call(context, SYNC, 5, synced(tasks("orders")))

    assert context.stats.streams_refused == 2
    assert len([one for one in caplog.records if one.levelno == logging.ERROR]) == 1
    assert context.streams.refusal_of(GROUP) is None


@pytest.mark.parametrize("protocol", ["range", "sticky"])
@pytest.mark.parametrize("version", versions(SYNC))
async def test_other_assignors_are_not_judged(protocol, version) -> None:
    """Their user data may have any bytes."""
    context = world()
    context.generations.rounds.joins(GROUP, 0.0)
    plan = synced(tasks("orders", "plain"), protocol=protocol)
    context.expect(SYNC, None, answered(b"theirs"))

    answer = await call(context, SYNC, version, plan)

    assert (answer["assignment"], context.stats.streams_refused) == (b"theirs", 0)


async def test_an_answer_that_cannot_be_read_passes(caplog) -> None:
    """The client may be able to."""
    context = world()
    context.expect(SYNC, None, b"\0")

    frame = await serve(context, make_request(SYNC, 5, synced()))

    assert frame.endswith(b"\0")
    assert "SyncGroup not read: relayed" in caplog.text


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32),
    version=st.integers(0, 5),
    cuts=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=4)), max_size=4),
)
async def test_damaged_plans_end_in_an_answer_or_a_clean_refusal(seed, version, cuts) -> None:
    """Bytes put over those of a plan, also over lengths and counts."""
    context = world()
    context.streams.note_joined(GROUP)
    rng = random.Random(seed)
    plan = synced(tasks("orders", "plain"), tasks("shop", index=rng.randrange(8)))
    body = bytearray(make_request(SYNC, version, plan).body)
    for position, data in cuts:
        body[position % len(body) : position % len(body) + len(data)] = data
    context.expect(SYNC, None, answered(tasks("orders")))

    request = make_request(SYNC, version, bytes(body))
    try:
        handler = chosen_handler(context, route_of(request), request)
        frame = b"".join(await handler(request, context)) if handler is not None else b""
    except KeylaneError:
        return

    assert not frame or struct.unpack_from(">i", frame)[0] == len(frame) - 4
