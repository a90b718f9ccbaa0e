"""The switches: answers to a client while one is off, and after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from keylane.config.node import GroupRule, LaneRule
from keylane.proxy.lanes.fetch_request import LaneAnswer
from tests.transcript.consumer_protocol import assignment, lanes_of, subscription
from tests.transcript.coordinator import as_stored
from tests.transcript.fake import ORDERS, PLAIN, FakeContext, call, versions

FETCH, COMMIT, OFFSET_FETCH, JOIN, SYNC, TXN_COMMIT = 1, 8, 9, 11, 14, 28
DENIED, INVALID_REQUEST = 29, 42
IDS = {"orders": ORDERS, "plain": PLAIN}
ANSWER = LaneAnswer(0, 700, 600, 50, None, (b"some batches",), 12)
ID_OF = "-b0a5c9c2-3a7c-4c6c-9d6e-0a7e6e7c5a11"
"""What a broker puts behind a client id."""


def set_topic(context: FakeContext, topic: str, *, is_on: bool) -> None:
    current = context.switches.current
    context.switches.current = replace(current, topics={**current.topics, topic: is_on})


def fetch_of(*names: str) -> dict[str, Any]:
    entry = {"partition": 1, "fetch_offset": 5, "partition_max_bytes": 1000}
    return {
        "max_wait": 100,
        "min_bytes": 1,
        "max_bytes": 50_000_000,
        "isolation_level": 1,
        "topics": [
            {"topic": name, "topic_id": IDS[name], "partitions": [dict(entry)]} for name in names
        ],
    }


def fetch_codes(answer: Any) -> list[int]:
    return [entry["error_code"] for topic in answer["responses"] for entry in topic["partitions"]]


@pytest.mark.parametrize("version", versions(FETCH))
async def test_lanes_of_a_refused_topic_are_denied_until_it_is_allowed_again(version) -> None:
    """TOPIC_AUTHORIZATION_FAILED at the next fetch; no read is made; on again, it is served."""
    context = FakeContext()
    set_topic(context, "orders", is_on=False)

    refused = await call(context, FETCH, version, fetch_of("orders"))

    assert fetch_codes(refused) == [DENIED]
    assert not context.world.fetched
    set_topic(context, "orders", is_on=True)
    context.world.lane_answers.append([ANSWER])
    assert fetch_codes(await call(context, FETCH, version, fetch_of("orders"))) == [0]


async def test_plain_topics_beside_refused_lanes_are_served() -> None:
    """A plain fetch is unaffected, also in the same request."""
    context = FakeContext()
    set_topic(context, "orders", is_on=False)
    entry = {"partition_index": 1, "records": b"plain data", "error_code": 0}
    answer = {"responses": [{"topic": "plain", "partitions": [entry]}]}
    context.expect(FETCH, {"topics": [{"topic": "plain"}]}, answer)

    got = await call(context, FETCH, 11, fetch_of("orders", "plain"))

    by_name = {topic["topic"]: topic["partitions"][0] for topic in got["responses"]}
    assert by_name["orders"]["error_code"] == DENIED
    assert by_name["plain"]["error_code"] == 0
    assert by_name["plain"]["records"] == b"plain data"


def commit_of(*names: str) -> dict[str, Any]:
    entry = {"partition_index": 1, "committed_offset": 100, "committed_metadata": "m"}
    return {
        "group_id": "g",
        "generation_id_or_member_epoch": 3,
        "member_id": "m1",
        "topics": [
            {"name": name, "topic_id": IDS[name], "partitions": [dict(entry)]} for name in names
        ],
    }


def no_history(context: FakeContext) -> None:
    entry = {"partition_index": 1, "committed_offset": -1, "error_code": 0}
    context.expect(OFFSET_FETCH, None, {"topics": [{"name": "orders", "partitions": [entry]}]})


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_commits_of_lanes_are_refused_while_individual_commits_are_off(version) -> None:
    """INVALID_REQUEST for the lane, nothing is pushed or kept; the plain topic is committed."""
    context = FakeContext(accept_individual_commit=False)
    no_history(context)
    key = {"topic_id": PLAIN} if version >= 10 else {"name": "plain"}
    entry = {"partition_index": 1, "error_code": 0}
    answer = {"topics": [{**key, "partitions": [entry]}]}
    context.expect(COMMIT, {"topics": [key]}, answer)

    got = await call(context, COMMIT, version, commit_of("orders", "plain"))

    codes = [topic["partitions"][0]["error_code"] for topic in got["topics"]]
    assert codes == [INVALID_REQUEST, 0]
    assert not context.groups.journal
    context.switches.current = replace(context.switches.current, accept_individual_commit=True)
    no_history(context)
    key = {"topic_id": ORDERS} if version >= 10 else {"name": "orders"}
    context.expect(COMMIT, {"topics": [key]}, {"topics": [{**key, "partitions": [entry]}]})
    got = await call(context, COMMIT, version, commit_of("orders"))
    assert got["topics"][0]["partitions"][0]["error_code"] == 0


async def test_lanes_in_a_transaction_are_refused_while_individual_commits_are_off() -> None:
    """A transactional commit is no way around the switch."""
    context = FakeContext(accept_individual_commit=False)
    no_history(context)
    values = commit_of("orders") | {"transactional_id": "t", "producer_id": 9, "producer_epoch": 1}
    del values["generation_id_or_member_epoch"]

    got = await call(context, TXN_COMMIT, 3, values | {"generation_id": 3})

    assert got["topics"][0]["partitions"][0]["error_code"] == INVALID_REQUEST


async def deal(context: FakeContext, members: tuple[str, ...]) -> dict[str, list[int]]:
    """One generation under the key-range assignor: the lane indexes of orders by member."""
    said = subscription("orders")
    generation = len(context.world.sent) + 1
    join = {
        "group_id": "g",
        "member_id": members[0],
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": said}],
    }
    reported = {
        "error_code": 0,
        "generation_id": generation,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "leader": members[0],
        "member_id": members[0],
        "members": [{"member_id": name, "metadata": as_stored(said, context)} for name in members],
    }
    context.group_names.note_empty("g")
    context.expect(JOIN, None, reported)
    await call(context, JOIN, 5, join)
    empty = [{"member_id": name, "assignment": assignment(())} for name in members]
    sync = {"group_id": "g", "member_id": members[0], "generation_id": generation}
    context.expect(SYNC, None, {"error_code": 0, "assignment": b""})
    await call(context, SYNC, 3, sync | {"assignments": empty})
    return {
        entry["member_id"]: [index for _, index in lanes_of(entry["assignment"])[0]]
        for entry in context.world.sent[-1]["assignments"]
    }


def key_range_group() -> FakeContext:
    rule = GroupRule(group="g", assignor="key-range")
    return FakeContext(LaneRule(topic="orders", lanes=4), groups=(rule,))


async def test_a_refused_topic_is_dealt_out_in_whole_partitions() -> None:
    """The next generation obeys the switch, and the one after it is on again shares."""
    context = key_range_group()
    members = ("a" + ID_OF, "b" + ID_OF, "c" + ID_OF)
    set_topic(context, "orders", is_on=False)

    whole = await deal(context, members)

    assert sorted(whole.values()) == [[], [0, 2, 4, 6], [1, 3, 5, 7]]
    set_topic(context, "orders", is_on=True)
    shared = await deal(context, members)
    assert all(shared.values())
    assert sorted(index for lanes in shared.values() for index in lanes) == list(range(8))


async def test_a_client_that_does_not_share_gets_a_whole_partition() -> None:
    """It is known by its client id, or its instance id; others share the rest."""
    context = key_range_group()
    members = ("alone" + ID_OF, "b" + ID_OF, "c" + ID_OF)
    current = context.switches.current
    context.switches.current = replace(current, clients={"alone": False})

    dealt = await deal(context, members)

    assert {index % 2 for index in dealt[members[0]]} in ({0}, {1})
    assert len(dealt[members[0]]) == 4
    assert dealt[members[1]] and dealt[members[2]]
