"""Several keylane processes in front of one cluster, and a group whose events have times.

In:    the upstream's bootstrap address, lane rules, a folder.  Out: `Nodes`, `TimedGroup`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka.admin import AdminClient

from keylane.embedded import EmbeddedKafka
from keylane.embedded.node import KafkaNode
from tests.integration.harness import Group
from tests.integration.keylane_process import KeylaneProcess

NODE_ID_STEP: Final = 1_000_000
"""A virtual broker id is the node's number times this, plus the broker's id."""


class Nodes:
    """Nodes 0 to count - 1 (one alone has no number); each keeps its ports over restarts."""

    def __init__(
        self,
        upstream: str,
        lanes: Sequence[str],
        *,
        folder: Path,
        count: int,
        args: Sequence[str] = (),
        environments: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Plan the nodes; `start` runs them. Logs are `folder/keylane-N.log`.

        args: of all nodes; environments: of each.
        """
        self.processes = [
            KeylaneProcess(
                upstream,
                lanes,
                log_path=folder / f"keylane-{number}.log",
                args=[*args, *(("--node", str(number)) if count > 1 else ())],
                environment=environments[number] if environments else None,
            )
            for number in range(count)
        ]

    def __getitem__(self, number: int) -> KeylaneProcess:
        return self.processes[number]

    @property
    def bootstrap(self) -> str:
        """Return all nodes' addresses, as a client's list."""
        return ",".join(process.bootstrap for process in self.processes)

    def start(self) -> Self:
        """Start those that do not run, at the same time, and wait until all serve."""
        stopped = [process for process in self.processes if not process.running]
        with ThreadPoolExecutor(len(self.processes)) as pool:
            list(pool.map(KeylaneProcess.start, stopped))
        return self

    def stop(self) -> list[int | None]:
        """SIGTERM to all at the same time; their exit codes."""
        with ThreadPoolExecutor(len(self.processes)) as pool:
            return list(pool.map(KeylaneProcess.stop, self.processes))

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *_: object) -> None:
        self.stop()


class TimedGroup(Group):
    """A group that keeps every event that its members reported, with its time."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, *, log_folder: Path, **options: Any
    ) -> None:
        super().__init__(bootstrap, topic, group, **options)
        self.log_folder = log_folder
        self.reported: list[tuple[float, str, str, Mapping[str, Any]]] = []
        """(monotonic seconds, member, event, its fields), by member in order."""

    def _take(self, name: str, reported: dict[str, Any]) -> None:
        self.reported.append((reported["at_s"], name, reported["event"], reported))
        super()._take(name, dict(reported))


class Brokers:
    """Brokers of an embedded cluster that are killed, hung and stopped one at a time."""

    def __init__(self, cluster: EmbeddedKafka) -> None:
        self.cluster = cluster
        self._hung: set[int] = set()

    def __getitem__(self, place: int) -> KafkaNode:
        return self.cluster.nodes[place]

    def pause(self, place: int) -> None:
        """SIGSTOP: it holds its connections and says nothing."""
        pid = self[place].pid
        assert pid is not None, "the broker does not run"
        os.kill(pid, signal.SIGSTOP)
        self._hung.add(place)

    def is_hung(self, place: int) -> bool:
        """Return whether `pause` was the last that happened to it."""
        return place in self._hung

    def resume(self, place: int) -> None:
        """SIGCONT after `pause`; nothing to do without."""
        pid = self[place].pid
        if place in self._hung and pid is not None:
            os.kill(pid, signal.SIGCONT)
        self._hung.discard(place)

    def resume_all(self) -> None:
        """SIGCONT to all that hang, so that they can be stopped."""
        for place in list(self._hung):
            self.resume(place)


def coordinator_node(bootstrap: str, group: str, *, timeout_s: float = 15.0) -> int:
    """Number of the node that a new client finds as the group's coordinator.

    Raises: KafkaException.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    described = admin.describe_consumer_groups([group], request_timeout=timeout_s)
    coordinator = described[group].result(timeout_s + 1).coordinator
    return int(coordinator.id) // NODE_ID_STEP


def leading_nodes(bootstrap: str, topic: str, *, timeout_s: float = 15.0) -> dict[int, int]:
    """Return the node to which clients are sent for each lane index; -1: none."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    partitions = admin.list_topics(topic, timeout=timeout_s).topics[topic].partitions
    return {
        index: each.leader // NODE_ID_STEP if each.leader >= 0 else -1
        for index, each in partitions.items()
    }
