"""A keylane node in a process of the simulation: the server as it is."""

from __future__ import annotations

import itertools
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

from keylane.config.node import ProxyConfig
from keylane.errors import KeylaneError
from keylane.proxy.nodes.process_mark import Life
from keylane.proxy.server import ProxyServer
from tests.simulation.own_topics import Own, clients
from tests.simulation.world import Process, World
from tests.virtual_time import InlineExecutor

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

PORT = 9000
DESCRIPTORS = 65536
RESTART_S = 1.0
"""Seconds until a supervisor starts a node again that has ended."""


class SimExecutor(InlineExecutor):
    """Stands for a thread pool, with its arguments."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass


@contextmanager
def simulated(world: World, cluster: Cluster) -> Iterator[Own]:
    """The outside world of all processes is `world` within."""
    own = Own(world, cluster)
    stand_ins = clients(own)
    chance = random.Random(world.rng.random())
    real_clock = time.clock_gettime

    def monotonic() -> float:
        return 0.0 if world.current is None else world.current.monotonic()

    def wall() -> float:
        return 0.0 if world.current is None else world.current.wall()

    def which_clock(which: int) -> float:
        if which != time.CLOCK_BOOTTIME:
            return real_clock(which)
        return 0.0 if world.current is None else world.current.boottime()

    def look_up(mark: str) -> Life:
        found = [each for each in world.processes if mark == _mark(each)]
        if not found:
            return Life.UNKNOWN
        if found[0].is_dead:
            return Life.ENDED
        return Life.UNKNOWN if found[0].is_hung else Life.RUNS

    def make_mark() -> str:
        assert world.current is not None
        return _mark(world.current)

    def nothing(*_: Any) -> None:
        pass

    replaced: dict[str, Any] = {
        "time.monotonic": monotonic,
        "time.time": wall,
        "time.clock_gettime": which_clock,
        "uuid.uuid4": lambda: uuid.UUID(int=chance.getrandbits(128)),
        "os.urandom": chance.randbytes,
        "keylane.proxy.session.session._numbers": itertools.count(1),
        "keylane.proxy.lanes.fetcher.ThreadPoolExecutor": SimExecutor,
        "keylane.proxy.runtime.turns.ThreadPoolExecutor": SimExecutor,
        "keylane.proxy.server.warm_up": nothing,
        "keylane.proxy.server.keep_freed_memory": nothing,
        "keylane.proxy.startup.build.raise_limit": lambda: DESCRIPTORS,
        "keylane.proxy.runtime.descriptors.Descriptors.probe": nothing,
        "keylane.proxy.nodes.lone_seat.look_up": look_up,
        "keylane.proxy.nodes.lone_seat.make_mark": make_mark,
        "keylane.proxy.startup.node_parts.make_mark": make_mark,
    }
    replaced |= {
        f"keylane.journal.own_topic.{name}": stand_in for name, stand_in in stand_ins.items()
    }
    patches = [mock.patch(name, new, create=True) for name, new in replaced.items()]
    with ExitStack() as stack:
        for each in patches:
            stack.enter_context(each)
        random.seed(chance.random())
        yield own


def _mark(process: Process) -> str:
    return f"sim:{process.world.processes.index(process)}:1"


class Node:
    """A node that is started again whenever it ends, as by systemd or Kubernetes."""

    def __init__(
        self, world: World, number: int, settings: dict[str, Any], *, rate: float = 1.0
    ) -> None:
        """rate: of its clock."""
        self.world, self.settings, self.rate = world, settings, rate
        self.name, self.host = f"node{number}", f"127.0.1.{number + 1}"
        self.process: Process | None = None
        self.server: ProxyServer | None = None
        self.starts = 0
        self.served_s: list[float] = []
        """Times from which its processes have served."""
        self.is_wanted = True
        self.on_end: Callable[[], None] = lambda: None
        """Called when a process of it ends."""

    def start(self) -> None:
        """A new process, where none runs."""
        self.is_wanted = True
        if self.process is not None and not self.process.is_dead:
            return
        self.starts += 1
        self.process = Process(self.world, self.host, name=self.name, rate=self.rate)
        self.process.spawn(self._run(self.process), f"{self.name} {self.starts}")

    async def _run(self, process: Process) -> None:
        values = {"bootstrap": "kafka1:9092,kafka2:9092,kafka3:9092", **self.settings}
        config = ProxyConfig.model_validate(
            {"listen": f"{self.host}:{PORT}", "memory_max": 2**30, "filter_threads": 1, **values}
        )
        server = self.server = ProxyServer(config)
        try:
            await server.start()
            self.world.report(f"{self.name} serves")
            self.served_s.append(self.world.now_s)
            error: KeylaneError = await server.failure
        except KeylaneError as failure:
            error = failure
        self.world.report(f"{self.name} ends: {error}")
        process.world.after(0.0, self.kill)

    def kill(self) -> None:
        """SIGKILL, and a start a moment later."""
        if self.process is not None and not self.process.is_dead:
            self.process.kill()
            self.on_end()
            self.world.after(RESTART_S, lambda: self.start() if self.is_wanted else None)
