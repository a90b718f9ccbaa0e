"""OffsetFetch v1-10: where each lane stands, in line with the broker's own offset."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest

from keylane.offsets.records.journal import StateKey
from tests.transcript.entities import plain as as_values
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

FETCH, COMMIT = 9, 8
GROUP = "g"
IDS = {"orders": ORDERS, "plain": PLAIN}


def topic(name: str, indexes: list[int], topic_id: uuid.UUID | None = None) -> dict[str, Any]:
    return {"name": name, "topic_id": topic_id or IDS[name], "partition_indexes": indexes}


def request(version: int, *topics: Any, group: str = GROUP) -> dict[str, Any]:
    """One group's question; no topic at all asks for all of them."""
    asked = list(topics) or None
    if version < 8:
        return {"group_id": group, "topics": asked}
    return {"groups": [{"group_id": group, "topics": asked}]}


def one(version: int, name: str, offsets: dict[int, int], error_code: int = 0) -> dict[str, Any]:
    entries = [
        {"partition_index": i, "committed_offset": offset, "metadata": "", "error_code": error_code}
        for i, offset in offsets.items()
    ]
    key = {"topic_id": IDS[name]} if version >= 10 else {"name": name}
    return {**key, "partitions": entries}


def answer(version: int, *topics: Any, group: str = GROUP, error_code: int = 0) -> dict[str, Any]:
    found = {"topics": list(topics), "error_code": error_code}
    return found if version < 8 else {"groups": [{"group_id": group, **found}]}


def shown(version: int, found: Any) -> dict[Any, dict[int, Any]]:
    """Topic -> lane -> committed offset (or the error, as a text)."""
    topics = found["topics"] if version < 8 else found["groups"][0]["topics"]
    return {
        entry.get("name", entry.get("topic_id")): {
            p["partition_index"]: p["committed_offset"] if not p["error_code"] else
            f"error {p['error_code']}" for p in entry["partitions"]
        }
        for entry in topics
    }  # fmt: skip


async def known(context: FakeContext, offsets: dict[int, int], name: str = "orders") -> None:
    """The group has committed these lanes, and the broker holds their stable offset."""
    view = context.lanes(name)
    async with context.groups.lock(GROUP):
        for index, offset in offsets.items():
            partition = view.layout.partition_of(index)
            found = context.groups.state_of(GROUP, view, partition)
            if found is None:
                found = await context.groups.adopt(GROUP, view, partition, None)
            state = found.copy()
            scan = context.groups.scan(view, partition)
            state.commit_keys(view.key_ranges(index), offset, f"m{index}", 6, scan)
            state.mark_pushed(state.stable_position)
            await context.groups.save(GROUP, [(view, partition, state)])
            context.groups.pushes.note_sure(StateKey(GROUP, view.topic_id, partition))
    context.events.clear()


@pytest.mark.parametrize("version", versions(FETCH))
async def test_each_lane_has_its_own_position(version) -> None:
    """The broker is asked once per partition; uncommitted lanes are -1."""
    context = FakeContext()
    await known(context, {0: 100, 2: 200})
    partitions = {"partition_indexes": [0, 1]}
    wanted = {"topics": [partitions]} if version < 8 else {"groups": [{"topics": [partitions]}]}
    context.expect(
        FETCH, wanted, answer(version, one(version, "orders", {0: 0, 1: -1})), version=version
    )

    found = await call(context, FETCH, version, request(version, topic("orders", list(range(8)))))

    key = ORDERS if version >= 10 else "orders"
    nowhere = dict.fromkeys(range(8), -1)
    assert shown(version, found) == {key: {**nowhere, 0: 100, 2: 200}}
    assert context.events == ["send OffsetFetch", "release"]
    topics = found["topics"] if version < 8 else found["groups"][0]["topics"]
    first = topics[0]["partitions"][0]
    assert first["metadata"] == "m0"
    if version >= 5:
        assert first["committed_leader_epoch"] == 6


@pytest.mark.parametrize("version", versions(FETCH))
async def test_an_unsure_state_answers_what_members_said(version) -> None:
    """While the partition's leader is away nothing that a scan has led to is answered as sure."""
    context = FakeContext()
    scan = context.groups.scan(context.lanes("orders"), 0)
    scan.add(0, 500, np.array([499, 99, 499, 499], np.int64))
    await known(context, {0: 500, 2: 100, 4: 500, 6: 500})
    asked = request(version, topic("orders", [0, 2]))
    for is_unsure in (False, True):
        if is_unsure:
            context.groups.lose_leader("orders", 0)
        context.expect(FETCH, None, answer(version, one(version, "orders", {0: 500})))

        found = await call(context, FETCH, version, asked)

        key = ORDERS if version >= 10 else "orders"
        assert shown(version, found) == {key: {0: 500, 2: 100 if is_unsure else 500}}
    assert context.state(GROUP, "orders", 0).stable_position == 500, "the state itself waits"


@pytest.mark.parametrize("version", versions(FETCH))
async def test_lanes_and_plain_topics_in_one_request(version) -> None:
    """A plain topic's answer passes as it is, for the partitions that were asked for."""
    context = FakeContext()
    context.expect(
        FETCH,
        None,
        answer(version, one(version, "plain", {0: 5, 2: 6}), one(version, "orders", {1: 30})),
    )
    asked = request(version, topic("plain", [0, 2]), topic("orders", [1, 3]))

    found = await call(context, FETCH, version, asked)

    plain, orders = (PLAIN, ORDERS) if version >= 10 else ("plain", "orders")
    assert shown(version, found) == {plain: {0: 5, 2: 6}, orders: {1: 30, 3: 30}}


@pytest.mark.parametrize("version", versions(FETCH))
async def test_own_name_and_lane_name_of_one_topic(version) -> None:
    """The same partitions are asked for once; each name sees its own view of the positions."""
    context = FakeContext()
    view = context.lanes("plain.lanes-2")
    partitions = {"partition_indexes": [0, 1]}
    wanted = {"topics": [partitions]} if version < 8 else {"groups": [{"topics": [partitions]}]}
    context.expect(FETCH, wanted, answer(version, one(version, "plain", {0: 40, 1: 50})))
    asked = request(version, topic("plain", [0]), topic("plain.lanes-2", [1, 4], view.view_id))

    found = await call(context, FETCH, version, asked)

    own, lanes = (PLAIN, view.view_id) if version >= 10 else ("plain", "plain.lanes-2")
    assert shown(version, found) == {own: {0: 40}, lanes: {1: 50, 4: 50}}


@pytest.mark.parametrize("version", versions(FETCH))
async def test_without_lanes_it_passes_as_bytes(version) -> None:
    """Request and answer are those of a direct connection."""
    context = FakeContext()
    asked = make_request(FETCH, version, request(version, topic("plain", [0])))
    context.world.steps.append(
        Step(
            api_key=FETCH,
            wants=bytes(asked.body),
            answer=answer(version, one(version, "plain", {0: 5})),
        )
    )

    found = asked.decode_answer(await serve(context, asked))

    assert shown(version, as_values(found)) == {PLAIN if version >= 10 else "plain": {0: 5}}


@pytest.mark.parametrize("version", range(2, 11))
async def test_all_topics_of_a_group(version) -> None:
    """Lane topics under their own name; lane names that the group has used; plain ones as is."""
    context = FakeContext()
    await known(context, {0: 100})
    await known(context, {5: 70}, "plain.lanes-2")
    context.groups.note_used(GROUP, context.lanes("plain.lanes-2"))
    context.expect(
        FETCH,
        {"topics": None} if version < 8 else {"groups": [{"topics": None}]},
        answer(version, one(version, "orders", {0: 0}), one(version, "plain", {0: 4, 2: 0})),
    )

    found = await call(context, FETCH, version, request(version))

    lanes = context.lanes("plain.lanes-2")
    keys = [ORDERS, PLAIN, lanes.view_id] if version >= 10 else ["orders", "plain", lanes.name]
    assert shown(version, found) == {
        keys[0]: {0: 100},
        keys[1]: {0: 4, 2: 0},
        keys[2]: {0: 4, 3: 4, 5: 70},
    }


@pytest.mark.parametrize("version", range(2, 11))
async def test_all_topics_of_a_group_that_has_none(version) -> None:
    """Nothing is invented."""
    context = FakeContext()
    context.expect(FETCH, None, answer(version))

    assert shown(version, await call(context, FETCH, version, request(version))) == {}


def expect_rights(context: FakeContext, version: int, *groups: str) -> None:
    """The broker is asked about each group for no topic, and refuses none."""
    asked = [{"group_id": group, "topics": []} for group in groups]
    found = [answer(version, group=group)["groups"][0] for group in groups]
    context.expect(FETCH, {"groups": asked}, {"groups": found})


@pytest.mark.parametrize("version", range(8, 11))
async def test_names_of_commits_that_were_refused_are_not_listed(version) -> None:
    """Else a stranger could put topics into the answers of any group."""
    context = FakeContext()
    entry = {"partition_index": 5, "committed_offset": 70, "committed_metadata": ""}
    refused = {"partition_index": 2, "error_code": 30}
    wanted = {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "plain.lanes-2", "partitions": [entry]}],
    }
    none = {"partition_index": 2, "committed_offset": -1, "metadata": ""}
    context.expect(
        FETCH, None, {"topics": [{"name": "plain", "partitions": [none]}]}, version=7
    )  # of the state, which is new
    context.expect(COMMIT, None, {"topics": [{"name": "plain", "partitions": [refused]}]})
    await call(context, COMMIT, 8, wanted)
    assert context.groups.lane_names_of(GROUP) == ()

    context.expect(FETCH, None, answer(version, one(version, "plain", {2: 4})))
    found = await call(context, FETCH, version, request(version))

    assert shown(version, found) == {PLAIN if version >= 10 else "plain": {2: 4}}


@pytest.mark.parametrize("version", range(8, 11))
async def test_a_group_of_plain_topics_beside_all_topics_of_another(version) -> None:
    """Its question goes up as it came and its answer down, a partition named twice as well."""
    context = FakeContext()
    plain = request(version, topic("plain", [0, 0, 1]))["groups"][0]
    every = request(version, group="other")["groups"][0]
    reported = answer(version, one(version, "plain", {0: 5, 1: 7}))["groups"][0]
    reported["topics"][0]["partitions"].insert(0, reported["topics"][0]["partitions"][0])
    none = answer(version, group="other")["groups"][0]
    body = make_request(FETCH, version, {"groups": [plain, every]}).body
    expect_rights(context, version, GROUP, "other")
    context.expect(FETCH, bytes(body), {"groups": [reported, none]})

    seen = await call(context, FETCH, version, {"groups": [plain, every]})

    check({"groups": [reported, none]}, seen)
    assert len(seen["groups"][0]["topics"][0]["partitions"]) == 3


@pytest.mark.parametrize("version", range(8, 11))
async def test_many_groups(version) -> None:
    """Each group gets its own lanes, in whatever order the broker answers them."""
    context = FakeContext()
    await known(context, {0: 100})
    asked = {"groups": [
        {"group_id": GROUP, "topics": [topic("orders", [0])]},
        {"group_id": "other", "topics": [topic("orders", [0, 2])]},
        {"group_id": "third", "topics": [topic("plain", [0])]},
    ]}  # fmt: skip
    groups = [
        *answer(version, one(version, "plain", {0: 1}), group="third")["groups"],
        *answer(version, one(version, "orders", {0: 9}), group="other")["groups"],
        *answer(version, one(version, "orders", {0: 0}), group=GROUP)["groups"],
    ]
    expect_rights(context, version, GROUP, "other", "third")
    context.expect(FETCH, {"groups": [{"group_id": g} for g in (GROUP, "other", "third")]},
                   {"groups": groups})  # fmt: skip

    found = await call(context, FETCH, version, asked)

    positions = {
        group["group_id"]: [p["committed_offset"] for p in group["topics"][0]["partitions"]]
        for group in found["groups"]
    }
    assert positions == {"third": [1], "other": [9, 9], GROUP: [100]}


@pytest.mark.parametrize("version", versions(FETCH))
async def test_a_partition_error_reaches_its_lanes(version) -> None:
    """Such as UNSTABLE_OFFSET_COMMIT of an open transaction; other partitions are answered."""
    context = FakeContext()
    bad, good = one(version, "orders", {0: -1}, 88), one(version, "orders", {1: 12})
    both = {**bad, "partitions": bad["partitions"] + good["partitions"]}
    context.expect(FETCH, None, answer(version, both))

    found = await call(context, FETCH, version, request(version, topic("orders", [0, 1, 2, 3])))

    positions = {0: "error 88", 1: 12, 2: "error 88", 3: 12}
    assert list(shown(version, found).values()) == [positions]


@pytest.mark.parametrize("version", range(2, 11))
async def test_an_error_of_the_whole_group(version) -> None:
    """It passes; before v8 each lane has it, too, since aiokafka looks at nothing else."""
    context = FakeContext()
    context.expect(FETCH, None, answer(version, error_code=16))

    found = await call(context, FETCH, version, request(version, topic("orders", [0, 5])))

    if version < 8:
        assert found["error_code"] == 16
        (entry,) = found["topics"]
        lanes = entry["partitions"]
        assert {lane["partition_index"]: lane["error_code"] for lane in lanes} == {0: 16, 5: 16}
        assert {lane["committed_offset"] for lane in lanes} == {-1}
    else:
        check(answer(version, error_code=16), found)


@pytest.mark.parametrize("version", range(7, 11))
@pytest.mark.parametrize("error_code", [14, 15, 16])
async def test_librdkafka_asks_again_when_the_coordinator_is_away(version, error_code) -> None:
    """With the error of a group its lanes would never get an offset (docs/clients.md)."""
    context = FakeContext()
    context.is_librdkafka = True
    context.expect(FETCH, None, answer(version, error_code=error_code))

    found = await call(context, FETCH, version, request(version, topic("orders", [0, 5])))

    assert (found if version < 8 else found["groups"][0])["error_code"] == 0
    assert list(shown(version, found).values()) == [{0: "error 88", 5: "error 88"}]


@pytest.mark.parametrize("version", range(7, 11))
async def test_librdkafka_gets_the_error_of_a_missing_right(version) -> None:
    """An error that another try does not change passes."""
    context = FakeContext()
    context.is_librdkafka = True
    context.expect(FETCH, None, answer(version, error_code=30))

    found = await call(context, FETCH, version, request(version, topic("orders", [0, 5])))

    assert (found if version < 8 else found["groups"][0])["error_code"] == 30


@pytest.mark.parametrize(("is_librdkafka", "offset"), [(True, -1000), (False, -1)])
@pytest.mark.parametrize("version", range(7, 11))
async def test_an_offset_under_a_transaction_is_no_reset(version, is_librdkafka, offset) -> None:
    """librdkafka may take the number for the committed offset: -1000 stands for it there."""
    context = FakeContext()
    context.is_librdkafka = is_librdkafka
    bad, good = one(version, "orders", {0: -1}, 88), one(version, "orders", {1: 12})
    both = {**bad, "partitions": bad["partitions"] + good["partitions"]}
    context.expect(FETCH, None, answer(version, both))

    found = await call(context, FETCH, version, request(version, topic("orders", [0, 1])))

    (entry,) = (found if version < 8 else found["groups"][0])["topics"]
    positions = {lane["partition_index"]: lane["committed_offset"] for lane in entry["partitions"]}
    assert positions == {0: offset, 1: 12}


@pytest.mark.parametrize("version", versions(FETCH))
async def test_lanes_out_of_range_are_left_out(version) -> None:
    """As a broker leaves out partitions that it does not know."""
    context = FakeContext()
    context.expect(FETCH, None, answer(version, one(version, "orders", {0: 3})))

    found = await call(context, FETCH, version, request(version, topic("orders", [8, 0, -1])))

    assert list(shown(version, found).values()) == [{0: 3}]


@pytest.mark.parametrize("version", versions(FETCH))
async def test_a_topic_without_partitions(version) -> None:
    """It is asked and answered as such."""
    context = FakeContext()
    context.expect(FETCH, None, answer(version, one(version, "orders", {})))

    found = await call(context, FETCH, version, request(version, topic("orders", [])))

    assert list(shown(version, found).values()) == [{}]


@pytest.mark.parametrize(
    ("kafka", "positions"),
    [
        (50, {0: 100, 2: 200, 4: 50, 6: 70}),
        (80, {0: 100, 2: 200, 4: 80, 6: 80}),
        (150, {0: 150, 2: 200, 4: 150, 6: 150}),
        (20, dict.fromkeys((0, 2, 4, 6), 20)),
        (-1, dict.fromkeys((0, 2, 4, 6), -1)),
    ],
)
async def test_the_broker_moved_the_offset(kafka, positions) -> None:
    """Equal, forward (a direct member), back (a reset), gone (retention or deletion)."""
    context = FakeContext()
    context.group_names.note_empty(GROUP)
    await known(context, {0: 100, 2: 200, 4: 50, 6: 70})
    context.expect(FETCH, None, answer(9, one(9, "orders", {0: kafka})))

    found = await call(context, FETCH, 9, request(9, topic("orders", list(positions))))

    assert shown(9, found) == {"orders": positions}


async def test_direct_history_is_where_lanes_start_and_is_not_journaled_by_reading() -> None:
    """Reading an offset writes nothing."""
    context = FakeContext()
    context.expect(FETCH, None, answer(9, one(9, "orders", {0: 500})))

    found = await call(context, FETCH, 9, request(9, topic("orders", [0, 6])))

    assert shown(9, found) == {"orders": {0: 500, 6: 500}}
    assert not context.groups.journal
    assert context.groups.table.get(StateKey(GROUP, ORDERS, 0)) is not None


async def test_a_group_without_offsets_leaves_no_state() -> None:
    """A group that only asks, again and again under new names, takes no memory."""
    context = FakeContext()
    context.expect(FETCH, None, answer(9, one(9, "orders", {0: -1})))

    await call(context, FETCH, 9, request(9, topic("orders", [0])))

    assert not len(context.groups.table)
