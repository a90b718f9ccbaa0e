"""ListOffsets v1-11 and OffsetForLeaderEpoch v2-4: a lane's answer is its partition's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcript.fake import FakeContext, call, check, versions

LIST, EPOCH = 2, 23
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


def request(*topics: tuple[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "replica_id": -1,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": i, "timestamp": time, "current_leader_epoch": 3}
                    for i, time in times.items()
                ],
            }
            for name, times in topics
        ],
    }


def wants(*topics: tuple[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": i, "timestamp": time} for i, time in times.items()
                ],
            }
            for name, times in topics
        ]
    }


def answer(*topics: tuple[str, dict[int, int]], error_code: int = 0) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": i, "offset": offset, "error_code": error_code}
                    for i, offset in offsets.items()
                ],
            }
            for name, offsets in topics
        ]
    }


@pytest.mark.parametrize("version", versions(LIST))
async def test_lanes_share_one_question_per_partition(version) -> None:
    """Eight lanes ask for the latest offset, the broker is asked for two partitions."""
    context = FakeContext()
    context.expect(
        LIST,
        wants(("orders", {0: LATEST, 1: LATEST})),
        answer(("orders", {0: 10, 1: 20})),
        version=version,
    )

    found = await call(context, LIST, version, request(("orders", dict.fromkeys(range(8), LATEST))))

    check(answer(("orders", {i: 10 + 10 * (i % 2) for i in range(8)})), found)
    assert context.events == ["send ListOffsets", "release"]


@pytest.mark.parametrize("version", versions(LIST))
async def test_different_questions_about_one_partition_go_in_turns(version) -> None:
    """A broker refuses a partition that is named twice: two requests, sent one after another."""
    context = FakeContext()
    context.expect(LIST, wants(("orders", {0: LATEST, 1: 5})), answer(("orders", {0: 9, 1: 1})))
    context.expect(LIST, wants(("orders", {0: EARLIEST})), answer(("orders", {0: 2})))
    times = {0: LATEST, 2: EARLIEST, 4: LATEST, 1: 5}

    found = await call(context, LIST, version, request(("orders", times)))

    check(answer(("orders", {0: 9, 2: 2, 4: 9, 1: 1})), found)
    assert context.events == ["send ListOffsets", "send ListOffsets", "release"]


@pytest.mark.parametrize("version", versions(LIST))
async def test_own_name_lane_name_and_plain_topic(version) -> None:
    """Each is answered under its own name."""
    context = FakeContext()
    context.expect(
        LIST,
        wants(("orders", {0: LATEST, 1: LATEST}), ("plain", {2: 77})),
        answer(("orders", {0: 9, 1: 8}), ("plain", {2: 7})),
    )
    asked = request(("orders", {0: LATEST}), ("plain", {2: 77}), ("orders.lanes-3", {5: LATEST}))

    found = await call(context, LIST, version, asked)

    check(answer(("orders", {0: 9}), ("plain", {2: 7}), ("orders.lanes-3", {5: 8})), found)


@pytest.mark.parametrize("version", versions(LIST))
async def test_what_fetch_answered_a_moment_ago_is_not_asked_again(version) -> None:
    """Latest and earliest of partition 0 are known; of partition 1 and by time they are asked."""
    context = FakeContext()
    context.world.log_ends["orders", 0] = (1000, 50)
    context.expect(LIST, wants(("orders", {1: LATEST, 0: 123})),
                   answer(("orders", {1: 8, 0: 60})))  # fmt: skip
    times = {0: LATEST, 2: EARLIEST, 1: LATEST, 4: 123}

    found = await call(context, LIST, version, request(("orders", times)))

    check(answer(("orders", {0: 1000, 2: 50, 1: 8, 4: 60})), found)


@pytest.mark.parametrize("version", versions(LIST))
async def test_all_is_known(version) -> None:
    """The broker is not asked at all."""
    context = FakeContext()
    context.world.log_ends["orders", 0] = (1000, 50)

    found = await call(context, LIST, version, request(("orders", {0: LATEST, 6: EARLIEST})))

    check(answer(("orders", {0: 1000, 6: 50})), found)
    if version >= 4:
        epochs = [entry["leader_epoch"] for entry in found["topics"][0]["partitions"]]
        assert epochs == [-1, -1]


@pytest.mark.parametrize("version", versions(LIST))
async def test_lanes_out_of_range(version) -> None:
    """UNKNOWN_TOPIC_OR_PARTITION for them, also where there is nothing else."""
    context = FakeContext()
    context.expect(LIST, wants(("orders", {0: LATEST})), answer(("orders", {0: 9})))
    mixed = await call(context, LIST, version, request(("orders", {8: LATEST, 0: LATEST, -1: 5})))
    alone = await call(context, LIST, version, request(("orders", {8: LATEST})))

    codes = [(e["partition_index"], e["error_code"]) for e in mixed["topics"][0]["partitions"]]
    assert codes == [(8, 3), (0, 0), (-1, 3)]
    check(answer(("orders", {8: -1}), error_code=3), alone)


@pytest.mark.parametrize("version", versions(LIST))
async def test_a_partition_error_reaches_its_lanes(version) -> None:
    """NOT_LEADER_OR_FOLLOWER makes clients refresh their metadata."""
    context = FakeContext()
    context.expect(LIST, None, answer(("orders", {0: -1}), error_code=6))

    found = await call(context, LIST, version, request(("orders", {0: LATEST, 2: LATEST})))

    check(answer(("orders", {0: -1, 2: -1}), error_code=6), found)


@pytest.mark.parametrize("version", versions(LIST))
async def test_without_lanes_it_passes(version) -> None:
    """As direct, a topic named twice included."""
    context = FakeContext()
    asked = request(("plain", {0: LATEST}), ("plain", {1: LATEST}))
    context.expect(LIST, asked if version >= 4 else None, answer(("plain", {0: 1, 1: 2})))

    check(answer(("plain", {0: 1, 1: 2})), await call(context, LIST, version, asked))


@pytest.mark.parametrize("version", versions(LIST))
async def test_a_topic_without_partitions(version) -> None:
    """Nothing is asked, nothing answered."""
    context = FakeContext()

    check(answer(("orders", {})), await call(context, LIST, version, request(("orders", {}))))


def epochs(*topics: tuple[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "topic": name,
                "partitions": [{"partition": i, "leader_epoch": e} for i, e in entries.items()],
            }
            for name, entries in topics
        ]
    }


def ends(*topics: tuple[str, dict[int, tuple[int, int]]]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "topic": name,
                "partitions": [
                    {"partition": i, "end_offset": end, "error_code": code}
                    for i, (end, code) in entries.items()
                ],
            }
            for name, entries in topics
        ]
    }


@pytest.mark.parametrize("version", versions(EPOCH))
async def test_the_end_of_an_epoch(version) -> None:
    """Lanes of a partition share it, lanes out of range are refused, plain topics pass."""
    context = FakeContext()
    context.expect(
        EPOCH,
        epochs(("orders", {0: 4, 1: 5}), ("plain", {2: 6})),
        ends(("orders", {0: (90, 0), 1: (-1, 6)}), ("plain", {2: (7, 0)})),
        version=version,
    )
    asked = epochs(("orders", {0: 4, 2: 4, 3: 5, 8: 1}), ("plain", {2: 6}))

    found = await call(context, EPOCH, version, asked)

    lanes = {0: (90, 0), 2: (90, 0), 3: (-1, 6), 8: (-1, 3)}
    check(ends(("orders", lanes), ("plain", {2: (7, 0)})), found)


@pytest.mark.parametrize("version", versions(EPOCH))
@pytest.mark.parametrize("asked", [{}, {8: 1}])
async def test_epochs_of_no_lane(version, asked) -> None:
    """Nothing to ask the broker."""
    context = FakeContext()

    found = await call(context, EPOCH, version, epochs(("orders", asked)))

    check(ends(("orders", dict.fromkeys(asked, (-1, 3)))), found)


@pytest.mark.parametrize("version", versions(EPOCH))
async def test_epochs_without_lanes_pass(version) -> None:
    """As direct."""
    context = FakeContext()
    context.expect(EPOCH, epochs(("plain", {0: 1})), ends(("plain", {0: (5, 0)})))

    found = await call(context, EPOCH, version, epochs(("plain", {0: 1})))

    check(ends(("plain", {0: (5, 0)})), found)
