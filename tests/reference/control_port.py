"""A control port on a real socket, with settings in memory and made-up topics and groups."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from types import SimpleNamespace
from typing import Any

from keylane.config.node import LaneRule, ProxyConfig
from keylane.config.origins import LoadedConfig, Origin
from keylane.config.security import SecurityConfig
from keylane.errors import UpstreamLost
from keylane.proxy.control.api.actions import ActionHandlers
from keylane.proxy.control.api.assignments import ClusterTopics
from keylane.proxy.control.api.config import ConfigHandlers
from keylane.proxy.control.api.drains import DrainHandlers
from keylane.proxy.control.api.operations import ControlOperation
from keylane.proxy.control.auth import ControlGuard
from keylane.proxy.control.describe import GroupReport
from keylane.proxy.control.door import ControlDoor, make_door
from keylane.proxy.control.health import Health
from keylane.proxy.control.holders import read_holding
from keylane.proxy.control.live_feed import LiveFeed
from keylane.proxy.control.metrics import Exposition
from keylane.proxy.control.server import Access, ControlServer, Shown
from keylane.proxy.control.topics import TopicDescriber
from keylane.proxy.groups.group_plans import NOTHING_HELD
from keylane.proxy.net.security.tls_listener import TlsDoor
from keylane.proxy.runtime.stats import ProxyStats
from keylane.proxy.scans.loads import LaneLoads
from keylane.proxy.topics.range_table import Assignment, RangeTable, RangeTableHolder
from keylane.proxy.topics.registry import TopicRegistry
from keylane.proxy.topics.settings_store import SettingsStore
from keylane.proxy.topics.switches import SwitchBoard, Switches
from tests.reference.control_actions import FakeActions, FakeNode
from tests.reference.overview import FakeOverview

Action = tuple[str, str | None]
"""A sentence, and the group that it is about."""
CONNECTIONS_MAX = 256
TOPICS = {"orders": 3, "shop": 2, "quiet": 1}


class MemoryStore(SettingsStore):
    """Keeps settings in memory, in the place of their topic."""

    def __init__(self, assignments: RangeTableHolder, switches: SwitchBoard) -> None:
        self.assignments, self.switches = assignments, switches
        self.failure: Exception | None = None
        self.before_change: Callable[[], object] = lambda: None
        """Called when a change is about to be decided: what another node does meanwhile."""

    async def change_assignments(
        self, decide: Callable[[RangeTable], Mapping[str, Assignment | None]]
    ) -> RangeTable:
        self._begin()
        changes = decide(self.assignments.table)
        if changes:
            self.assignments.table = self.assignments.table.with_clients(changes)
        return self.assignments.table

    async def change_switches(self, decide: Callable[[Switches], Switches]) -> Switches:
        self._begin()
        self.switches.current = decide(self.switches.current)
        return self.switches.current

    def _begin(self) -> None:
        self.before_change()
        if self.failure is not None:
            raise self.failure


class FakeTopics(ClusterTopics):
    """Made-up topics, in the place of a cluster's."""

    def __init__(self) -> None:
        self.is_down = False

    async def partition_count(self, topic: str, *, at_least: int) -> int | None:
        if self.is_down:
            raise UpstreamLost("no broker can be reached")
        return TOPICS.get(topic)

    def is_lane_name(self, topic: str) -> bool:
        return ".lanes-" in topic


class FakeDescriber:
    """Stands for `GroupDescriber`: one group is known, one cannot be asked for."""

    def __init__(self) -> None:
        self.open_shares: set[str] = set()
        """Share groups with open partitions at this node."""
        self.shares = SimpleNamespace(is_open=self.open_shares.__contains__)

    async def describe(self, group: str) -> GroupReport | None:
        if group == "unreachable":
            raise UpstreamLost("no broker can be reached")
        if group != "billing":
            return None
        return GroupReport(
            group=group,
            state="Stable",
            assignor="range",
            coordinator=1,
            generation_id=None,
            refusal=None,
            members=(),
            lanes=(),
        )


class ControlPort:
    """A control port and what stands behind it."""

    counted = 0
    """Times that the groups of all topics were counted."""

    def __init__(
        self,
        *,
        guard: ControlGuard | None = None,
        door: TlsDoor | None = None,
        connections: ControlDoor | None = None,
        **config: Any,
    ) -> None:
        lanes = (LaneRule(topic="orders", lanes=4),)
        settings = {"lanes": lanes, "accept_range_fetch": ("shop",), **config}
        self.config = ProxyConfig(bootstrap="kafka:9092", **settings)
        self.switches = SwitchBoard(self.config)
        self.assignments = RangeTableHolder()
        self.store = MemoryStore(self.assignments, self.switches)
        self.topics = FakeTopics()
        self.health = Health()
        describer: Any = FakeDescriber()
        self.open_shares, self.nodes = describer.open_shares, dict[str, str]()
        """Share groups with open partitions here; control ports of other nodes, by the group."""
        self.actions, self.node, self.noted = FakeActions(), FakeNode(), list[Action]()
        """Groups and a node to act on, and the actions that were published."""
        stats, self.overview = ProxyStats(), FakeOverview()
        registry = self.registry = TopicRegistry(
            settings["lanes"], lane_name_pattern="{topic}.lanes-{lanes}"
        )
        for name, count in TOPICS.items():
            registry.learn(name, uuid.uuid5(uuid.NAMESPACE_DNS, name), count)
        self.misplaced: dict[int, int] = {}
        self.groups: dict[str, Any] = {}
        """Descriptions by group, as brokers give them; an error is raised. All but a `stranger`
        have offsets of the topic."""
        self.places = TopicDescriber(
            registry,
            self.topics,
            misplaced=lambda _: self.misplaced,
            loads=LaneLoads(time.monotonic),
            groups=lambda _: {name: name != "stranger" for name in self.groups},
            group_counts=self._group_counts,
            ask=self._ask,
        )
        self.server = ControlServer(
            "127.0.0.1:0",
            Shown(
                Exposition([stats.samples]),
                self.health,
                describer,
                self.places,
                LiveFeed(describer, LaneLoads(time.monotonic), stats, views=list, groups=list),
                self.overview.make(),
            ),
            self.store,
            self.topics,
            elsewhere=self.nodes.get,
            more=self._more(),
            access=Access(
                guard=guard or ControlGuard(SecurityConfig()),
                door=door,
                connections=connections or _wide_door(stats),
            ),
        )

    def _more(self) -> list[ControlOperation]:
        """Operations of parts that the server knows nothing of."""
        loaded = LoadedConfig(self.config, {"bootstrap": Origin("flag", "--bootstrap")})
        note = lambda text, group: self.noted.append((text, group))  # noqa: E731
        return [
            *ConfigHandlers(loaded, self.config, self.switches).operations(),
            *ActionHandlers(self.actions, elsewhere=self.nodes.get, note=note).operations(),
            *DrainHandlers(self.node, note).operations(),
        ]

    def _group_counts(self) -> dict[uuid.UUID, int]:
        self.counted += 1
        count = sum(name != "stranger" for name in self.groups)
        return {uuid.uuid5(uuid.NAMESPACE_DNS, name): count for name in TOPICS}

    async def _ask(self, group: str) -> Any:
        described = self.groups[group]
        if isinstance(described, Exception):
            raise described
        return read_holding(described, NOTHING_HELD, self.registry).owners, described.members

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{self.server.scheme}://{self.server.address}"


def _wide_door(stats: ProxyStats) -> ControlDoor:
    return make_door(stats, connections_max=CONNECTIONS_MAX, per_address_max=CONNECTIONS_MAX)


@asynccontextmanager
async def control_port(**config: Any) -> AsyncIterator[ControlPort]:
    """A port that is open inside the block."""
    port = ControlPort(**config)
    await port.server.start()
    try:
        yield port
    finally:
        await port.server.stop()


@contextmanager
def control_port_in_thread(**config: Any) -> Iterator[ControlPort]:
    """As `control_port`, for clients that block."""
    ready, stop = threading.Event(), asyncio.Event()
    ports: list[ControlPort] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        try:
            async with control_port(**config) as port:
                ports.append(port)
                ready.set()
                await stop.wait()
        finally:
            ready.set()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # ends what is left of tasks
            runner.run(serve())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert ready.wait(60) and ports, "the port opens"
        yield ports[0]
    finally:
        with suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(stop.set)
        thread.join(60)
