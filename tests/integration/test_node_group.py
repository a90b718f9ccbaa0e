"""Nodes in a real Kafka's group: owners, as nodes see them and as Kafka's own tools show them."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from keylane.config.node import ProxyConfig
from keylane.embedded import EmbeddedKafka
from keylane.errors import ConfigInvalid, UpstreamLost
from keylane.offsets.records.journal import TOPIC_NAME
from keylane.proxy.cluster.cluster import Cluster
from keylane.proxy.nodes.group import NodeGroup
from keylane.proxy.topics.node_values import GROUP, Membership, NodeInfo
from keylane.tasks import spawn

from .conftest import JavaTools

PARTITIONS = 10
SESSION_MS = 6000
"""The least that brokers allow unless configured otherwise."""
PATIENCE_S = 60.0


class Node:
    """A `NodeGroup` with its own connections, as a process would have."""

    def __init__(self, bootstrap: str, number: int, *, port: int = 0) -> None:
        self.number = number
        self.control = ""
        self.reported: list[Membership] = []
        self.cluster = Cluster(ProxyConfig(bootstrap=bootstrap))
        self.port = port or 9000 + number
        self.group = NodeGroup(
            self.cluster,
            session_timeout_ms=SESSION_MS,
            describe=lambda: NodeInfo(
                number=number, bootstrap=("node", self.port), control=self.control
            ),
            on_membership=self.reported.append,
        )

    async def start(self) -> Node:
        await self.cluster.start()
        await self.group.start(PARTITIONS)
        return self

    async def stop(self) -> None:
        await self.group.stop()
        self.cluster.stop()

    def held(self) -> list[int]:
        return [p for p in range(PARTITIONS) if self.group.holds(p)]


Start = Callable[..., Awaitable[Node]]


@pytest.fixture
async def start(own_broker: EmbeddedKafka) -> AsyncIterator[Start]:
    """Starts nodes in front of a broker of the test's own; they stop with the test."""
    async with AsyncExitStack() as stack:

        async def begin(number: int, *, port: int = 0) -> Node:
            node = Node(own_broker.bootstrap, number, port=port)
            stack.push_async_callback(node.stop)
            return await node.start()

        yield begin


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for Kafka to have brought something about."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - Kafka has no event for it
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not in {PATIENCE_S:g} s: {what}") from None


def share(*nodes: Node) -> Callable[[], bool]:
    """Return whether they hold everything between them, each about as much."""

    def shared() -> bool:
        held = [node.held() for node in nodes]
        sizes = [len(partitions) for partitions in held]
        everything = sorted(p for partitions in held for p in partitions)
        return everything == list(range(PARTITIONS)) and max(sizes) - min(sizes) <= 1

    return shared


async def test_nodes_join_and_leave(start, own_broker, java: JavaTools) -> None:
    """Three share all, Kafka's tool shows the same; one leaves, and gives only its own away."""
    a, b, c = [await start(number) for number in range(3)]
    await until(share(a, b, c), "all is shared")
    membership = c.group.membership
    assert membership is not None
    assert [node.bootstrap for node in membership.nodes] == [("node", 9000 + n) for n in range(3)]

    arguments = ("--bootstrap-server", own_broker.bootstrap, "--describe", "--group", GROUP)
    described = await asyncio.to_thread(
        java.run, "kafka-consumer-groups", *arguments, "--members", "--verbose"
    )
    listed = re.findall(re.escape(TOPIC_NAME) + r"[:(]([\d,]+)", described.stdout)
    shown = {frozenset(int(p) for p in partitions.split(",")) for partitions in listed}
    assert shown == {frozenset(node.held()) for node in (a, b, c)}, described.stdout

    before = {p: node.group.term(p) for node in (a, c) for p in node.held()}
    await b.stop()
    await until(share(a, c), "what the third had is shared")
    after = {p: node.group.term(p) for node in (a, c) for p in node.held()}
    assert {p: after[p] for p in before} == before


async def test_a_number_that_is_taken_is_refused(start) -> None:
    """With both addresses; the one that was there goes on."""
    a = await start(7)

    with pytest.raises(ConfigInvalid, match=r"node: 7 is .* node:9007; .* node:9999"):
        await start(7, port=9999)

    await until(share(a), "the first has it all again")


async def test_a_node_that_hangs_loses_its_share(start) -> None:
    """It stops by itself before the others take over; once awake it joins as a new member."""
    a, b = await start(0), await start(1)
    await until(share(a, b), "all is shared")
    mine, terms = b.held(), {b.group.term(p) for p in b.held()}
    hung = asyncio.Event()

    async def hang(*_args: object, **_options: object) -> object:
        await hung.wait()
        raise UpstreamLost("awake")

    heartbeat = b.group._coordinator.heartbeat
    b.group._coordinator.heartbeat = hang
    while not set(a.held()) & set(mine):
        assert not (set(a.held()) & set(b.held()))
        await asyncio.sleep(0.005)
    assert not b.held()
    await until(share(a), "the one that is awake has it all")

    b.group._coordinator.heartbeat = heartbeat
    hung.set()
    await until(share(a, b), "all is shared again")

    assert not terms & {b.group.term(p) for p in b.held()}


async def test_a_node_that_is_killed_and_comes_back_disturbs_no_other(start, caplog) -> None:
    """It joins when Kafka has given its dead self up; no generation is made before that."""
    caplog.set_level(logging.INFO, logger="keylane.nodes")
    a, b = await start(0), await start(1)
    await until(share(a, b), "all is shared")
    mine, generations = a.held(), len(a.reported)

    task = b.group._task
    assert task is not None
    task.cancel()  # as kill -9: it does not leave, and sends nothing any more
    coming = spawn(start(1), "node that comes back")

    await until(lambda: "is waited for node=1" in caplog.text, "it has seen itself")
    assert a.held() == mine and len(a.reported) == generations
    back = await coming
    await until(share(a, back), "all is shared again")
    numbers = [[node.number for node in reported.nodes] for reported in a.reported[generations:]]
    assert numbers in ([[0, 1]], [[0], [0, 1]])


async def test_a_changed_node_address_reaches_the_others(start) -> None:
    """A new control address of one node is known to the others."""
    a, b = await start(0), await start(1)
    b.control = "10.0.0.1:9644"

    b.group.rejoin()

    def is_reported() -> bool:
        last = a.reported[-1].node(1)
        return last is not None and last.control == b.control

    await until(is_reported, "the other knows")
    await until(share(a, b), "all is shared")


async def test_a_broker_that_restarts_is_joined_again(start, own_broker) -> None:
    """The group is in its log: the nodes come back as the members that they were, or as new."""
    a, b = await start(0), await start(1)
    await until(share(a, b), "all is shared")

    await asyncio.to_thread(own_broker.kill)
    await until(lambda: not a.held() and not b.held(), "leases are over")
    await asyncio.to_thread(own_broker.start)

    await until(share(a, b), "all is shared again")


async def test_a_session_that_brokers_do_not_allow(own_broker) -> None:
    """The key to change is named."""
    cluster = Cluster(ProxyConfig(bootstrap=own_broker.bootstrap))
    await cluster.start()
    group = NodeGroup(
        cluster,
        session_timeout_ms=1000,
        describe=lambda: NodeInfo(number=0, bootstrap=("node", 1)),
        on_membership=lambda _membership: None,
    )

    with pytest.raises(ConfigInvalid, match="node_session_timeout_ms"):
        await group.start(PARTITIONS)

    cluster.stop()
