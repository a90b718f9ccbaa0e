"""Members of the classic protocol and of KIP-848 in one group: neither gets in on lanes."""

from __future__ import annotations

import pytest

from tests.transcript.consumer_protocol import subscription
from tests.transcript.entities import Values
from tests.transcript.fake import FakeContext, call
from tests.transcript.lane_group import (
    DESCRIBE,
    DESCRIBE_CLASSIC,
    beat,
    described,
    not_there,
    partial,
    start,
    takes,
)
from tests.transcript.test_joining import asked, followed, join, led

JOIN, VERSIONS = 11, 18
NONE, INCONSISTENT = 0, 23
LANES, PLAIN = subscription("orders"), subscription("plain")


async def connected(*api_keys: int) -> FakeContext:
    """A client whose broker serves these APIs."""
    context = FakeContext()
    offer = [{"api_key": key, "min_version": 0, "max_version": 4} for key in api_keys]
    context.expect(VERSIONS, None, {"api_keys": offer})
    await call(context, VERSIONS, 3, {"client_software_name": "c", "client_software_version": "1"})
    return context


def is_classic(context: FakeContext, state: str = "Dead") -> None:
    group = {"group_id": "g", "group_state": state}
    context.expect(DESCRIBE_CLASSIC, {"groups": ["g"]}, {"groups": [group]})


async def test_a_classic_member_of_a_group_that_is_served_here() -> None:
    """INCONSISTENT_GROUP_PROTOCOL after one ConsumerGroupDescribe, without a JoinGroup upstream."""
    context = FakeContext()
    await start(context)
    described(context, "a")

    refused = await join(context, asked(LANES))

    assert refused["error_code"] == INCONSISTENT
    assert context.stats.joins_refused == 1


async def test_a_classic_member_after_all_others_have_left() -> None:
    """It gets in: the upgrade's way back."""
    context = FakeContext()
    await start(context)
    takes(context, -1, member_id="a")
    await beat(context, partial("a", -1))
    is_classic(context, "Empty")
    context.expect(JOIN, None, led({"m": LANES}))

    joined = await join(context, asked(LANES))

    assert joined["error_code"] == NONE


@pytest.mark.parametrize("topic", ["orders", "plain.lanes-4"])
async def test_a_group_that_this_node_does_not_know(topic) -> None:
    """The broker is asked, since DescribeGroups has such a group as Dead."""
    context = await connected(JOIN, DESCRIBE)
    is_classic(context)
    described(context, "direct")

    refused = await join(context, asked(subscription(topic)))

    assert refused["error_code"] == INCONSISTENT


@pytest.mark.parametrize("api_keys", [(JOIN,), (JOIN, DESCRIBE)])
async def test_a_group_that_no_protocol_has(api_keys) -> None:
    """The JoinGroup passes; a broker without KIP-848 is not asked for such groups."""
    context = await connected(*api_keys)
    is_classic(context)
    if DESCRIBE in api_keys:
        described(context, error_code=69)
    context.expect(JOIN, None, led({"m": LANES}))

    joined = await join(context, asked(LANES))

    assert joined["error_code"] == NONE


async def test_a_classic_member_of_plain_topics() -> None:
    """It gets in, as direct: the broker's own mixed group."""
    context = FakeContext()
    await start(context)
    values: Values = followed(leader="")
    context.expect(JOIN, None, values)

    joined = await join(context, asked(PLAIN))

    assert joined["error_code"] == NONE


_ = not_there
