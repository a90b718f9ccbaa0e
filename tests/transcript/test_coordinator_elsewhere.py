"""Calls of a member at a node that does not serve its group: it is sent to the other one."""

from __future__ import annotations

from typing import Any

import pytest

from keylane.errors import NotCoordinator
from keylane.proxy.apis.shared.refusals import refusing
from keylane.proxy.topics.node_values import Membership, NodeInfo
from keylane.proxy.topics.placement import Placement
from tests.transcript.fake import FakeContext, call, is_relayed, make_request, versions

JOIN, HEARTBEAT, SYNC, OFFSET_FETCH = 11, 12, 14, 9
NOT_COORDINATOR, UNSTABLE = 16, 88
REQUESTS: dict[int, dict[str, Any]] = {
    JOIN: {"group_id": "g", "member_id": "m1", "protocol_type": "consumer", "protocols": []},
    HEARTBEAT: {"group_id": "g", "generation_id": 3, "member_id": "m1"},
    SYNC: {"group_id": "g", "generation_id": 3, "member_id": "m1", "assignments": []},
}
CASES = [(key, version) for key in REQUESTS for version in versions(key)]


def served_by(owner: int) -> FakeContext:
    """Node 0, where all groups are those of `owner`."""
    context = FakeContext()
    context.placement = Placement(0)
    nodes = tuple(NodeInfo(number=number, bootstrap=("h", number)) for number in (0, 1))
    context.placement.update(Membership(generation_id=1, nodes=nodes, owners=(owner,)))
    return context


@pytest.mark.parametrize(("key", "version"), CASES)
async def test_a_member_is_sent_to_the_node_that_serves_its_group(key: int, version: int) -> None:
    """Before it asks for offsets here; the broker is not asked."""
    context = served_by(1)

    assert not is_relayed(context, make_request(key, version, REQUESTS[key]))
    answer = await call(context, key, version, REQUESTS[key])

    assert answer["error_code"] == NOT_COORDINATOR
    context.finish()


@pytest.mark.parametrize(("key", "version"), CASES)
def test_at_its_node_and_at_a_lone_one_it_is_relayed(key: int, version: int) -> None:
    """As bytes; and so it is while no node serves the group."""
    request = make_request(key, version, REQUESTS[key])

    for context in (served_by(0), served_by(-1), FakeContext()):
        context.generations.rounds.joins("g", 0.0)
        assert is_relayed(context, request)


@pytest.mark.parametrize("version", range(7, 10))
async def test_librdkafka_gets_an_error_to_ask_again(version: int) -> None:
    """Any other error leaves its partitions without an offset for good."""
    context = FakeContext()
    context.is_librdkafka = True

    async def refuse(_request: Any, _wanted: Any, _context: Any) -> Any:
        raise NotCoordinator("another node's")

    topics = [{"name": "orders", "partition_indexes": [1, 2]}]
    group = {"group_id": "g", "topics": topics}
    wanted = {"groups": [group]} if version >= 8 else group
    request = make_request(OFFSET_FETCH, version, {**wanted, "require_stable": False})

    buffers = await refusing(refuse)(request, context)

    answer = request.decode_answer(b"".join(buffers))
    reported = answer.groups[0] if version >= 8 else answer
    assert reported.error_code == 0
    entries = [entry for topic in reported.topics for entry in topic.partitions]
    assert [entry.error_code for entry in entries] == [UNSTABLE, UNSTABLE]
    assert {entry.committed_offset for entry in entries} == {-1000}  # "the committed one" to it
