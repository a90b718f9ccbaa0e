"""OffsetDelete v0, DeleteGroups v0-2: the broker decides, then lanes are forgotten."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.offsets.records.journal import StateKey
from tests.transcript.fake import ORDERS, FakeContext, call, check, versions
from tests.transcript.test_offset_fetch import GROUP, known

DELETE_GROUPS, OFFSET_DELETE, COMMIT, FETCH = 42, 47, 8, 9


def request(*topics: tuple[str, list[int]]) -> dict[str, Any]:
    return {
        "group_id": GROUP,
        "topics": [
            {"name": name, "partitions": [{"partition_index": i} for i in indexes]}
            for name, indexes in topics
        ],
    }


def answer(*topics: tuple[str, dict[int, int]], error_code: int = 0) -> dict[str, Any]:
    return {
        "error_code": error_code,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": i, "error_code": error} for i, error in errors.items()
                ],
            }
            for name, errors in topics
        ],
    }


def positions(context: FakeContext, partition: int = 0) -> list[int]:
    layout = context.lanes("orders").layout
    state = context.state(GROUP, "orders", partition)
    return [state.position_of(layout.key_range(0, lane)).offset for lane in range(4)]


def put_back(context: FakeContext, offset: int, error_code: int = 0) -> None:
    entry = {"partition_index": 0, "committed_offset": offset}
    context.expect(
        COMMIT,
        {
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": "orders", "partitions": [entry]}],
        },
        answer(("orders", {0: error_code})),
    )


async def test_one_lane_is_forgotten_the_others_stay() -> None:
    """The broker forgets the partition, so its stable offset is committed again."""
    context = FakeContext()
    context.groups.log_starts["orders", 0] = 5
    await known(context, {0: 100, 2: 200, 4: 300, 6: 400})
    context.expect(OFFSET_DELETE, request(("orders", [0])), answer(("orders", {0: 0})))
    put_back(context, 5)

    found = await call(context, OFFSET_DELETE, 0, request(("orders", [2])))

    check(answer(("orders", {2: 0})), found)
    assert positions(context) == [100, -1, 300, 400]
    assert context.state(GROUP, "orders", 0).pushed == 5
    restarted = context.groups.restarted().get(StateKey(GROUP, ORDERS, 0))
    assert restarted == context.state(GROUP, "orders", 0)


async def test_all_lanes_of_a_partition() -> None:
    """Nothing is left to commit again; the state is gone from memory and journal."""
    context = FakeContext()
    await known(context, {0: 100, 2: 200, 1: 50})
    context.expect(OFFSET_DELETE, request(("orders", [0])), answer(("orders", {0: 0})))

    found = await call(context, OFFSET_DELETE, 0, request(("orders", [0, 2, 4, 6])))

    check(answer(("orders", dict.fromkeys((0, 2, 4, 6), 0))), found)
    assert context.groups.table.get(StateKey(GROUP, ORDERS, 0)) is None
    assert positions(context, 1) == [50, -1, -1, -1]
    restarted = context.groups.restarted()
    assert restarted.get(StateKey(GROUP, ORDERS, 0)) is None and len(restarted) == 1


async def test_a_group_that_still_subscribes_is_refused() -> None:
    """GROUP_SUBSCRIBED_TO_TOPIC reaches the lanes; nothing is forgotten, nothing committed."""
    context = FakeContext()
    await known(context, {0: 100})
    context.expect(OFFSET_DELETE, None, answer(("orders", {0: 86})))

    found = await call(context, OFFSET_DELETE, 0, request(("orders", [0, 2])))

    check(answer(("orders", {0: 86, 2: 86})), found)
    assert positions(context) == [100, -1, -1, -1]


async def test_direct_history_that_is_refused_is_not_committed_again() -> None:
    """A state that was made just now, from Kafka's own offset, has not changed."""
    context = FakeContext()
    entries = [{"partition_index": 0, "committed_offset": 70}]
    context.expect(FETCH, None, {"topics": [{"name": "orders", "partitions": entries}]})
    context.expect(OFFSET_DELETE, None, answer(("orders", {0: 86})))

    found = await call(context, OFFSET_DELETE, 0, request(("orders", [0])))

    check(answer(("orders", {0: 86})), found)


async def test_a_group_that_is_active_elsewhere_keeps_its_other_lanes() -> None:
    """The stable offset cannot be put back now; the lanes' commits do not depend on it."""
    context = FakeContext()
    await known(context, {0: 100, 2: 200, 4: 300, 6: 400})
    context.expect(OFFSET_DELETE, None, answer(("orders", {0: 0})))
    put_back(context, 0, error_code=25)
    await call(context, OFFSET_DELETE, 0, request(("orders", [2])))
    view = context.lanes("orders")

    async with context.groups.lock(GROUP):
        await context.groups.adopt(GROUP, view, 0, None)  # what the broker says from now on

    assert positions(context) == [100, -1, 300, 400]


async def test_an_error_of_the_whole_group() -> None:
    """GROUP_ID_NOT_FOUND passes as it is."""
    context = FakeContext()
    await known(context, {0: 100})
    context.expect(OFFSET_DELETE, None, answer(error_code=69))

    found = await call(context, OFFSET_DELETE, 0, request(("orders", [0])))

    check(answer(error_code=69), found)
    assert positions(context) == [100, -1, -1, -1]


async def test_plain_topics_and_lanes_out_of_range() -> None:
    """Plain ones ride along; a lane that does not exist is refused."""
    context = FakeContext()
    await known(context, {0: 100})
    context.expect(
        OFFSET_DELETE,
        request(("plain", [1]), ("orders", [0])),
        answer(("plain", {1: 0}), ("orders", {0: 0})),
    )

    found = await call(context, OFFSET_DELETE, 0, request(("plain", [1]), ("orders", [8, 0])))

    check(answer(("plain", {1: 0}), ("orders", {0: 0, 8: 3})), found)


async def test_nothing_but_lanes_out_of_range() -> None:
    """The broker is asked about the group alone."""
    context = FakeContext()
    context.expect(OFFSET_DELETE, request(), answer())

    found = await call(context, OFFSET_DELETE, 0, request(("orders", [8, -1])))

    check(answer(("orders", {8: 3, -1: 3})), found)


async def test_nothing_but_lanes_out_of_range_of_a_group_of_others() -> None:
    """GROUP_AUTHORIZATION_FAILED comes before anything is said of topics."""
    context = FakeContext()
    context.expect(OFFSET_DELETE, request(), answer(error_code=30))

    found = await call(context, OFFSET_DELETE, 0, request(("orders", [8, -1])))

    check(answer(error_code=30), found)


async def test_without_lanes_it_passes() -> None:
    """As direct."""
    context = FakeContext()
    context.expect(OFFSET_DELETE, request(("plain", [1])), answer(("plain", {1: 0})))

    check(answer(("plain", {1: 0})), await call(context, OFFSET_DELETE, 0, request(("plain", [1]))))


@pytest.mark.parametrize("version", versions(DELETE_GROUPS))
async def test_deleted_groups_are_forgotten(version) -> None:
    """Those that the broker agreed to; one that is not empty keeps everything."""
    context = FakeContext()
    await known(context, {0: 100, 1: 50})
    for error_code, left in ((68, 2), (0, 0)):
        results = [
            {"group_id": GROUP, "error_code": error_code},
            {"group_id": "none", "error_code": 69},
        ]
        names = [GROUP, "none"]
        context.expect(DELETE_GROUPS, {"groups_names": names}, {"results": results})

        found = await call(context, DELETE_GROUPS, version, {"groups_names": names})

        check({"results": results}, found)
        assert len(context.groups.table) == left == len(context.groups.restarted())
