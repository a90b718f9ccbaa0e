"""Client ids with key ranges of physical partitions: what they fetch, commit and are refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from keylane.keyrange.key_split import NO_OUTPUT
from keylane.keyrange.space import HASH_MAX, KeyRange
from keylane.offsets.records.journal import StateKey
from keylane.offsets.state import OffsetState
from keylane.proxy.lanes.fetch_request import LaneAnswer
from keylane.proxy.topics.range_table import RangeTable
from tests.transcript.fake import (
    PLAIN,
    FakeContext,
    call,
    check,
    is_relayed,
    make_request,
    versions,
)
from tests.transcript.test_fetch import DATA, found, lane
from tests.transcript.test_fetch import request as fetch_request
from tests.transcript.test_fetch import topic as fetch_topic
from tests.transcript.test_offset_commit import GROUP, codes, pushes
from tests.transcript.test_offset_commit import request as commit_request
from tests.transcript.test_offset_commit import topic as commit_topic

FETCH, COMMIT, OFFSET_FETCH, DELETE, TXN_COMMIT = 1, 8, 9, 47, 28
REFUSED, ASK_AGAIN, NO_SESSION = 29, 6, 70
HALF, QUARTER = 2**62, 2**61
LOW, HIGH = KeyRange(0, HALF - 1), KeyRange(HALF, HALF + QUARTER - 1)
LAST = KeyRange(HALF + QUARTER, HASH_MAX)
"""No client has it, unless a test says so."""


def shared(**config: Any) -> FakeContext:
    """`a` has the lower half of plain 0, and all of plain 1; `b` a quarter more of plain 0."""
    context = FakeContext(accept_range_fetch=("plain",), **config)
    assign(context, a={0: [LOW], 1: []}, b={0: [HIGH]})
    return context


def assign(context: FakeContext, topic: str = "plain", **clients: Any) -> None:
    """Put these assignments in the place of what there was; None deletes."""
    table = RangeTable().with_clients(
        {client: None if parts is None else {topic: parts} for client, parts in clients.items()},
        version=context.assignments.table.version + 1,
    )
    context.assignments.table = table


def state(context: FakeContext, partition: int = 0) -> OffsetState:
    """What the group has on a partition of plain."""
    found_state = context.groups.table.get(StateKey(GROUP, PLAIN, partition))
    assert found_state is not None
    return found_state


def positions(context: FakeContext) -> list[int]:
    """Of the three intervals of plain 0."""
    return [state(context).position_of(part).offset for part in (LOW, HIGH, LAST)]


def no_history(context: FakeContext, offset: int = -1) -> None:
    """The broker is asked where the group stands on plain 0."""
    entry = {"partition_index": 0, "committed_offset": offset, "error_code": 0}
    context.expect(
        OFFSET_FETCH,
        {"group_id": GROUP, "topics": [{"name": "plain", "partition_indexes": [0]}]},
        {"topics": [{"name": "plain", "partitions": [entry]}]},
    )


async def commit(context: FakeContext, client: str, offset: int, *, stable: int) -> list[int]:
    """A consumer in no group commits plain 0; the broker gets `stable` and takes it."""
    context.expect(
        COMMIT,
        {"topics": [pushes(8, {0: stable}, "plain")]},
        {"topics": [codes(8, {0: 0}, "plain")]},
    )
    asked = commit_request(commit_topic("plain", {0: offset}), generation=-1, member="")
    answer = await call(context, COMMIT, 8, asked, client)
    return [p["error_code"] for p in answer["topics"][0]["partitions"]]


# -- fetch --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(FETCH))
async def test_a_client_fetches_its_ranges_of_a_partition(version) -> None:
    """All owners are outputs of one split, by client id; keys of no client are dropped."""
    context = shared()
    context.world.lane_answers += [[lane(b"ab"), lane(b"c")], [lane()]]

    seen = await call(
        context, FETCH, version, fetch_request(fetch_topic("plain", {0: 41, 1: 9})), "a"
    )
    await call(context, FETCH, version, fetch_request(fetch_topic("plain", {0: 41})), "b")

    (one, whole), (other,) = (request.lanes for request in context.world.fetched)
    assert one.key_split.outputs == (0, 1, NO_OUTPUT) and one.key_split.cuts == (
        HALF,
        HALF + QUARTER,
    )
    assert one.key_split is other.key_split
    assert [(one.partition, one.output), (whole.partition, whole.output)] == [(0, 0), (1, 0)]
    assert (other.partition, other.output) == (0, 1)
    assert whole.key_split.cuts == () and whole.key_split.outputs == (0,)
    check({"responses": [found(version, "plain", {0: b"ab", 1: b"c"},
                               high_watermark=700, last_stable_offset=600,
                               aborted_transactions=[{"producer_id": 7, "first_offset": 3}])]},
          seen)  # fmt: skip


async def test_fetches_of_other_clients_are_not_looked_at() -> None:
    """Without an assignment a client reads plain, as bytes; so does one with none in any topic."""
    context = shared()
    assign(context, a={0: [LOW]}, c={})

    for client in ("c", "d", None):
        asked = make_request(FETCH, 11, fetch_request(fetch_topic("plain", {0: 1})), client)
        assert is_relayed(context, asked), client


@pytest.mark.parametrize("version", [4, 12, 17])
async def test_a_partition_that_was_not_given_is_refused(version, caplog) -> None:
    """TOPIC_AUTHORIZATION_FAILED beside the data of the others, and one line in the log."""
    context = shared()
    context.world.lane_answers += [[lane(b"ab")], [lane(b"ab")]]

    for _ in range(2):
        asked = fetch_request(fetch_topic("plain", {2: 1, 0: 5}))
        seen = await call(context, FETCH, version, asked, "a")

    answers = seen["responses"][0]["partitions"]
    assert [(one["partition_index"], one["error_code"]) for one in answers] == [
        (2, REFUSED),
        (0, 0),
    ]
    assert [len(request.lanes) for request in context.world.fetched] == [1, 1]
    assert caplog.text.count("given partitions [0, 1]") == 1


async def test_lanes_under_the_topics_own_name_hide_its_partitions(caplog) -> None:
    """Partition 0 would be lane 0: refused. Under a lane name lanes are what is meant."""
    context = shared()
    assign(context, "orders", a={0: [LOW]})

    seen = await call(context, FETCH, 11, fetch_request(fetch_topic("orders", {0: 1})), "a")
    context.world.lane_answers.append([lane(b"ab")])
    named = fetch_topic("orders.lanes-3", {0: 1}, context.lanes("orders.lanes-3").view_id)
    lanes = await call(context, FETCH, 11, fetch_request(named), "a")

    assert seen["responses"][0]["partitions"][0]["error_code"] == REFUSED
    assert "lanes are configured" in caplog.text
    assert lanes["responses"][0]["partitions"][0]["error_code"] == 0


async def test_where_sharing_is_off_nothing_is_given() -> None:
    """The switch of the topic is off, whatever the table says."""
    context = FakeContext()
    assign(context, a={0: [LOW]})

    seen = await call(context, FETCH, 11, fetch_request(fetch_topic("plain", {0: 1})), "a")

    assert seen["responses"][0]["partitions"][0]["error_code"] == REFUSED


async def test_a_client_without_read_gets_no_ranges_of_the_topic() -> None:
    """The client's own principal counts: the data come from keylane's."""
    context = shared()
    context.world.denied.add("plain")

    seen = await call(context, FETCH, 11, fetch_request(fetch_topic("plain", {0: 1})), "a")

    assert seen["responses"][0]["partitions"][0]["error_code"] == REFUSED


@pytest.mark.parametrize("version", range(7, 18))
async def test_a_session_from_before_the_assignment_ends(version) -> None:
    """Its next request names nothing, and the broker would go on with the whole partition."""
    context = shared()

    seen = await call(context, FETCH, version, fetch_request(session_id=5, session_epoch=3), "a")

    check({"error_code": NO_SESSION, "responses": []}, seen)


@pytest.mark.parametrize("version", versions(FETCH))
async def test_other_topics_pass_without_a_session(version) -> None:
    """What else a client with ranges reads comes from the broker, in full requests."""
    context = shared()
    wanted = {"session_id": 0, "session_epoch": -1} if version >= 7 else {}
    assign(context, "orders", a={0: [LOW]})
    context.expect(FETCH, wanted, {"responses": [found(version, "plain", {0: DATA})]})

    seen = await call(context, FETCH, version, fetch_request(fetch_topic("plain", {0: 1})), "a")

    check({"responses": [found(version, "plain", {0: DATA})]}, seen)
    assert context.events == ["send Fetch", "release"]


async def test_ranges_that_change_while_a_fetch_waits_are_asked_again() -> None:
    """What was read for the old ranges is not given out: another may have them by now."""
    context = shared()

    class Waiting(list[LaneAnswer]):
        def __len__(self) -> int:
            assign(context, a={0: [LOW]}, b={0: [HIGH, LAST]})
            return super().__len__()

    context.world.lane_answers.append(Waiting([lane(b"ab")]))

    seen = await call(context, FETCH, 11, fetch_request(fetch_topic("plain", {0: 1})), "b")

    (answer,) = seen["responses"][0]["partitions"]
    assert (answer["error_code"], answer["records"]) == (ASK_AGAIN, b"")


async def test_a_change_that_leaves_a_clients_partitions_alone_costs_it_nothing() -> None:
    """Splits are equal by what they say, so the reader goes on."""
    context = shared()
    context.world.lane_answers += [[lane(b"a")], [lane(b"b")]]
    asked = fetch_request(fetch_topic("plain", {0: 1}))
    await call(context, FETCH, 11, asked, "a")

    assign(context, a={0: [LOW], 2: []}, b={0: [HIGH]}, c={1: []})
    await call(context, FETCH, 11, asked, "a")

    before, after = (request.lanes[0].key_split for request in context.world.fetched)
    assert before == after and before is not after


async def test_a_topic_that_is_not_known_yet_is_asked_of_the_broker() -> None:
    """By name, before the first Metadata request; one that the broker does not know is relayed."""
    context = shared()
    context.registry.forget("plain")
    context.world.unknown["plain"] = PLAIN, 3
    context.world.lane_answers.append([lane(b"ab")])

    await call(context, FETCH, 11, fetch_request(fetch_topic("plain", {0: 1})), "a")
    context.registry.forget("plain")
    context.expect(FETCH, {}, {"responses": []})
    await call(context, FETCH, 11, fetch_request(fetch_topic("plain", {0: 1})), "a")

    assert context.world.fetched[0].lanes[0].topic_id == PLAIN


# -- commits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_a_commit_means_the_clients_own_ranges(version) -> None:
    """`a` is at 100; keys of others, or of no client, hold the stable offset."""
    context = shared()
    context.groups.log_starts["plain", 0] = 7
    no_history(context)
    context.expect(
        COMMIT,
        {"topics": [pushes(version, {0: 7}, "plain")]},
        {"topics": [codes(version, {0: 0}, "plain")]},
    )

    asked = commit_request(commit_topic("plain", {0: 100}), generation=-1, member="")
    seen = await call(context, COMMIT, version, asked, "a")

    check({"topics": [codes(version, {0: 0}, "plain")]}, seen)
    assert positions(context) == [100, -1, -1]
    assert context.groups.restarted().get(StateKey(GROUP, PLAIN, 0)) == state(context)
    assert context.groups.commit_times.size_bytes == 0


async def test_the_stable_offset_follows_the_last_owner() -> None:
    """Once all keys are given, the least of the commits is what Kafka's own group gets."""
    context = shared()
    assign(context, a={0: [LOW]}, b={0: [HIGH]}, c={0: [LAST]})
    no_history(context, 10)

    errors = [await commit(context, "a", 100, stable=10)]
    errors.append(await commit(context, "c", 50, stable=10))
    errors.append(await commit(context, "b", 70, stable=50))

    assert errors == [[0]] * 3 and positions(context) == [100, 70, 50]


async def test_records_of_nobodys_keys_hold_the_offset_though_all_was_scanned() -> None:
    """They were dropped unread. What an owner has no record of does not hold it."""
    context = shared()
    no_history(context, 0)
    view = context.range_views.view("a", context.registry.topics["plain"])
    assert view is not None
    context.groups.scan(view, 0).add(0, 90, np.array([40, -1]))

    await commit(context, "a", 41, stable=0)

    assert positions(context) == [90, 90, 0]


async def test_a_client_that_takes_over_a_range_resumes_from_its_commits() -> None:
    """`b` is dead at 30; `a` gets its range too, is sent there, and catches up on both."""
    context = shared()
    no_history(context, 0)
    await commit(context, "a", 100, stable=0)
    await commit(context, "b", 30, stable=0)
    assign(context, a={0: [LOW, HIGH]}, b=None)

    assert await offset_fetch(context, "a") == [(0, 30, 0)]
    await commit(context, "a", 60, stable=0)

    assert positions(context) == [100, 60, 0]
    assert await offset_fetch(context, "a") == [(0, 60, 0)]


async def test_going_back_below_all_of_them_is_meant() -> None:
    """A seek: each of the client's ranges starts there again, no one else's does."""
    context = shared()
    assign(context, a={0: [LOW, LAST]}, b={0: [HIGH]})
    no_history(context, 0)
    await commit(context, "a", 100, stable=0)
    await commit(context, "b", 80, stable=80)

    await commit(context, "a", 20, stable=20)

    assert positions(context) == [20, 80, 20]


async def test_a_commit_of_a_partition_that_was_not_given_is_refused() -> None:
    """Nothing is sent to the broker, no state comes of it."""
    context = shared()

    seen = await call(context, COMMIT, 8, commit_request(commit_topic("plain", {2: 5})), "a")

    check({"topics": [codes(8, {2: REFUSED}, "plain")]}, seen)
    assert len(context.groups.table) == 0


@pytest.mark.parametrize("api_key", [COMMIT, DELETE])
async def test_g11_a_commit_of_the_whole_partition_counts(api_key) -> None:
    """An admin moves or deletes the broker's own offset: the next commit stands on that."""
    context = shared()
    no_history(context, 0)
    await commit(context, "a", 100, stable=0)
    if api_key == COMMIT:
        values = commit_request(commit_topic("plain", {0: 150}), generation=-1, member="")
        context.expect(COMMIT, {}, {"topics": [codes(6, {0: 0}, "plain")]})
        await call(context, COMMIT, 6, values, "admin")
        no_history(context, 150)
        await commit(context, "b", 160, stable=150)
        assert positions(context) == [150, 160, 150]
        return
    topics = [{"name": "plain", "partitions": [{"partition_index": 0}]}]
    answer = {"error_code": 0, "topics": [{"name": "plain", "partitions": []}]}
    context.expect(DELETE, {"topics": topics}, answer)
    await call(context, DELETE, 0, {"group_id": GROUP, "topics": topics}, "admin")
    no_history(context)
    await commit(context, "b", 160, stable=0)
    assert positions(context) == [-1, 160, -1]


async def test_g11_a_reset_of_the_whole_partition_drops_what_is_above() -> None:
    """Back to 10: all ranges start there again."""
    context = shared()
    assign(context, a={0: [LOW]}, b={0: [HIGH, LAST]})
    no_history(context, 50)
    await commit(context, "a", 100, stable=50)
    context.expect(COMMIT, {}, {"topics": [codes(6, {0: 0}, "plain")]})
    values = commit_request(commit_topic("plain", {0: 10}), generation=-1, member="")
    await call(context, COMMIT, 6, values, "admin")

    no_history(context, 10)
    await commit(context, "b", 12, stable=10)

    assert positions(context) == [10, 12, 12]


async def test_commits_of_groups_without_such_states_pass_as_bytes() -> None:
    """No lock, no look at the state."""
    context = shared()
    asked = make_request(COMMIT, 8, commit_request(commit_topic("plain", {0: 5})), "d")
    context.expect(COMMIT, bytes(asked.body), {"topics": [codes(8, {0: 0}, "plain")]})

    await call(context, COMMIT, 8, commit_request(commit_topic("plain", {0: 5})), "d")

    assert context.events == ["send OffsetCommit", "release"]


# -- where a client stands ----------------------------------------------------------------------


async def offset_fetch(
    context: FakeContext, client: str, partitions: tuple[int, ...] = (0,), committed: int = 0
) -> list[tuple[int, int, int]]:
    """(partition, offset, error) as a client gets it; the broker holds `committed`."""
    entries = [
        {"partition_index": i, "committed_offset": committed, "error_code": 0} for i in partitions
    ]
    context.expect(
        OFFSET_FETCH,
        {"topics": [{"name": "plain", "partition_indexes": list(partitions)}]},
        {"topics": [{"name": "plain", "partitions": entries}]},
    )
    asked = {
        "group_id": GROUP,
        "topics": [{"name": "plain", "partition_indexes": list(partitions)}],
    }
    seen = await call(context, OFFSET_FETCH, 7, asked, client)
    return [
        (one["partition_index"], one["committed_offset"], one["error_code"])
        for one in seen["topics"][0]["partitions"]
    ]


async def test_each_client_gets_its_own_position() -> None:
    """-1 where none of its ranges was committed; refused where it was given nothing."""
    context = shared()
    no_history(context)
    await commit(context, "a", 100, stable=0)

    assert await offset_fetch(context, "a", (0, 2)) == [(0, 100, 0), (2, -1, REFUSED)]
    assert await offset_fetch(context, "b") == [(0, -1, 0)]


@pytest.mark.parametrize("version", [8, 9, 10])
async def test_all_topics_of_a_group_are_listed_as_the_client_has_them(version) -> None:
    """Only partitions that it was given, at its own position."""
    context = shared()
    no_history(context)
    await commit(context, "a", 100, stable=0)
    name = {"topic_id": PLAIN} if version >= 10 else {"name": "plain"}
    entries = [
        {"partition_index": i, "committed_offset": o, "error_code": 0} for i, o in ((0, 0), (2, 9))
    ]
    answer = {"group_id": GROUP, "topics": [{**name, "partitions": entries}], "error_code": 0}
    context.expect(OFFSET_FETCH, {}, {"groups": [answer]})

    asked = {"groups": [{"group_id": GROUP, "topics": None}]}
    seen = await call(context, OFFSET_FETCH, version, asked, "a")

    (topic,) = seen["groups"][0]["topics"]
    reported = [(one["partition_index"], one["committed_offset"]) for one in topic["partitions"]]
    assert reported == [(0, 100)]


# -- transactions -------------------------------------------------------------------------------


async def test_ranges_are_committed_in_a_transaction() -> None:
    """The stable position in the client's transaction, the ranges beside it as its metadata."""
    context = shared()
    no_history(context, 0)
    context.expect(
        TXN_COMMIT,
        {
            "topics": [
                {"name": "plain", "partitions": [{"partition_index": 0, "committed_offset": 0}]}
            ]
        },
        {"topics": [{"name": "plain", "partitions": [{"partition_index": 0, "error_code": 0}]}]},
    )
    entry = {"partition_index": 0, "committed_offset": 40, "committed_metadata": "m"}
    asked = {
        "transactional_id": "t", "group_id": GROUP, "producer_id": 7, "producer_epoch": 1,
        "generation_id": -1, "member_id": "", "topics": [{"name": "plain", "partitions": [entry]}],
    }  # fmt: skip

    seen = await call(context, TXN_COMMIT, 3, asked, "a")

    assert seen["topics"][0]["partitions"][0]["error_code"] == 0
    note = context.world.sent[-1]["topics"][0]["partitions"][0]["committed_metadata"]
    assert json.loads(note.removesuffix("\0"))["lanes"] == [["0", f"{HALF - 1:x}", 40, -1, "m"]]
