"""ConsumerGroupDescribe v0-1: what members have, as the client knows the topics."""

from __future__ import annotations

from typing import Any

import pytest

from tests.transcript.fake import ORDERS, PLAIN, FakeContext, call, check, versions

DESCRIBE = 69


def group(**topics: list[int]) -> dict[str, Any]:
    ids = {"orders": ORDERS, "plain": PLAIN}
    entries = [
        {"topic_name": name, "topic_id": ids[name], "partitions": each}
        for name, each in topics.items()
    ]
    assigned = {"topic_partitions": entries}
    return {"groups": [{"members": [{"assignment": assigned, "target_assignment": assigned}]}]}


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_a_member_of_a_partition_has_all_its_lanes(version) -> None:
    """As offsets of the group are shown; plain topics stay."""
    context = FakeContext()
    context.expect(DESCRIBE, None, group(orders=[1], plain=[0, 2]), version=version)

    found = await call(context, DESCRIBE, version, {"group_ids": ["g"]})

    check(group(orders=[1, 3, 5, 7], plain=[0, 2]), found)


@pytest.mark.parametrize("version", versions(DESCRIBE))
async def test_members_of_plain_topics_pass(version) -> None:
    """As the broker answers."""
    context = FakeContext()
    context.expect(DESCRIBE, None, group(plain=[0, 2]), version=version)

    check(group(plain=[0, 2]), await call(context, DESCRIBE, version, {"group_ids": ["g"]}))
