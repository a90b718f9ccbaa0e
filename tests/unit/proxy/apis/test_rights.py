"""proxy/apis/shared/rights.py: how long the broker's word counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.metadata.v9.response import MetadataResponse

from keylane.errors import UpstreamLost
from keylane.proxy.apis.shared.context import Context
from keylane.proxy.apis.shared.request import Operation
from keylane.proxy.apis.shared.rights import ClientRights
from keylane.proxy.runtime.turns import Turns
from tests.transcript.entities import build
from tests.transcript.fake import FakeContext
from tests.virtual_time import run_virtual

TTL_S = 10.0
NOTHING = -(2**31)
"""What brokers send for "not asked" and beside an error."""


class World:
    """The broker's answer, and the clock."""

    def __init__(self, *operations: Operation, error_code: int = 0) -> None:
        self.asked, self.now_s = 0, 0.0
        self.view = FakeContext().lanes("orders")
        self.rights = ClientRights(self.ask, ttl_s=TTL_S, clock=lambda: self.now_s)
        self.say(*operations, error_code=error_code)

    def say(self, *operations: Operation, error_code: int = 0) -> None:
        bits = sum(1 << operation for operation in operations) if operations else NOTHING
        self.topic = {
            "name": "orders",
            "error_code": error_code,
            "topic_authorized_operations": bits,
        }

    async def ask(self, entity: Any) -> Any:
        self.asked += 1
        assert entity.include_topic_authorized_operations
        assert [topic.name for topic in entity.topics] == ["orders"]
        return build(MetadataResponse, {"topics": [self.topic]})

    async def error(self, operation: Operation = Operation.READ) -> int:
        return await self.rights.topic_error(self.view, operation)


async def test_one_question_for_all_operations() -> None:
    """READ and DESCRIBE, and none of the others."""
    world = World(Operation.READ, Operation.DESCRIBE)

    found = [await world.error(operation) for operation in Operation]

    assert dict(zip(Operation, found, strict=True)) == {
        Operation.READ: 0,
        Operation.WRITE: 29,
        Operation.DELETE: 29,
        Operation.ALTER: 29,
        Operation.DESCRIBE: 0,
    }
    assert world.asked == 1


async def test_a_revoked_right_ends_with_the_bound() -> None:
    """At the very moment, and not before."""
    world = World(Operation.READ)
    assert await world.error() == 0
    world.say(Operation.DESCRIBE)

    world.now_s = TTL_S - 0.001
    before = await world.error()
    world.now_s = TTL_S

    assert (before, await world.error()) == (0, 29)


async def test_a_bound_of_zero_asks_every_time() -> None:
    """A bound for a user that wants changes to count at once."""
    world = World(Operation.READ)
    world.rights = ClientRights(world.ask, ttl_s=0.0, clock=lambda: 0.0)

    for _ in range(3):
        await world.error()

    assert world.asked == 3


async def test_a_topic_that_is_not_shown() -> None:
    """Not even DESCRIBE, whatever the bits; remembered as well."""
    world = World(*Operation, error_code=29)

    found = [await world.error(operation) for operation in Operation]

    assert (found, world.asked) == ([29] * len(Operation), 1)


@pytest.mark.parametrize("error_code", [3, 5])
async def test_an_error_that_passes(error_code) -> None:
    """A broker whose metadata lags is asked again, and nothing is allowed meanwhile."""
    world = World(Operation.READ)
    assert await world.error() == 0
    world.now_s = TTL_S
    world.say(*Operation, error_code=error_code)

    assert await world.error() == error_code
    world.say(Operation.READ)
    assert await world.error() == 0


async def test_a_broker_that_is_lost() -> None:
    """Nothing is allowed then."""
    world = World(Operation.READ)

    async def lost(_: Any) -> Any:
        raise UpstreamLost("gone")

    world.rights = ClientRights(lost, ttl_s=TTL_S, clock=lambda: 0.0)

    with pytest.raises(UpstreamLost):
        await world.error()


class GroupWorld:
    """A broker that allows some operations on the group, and the clock."""

    def __init__(self, *allowed: Operation) -> None:
        self.allowed, self.asked, self.now_s = set(allowed), [], 0.0  # type: ignore[var-annotated]
        self.rights = ClientRights(self.ask, ttl_s=TTL_S, clock=lambda: self.now_s)

    async def ask(self, entity: Any) -> Any:
        operation = OF_API[int(entity.__api_key__)]
        self.asked.append(operation)
        assert entity.group_id == "g" and not getattr(entity, "topics", ())
        code = 25 if operation is Operation.READ else 0  # UNKNOWN_MEMBER_ID
        return SimpleNamespace(error_code=code if operation in self.allowed else 30)


OF_API = {12: Operation.READ, 9: Operation.DESCRIBE, 47: Operation.DELETE}


@pytest.mark.parametrize("operation", OF_API.values())
async def test_a_right_to_a_group_is_remembered_for_a_time(operation) -> None:
    """By operation; what the broker says besides is no refusal."""
    world = GroupWorld(operation)
    for now_s in (0.0, TTL_S - 0.1, TTL_S):
        world.now_s = now_s
        assert await world.rights.group_error("g", operation) == 0

    assert world.asked == [operation] * 2


async def test_a_refused_group_is_asked_about_each_time() -> None:
    """So that a right that is granted counts at once."""
    world = GroupWorld()
    assert [await world.rights.group_error("g", Operation.READ) for _ in range(2)] == [30, 30]
    world.allowed.add(Operation.READ)

    assert await world.rights.group_error("g", Operation.READ) == 0
    assert len(world.asked) == 3


class Cluster:
    """What the broker says of the cluster, and the clock."""

    def __init__(self, operations: int) -> None:
        self.operations, self.asked, self.now_s = operations, 0, 0.0
        self.rights = ClientRights(self.ask, ttl_s=TTL_S, clock=lambda: self.now_s)

    async def ask(self, entity: Any) -> Any:
        self.asked += 1
        assert entity.include_cluster_authorized_operations and not entity.topics
        return build(MetadataResponse, {"cluster_authorized_operations": self.operations})


@pytest.mark.parametrize(
    ("operations", "may"),
    [
        (NOTHING, False),
        (0, False),
        (1 << Operation.DESCRIBE, False),
        (1 << Operation.ALTER, True),
        (0b1111_1111_1111_0, True),
    ],
)
async def test_the_right_to_alter_the_cluster(operations: int, may: bool) -> None:
    """The right itself: without DESCRIBE on the cluster a broker says 0."""
    assert await Cluster(operations).rights.may_alter_cluster() is may


async def test_the_right_to_the_cluster_is_remembered_as_long_as_others() -> None:
    """And asked for again then."""
    world = Cluster(1 << Operation.ALTER)
    assert await world.rights.may_alter_cluster()
    world.operations, world.now_s = 0, TTL_S - 1
    assert await world.rights.may_alter_cluster()
    assert world.asked == 1

    world.now_s = TTL_S
    assert not await world.rights.may_alter_cluster()


def test_a_fetch_does_not_wait_for_a_broker_that_hangs() -> None:
    """What is remembered is answered at once; else the client looks for the leader anew."""

    async def main() -> None:
        loop, world = asyncio.get_running_loop(), World(Operation.READ)
        context = Context.__new__(Context)
        context._rights, context._turns = world.rights, Turns()
        assert await context.fetch_error(world.view) == 0

        async def hang(_entity: Any) -> Any:
            await asyncio.Event().wait()

        world.rights._ask = hang
        assert await context.fetch_error(world.view) == 0 and loop.time() == 0
        world.now_s = TTL_S

        assert await context.fetch_error(world.view) == 6
        assert loop.time() == pytest.approx(10)

    run_virtual(main)
