"""JoinGroup v0-9, SyncGroup v0-5 of any group: how long members stand still is noted."""

from __future__ import annotations

import pytest

from keylane.config.node import GroupRule, LaneRule
from keylane.proxy.groups.group_plans import Joined
from tests.transcript.fake import FakeContext, is_relayed, make_request, serve, versions

JOIN, SYNC = 11, 14
LANES = LaneRule(topic="orders", lanes=4)


@pytest.mark.parametrize("join_version", versions(JOIN))
@pytest.mark.parametrize("sync_version", versions(SYNC))
async def test_the_time_from_join_to_sync_is_noted(join_version, sync_version) -> None:
    """Requests of all versions pass untouched, and their group is known."""
    context = FakeContext(LANES)
    join = make_request(JOIN, join_version, {"group_id": "g", "member_id": "m"})
    sync = make_request(SYNC, sync_version, {"group_id": "g", "member_id": "m"})
    other = make_request(SYNC, sync_version, {"group_id": "other", "member_id": "m"})

    assert is_relayed(context, join)
    context.world.now_s += 4.0
    assert is_relayed(context, join)
    context.world.now_s += 2.0
    assert is_relayed(context, sync)
    assert not is_relayed(context, other)  # its answer is looked at for partitions

    assert context.stats.rebalances == 1
    assert (context.stats.rebalance_seconds.count, context.stats.rebalance_seconds.sum) == (1, 6.0)


@pytest.mark.parametrize("api_key", [JOIN, SYNC])
async def test_a_request_without_a_group_passes(api_key) -> None:
    """What cannot be read is the broker's to refuse; nothing is counted."""
    context = FakeContext(LANES)
    request = make_request(api_key, 2, b"\xff\xff")

    assert is_relayed(context, request)

    assert context.stats.rebalances == 0
    assert context.stats.rebalance_seconds.count == 0


async def test_groups_of_the_key_range_assignor_are_noted_too() -> None:
    """A SyncGroup that is served is noted as one that passes."""
    context = FakeContext(LANES, groups=(GroupRule(group="*", assignor="key-range"),))
    join = make_request(JOIN, 5, {"group_id": "g", "member_id": "m"})
    named = {"group_id": "g", "member_id": "m", "generation_id": 1}
    sync = make_request(SYNC, 3, named | {"assignments": [{"member_id": "m", "assignment": b""}]})
    context.generations.note_joined(
        "g", Joined(generation_id=1, leader_id="m", protocol_name="range", members=())
    )

    assert is_relayed(context, join)
    assert not is_relayed(context, sync)
    context.expect(SYNC, bytes(sync.body), {"error_code": 0, "assignment": b""})
    await serve(context, sync)

    assert context.stats.rebalance_seconds.count == 1
