"""OffsetCommit v2-10: lanes become individual commits and a stable offset at the broker."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import numpy as np
import pytest

from keylane.offsets.records.journal import StateKey
from keylane.proxy.apis.commits.offset_commit import handle_offset_commit
from keylane.tasks import spawn
from tests.transcript.fake import (
    ORDERS,
    PLAIN,
    FakeContext,
    Step,
    call,
    check,
    make_request,
    serve,
    versions,
)

COMMIT, FETCH = 8, 9
GROUP = "g"
FENCED, UNAVAILABLE = 22, 15
IDS = {"orders": ORDERS, "plain": PLAIN}


def topic(name: str, offsets: dict[int, int], **fields: Any) -> dict[str, Any]:
    """A topic of a request; named both ways, the version takes its own."""
    entries = [
        {"partition_index": i, "committed_offset": offset, "committed_metadata": "m", **fields}
        for i, offset in offsets.items()
    ]
    return {"name": name, "topic_id": IDS.get(name, uuid.UUID(int=0)), "partitions": entries}


def request(*topics: dict[str, Any], generation: int = 3, member: str = "m1") -> dict[str, Any]:
    return {
        "group_id": GROUP,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "topics": list(topics),
    }


def named(version: int, name: str, partitions: Any) -> dict[str, Any]:
    key = {"topic_id": IDS[name]} if version >= 10 else {"name": name}
    return {**key, "partitions": partitions}


def pushes(version: int, offsets: dict[int, int], name: str = "orders") -> dict[str, Any]:
    entries = [{"partition_index": i, "committed_offset": o} for i, o in offsets.items()]
    return named(version, name, entries)


def codes(version: int, errors: dict[int, int], name: str = "orders") -> dict[str, Any]:
    entries = [{"partition_index": i, "error_code": error} for i, error in errors.items()]
    return named(version, name, entries)


def no_history(context: FakeContext, *partitions: int, offset: int = -1) -> None:
    """The broker is asked where the group stands, and has no commit (or `offset`)."""
    entries = [
        {"partition_index": i, "committed_offset": offset, "error_code": 0} for i in partitions
    ]
    context.expect(
        FETCH,
        {"group_id": GROUP, "topics": [{"name": "orders", "partition_indexes": list(partitions)}]},
        {"topics": [{"name": "orders", "partitions": entries}]},
    )


async def commit(context: FakeContext, version: int, *topics: Any, **fields: Any) -> Any:
    answer = await call(context, COMMIT, version, request(*topics, **fields))
    return {
        (entry.get("name", entry.get("topic_id")), p["partition_index"]): p["error_code"]
        for entry in answer["topics"]
        for p in entry["partitions"]
    }


def offset_of(context: FakeContext, index: int, name: str = "orders") -> int:
    layout = context.lanes(name).layout
    state = context.state(GROUP, name, layout.partition_of(index))
    return state.position_of(
        layout.key_range(layout.partition_of(index), layout.lane_of(index))
    ).offset


def timed(context: FakeContext, index: int) -> bool:
    return context.groups.commit_times.last_ms(GROUP, (ORDERS, "orders"), index) is not None


async def committed(context: FakeContext, offsets: dict[int, int], stable: dict[int, int]) -> None:
    """A commit that the broker takes."""
    context.expect(
        COMMIT,
        {"topics": [pushes(8, stable)]},
        {"topics": [codes(8, dict.fromkeys(stable, 0))]},
    )
    errors = await commit(context, 8, topic("orders", offsets))
    assert set(errors.values()) == {0}
    context.events.clear()


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_the_first_commit_of_a_group(version) -> None:
    """One lane at 100, the others nowhere: the stable offset is the log start."""
    context = FakeContext()
    context.groups.log_starts["orders", 1] = 7
    no_history(context, 1)
    context.expect(
        COMMIT,
        {
            "group_id": GROUP,
            "generation_id_or_member_epoch": 3,
            "member_id": "m1",
            "topics": [pushes(version, {1: 7})],
        },
        {"topics": [codes(version, {1: 0})]},
        version=version,
    )

    errors = await commit(context, version, topic("orders", {3: 100}))

    assert list(errors.values()) == [0]
    assert [key[1] for key in errors] == [3]
    assert offset_of(context, 3) == 100 and offset_of(context, 1) == -1
    assert context.events[1:] == ["journal", "send OffsetCommit", "release", "journal"]
    loaded = context.groups.restarted().get(StateKey(GROUP, ORDERS, 1))
    assert loaded == context.state(GROUP, "orders", 1)


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_all_lanes_of_two_partitions(version) -> None:
    """Lanes of one partition commit different offsets; the lowest one is the partition's."""
    context = FakeContext()
    no_history(context, 0, 1)
    offsets = {index: 1000 - 10 * index for index in range(8)}
    context.expect(
        COMMIT,
        {"topics": [pushes(version, {0: 940, 1: 930})]},
        {"topics": [codes(version, {0: 0, 1: 0})]},
    )

    errors = await commit(context, version, topic("orders", offsets))

    assert [(key[1], error) for key, error in errors.items()] == [(i, 0) for i in range(8)]
    assert {i: offset_of(context, i) for i in range(8)} == offsets


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_plain_topics_ride_along(version) -> None:
    """Their offsets, metadata and errors pass unchanged beside the stable offsets."""
    context = FakeContext()
    no_history(context, 0, offset=50)
    plain_topic = topic("plain", {0: 5, 2: 6})
    context.expect(
        COMMIT,
        {"topics": [
            named(version, "plain", [
                {"partition_index": 0, "committed_offset": 5, "committed_metadata": "m"},
                {"partition_index": 2, "committed_offset": 6, "committed_metadata": "m"},
            ]),
            pushes(version, {0: 50}),
        ]},
        {"topics": [codes(version, {0: 0, 2: 12}, "plain"), codes(version, {0: 0})]},
    )  # fmt: skip

    errors = await commit(context, version, topic("orders", {0: 80}), plain_topic)

    keys = [ORDERS, PLAIN] if version >= 10 else ["orders", "plain"]
    assert errors == {(keys[0], 0): 0, (keys[1], 0): 0, (keys[1], 2): 12}


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_a_request_without_lanes_passes_as_bytes(version) -> None:
    """What the broker gets and says is what was sent, byte for byte."""
    context = FakeContext()
    asked = make_request(COMMIT, version, request(topic("plain", {0: 5})))
    context.world.steps.append(
        Step(
            api_key=COMMIT,
            wants=bytes(asked.body),
            answer={"topics": [codes(version, {0: 0}, "plain")]},
        )
    )

    await serve(context, asked)

    assert context.events == ["send OffsetCommit", "release"]
    assert not len(context.groups.table)


@pytest.mark.parametrize("version", range(2, 10))
async def test_lane_names_and_own_names_in_one_request(version) -> None:
    """`plain.lanes-2` commits to plain; both partitions of both topics are pushed once."""
    context = FakeContext()
    entries = [{"partition_index": 0, "committed_offset": -1}]
    context.expect(
        FETCH,
        {"topics": [{"name": "orders"}, {"name": "plain"}]},
        {"topics": [{"name": name, "partitions": entries} for name in ("orders", "plain")]},
    )
    context.expect(
        COMMIT,
        {"topics": [pushes(version, {0: 0}), pushes(version, {0: 20}, "plain")]},
        {"topics": [codes(version, {0: 0}), codes(version, {0: 0}, "plain")]},
    )

    errors = await commit(
        context, version, topic("orders", {0: 9}), topic("plain.lanes-2", {0: 20, 3: 30})
    )

    assert errors == {("orders", 0): 0, ("plain.lanes-2", 0): 0, ("plain.lanes-2", 3): 0}
    assert (offset_of(context, 0, "plain.lanes-2"), offset_of(context, 3, "plain.lanes-2")) == (
        20,
        30,
    )


async def test_a_lane_name_by_its_id() -> None:
    """v10: the lane name's id comes in, the topic's id goes up, the lane's comes back."""
    context = FakeContext()
    view = context.lanes("orders.lanes-3")
    no_history(context, 0)
    context.expect(
        COMMIT, {"topics": [pushes(10, {0: 0})]}, {"topics": [codes(10, {0: 0})]}, version=10
    )
    asked = {**topic("x", {2: 40}), "topic_id": view.view_id}

    errors = await commit(context, 10, asked)

    assert errors == {(view.view_id, 2): 0}
    assert offset_of(context, 2, "orders.lanes-3") == 40


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_a_partition_both_as_lanes_and_as_itself_is_refused_for_the_latter(version) -> None:
    """Kafka holds one offset for both; the plain topic's other partitions still ride along."""
    context = FakeContext()
    view = context.lanes("plain.lanes-2")
    entries = [{"partition_index": 1, "committed_offset": -1}]
    context.expect(FETCH, None, {"topics": [{"name": "plain", "partitions": entries}]})
    context.expect(
        COMMIT,
        {"topics": [pushes(version, {1: 0, 0: 70}, "plain")]},
        {"topics": [codes(version, {1: 0, 0: 0}, "plain")]},
    )
    lanes = {**topic("plain.lanes-2", {1: 5}), "topic_id": view.view_id}

    errors = await commit(context, version, topic("plain", {0: 70, 1: 80}), lanes)

    own, lane = (PLAIN, view.view_id) if version >= 10 else ("plain", "plain.lanes-2")
    assert errors == {(own, 0): 0, (own, 1): 42, (lane, 1): 0}


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_a_partition_error_reaches_all_its_lanes(version) -> None:
    """Partition 0 is refused: lanes 0 and 2 are, lane 1 is not; nothing of 0 is kept."""
    context = FakeContext()
    no_history(context, 0, 1, offset=10)
    context.expect(COMMIT, None, {"topics": [codes(version, {0: 29, 1: 0})]})

    errors = await commit(context, version, topic("orders", {0: 60, 1: 70, 2: 80}))

    assert [(key[1], error) for key, error in errors.items()] == [(0, 29), (1, 0), (2, 29)]
    assert [offset_of(context, i) for i in range(3)] == [10, 70, 10]
    assert [timed(context, i) for i in range(3)] == [False, True, False]


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_lanes_out_of_range(version) -> None:
    """Each is refused by itself; the broker sees none of them."""
    context = FakeContext()
    no_history(context, 0)
    context.expect(COMMIT, {"topics": [pushes(version, {0: 0})]},
                   {"topics": [codes(version, {0: 0})]})  # fmt: skip

    errors = await commit(context, version, topic("orders", {8: 1, 0: 2, -1: 3, 2**31 - 1: 4}))

    assert [(key[1], e) for key, e in errors.items()] == [(8, 3), (0, 0), (-1, 3), (2**31 - 1, 3)]
    assert [timed(context, index) for index in range(8)] == [True] + [False] * 7


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_nothing_but_lanes_out_of_range(version) -> None:
    """There is nothing to ask the broker."""
    context = FakeContext()

    errors = await commit(context, version, topic("orders", {8: 1}))

    assert list(errors.values()) == [3] and context.events == []


@pytest.mark.parametrize("version", versions(COMMIT))
async def test_a_topic_without_partitions(version) -> None:
    """It is left out, as brokers leave it out."""
    context = FakeContext()

    answer = await call(context, COMMIT, version, request(topic("orders", {})))

    check({"topics": []}, answer)


async def test_a_fenced_member_changes_nothing() -> None:
    """A zombie's generation: state and journal are as before, and the group goes on."""
    context = FakeContext()
    no_history(context, 0)
    await committed(context, {0: 10, 2: 10, 4: 10, 6: 10}, {0: 10})
    before, journal = context.state(GROUP, "orders", 0), len(context.groups.journal)
    context.expect(COMMIT, {"topics": [pushes(8, {0: 10})]}, {"topics": [codes(8, {0: FENCED})]})

    errors = await commit(context, 8, topic("orders", {0: 99}))

    assert errors == {("orders", 0): FENCED}
    assert context.state(GROUP, "orders", 0) is before and len(context.groups.journal) == journal
    assert offset_of(context, 0) == 10


async def test_an_answer_without_the_partition_is_no_success() -> None:
    """Only what the broker has said yes to is kept and answered."""
    context = FakeContext()
    no_history(context, 0)
    context.expect(COMMIT, None, {"topics": []})

    errors = await commit(context, 8, topic("orders", {0: 99}))

    assert errors == {("orders", 0): 3} and offset_of(context, 0) == -1


async def test_a_group_with_direct_history_starts_where_it_stood() -> None:
    """Kafka has 500: lanes that have not committed yet stand there, too."""
    context = FakeContext()
    no_history(context, 0, offset=500)
    context.expect(COMMIT, {"topics": [pushes(8, {0: 500})]}, {"topics": [codes(8, {0: 0})]})

    await commit(context, 8, topic("orders", {0: 700}))

    assert [offset_of(context, index) for index in (0, 2, 4, 6)] == [700, 500, 500, 500]


async def test_a_journal_that_fails_is_made_up_for_by_the_next_commit() -> None:
    """Kafka took the stable offset: the client tries again, and then all is written."""
    context = FakeContext()
    no_history(context, 0)
    await committed(context, {4: 5}, {0: 0})
    context.groups.is_journal_down = True
    context.expect(COMMIT, None, {"topics": [codes(8, {0: 0}), codes(8, {0: 0}, "plain")]})
    errors = await commit(context, 8, topic("orders", {0: 10}), topic("plain", {0: 1}))
    assert errors == {("orders", 0): UNAVAILABLE, ("plain", 0): 0}
    context.groups.is_journal_down = False

    context.expect(COMMIT, None, {"topics": [codes(8, {0: 0})]})
    errors = await commit(context, 8, topic("orders", {2: 20}))

    assert errors == {("orders", 2): 0}
    assert [offset_of(context, index) for index in (0, 2)] == [10, 20]
    loaded = context.groups.restarted().get(StateKey(GROUP, ORDERS, 0))
    assert loaded == context.state(GROUP, "orders", 0)


async def test_what_is_not_known_of_a_group_is_not_guessed() -> None:
    """The coordinator is loading: its lanes get that error, and nothing is pushed."""
    context = FakeContext()
    entries = [{"partition_index": 0, "committed_offset": -1, "error_code": 14}]
    context.expect(FETCH, None, {"topics": [{"name": "orders", "partitions": entries}]})

    errors = await commit(context, 8, topic("orders", {0: 10, 2: 20}))

    assert errors == {("orders", 0): 14, ("orders", 2): 14}


async def test_an_error_of_the_whole_group_reaches_its_lanes() -> None:
    """NOT_COORDINATOR instead of offsets."""
    context = FakeContext()
    context.expect(FETCH, None, {"topics": [], "error_code": 16})

    errors = await commit(context, 8, topic("orders", {0: 10}))

    assert errors == {("orders", 0): 16}


async def test_the_stable_offset_passes_what_holds_no_record() -> None:
    """Lane 0 is done with its last record at 30, the others have none up to 100."""
    context = FakeContext()
    no_history(context, 0)
    view = context.lanes("orders")
    lasts = np.array([30, -1, -1, -1], np.int64)
    context.groups.scan(view, 0).add(0, 100, lasts)
    context.expect(COMMIT, {"topics": [pushes(8, {0: 100})]}, {"topics": [codes(8, {0: 0})]})

    await commit(context, 8, topic("orders", {0: 31}))

    assert context.state(GROUP, "orders", 0).pushed == 100


async def test_an_admin_sets_lanes_back() -> None:
    """Generation -1 and no member: exactly these offsets, down to the broker's own."""
    context = FakeContext()
    no_history(context, 0)
    await committed(context, {0: 90, 2: 80, 4: 70, 6: 60}, {0: 60})
    context.expect(
        COMMIT,
        {"generation_id_or_member_epoch": -1, "topics": [pushes(8, {0: 5})]},
        {"topics": [codes(8, {0: 0})]},
    )

    offsets = {0: 5, 2: 6, 4: 7, 6: 8}
    errors = await commit(context, 8, topic("orders", offsets), generation=-1, member="")

    assert set(errors.values()) == {0}
    assert {index: offset_of(context, index) for index in offsets} == offsets


async def test_an_admin_sets_a_lane_back_below_what_was_scanned() -> None:
    """The lane stood at 31 and counted as 100: a reset to 50 means 50, a member's 50 does not."""
    outcomes = []
    for generation, member in ((-1, ""), (3, "m1")):
        context = FakeContext()
        no_history(context, 0)
        scan = context.groups.scan(context.lanes("orders"), 0)
        scan.add(0, 100, np.array([30, -1, -1, -1], np.int64))
        await committed(context, {0: 31}, {0: 100})
        scan.truncate(0)
        pushed = 50 if member == "" else 100
        context.expect(COMMIT, {"topics": [pushes(8, {0: pushed})]}, {"topics": [codes(8, {0: 0})]})

        await commit(context, 8, topic("orders", {0: 50}), generation=generation, member=member)
        outcomes.append(offset_of(context, 0))

    assert outcomes == [50, 100]


async def test_a_negative_offset_is_refused_alone() -> None:
    """INVALID_REQUEST for the lane; the other one of the partition is taken."""
    context = FakeContext()
    no_history(context, 0)
    context.expect(COMMIT, None, {"topics": [codes(8, {0: 0})]})

    errors = await commit(context, 8, topic("orders", {0: -1, 2: 9}))

    assert errors == {("orders", 0): 42, ("orders", 2): 0}
    assert offset_of(context, 0) == -1


async def test_metadata_that_is_too_large_is_refused_alone() -> None:
    """OFFSET_METADATA_TOO_LARGE as Kafka says it, for this lane."""
    context = FakeContext()
    no_history(context, 0)
    context.expect(COMMIT, None, {"topics": [codes(8, {0: 0})]})
    asked = topic("orders", {0: 1, 2: 2})
    asked["partitions"][0]["committed_metadata"] = "x" * 5000

    errors = await commit(context, 8, asked)

    assert errors == {("orders", 0): 12, ("orders", 2): 0}


async def test_metadata_and_epoch_stay_with_their_lane() -> None:
    """The partition's own commit has neither: they belong to other offsets."""
    context = FakeContext()
    no_history(context, 0)
    pushed = {"committed_leader_epoch": -1, "committed_metadata": ""}
    context.expect(
        COMMIT,
        {"topics": [{"name": "orders", "partitions": [pushed]}]},
        {"topics": [codes(8, {0: 0})]},
    )

    await commit(context, 8, topic("orders", {0: 1, 2: 1, 4: 1, 6: 1}, committed_leader_epoch=4))

    layout = context.lanes("orders").layout
    position = context.state(GROUP, "orders", 0).position_of(layout.key_range(0, 0))
    assert (position.metadata, position.leader_epoch) == ("m", 4)


async def test_two_commits_of_a_group_take_turns() -> None:
    """The second waits for the first one's journal, and builds on its state."""
    context = FakeContext()
    no_history(context, 0)
    for _ in range(2):
        context.expect(COMMIT, None, {"topics": [codes(8, {0: 0})]})
    wanted = [request(topic("orders", {index: 10 + index})) for index in (0, 2)]
    requests = [make_request(COMMIT, 8, each) for each in wanted]
    await context.groups.lock(GROUP).__aenter__()
    both = [spawn(handle_offset_commit(one, one.decode(), context), "commit") for one in requests]
    await asyncio.sleep(0)  # not a pause: one turn of the loop takes both up to the lock
    assert context.events == []

    context.groups.owned.locks[GROUP].release()
    await asyncio.gather(*both)

    assert [offset_of(context, index) for index in (0, 2)] == [10, 12]
    assert context.events[2:] == ["send OffsetCommit", "release", "journal"] * 2
