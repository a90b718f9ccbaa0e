"""A made-up world for `NodeGroup`: nodes with clocks of their own, a network, one coordinator.

A node that is hung (SIGSTOP) is not turned, while its clock goes on; what came for it meanwhile is
there when it wakes up. Requests that a node gave up arrive all the same.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any

from kio.index import load_response_schema

from keylane.errors import KeylaneError, UpstreamLost
from keylane.proxy.nodes.gate.seals import NodeTrust
from keylane.proxy.nodes.group import NodeGroup
from keylane.proxy.topics.node_values import Membership, NodeInfo
from keylane.tasks import spawn
from tests.reference.group_coordinator import (
    DESCRIBE_GROUPS,
    LEAVE_GROUP,
    NOT_COORDINATOR,
    GroupTwin,
)
from tests.transcript.entities import build

FIND_COORDINATOR = 10
SESSION_S = 10.0
IC_PARTITIONS = 7
TURNS_MAX = 10_000
STEPS_MAX = 20_000
EPSILON_S = 1e-6


class _NoWait(selectors.DefaultSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(0)


class NodeLoop(asyncio.SelectorEventLoop):
    """A loop that runs only when it is turned, on its node's own clock."""

    def __init__(self, time_s: Callable[[], float]) -> None:
        super().__init__(_NoWait())
        self._time_s = time_s

    def time(self) -> float:
        return self._time_s()

    def next_timer_s(self) -> float | None:
        scheduled = self._scheduled  # type: ignore[attr-defined]  # asyncio keeps it to itself
        timers = [timer.when() for timer in scheduled if not timer.cancelled()]
        return min(timers, default=None)

    def turn(self, check: Callable[[], None]) -> None:
        """Run until nothing is to be done at this moment."""
        for _ in range(TURNS_MAX):
            self.call_soon(self.stop)
            self.run_forever()
            check()
            due_s = self.next_timer_s()
            is_idle = not self._ready  # type: ignore[attr-defined]
            if is_idle and (due_s is None or due_s > self.time()):
                return
        raise AssertionError("a node spins")


class World:
    """Time, the network and the brokers; `nodes` are in it, alive or not."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.nodes: list[Node] = []
        self.coordinator_id = 1
        self.down_until_s = {1: 0.0, 2: 0.0}
        self.store_s = 0.0
        self.group = GroupTwin(self.after, store_s=lambda: self.store_s)
        self.group_answers: list[tuple[Link, Callable[[dict[str, Any]], None]]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self.requests: list[tuple[int, str]] = []
        """What has arrived: node number, request."""
        self._holders: dict[int, tuple[Node, int]] = {}
        self._seen: dict[int, set[tuple[int, int]]] = {p: set() for p in range(IC_PARTITIONS)}

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_s + seconds, next(self._numbers), do))

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        for _ in range(STEPS_MAX):
            for node in self.nodes:
                node.turn()
            times = [self._events[0][0]] if self._events else []
            times += [when for node in self.nodes if (when := node.next_s()) is not None]
            next_s = min(times, default=float("inf"))
            if next_s > end_s:
                break
            self.now_s = max(self.now_s, next_s)
            while self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[2]()
                self.check()
        else:
            raise AssertionError(f"the world spins at {self.now_s:.3f}")
        self.now_s = end_s
        self.check()

    def check(self) -> None:
        """Check that no two nodes hold a partition, and that no term spans another holder's."""
        for partition in range(IC_PARTITIONS):
            holders = [node for node in self.nodes if node.holds(partition)]
            assert len(holders) <= 1, f"{holders} hold {partition} at {self.now_s:.3f}"
            if not holders:
                continue
            holder = (holders[0], holders[0].group.term(partition))
            before = self._holders.get(partition)
            if before == holder:
                continue
            key = (id(holder[0]), holder[1])
            is_again = key in self._seen[partition]
            assert not is_again, f"{holder} spans {before} at {self.now_s:.3f}"
            self._seen[partition].add(key)
            self._holders[partition] = holder

    def move(self, load_s: float) -> None:
        """Make the other broker the coordinator; requests that wait at this one get its error."""
        waiting, self.group_answers = self.group_answers, []
        self.coordinator_id = 3 - self.coordinator_id
        self.group.fail_over(load_s)
        for _, answer in waiting:
            answer({"error_code": NOT_COORDINATOR})

    def crash(self, down_s: float) -> None:
        """The coordinator's broker dies; the other takes over after a while."""
        broker_id = self.coordinator_id
        self.group_answers = []
        self.down_until_s[broker_id] = self.now_s + down_s
        self.coordinator_id = 3 - broker_id
        self.group.fail_over(min(down_s, 1.0))
        for node in self.nodes:
            node.break_links(broker_id)

    def is_up(self, broker_id: int) -> bool:
        return self.now_s >= self.down_until_s[broker_id]

    def arrived(self, link: Link, request: Any, answer: Callable[[dict[str, Any]], None]) -> None:
        """A broker has read a request."""
        if not self.is_up(link.broker_id):
            return
        self.requests.append((link.node.number, type(request).__name__))
        if request.__api_key__ == FIND_COORDINATOR:
            answer({"node_id": self.coordinator_id, "host": "kafka", "port": 1})
        elif link.broker_id != self.coordinator_id:
            answer({"error_code": NOT_COORDINATOR})
        else:
            entry = (link, answer)
            self.group_answers.append(entry)

            def reply(values: dict[str, Any]) -> None:
                if entry in self.group_answers:
                    self.group_answers.remove(entry)
                    answer(values)

            self.group.handle(request.__api_key__, request, reply)

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class Link:
    """Stands for a `ServiceLink`."""

    def __init__(self, node: Node, broker_id: int) -> None:
        self.node, self.broker_id, self.is_open = node, broker_id, True
        self.version_max: dict[int, int] = {}
        self.waiting: asyncio.Future[Any] | None = None

    async def request(self, entity: Any, *, timeout_s: float = 30.0) -> Any:
        if not self.is_open:
            raise UpstreamLost("connection is closed")
        assert self.waiting is None, "one request at a time"
        future = self.waiting = asyncio.get_running_loop().create_future()
        self.node.send(self, entity, future)
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            self.close()
            raise UpstreamLost(
                f"no answer to request {entity.__api_key__} in {timeout_s:g} s"
            ) from None
        finally:
            self.waiting = None

    def close(self) -> None:
        self.is_open = False

    def break_(self) -> None:
        """As the node sees it when its loop runs."""
        self.is_open = False
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(UpstreamLost("closed by the broker"))


class Node:
    """A process with a `NodeGroup`, and all of `Cluster` that this uses."""

    partition_count = IC_PARTITIONS
    cluster_id = "cluster"

    def __init__(
        self, world: World, number: int, *, rate: float = 1.0, secrets: tuple[bytes, ...] = ()
    ) -> None:
        """`rate` is how fast its clock runs; `secrets` may be replaced while it runs."""
        self.secrets, self.strangers = secrets, 0
        self.world, self.number, self.rate = world, number, rate
        self.offset_s = 1000.0 * len(world.nodes)
        self.loop = NodeLoop(self.time)
        self.brokers = {1: None, 2: None}
        self.links: list[Link] = []
        self.is_hung = self.is_dead = self.is_isolated = False
        self.request_s = self.answer_s = 0.001
        self.busy_s = 0.0
        """Time in which calls that have groups in hand end."""
        self.inbox: list[Callable[[], None]] = []
        self.reported: list[Membership] = []
        self.control = ""
        self.outcome: Exception | None = None
        self.is_started = self.is_stopped = False
        asyncio.set_event_loop(None)
        self.group = self.make_group()
        world.nodes.append(self)
        self.loop.call_soon(self._spawn, self._start)

    def make_group(self) -> NodeGroup:
        """Its seat among the nodes."""
        group = NodeGroup(
            self,  # type: ignore[arg-type]  # stands for its Cluster
            session_timeout_ms=round(SESSION_S * 1000),
            describe=lambda: NodeInfo(number=self.number, bootstrap=("h", 1), control=self.control),
            on_membership=self._on_membership,
            clock=self.time,
            trust=NodeTrust(lambda: self.secrets, self._on_stranger),
        )
        group.drain = self._drain
        return group

    async def _drain(self) -> None:
        if self.busy_s:
            await asyncio.sleep(self.busy_s)  # virtual time: what a commit takes

    def _on_stranger(self) -> None:
        self.strangers += 1

    def __repr__(self) -> str:
        return f"node {self.number} ({self.world.nodes.index(self)})"

    def _spawn(self, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        spawn(do(), repr(self))

    async def _start(self) -> None:
        try:
            await self.group.start(self.partition_count)
            self.is_started = True
        except KeylaneError as error:
            self.outcome = error

    def stop(self) -> None:
        async def stop() -> None:
            await self.group.stop()
            self.is_stopped = True

        self.deliver(lambda: self._spawn(stop))

    def _on_membership(self, membership: Membership) -> None:
        if self.reported:
            assert membership.generation_id >= self.reported[-1].generation_id, (
                "an older generation"
            )
        self.reported.append(membership)

    # Time.
    def time(self) -> float:
        return self.offset_s + self.rate * self.world.now_s

    def next_s(self) -> float | None:
        if self.is_hung or self.is_dead:
            return None
        due_s = self.loop.next_timer_s()
        return None if due_s is None else (due_s - self.offset_s) / self.rate + EPSILON_S

    def turn(self) -> None:
        if self.is_hung or self.is_dead:
            return
        inbox, self.inbox = self.inbox, []
        for do in inbox:
            self.loop.call_soon(do)
        self.loop.turn(self.world.check)

    def holds(self, partition: int) -> bool:
        """A hung process holds what it would find that it holds if it woke up now."""
        return not self.is_dead and self.group.holds(partition)

    # The network.
    def send(self, link: Link, entity: Any, future: asyncio.Future[Any]) -> None:
        if self.is_isolated:
            return
        schema = load_response_schema(int(entity.__api_key__), int(entity.__version__))

        def answer(values: dict[str, Any]) -> None:
            if entity.__api_key__ == LEAVE_GROUP:
                values.setdefault("members", [])
            if entity.__api_key__ == DESCRIBE_GROUPS:
                values = {"groups": [values]}
            made = build(schema, values)
            self.world.after(self.answer_s, lambda: arrived_back(made))

        def arrived_back(made: Any) -> None:
            if link.is_open and not self.is_isolated:
                self.deliver(lambda: None if future.done() else future.set_result(made))

        self.world.after(self.request_s, lambda: self.world.arrived(link, entity, answer))

    def deliver(self, do: Callable[[], Any]) -> None:
        self.inbox.append(do)

    def break_links(self, broker_id: int | None = None) -> None:
        for link in self.links:
            if broker_id in {None, link.broker_id} and link.is_open:
                self.deliver(link.break_)

    async def link_to(self, broker_id: int) -> Link:
        await self._travel()
        if not self.world.is_up(broker_id):
            raise UpstreamLost(f"broker {broker_id}: refused")
        self.links = [link for link in self.links if link.is_open]
        self.links.append(Link(self, broker_id))
        return self.links[-1]

    async def refresh(self) -> None:
        await self._travel()

    async def learn_brokers(self, brokers: Any) -> None:
        pass

    async def _travel(self) -> None:
        if self.is_isolated:
            await asyncio.get_running_loop().create_future()  # until the caller gives up
        await asyncio.sleep(self.request_s + self.answer_s)  # virtual time

    # Ends.
    def kill(self) -> None:
        self.is_dead = True

    def close(self) -> None:
        while tasks := asyncio.all_tasks(self.loop):
            for task in tasks:  # again and again: some tidy up first, which takes time
                task.cancel()
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        self.loop.close()
