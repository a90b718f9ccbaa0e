"""DeleteRecords v0-2: a log is cut where the last of its lanes allows."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from keylane.proxy.apis.shared.request import Operation
from tests.transcript.fake import FakeContext, call, check, make_request, serve, versions

DELETE, METADATA = 21, 3
HIGH_WATERMARK, UNKNOWN, DENIED, POLICY, TWICE = -1, 3, 29, 44, 42
VERSIONS = versions(DELETE)


def topics(*entries: tuple[str, dict[int, int]]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": name,
                "partitions": [{"partition_index": i, "offset": at} for i, at in offsets.items()],
            }
            for name, offsets in entries
        ]
    }


def results(*entries: tuple[str, dict[int, tuple[int, int]]]) -> dict[str, Any]:
    """Per index (low watermark, error code)."""
    return {
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": i, "low_watermark": low, "error_code": code}
                    for i, (low, code) in found.items()
                ],
            }
            for name, found in entries
        ]
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_lowest_offset_of_all_lanes_is_where_the_log_is_cut(version) -> None:
    """Lane 4 still wants 40: the partition is cut there, and all its lanes are answered that."""
    context = FakeContext()
    context.expect(
        DELETE,
        topics(("orders", {0: 40})),
        results(("orders", {0: (40, 0)})),
        version=version,
    )

    offsets = {0: 300, 2: 200, 4: 40, 6: HIGH_WATERMARK}
    found = await call(context, DELETE, version, topics(("orders", offsets)))

    check(results(("orders", dict.fromkeys(offsets, (40, 0)))), found)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_lane_alone_deletes_nothing(version, caplog) -> None:
    """The log is the other lanes' as well: refused without asking the broker, and logged."""
    context = FakeContext()

    with caplog.at_level(logging.WARNING, "keylane.admin"):
        found = await call(context, DELETE, version, topics(("orders", {0: 300, 3: 300})))

    check(results(("orders", {0: (-1, POLICY), 3: (-1, POLICY)})), found)
    assert "topic=orders indexes=2" in caplog.text
    assert "name all 4 lanes of partition 0 (0, 2, ...)" in caplog.text


async def test_the_high_watermark_of_all_lanes_is_that_of_the_partition() -> None:
    """-1 of each lane cuts the whole log."""
    context = FakeContext()
    every = dict.fromkeys(range(8), HIGH_WATERMARK)
    context.expect(
        DELETE,
        topics(("orders", {0: HIGH_WATERMARK, 1: HIGH_WATERMARK})),
        results(("orders", {0: (70, 0), 1: (-1, 6)})),
    )

    found = await call(context, DELETE, 2, topics(("orders", every)))

    expected = {i: (70, 0) if i % 2 == 0 else (-1, 6) for i in range(8)}
    check(results(("orders", expected)), found)


async def test_whole_partitions_pass_beside_refused_ones_and_plain_topics() -> None:
    """A lane name is asked for by its topic; what is refused, or is no lane, is answered beside."""
    context = FakeContext()
    context.expect(
        DELETE,
        topics(("shop", {0: 5}), ("plain", {1: 9})),
        results(("shop", {0: (5, 0)}), ("plain", {1: (9, 0)})),
    )
    asked = topics(("shop.lanes-2", {0: 5, 1: 6, 2: 7}), ("plain", {1: 9}), ("orders", {7: 1}))

    found = await call(context, DELETE, 2, asked)

    expected = (
        ("shop.lanes-2", {0: (5, 0), 1: (5, 0), 2: (-1, UNKNOWN)}),
        ("plain", {1: (9, 0)}),
        ("orders", {7: (-1, POLICY)}),
    )
    check(results(*expected), found)


async def test_a_partition_that_is_named_as_itself_too_is_the_partitions() -> None:
    """Brokers take a partition once: its lanes are refused, where they ask something else."""
    context = FakeContext()
    context.expect(DELETE, topics(("shop", {0: 9})), results(("shop", {0: (9, 0)})))

    found = await call(context, DELETE, 2, topics(("shop.lanes-2", {0: 5, 1: 6}), ("shop", {0: 9})))

    check(results(("shop.lanes-2", {0: (-1, TWICE), 1: (-1, TWICE)}), ("shop", {0: (9, 0)})), found)


async def test_lane_names_that_differ_are_both_refused() -> None:
    """Neither is the partition itself."""
    context = FakeContext()
    asked = topics(("shop.lanes-1", {0: 5}), ("shop.lanes-2", {0: 6, 1: 6}))

    found = await call(context, DELETE, 2, asked)

    twice = (-1, TWICE)
    check(results(("shop.lanes-1", {0: twice}), ("shop.lanes-2", {0: twice, 1: twice})), found)


async def test_a_client_without_the_right_gets_no_more(caplog) -> None:
    """In the place of the reason there is the broker's word; the log is spared."""
    context = FakeContext()
    context.world.denied.add(("orders", Operation.DELETE))

    found = await call(context, DELETE, 2, topics(("orders", {3: 1})))

    check(results(("orders", {3: (-1, DENIED)})), found)
    # asyncio logs what the garbage of other tests was about, whenever it is collected.
    assert not [record for record in caplog.records if record.name.startswith("keylane")]


@pytest.mark.parametrize("code", [0, UNKNOWN, DENIED])
async def test_lanes_of_an_unknown_topic_never_reach_a_broker(code) -> None:
    """It may know the topic by then, and would take lanes for partitions."""
    context = FakeContext()
    context.expect(METADATA, {"topics": [{"name": "new"}]}, {"topics": [{"error_code": code}]})

    found = await call(context, DELETE, 2, topics(("new.lanes-2", {0: 1, 1: 1})))

    refused = (-1, code or UNKNOWN)
    check(results(("new.lanes-2", {0: refused, 1: refused})), found)


@pytest.mark.parametrize("version", VERSIONS)
async def test_topics_without_lanes_pass_as_they_are(version) -> None:
    """Byte for byte, with a partition that is named twice."""
    context = FakeContext()
    twice = [{"partition_index": 0, "offset": 1}, {"partition_index": 0, "offset": 2}]
    asked = make_request(DELETE, version, {"topics": [{"name": "plain", "partitions": twice}]})
    context.expect(DELETE, bytes(asked.body), topics(("plain", {0: 1})))

    await serve(context, asked)
