"""One embedded Kafka node: its server properties; format its folder, run it, kill it, run it again.

Source: Kafka documentation, "Broker Configs"; KIP-631 (combined mode).
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from keylane.embedded.child import ChildEnded, GuardedChild
from keylane.embedded.folder_lock import FolderLock
from keylane.embedded.java import java_command
from keylane.errors import KafkaUnavailable

READY_TEXT: Final = "Kafka Server started"
"""Last line of a start: printed once the broker is registered, unfenced and listening."""

SERVER_JVM_ARGS: Final = (
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:MaxMetaspaceSize=256m",
    "-Djava.awt.headless=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=info",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.showThreadName=false",
)

ADDRESS: Final = "127.0.0.1"
"""Address of embedded nodes: an unsecured broker must not be reachable from elsewhere."""

DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # A group of one broker has no rebalance storm to wait for (Kafka's default is 3 s).
        "group.initial.rebalance.delay.ms": "0",
        # Each internal partition costs files and start-up time; Kafka's default is 50.
        "offsets.topic.num.partitions": "5",
        "transaction.state.log.num.partitions": "3",
        "share.coordinator.state.topic.num.partitions": "3",
        # The cleaner reserves this much at start; Kafka's default of 128 MiB is a quarter
        # of the heap given here.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024**2),
        "num.network.threads": "2",
        "num.io.threads": "4",
        # A killed node may register again only when its old session has run out: this is what
        # a restart after kill -9 waits for (Kafka's default is 9 s).
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
)


@dataclass(frozen=True, slots=True)
class ClientListener:
    """One more listener for clients; the first is always PLAINTEXT, for the nodes themselves too.

    How it is secured stands in properties that start with `listener.name.<name in lower case>.`.
    """

    name: str
    """In capitals, such as SECURED."""
    protocol: str
    """SASL_SSL, SSL, SASL_PLAINTEXT or PLAINTEXT."""
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """One node of an embedded cluster: a broker and a controller in one process."""

    node_id: int
    """1, 2, 3: unique in the cluster."""
    folder: Path
    """Holds server.properties, kafka.log and the folder `data`."""
    port: int
    """Port that clients connect to."""
    controller_port: int
    """Port at which the nodes of the cluster agree on metadata."""
    listeners: tuple[ClientListener, ...] = ()
    """Beside the first one."""

    @property
    def address(self) -> str:
        """`host:port` that clients connect to."""
        return f"{ADDRESS}:{self.port}"

    @property
    def properties_path(self) -> Path:
        """The node's `server.properties`."""
        return self.folder / "server.properties"

    @property
    def log_path(self) -> Path:
        """Everything the node's process prints."""
        return self.folder / "kafka.log"

    @property
    def data_path(self) -> Path:
        """Kafka's own `log.dirs`."""
        return self.folder / "data"


class KafkaNode(GuardedChild):
    """A node that can be started and ended many times on the same folder and ports."""

    def __init__(
        self, settings: NodeSettings, *, class_path: str, heap_mb: int, lock: FolderLock
    ) -> None:
        self.settings, self._class_path, self._lock = settings, class_path, lock
        jvm_args = (f"-Xmx{heap_mb}m", f"-Xms{heap_mb // 2}m", *SERVER_JVM_ARGS)
        config = str(settings.properties_path)
        super().__init__(
            java_command(class_path, "kafka.Kafka", config, jvm_args=jvm_args),
            log_path=settings.log_path,
            ready_text=READY_TEXT,
        )

    @property
    def address(self) -> str:
        """`host:port` that clients connect to."""
        return self.settings.address

    def format(self, properties: str, *, cluster_id: str) -> None:
        """Write server.properties and, the first time, the metadata of an empty node.

        Raises:
            KafkaUnavailable: Kafka's storage tool refused the properties.
        """
        self.settings.data_path.mkdir(parents=True, exist_ok=True)
        self.settings.properties_path.write_text(properties)
        if (self.settings.data_path / "meta.properties").exists():
            return
        config = str(self.settings.properties_path)
        command = java_command(
            self._class_path, "kafka-storage", "format", f"--cluster-id={cluster_id}", "-c", config
        )
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode != 0:
            raise KafkaUnavailable(f"cannot format {config}: {done.stdout}{done.stderr}")

    def launch(self, *, inherited: Sequence[int] = ()) -> None:
        """Start the process, which holds the folder's lock; `await_ready` returns when it serves.

        Raises:
            KafkaUnavailable: another process has Kafka running on the folder.
        """
        super().launch(inherited=(*inherited, self._lock.hold()))

    def await_ready(self, deadline_s: float) -> None:
        """Wait until the node serves; `deadline_s` is in time.monotonic's terms.

        Raises:
            KafkaUnavailable: the node ended, or was not ready in time; its last lines follow.
        """
        try:
            super().await_ready(deadline_s)
        except ChildEnded as error:
            raise KafkaUnavailable(f"Kafka on {self.address}: {error}") from error


def build_properties(
    node: NodeSettings, nodes: Sequence[NodeSettings], extra: Mapping[str, str]
) -> str:
    """Text of the `server.properties` of `node` in a cluster of `nodes`; `extra` wins."""
    replication = str(min(3, len(nodes)))
    in_sync_min = str(min(2, len(nodes)))
    clients = (ClientListener("PLAINTEXT", "PLAINTEXT", node.port), *node.listeners)
    addresses = ",".join(f"{each.name}://{ADDRESS}:{each.port}" for each in clients)
    protocols = ",".join(f"{each.name}:{each.protocol}" for each in clients)
    voters = ",".join(f"{other.node_id}@{ADDRESS}:{other.controller_port}" for other in nodes)
    properties = {
        "process.roles": "broker,controller",
        "node.id": str(node.node_id),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{addresses},CONTROLLER://{ADDRESS}:{node.controller_port}",
        "advertised.listeners": addresses,
        "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
        "log.dirs": str(node.data_path),
        "offsets.topic.replication.factor": replication,
        "transaction.state.log.replication.factor": replication,
        "transaction.state.log.min.isr": in_sync_min,
        "share.coordinator.state.topic.replication.factor": replication,
        "share.coordinator.state.topic.min.isr": in_sync_min,
        **DEFAULTS,
        **extra,
    }
    return "".join(f"{key}={value}\n" for key, value in properties.items())
